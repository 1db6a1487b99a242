#include "locks/primitive.hpp"

#include <algorithm>
#include <array>

namespace hangtrace::locks {

namespace {

constexpr std::size_t search_depth =
    6;  // the C library's own frames above the kernel, and one or two wrappers
constexpr std::size_t refine_depth = 4;  // from the C library's primitive to who built something on it

enum class Match { prefix, anywhere };

struct Rule {
  std::string_view text;
  Match match;
  Primitive primitive;
};

// Names of glibc come with and without leading underscores and __GI_, so they are searched for anywhere.
constexpr std::array primitives{
    Rule{"lll_lock_wait", Match::anywhere, Primitive::low_level_lock},
    Rule{"pthread_mutex_lock", Match::anywhere, Primitive::mutex},
    Rule{"pthread_mutex_timedlock", Match::anywhere, Primitive::mutex},
    Rule{"pthread_mutex_clocklock", Match::anywhere, Primitive::mutex},
    Rule{"pthread_mutex_cond_lock", Match::anywhere, Primitive::mutex},
    Rule{"pthread_cond_wait", Match::anywhere, Primitive::condition},
    Rule{"pthread_cond_timedwait", Match::anywhere, Primitive::condition},
    Rule{"pthread_cond_clockwait", Match::anywhere, Primitive::condition},
    Rule{"pthread_rwlock_rdlock", Match::anywhere, Primitive::rwlock_read},
    Rule{"pthread_rwlock_timedrdlock", Match::anywhere, Primitive::rwlock_read},
    Rule{"pthread_rwlock_clockrdlock", Match::anywhere, Primitive::rwlock_read},
    Rule{"pthread_rwlock_wrlock", Match::anywhere, Primitive::rwlock_write},
    Rule{"pthread_rwlock_timedwrlock", Match::anywhere, Primitive::rwlock_write},
    Rule{"pthread_rwlock_clockwrlock", Match::anywhere, Primitive::rwlock_write},
    Rule{"pthread_join", Match::anywhere, Primitive::join},
    Rule{"pthread_timedjoin", Match::anywhere, Primitive::join},
    Rule{"pthread_clockjoin", Match::anywhere, Primitive::join},
    Rule{"sem_wait", Match::anywhere, Primitive::semaphore},
    Rule{"sem_timedwait", Match::anywhere, Primitive::semaphore},
    Rule{"sem_clockwait", Match::anywhere, Primitive::semaphore},
    Rule{"pthread_barrier_wait", Match::anywhere, Primitive::barrier},
    Rule{"pthread_once", Match::anywhere, Primitive::once},
    Rule{"__cxa_guard_acquire", Match::prefix, Primitive::once},
    Rule{"std::__atomic_futex_unsigned_base", Match::prefix, Primitive::future},
    Rule{"void std::__detail::__platform_wait", Match::prefix, Primitive::atomic},
    Rule{"std::__detail::__platform_wait", Match::prefix, Primitive::atomic},
    Rule{"std::__1::__libcpp_atomic_wait", Match::prefix, Primitive::atomic},
    Rule{"std::__1::__cxx_atomic_wait", Match::prefix, Primitive::atomic},
    Rule{"gomp_", Match::prefix, Primitive::openmp},
    Rule{"GOMP_", Match::prefix, Primitive::openmp},
    Rule{"__kmp_", Match::prefix, Primitive::openmp},
    Rule{"take_gil", Match::prefix, Primitive::gil},
    Rule{"PyThread_acquire_lock", Match::prefix, Primitive::python_lock},
    Rule{"_PySemaphore_Wait", Match::prefix, Primitive::python_lock},
    Rule{"_PyParkingLot_Park", Match::prefix, Primitive::python_lock},
};

// What a semaphore, condition, mutex or atomic turns out to be when one looks who uses it.
constexpr std::array refinements{
    Rule{"take_gil", Match::prefix, Primitive::gil},
    Rule{"PyThread_acquire_lock", Match::prefix, Primitive::python_lock},
    Rule{"_PySemaphore_", Match::prefix, Primitive::python_lock},
    Rule{"_PyParkingLot_Park", Match::prefix, Primitive::python_lock},
    Rule{"std::__basic_future", Match::prefix, Primitive::future},
    Rule{"std::__future_base", Match::prefix, Primitive::future},
    Rule{"std::future<", Match::prefix, Primitive::future},
    Rule{"std::shared_future<", Match::prefix, Primitive::future},
    Rule{"std::__1::__assoc_sub_state", Match::prefix, Primitive::future},
    Rule{"__kmp_", Match::prefix, Primitive::openmp},
    Rule{"gomp_", Match::prefix, Primitive::openmp},
};

template <std::size_t size>
const Rule* match(const std::array<Rule, size>& rules, std::string_view function) {
  const auto fits = [function](const Rule& rule) {
    return rule.match == Match::prefix ? function.starts_with(rule.text)
                                       : function.find(rule.text) != std::string_view::npos;
  };
  const auto it = std::ranges::find_if(rules, fits);
  return it == rules.end() ? nullptr : &*it;
}

bool from_openmp_library(const FrameHint& frame) {
  const std::string_view name = frame.module.substr(frame.module.rfind('/') + 1);
  return name.starts_with("libgomp") || name.starts_with("libiomp") || name.starts_with("libomp");
}

bool can_be_refined(Primitive primitive) {
  return primitive == Primitive::semaphore || primitive == Primitive::condition ||
         primitive == Primitive::atomic;
}

}  // namespace

Recognized recognize(std::span<const FrameHint> frames) {
  Recognized found;
  const std::size_t depth = std::min(frames.size(), search_depth);
  for (std::size_t i = 0; i < depth; ++i) {
    const FrameHint& frame = frames[i];
    const Rule* const rule = match(primitives, frame.function);
    if (rule == nullptr) {
      // Stripped wheels carry an OpenMP runtime whose frames have no names; it calls the kernel itself.
      if (found.primitive == Primitive::unknown && frame.function.empty() && from_openmp_library(frame)) {
        return {Primitive::openmp, i};
      }
      continue;
    }
    // What lies below a primitive of the C library is the C library's own. If other code does, the primitive
    // has called back (an initialiser under pthread_once) and it is that code which waits.
    const bool called_back = rule->match == Match::anywhere &&
                             std::ranges::any_of(frames.first(i), [&frame](const FrameHint& inner) {
                               return inner.module != frame.module;
                             });
    if (called_back) {
      continue;
    }
    found = {rule->primitive, i};
    if (rule->primitive != Primitive::low_level_lock) {
      break;  // a lock of the C library's inside may turn out to be that of a mutex one frame further
    }
  }
  if (can_be_refined(found.primitive)) {
    const std::size_t end = std::min(frames.size(), found.frame + 1 + refine_depth);
    for (std::size_t i = found.frame + 1; i < end; ++i) {
      if (const Rule* const rule = match(refinements, frames[i].function)) {
        found.primitive = rule->primitive;
        break;
      }
    }
  }
  return found;
}

}  // namespace hangtrace::locks
