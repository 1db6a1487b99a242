#pragma once

#include <string>

#include "memory/reader.hpp"

namespace hangtrace::memory {

/// Reads a live process through <proc_root>/PID/mem. Slower than ProcessReader, but a caller that waits for
/// the target's mmap lock here can be killed.
class FileReader final : public Reader {
 public:
  FileReader(const std::string& proc_root, int pid);
  ~FileReader() override;
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  std::vector<bool> read_batch(std::span<const Piece> pieces) const override;

  bool is_open() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

}  // namespace hangtrace::memory
