#include "locks/decode.hpp"

#include "locks/decoder.hpp"
#include "locks/musl.hpp"

namespace hangtrace::locks {

Lock Decoder::run() {
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

void Decoder::dispatch() {
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
      low_level();
      break;
    case Primitive::unknown:
      unnamed();
      break;
  }
}

void Decoder::unnamed() {
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

void Decoder::join() {
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

// Most locks inside the C library are a bare word; that of a FILE has its owner beside it, which points to
// the descriptor of a thread.
void Decoder::low_level() {
  lock_.kind = Kind::futex;
  lock_.problem = "lock inside the C library, which records no owner";
  const auto stream = process_.reader.read_value<glibc::StreamLock>(call_.word);
  if (musl() || !stream || stream->lock != glibc::lock_contended || stream->count < 0 ||
      stream->count > static_cast<std::int32_t>(most_users) || stream->owner == 0) {
    return;
  }
  const auto self = process_.reader.read_value<Address>(stream->owner + glibc::thread_self);
  const auto tid = process_.reader.read_value<std::int32_t>(stream->owner + glibc::thread_id);
  if (self != stream->owner || !tid || *tid <= 0 || !process_.thread_here(*tid)) {
    return;
  }
  lock_.kind = Kind::mutex_normal;
  lock_.problem.clear();
  set_owner(*tid, "lock of a FILE", false);
}

Lock decode(const FutexCall& call, std::span<const FrameHint> frames, const ProcessView& process) {
  return Decoder(call, frames, process).run();
}

}  // namespace hangtrace::locks
