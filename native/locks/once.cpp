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

using Frames = std::span<const FrameHint>;

bool is_once(const FrameHint& frame) {
  return frame.function.find(once_function) != frame.function.npos;
}

// The frames further out than the call in which a thread waits itself: its innermost frames of that name.
Frames outside_wait(Frames frames) {
  auto at = std::ranges::find_if(frames, is_once);
  while (at != frames.end() && is_once(*at)) {
    ++at;
  }
  return Frames(at, frames.end());
}

// pthread_once keeps its argument on its stack for its cancellation handler, which makes the object as if it
// had never been called (nptl/pthread_once.c, clear_once_control).
bool runs_once(Frames frames, Address object, const memory::Reader& reader) {
  return std::ranges::any_of(
      frames, [&](const FrameHint& frame) { return is_once(frame) && holds(frame, object, reader); });
}

bool is_same_function(const FrameHint& one, const FrameHint& other) {
  return one.function == other.function && one.module == other.module;
}

bool is_inside(Frames frames, const FrameHint& function) {
  return std::ranges::any_of(frames.subspan(std::min<std::size_t>(1, frames.size())),
                             [&](const FrameHint& frame) { return is_same_function(frame, function); });
}

// Whether a thread that waits for a local variable of `frames.front()` is itself further out in the
// initialisation of it. A function that calls itself before it comes to the variable is not: it goes on
// before the call that asks for it, not behind.
bool comes_again(Frames frames) {
  return !frames.empty() && frames.front().pc != 0 &&
         std::ranges::any_of(frames.subspan(1), [&](const FrameHint& frame) {
           return is_same_function(frame, frames.front()) && frame.pc > frames.front().pc;
         });
}

}  // namespace

void find_initialiser(Lock& lock, std::span<const FrameHint> waiter, std::span<const StackOf> others,
                      const memory::Reader& reader) {
  const auto is_guard_call = [](const FrameHint& frame) {
    return frame.function.starts_with(guard_function);
  };
  const auto guard = std::ranges::find_if(waiter, is_guard_call);
  const bool is_guard = guard != waiter.end();
  if (is_guard && (guard + 1 == waiter.end() || (guard + 1)->function.empty())) {
    return;
  }
  const auto initialises = [&](const StackOf& thread) {
    const bool waits = thread.waits_for != nullptr && thread.waits_for->call.word == lock.call.word;
    if (!is_guard) {
      return runs_once(waits ? outside_wait(thread.frames)
                             : thread.frames.subspan(std::min<std::size_t>(1, thread.frames.size())),
                       lock.address, reader);
    }
    if (!waits) {
      return is_inside(thread.frames, *(guard + 1));
    }
    const auto own = std::ranges::find_if(thread.frames, is_guard_call);
    return own != thread.frames.end() && comes_again(Frames(own + 1, thread.frames.end()));
  };
  const StackOf* found = nullptr;
  for (const StackOf& thread : others) {
    if (!initialises(thread)) {
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
