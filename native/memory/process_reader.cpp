#include "memory/process_reader.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace hangtrace::memory {

namespace {

constexpr std::size_t batch_size = 512;  // UIO_MAXIOV is 1024

void* as_pointer(Address address) {
  return reinterpret_cast<void*>(address);  // NOLINT: an address of another process
}

}  // namespace

std::vector<bool> ProcessReader::read_batch(std::span<const Piece> pieces) const {
  std::vector<bool> done(pieces.size(), false);
  std::vector<iovec> local;
  std::vector<iovec> remote;
  std::size_t next = 0;
  while (next < pieces.size()) {
    const std::size_t count = std::min(pieces.size() - next, batch_size);
    local.clear();
    remote.clear();
    for (std::size_t i = next; i < next + count; ++i) {
      local.push_back({pieces[i].into.data(), pieces[i].into.size()});
      remote.push_back({as_pointer(pieces[i].from), pieces[i].into.size()});
    }
    const ssize_t got = process_vm_readv(pid_, local.data(), count, remote.data(), count, 0);
    if (got < 0 && (errno == ESRCH || errno == EPERM)) {
      for (std::size_t i = next; i < pieces.size(); ++i) {
        std::ranges::fill(pieces[i].into, std::byte{0});
      }
      return done;
    }
    // The kernel stops at the first unreadable page: what lies before is whole, the piece it stopped in is
    // not, and what lies after was not tried.
    std::size_t left = got > 0 ? static_cast<std::size_t>(got) : 0;
    std::size_t i = next;
    while (i < next + count && left >= pieces[i].into.size()) {
      left -= pieces[i].into.size();
      done[i] = true;
      ++i;
    }
    if (i < next + count) {
      std::ranges::fill(pieces[i].into, std::byte{0});
      ++i;
    }
    next = i;
  }
  return done;
}

}  // namespace hangtrace::memory
