#include "memory/file_reader.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace hangtrace::memory {

FileReader::FileReader(const std::string& proc_root, int pid)
    : descriptor_(open((proc_root + "/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC)) {}

FileReader::~FileReader() {
  if (descriptor_ >= 0) {
    close(descriptor_);
  }
}

std::vector<bool> FileReader::read_batch(std::span<const Piece> pieces) const {
  std::vector<bool> done(pieces.size(), false);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    std::size_t filled = 0;
    while (descriptor_ >= 0 && filled < piece.into.size()) {
      const ssize_t got = pread(descriptor_, piece.into.data() + filled, piece.into.size() - filled,
                                static_cast<off_t>(piece.from + filled));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got <= 0) {
        break;
      }
      filled += static_cast<std::size_t>(got);
    }
    done[i] = filled == piece.into.size();
    if (!done[i]) {
      std::ranges::fill(piece.into, std::byte{0});
    }
  }
  return done;
}

}  // namespace hangtrace::memory
