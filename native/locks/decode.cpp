#include "locks/decode.hpp"

#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "locks/glibc.hpp"

namespace hangtrace::locks {

namespace {

constexpr std::string_view no_thread = "owner thread does not exist in this process";
constexpr std::size_t largest_frame = 8192;  // bytes of stack searched for a condition's mutex
constexpr std::uint32_t most_users = 1u << 20;

class Decoder {
 public:
  Decoder(const FutexCall& call, std::span<const FrameHint> frames, const ProcessView& process)
      : call_(call), frames_(frames), process_(process) {}

  Lock run() {
    lock_.call = call_;
    lock_.address = call_.word;
    const auto value = process_.reader.read_value<std::uint32_t>(call_.word);
    lock_.value = value.value_or(0);
    set_shared_key();
    if (!value) {
      lock_.problem = "futex word cannot be read";
      return lock_;
    }
    recognized_ = recognize(frames_);
    dispatch();
    if (lock_.problem.empty() && call_.others > 0) {
      lock_.problem = "one of " + std::to_string(call_.others + 1) + " futexes waited for";
    }
    return lock_;
  }

 private:
  void dispatch() {
    if (call_.op == futex_lock_pi || call_.op == futex_lock_pi2) {
      lock_.kind = Kind::mutex_pi;
      owner_from_word();
      return;
    }
    switch (recognized_.primitive) {
      case Primitive::mutex:
        mutex();
        break;
      case Primitive::condition:
        condition();
        break;
      case Primitive::rwlock_read:
      case Primitive::rwlock_write:
        rwlock();
        break;
      case Primitive::join:
        join();
        break;
      case Primitive::barrier:
        lock_.kind = Kind::barrier;
        if (process_.glibc) {
          lock_.address = call_.word - glibc::barrier_word;
        }
        break;
      case Primitive::semaphore:
        lock_.kind = Kind::semaphore;
        break;
      case Primitive::once:
        lock_.kind = Kind::once;
        break;
      case Primitive::future:
        lock_.kind = Kind::future;
        break;
      case Primitive::atomic:
        lock_.kind = Kind::atomic;
        break;
      case Primitive::openmp:
        lock_.kind = Kind::openmp;
        break;
      case Primitive::gil:
        lock_.kind = Kind::gil;
        break;
      case Primitive::python_lock:
        lock_.kind = Kind::python_lock;
        break;
      case Primitive::low_level_lock:
        lock_.kind = Kind::futex;
        lock_.problem = "lock inside the C library, which records no owner";
        break;
      case Primitive::unknown:
        lock_.kind = Kind::futex;
        unnamed_mutex();
        break;
    }
  }

  void set_shared_key() {
    if (call_.is_private) {
      return;
    }
    const proc::Mapping* const mapping = proc::find_mapping(process_.mappings, call_.word);
    if (mapping != nullptr && mapping->shared) {
      lock_.shared_key = SharedKey{makedev(mapping->dev_major, mapping->dev_minor), mapping->inode,
                                   mapping->offset + (call_.word - mapping->start)};
    }
  }

  // Takes a recorded owner. `shared`: a thread of another process may hold it.
  void set_owner(std::int64_t recorded, std::string_view from, bool shared) {
    if (recorded <= 0 || recorded > static_cast<std::int64_t>(glibc::futex_tid_mask)) {
      lock_.problem = "no valid owner recorded";
      return;
    }
    const int tid = static_cast<int>(recorded);
    lock_.owner_from = from;
    if (const auto here = process_.thread_here(tid)) {
      lock_.owner = *here;
      lock_.owner_exact = true;
      return;
    }
    lock_.owner = process_.thread_anywhere(tid);
    if (shared && lock_.owner) {
      lock_.owner_exact = true;
      return;
    }
    if (!shared) {
      lock_.problem = no_thread;
    } else if (process_.same_ids) {
      lock_.problem = "owner thread does not exist";
    } else {
      lock_.problem = "owner thread is in no process that was looked at";
    }
    if (!lock_.owner && process_.same_ids) {
      lock_.owner = tid;
    }
  }

  // Robust and priority inheriting mutexes: the kernel keeps the owner's id in the word itself.
  void owner_from_word() {
    if (lock_.value == 0) {
      lock_.problem = "released meanwhile";
      return;
    }
    set_owner(lock_.value & glibc::futex_tid_mask, "futex word", !call_.is_private);
    if ((lock_.value & glibc::futex_owner_died) != 0) {
      lock_.problem = "owner thread died holding it";
      lock_.owner_exact = false;
    }
  }

  static bool plausible(const glibc::Mutex& mutex) {
    return (mutex.kind & ~glibc::mutex_known_bits) == 0 && mutex.users <= most_users && mutex.owner >= 0;
  }

