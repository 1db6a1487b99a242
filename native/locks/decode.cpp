#include "locks/decode.hpp"

#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "locks/glibc.hpp"
#include "locks/musl.hpp"

namespace hangtrace::locks {

namespace {

constexpr std::string_view owner_died = "owner thread died holding it";
constexpr std::string_view no_thread = "owner thread does not exist in this process";
constexpr std::string_view never_had = "can never be had: the kernel found a deadlock or a dead owner";
constexpr std::size_t innermost_stack = 2048;  // bytes that a few frames of the C library take
constexpr std::size_t largest_frame = 8192;    // bytes of stack searched for a condition's mutex
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
    lock_.shared_key = shared_key(call_.word);
    lock_.shared_file = lock_.shared_key ? shared_file(call_.word) : "";
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
      if (musl()) {
        lock_.address -= musl::mutex_word;
      }
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
        if (!musl()) {
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
        unnamed();
        break;
    }
  }

  std::optional<SharedKey> shared_key(Address word) const {
    const proc::Mapping* const mapping = call_.is_private ? nullptr : process_.mapping_at(word);
    return mapping != nullptr ? shared_key_in(word, *mapping) : std::nullopt;
  }

  // Memory that was never in a directory (or is no more than a descriptor) is handed on, not found by name.
  std::string shared_file(Address word) const {
    const proc::Mapping* const mapping = process_.mapping_at(word);
    const bool inherited = mapping == nullptr || mapping->path.starts_with("/memfd:") ||
                           (mapping->deleted && mapping->path == "/dev/zero");
    return inherited ? "" : mapping->path.empty() ? "?" : mapping->path;
  }

  // Whose id a shared object records is not known; nothing is said of an owner then.
  bool whose_is_unknown(int tid) {
    if (!lock_.shared_key) {
      return false;
    }
    const Sharers sharers =
        process_.sharers ? process_.sharers(*lock_.shared_key, !lock_.shared_file.empty()) : Sharers::alike;
    const auto here = process_.thread_here(tid);
    const auto found = here ? here : process_.thread_anywhere(tid);
    // Whoever waits for itself may as well wait for its namesake.
    const bool doubtful = sharers == Sharers::unseen && (!found || *found == process_.waiter);
    const auto maps =
        !here && found && process_.maps ? process_.maps(*found, *lock_.shared_key) : std::optional(true);
    exact_ = sharers == Sharers::alike;
    std::string_view why;
    if (sharers == Sharers::apart || doubtful) {
      why = "of a lock shared across pid namespaces";
    } else if (!maps) {
      why = "is that of a process that was not looked at";
    } else if (!*maps) {
      why = "is that of a process that does not share it";
    } else {
      return false;
    }
    if (lock_.problem.empty()) {
      lock_.problem = "owner id " + std::to_string(tid) + " " + std::string(why) + ": whose is not known";
    }
    return true;
  }

