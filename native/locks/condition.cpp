#include <algorithm>

#include "locks/decoder.hpp"

namespace hangtrace::locks {

void Decoder::condition() {
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
void Decoder::find_condition() {
  const FrameHint& frame = frames_[recognized_.frame];
  if (frame.stack_begin == 0) {
    return;
  }
  const std::vector<std::uint64_t> words = stack_words(frame.stack_begin, frame.stack_end);
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

}  // namespace hangtrace::locks
