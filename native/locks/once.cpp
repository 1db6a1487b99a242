#include "locks/once.hpp"

#include <algorithm>
#include <vector>

namespace hangtrace::locks {

namespace {

constexpr std::string_view once_function = "pthread_once";
constexpr std::string_view guard_function = "__cxa_guard_acquire";
constexpr std::size_t largest_frame = 8192;  // bytes of stack searched for the object

bool holds(const FrameHint& frame, Address word, const memory::Reader& reader) {
  if (frame.stack_begin == 0 || frame.stack_end <= frame.stack_begin) {
    return false;
  }
  std::vector<std::uint64_t> words(std::min<std::size_t>(frame.stack_end - frame.stack_begin, largest_frame) /
                                   sizeof(std::uint64_t));
  return reader.read(frame.stack_begin, std::as_writable_bytes(std::span(words))) &&
         std::ranges::find(words, word) != words.end();
}

// pthread_once keeps its argument on its stack for its cancellation handler, which makes the object as if it
// had never been called (nptl/pthread_once.c, clear_once_control).
bool runs_once(const StackOf& thread, Address object, const memory::Reader& reader) {
  for (std::size_t i = 1; i < thread.frames.size(); ++i) {
    const FrameHint& frame = thread.frames[i];
    if (frame.function.find(once_function) != frame.function.npos && holds(frame, object, reader)) {
      return true;
    }
  }
  return false;
}

bool is_inside(const StackOf& thread, const FrameHint& function) {
  const std::span<const FrameHint> callers =
      thread.frames.subspan(std::min<std::size_t>(1, thread.frames.size()));
  return std::ranges::any_of(callers, [&function](const FrameHint& frame) {
    return frame.function == function.function && frame.module == function.module;
  });
}

}  // namespace

void find_initialiser(Lock& lock, std::span<const FrameHint> waiter, std::span<const StackOf> others,
                      const memory::Reader& reader) {
  const auto guard = std::ranges::find_if(
      waiter, [](const FrameHint& frame) { return frame.function.starts_with(guard_function); });
  const bool is_guard = guard != waiter.end();
  if (is_guard && (guard + 1 == waiter.end() || (guard + 1)->function.empty())) {
    return;
  }
  const StackOf* found = nullptr;
  for (const StackOf& thread : others) {
    if (thread.waits_for != nullptr && thread.waits_for->call.word == lock.call.word) {
      continue;
    }
    if (is_guard ? !is_inside(thread, *(guard + 1)) : !runs_once(thread, lock.address, reader)) {
      continue;
    }
    if (found != nullptr) {
      return;
    }
    found = &thread;
  }
  if (found != nullptr) {
    lock.owner = found->tid;
    lock.owner_from = is_guard ? "frame of the function that initialises it" : "frame of pthread_once";
  }
}

}  // namespace hangtrace::locks