  // Takes a recorded owner. `shared`: a thread of another process may hold it.
  void set_owner(std::int64_t recorded, std::string_view from, bool shared) {
    if (recorded <= 0 || recorded > static_cast<std::int64_t>(glibc::futex_tid_mask)) {
      lock_.problem = "no valid owner recorded";
      return;
    }
    const int tid = static_cast<int>(recorded);
    if (shared && whose_is_unknown(tid)) {
      return;
    }
    lock_.owner_from = from;
    if (const auto here = process_.thread_here(tid)) {
      lock_.owner = *here;
      lock_.owner_exact = exact_;
      return;
    }
    lock_.owner = process_.thread_anywhere(tid);
    if (shared && lock_.owner) {
      lock_.owner_exact = exact_;
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

  // A priority inheriting mutex that can never be had (the kernel found a deadlock, or a dead owner): the C
  // library sleeps on a word of its own stack for ever (nptl/pthread_mutex_lock.c, "Delay the thread").
  bool is_parked() const {
    const FrameHint& outer = frames_[recognized_.frame];
    return lock_.value == 0 && call_.expected == 0 && outer.stack_begin != 0 &&
           call_.word >= frames_.front().stack_begin && call_.word < outer.stack_end;
  }

  // Which mutex it was may still lie on its stack. More than one that fits is none.
  void parked() {
    lock_.kind = Kind::mutex_pi;
    lock_.problem = never_had;
    const Address begin = frames_.front().stack_begin;
    const Address end = frames_[recognized_.frame].stack_end;
    std::vector<std::uint64_t> words(std::min<std::size_t>(end - begin, largest_frame) / 8);
    if (!process_.reader.read(begin, std::as_writable_bytes(std::span(words)))) {
      return;
    }
    std::ranges::sort(words);
    const auto repeated = std::ranges::unique(words);
    words.erase(repeated.begin(), repeated.end());
    std::optional<Lock> found;
    for (const Address address : words) {
      const auto mutex = address % alignof(std::uint64_t) == 0
                             ? process_.reader.read_value<glibc::Mutex>(address)
                             : std::nullopt;
      if (!mutex || !plausible(*mutex) || (mutex->kind & glibc::mutex_priority_inherit) == 0 ||
          mutex->users == 0 || mutex->lock == 0 || !shared_flag_agrees(*mutex)) {
        continue;
      }
      Lock candidate = lock_;
      candidate.address = address;
      candidate.value = mutex->lock;
      candidate.shared_key = shared_key(address);
      candidate.shared_file = candidate.shared_key ? shared_file(address) : "";
      std::swap(candidate, lock_);
      set_owner(mutex->lock & glibc::futex_tid_mask, "futex word", !call_.is_private);
      std::swap(candidate, lock_);
      if (candidate.owner == process_.waiter) {
        continue;  // one that it holds itself
      }
      if (found) {
        return;
      }
      found = candidate;
    }
    if (found) {
      found->owner_exact = false;
      lock_ = *found;
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
      lock_.problem = owner_died;
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
    if (musl()) {
      lock_.kind = Kind::mutex_normal;
      if (!musl_mutex(true)) {
        lock_.problem = "not a mutex of the known layout";
      }
      return;
    }
    if (is_parked()) {
      parked();
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

  bool musl() const { return process_.library == CLibrary::musl; }

  // `named`: a frame says that it is a mutex; else its content must. False: that is not what lies there.
  bool musl_mutex(bool named) {
    const auto mutex = musl::mutex_at(call_, process_.reader);
    if (!mutex) {
      return false;
    }
    const Address address = call_.word - musl::mutex_word;
    const bool waited_for =
        call_.expected == mutex->lock && (mutex->lock & glibc::futex_waiters) != 0 && mutex->waiters > 0;
    if ((mutex->type & musl::mutex_normal_mask) == 0) {
      constexpr std::uint32_t locked = glibc::futex_waiters | EBUSY;
      if (named || (waited_for && mutex->lock == locked && musl())) {
        set_musl_mutex(*mutex, address);
        lock_.problem = "a normal mutex of this C library records no owner";
        return true;
      }
      return false;
    }
    // Its neighbours' pointers are those of the process that holds it: nothing can be said of a shared one.
    const bool shared = !call_.is_private;
    const bool linked = !shared && musl::is_linked(*mutex, address, process_.reader);
    // A thread that ends leaves its mutexes like this; who takes a robust one over adds its id.
    const bool left = (mutex->lock & ~glibc::futex_waiters) == glibc::futex_owner_died;
    if (!named && (!waited_for || (!linked && !((shared || left) && musl())))) {
      return false;
    }
    set_musl_mutex(*mutex, address);
    if (lock_.value == 0) {
      lock_.problem = "released meanwhile";
    } else if (left) {
      lock_.problem = owner_died;
    } else if (!shared && !linked) {
      lock_.problem = "in no list of held mutexes";
    } else {
      set_owner(lock_.value & glibc::futex_tid_mask, "futex word", shared);
      if (!named && shared && lock_.owner_exact) {
        lock_.owner_exact = false;
        lock_.problem = "taken for a mutex by its content alone";
      }
    }
    return true;
  }

  void set_musl_mutex(const musl::Mutex& mutex, Address address) {
    lock_.address = address;
    const int type = mutex.type & musl::mutex_type_mask;
    lock_.kind = (mutex.type & musl::mutex_robust) != 0 ? Kind::mutex_robust
                 : call_.timeout                        ? Kind::mutex_timed
                 : type == glibc::mutex_recursive_np    ? Kind::mutex_recursive
                 : type == glibc::mutex_errorcheck_np   ? Kind::mutex_errorcheck
                                                        : Kind::mutex_normal;
  }

  bool musl_join() {
    const auto thread = musl::joined_at(call_, process_.reader);
    if (!thread) {
      return false;
    }
    lock_.kind = Kind::join;
    if (thread->detach_state == 0) {
      lock_.problem = "thread has ended meanwhile";
    } else {
      set_owner(thread->tid, "struct pthread", false);
    }
    return true;
  }

  // Nobody could name a frame: the C library is stripped, or was entered by a tail call.
  void unnamed() {
    lock_.kind = Kind::futex;
    if (process_.library != CLibrary::musl) {
      unnamed_mutex();
    }
    // A static program may be one of musl's.
    if (process_.library != CLibrary::glibc && lock_.kind == Kind::futex && !musl_mutex(false) &&
        !(musl() && musl_join())) {
      musl_parked();
    }
  }

  // As is_parked(), in musl (src/thread/pthread_mutex_timedlock.c, pthread_mutex_timedlock_pi). Its frames
  // have neither names nor sizes: what lies on the innermost part of the stack is only a guess.
  void musl_parked() {
    const Address begin = frames_.empty() ? 0 : frames_.front().stack_begin;
    if (begin == 0 || lock_.value != 0 || call_.expected != 0 || !call_.is_private || call_.word < begin ||
        call_.word >= begin + innermost_stack) {
      return;
    }
    const proc::Mapping* const mapping = process_.mapping_at(begin);
    const Address end = mapping != nullptr ? std::min(mapping->end, begin + innermost_stack) : begin;
    std::vector<std::uint64_t> words((end - begin) / 8);
    if (!process_.reader.read(begin, std::as_writable_bytes(std::span(words)))) {
      return;
    }
    std::ranges::sort(words);
    std::optional<std::pair<Address, int>> found;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const Address address = words[i];
      if (address % alignof(std::uint64_t) != 0 || (i > 0 && address == words[i - 1])) {
        continue;
      }
      const auto mutex = process_.reader.read_value<musl::Mutex>(address);
      constexpr int known = musl::mutex_type_mask | musl::mutex_robust | musl::mutex_priority_inherit;
      if (!mutex || (mutex->type & ~known) != 0 || (mutex->type & musl::mutex_priority_inherit) == 0 ||
          !musl::is_linked(*mutex, address, process_.reader)) {
        continue;
      }
      const auto owner = process_.thread_here(static_cast<int>(mutex->lock & glibc::futex_tid_mask));
      if (!owner || *owner == process_.waiter) {
        continue;  // nobody's, or one that it holds itself
      }
      if (found) {
        return;  // more than one that fits is none
      }
      found = {address, *owner};
    }
    if (found) {
      lock_.kind = Kind::mutex_pi;
      lock_.address = found->first;
      lock_.owner = found->second;
      lock_.owner_from = "futex word";
      lock_.problem = never_had;
      lock_.unconfirmed = true;
    }
  }

  // The memory may look like a locked mutex in each of its fields.
  void unnamed_mutex() {
    if (call_.op != futex_wait) {
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
    if (musl()) {
      if (!musl_join()) {
        lock_.problem = "not a thread of the known layout";
      }
    } else if (lock_.value == 0) {
      lock_.problem = "thread has ended meanwhile";
    } else if (lock_.value != call_.expected) {
      lock_.problem = "thread id changed meanwhile";
    } else {
      set_owner(lock_.value, "pd->tid", false);
    }
  }

  void condition() {
    // A woken waiter takes the mutex again inside pthread_cond_wait, with the plain operation of mutexes.
    if (!musl() && call_.op == futex_wait && call_.expected == 2) {
      mutex();
      return;
    }
    lock_.kind = Kind::condition;
    if (!musl()) {
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
    if (musl()) {
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
  bool exact_ = true;  // a recorded id means one thread alone
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

std::optional<SharedKey> shared_key_in(Address address, const proc::Mapping& mapping) {
  if (!mapping.shared) {
    return std::nullopt;
  }
  return SharedKey{makedev(mapping.dev_major, mapping.dev_minor), mapping.inode,
                   mapping.offset + (address - mapping.start)};
}

Lock decode(const FutexCall& call, std::span<const FrameHint> frames, const ProcessView& process) {
  return Decoder(call, frames, process).run();
}

}  // namespace hangtrace::locks
