#include "locks/musl.hpp"

namespace hangtrace::locks::musl {

namespace {

constexpr std::int32_t most_waiters = 1 << 20;

}  // namespace

std::optional<Mutex> mutex_at(const FutexCall& call, const memory::Reader& reader) {
  if (call.word < mutex_word) {
    return std::nullopt;
  }
  const auto mutex = reader.read_value<Mutex>(call.word - mutex_word);
  constexpr int known = mutex_type_mask | mutex_robust | mutex_priority_inherit | mutex_shared;
  const bool fits = mutex && (mutex->type & ~known) == 0 &&
                    (mutex->type & mutex_type_mask) != mutex_type_mask && mutex->waiters >= 0 &&
                    mutex->waiters <= most_waiters && ((mutex->type & mutex_shared) == 0) == call.is_private;
  return fits ? mutex : std::nullopt;
}

bool is_linked(const Mutex& mutex, Address address, const memory::Reader& reader) {
  const auto pointer = reader.read_value<std::uint64_t>(mutex.previous);
  return pointer == address + offsetof(Mutex, next);
}

std::optional<Thread> joined_at(const FutexCall& call, const memory::Reader& reader) {
  if (call.word < thread_word || call.expected == 0 || call.expected > detach_state_joinable) {
    return std::nullopt;
  }
  const Address base = call.word - thread_word;
  const auto thread = reader.read_value<Thread>(base);
  if (!thread || thread->self != base || thread->tid <= 0) {
    return std::nullopt;
  }
  // The list of all threads: its neighbour points back.
  const auto back = reader.read_value<std::uint64_t>(thread->next + offsetof(Thread, previous));
  return back == base ? thread : std::nullopt;
}

}  // namespace hangtrace::locks::musl