  bool shared_flag_agrees(const glibc::Mutex& mutex) const {
    return ((mutex.kind & glibc::mutex_shared) != 0) == !call_.is_private;
  }

  void mutex() {
    if (!process_.glibc) {
      musl_mutex();
      return;
    }
    const auto mutex = process_.reader.read_value<glibc::Mutex>(call_.word);
    if (!mutex || !plausible(*mutex)) {
      lock_.kind = Kind::mutex_normal;
      lock_.problem = "not a mutex of the known layout";
      return;
    }
    if ((mutex->kind & glibc::mutex_robust) != 0) {
      lock_.kind = Kind::mutex_robust;
      owner_from_word();
      return;
    }
    switch (mutex->kind & glibc::mutex_type_mask) {
      case glibc::mutex_recursive_np:
        lock_.kind = Kind::mutex_recursive;
        break;
      case glibc::mutex_errorcheck_np:
        lock_.kind = Kind::mutex_errorcheck;
        break;
      case glibc::mutex_adaptive_np:
        lock_.kind = Kind::mutex_adaptive;
        break;
      default:
        lock_.kind = Kind::mutex_normal;
        break;
    }
    if (call_.timeout) {
      lock_.kind = Kind::mutex_timed;
    }
    if (mutex->lock == 0) {
      lock_.problem = "released meanwhile";
    } else if (mutex->owner == 0 || mutex->users == 0) {
      // Between taking the word and writing the owner, or destroyed or initialised anew while locked.
      lock_.problem = "locked, but no owner recorded";
    } else if (!shared_flag_agrees(*mutex)) {
      lock_.problem = "not a mutex of the known layout";
    } else {
      set_owner(mutex->owner, "pthread_mutex_t.__owner", (mutex->kind & glibc::mutex_shared) != 0);
    }
  }

  // musl, src/internal/pthread_impl.h: _m_type, _m_lock, _m_waiters; threads sleep on _m_lock. A normal mutex
  // holds EBUSY there, the other types the owner's id.
  void musl_mutex() {
    lock_.kind = Kind::mutex_normal;
    lock_.address = call_.word - 4;
    const auto type = process_.reader.read_value<std::int32_t>(lock_.address);
    if (!type) {
      lock_.problem = "mutex cannot be read";
      return;
    }
    switch (*type & 3) {
      case 1:
        lock_.kind = Kind::mutex_recursive;
        break;
      case 2:
        lock_.kind = Kind::mutex_errorcheck;
        break;
      default:
        break;
    }
    if ((*type & 15) == 0) {
      lock_.problem = "a normal mutex of this C library records no owner";
      return;
    }
    if (lock_.value == 0) {
      lock_.problem = "released meanwhile";
      return;
    }
    set_owner(lock_.value & glibc::futex_tid_mask, "futex word", (*type & 128) == 0);
  }

  // Nobody could name a frame, as after a tail call into a stripped library. The memory may still look like a
  // locked mutex in each of its fields.
  void unnamed_mutex() {
    if (!process_.glibc || call_.op != futex_wait) {
      return;
    }
    const auto mutex = process_.reader.read_value<glibc::Mutex>(call_.word);
    if (!mutex || mutex->owner <= 0 || mutex->users == 0 || !plausible(*mutex) ||
        !shared_flag_agrees(*mutex)) {
      return;
    }
    const bool robust = (mutex->kind & glibc::mutex_robust) != 0;
    const bool locked = robust
                            ? mutex->lock == (glibc::futex_waiters | static_cast<std::uint32_t>(mutex->owner))
                            : mutex->lock == 2;
    if (!locked || call_.expected != mutex->lock) {
      return;
    }
    if (const auto here = process_.thread_here(mutex->owner)) {
      lock_.kind = robust ? Kind::mutex_robust : Kind::mutex_normal;
      lock_.owner = *here;
      lock_.owner_from = robust ? "futex word" : "pthread_mutex_t.__owner";
      lock_.problem = "taken for a mutex by its content alone";
    }
  }

  void join() {
    lock_.kind = Kind::join;
    if (lock_.value == 0) {
      lock_.problem = "thread has ended meanwhile";
    } else if (lock_.value != call_.expected) {
      lock_.problem = "thread id changed meanwhile";
    } else {
      set_owner(lock_.value, "pd->tid", false);
    }
  }

  void condition() {
    // A woken waiter takes the mutex again inside pthread_cond_wait, with the plain operation of mutexes.
    if (call_.op == futex_wait && call_.expected == 2) {
      mutex();
      return;
    }
    lock_.kind = Kind::condition;
    if (process_.glibc) {
      find_condition();
    }
  }

  // pthread_cond_wait keeps {cond, mutex} side by side on its stack for its cancellation handler
  // (nptl/pthread_cond_wait.c, struct _condvar_cleanup_buffer); the condition's address proves the pair.
  void find_condition() {
    const FrameHint& frame = frames_[recognized_.frame];
    if (frame.stack_begin == 0 || frame.stack_end <= frame.stack_begin) {
      return;
    }
    const std::size_t size = std::min<std::size_t>(frame.stack_end - frame.stack_begin, largest_frame) / 8;
    std::vector<std::uint64_t> words(size);
    if (size < 2 || !process_.reader.read(frame.stack_begin, std::as_writable_bytes(std::span(words)))) {
      return;
    }
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      const bool is_condition = std::ranges::any_of(
          glibc::condition_words, [&](std::size_t offset) { return words[i] + offset == call_.word; });
      if (!is_condition || words[i + 1] == words[i]) {
        continue;
      }
      const auto mutex = process_.reader.read_value<glibc::Mutex>(words[i + 1]);
      if (mutex && plausible(*mutex)) {
        lock_.address = words[i];
        lock_.mutex = words[i + 1];
        return;
      }
    }
  }

  void rwlock() {
    const bool reading = recognized_.primitive == Primitive::rwlock_read;
    lock_.kind = reading ? Kind::rwlock_read : Kind::rwlock_write;
    if (!process_.glibc) {
      return;
    }
    // Which of the lock's words it is follows from the value slept on (nptl/pthread_rwlock_common.c): readers
    // wait while the phase is 1|USED; writers for other writers while writers_futex is 1|USED, then for
    // readers while the phase is 0|USED; readers behind a preferred writer on the reader count itself.
    constexpr std::uint64_t set = 1 | glibc::rwlock_futex_used;
    std::size_t offset = offsetof(glibc::ReadWriteLock, readers);
    if (reading) {
      offset = call_.expected == set ? offsetof(glibc::ReadWriteLock, phase_futex) : offset;
    } else if (call_.expected == set) {
      offset = offsetof(glibc::ReadWriteLock, writers_futex);
    } else if (call_.expected == glibc::rwlock_futex_used) {
      offset = offsetof(glibc::ReadWriteLock, phase_futex);
    } else {
      lock_.problem = "not a lock of the known layout";
      return;
    }
    const Address base = call_.word - offset;
    const auto lock = process_.reader.read_value<glibc::ReadWriteLock>(base);
    const std::uint32_t readers = lock ? lock->readers >> glibc::rwlock_reader_shift : 0;
    const bool valid = lock && lock->phase_futex <= set && lock->writers_futex <= set &&
                       readers <= most_users && lock->current_writer >= 0 &&
                       (lock->shared != 0) == !call_.is_private;
    if (!valid) {
      lock_.problem = "not a lock of the known layout";
      return;
    }
    lock_.address = base;
    // In the write phase the count is of readers that wait.
    lock_.readers = (lock->readers & glibc::rwlock_write_phase) != 0 ? 0 : readers;
    if (lock->current_writer != 0) {
      set_owner(lock->current_writer, "__cur_writer", lock->shared != 0);
    } else if (*lock_.readers > 0) {
      lock_.problem = "held for reading; readers are only counted";
    } else {
      lock_.problem = "no holder recorded";
    }
  }

  const FutexCall& call_;
  std::span<const FrameHint> frames_;
  const ProcessView& process_;
  Recognized recognized_;
  Lock lock_;
};

}  // namespace

std::string_view name(Kind kind) {
  switch (kind) {
    case Kind::mutex_normal:
      return "mutex_normal";
    case Kind::mutex_recursive:
      return "mutex_recursive";
    case Kind::mutex_errorcheck:
      return "mutex_errorcheck";
    case Kind::mutex_adaptive:
      return "mutex_adaptive";
    case Kind::mutex_robust:
      return "mutex_robust";
    case Kind::mutex_pi:
      return "mutex_pi";
    case Kind::mutex_timed:
      return "mutex_timed";
    case Kind::rwlock_read:
      return "rwlock_read";
    case Kind::rwlock_write:
      return "rwlock_write";
    case Kind::join:
      return "join";
    case Kind::condition:
      return "condition";
    case Kind::semaphore:
      return "semaphore";
    case Kind::python_lock:
      return "python_lock";
    case Kind::python_rlock:
      return "python_rlock";
    case Kind::gil:
      return "gil";
    case Kind::barrier:
      return "barrier";
    case Kind::future:
      return "future";
    case Kind::once:
      return "once";
    case Kind::openmp:
      return "openmp";
    case Kind::atomic:
      return "atomic";
    case Kind::futex:
      return "futex";
  }
  return "futex";
}

Lock decode(const FutexCall& call, std::span<const FrameHint> frames, const ProcessView& process) {
  return Decoder(call, frames, process).run();
}

}  // namespace hangtrace::locks
