#pragma once

#include "memory/reader.hpp"

namespace hangtrace::memory {

/// Reads a live process with process_vm_readv: fast, no stop. Waits unkillably while the target's mmap lock
/// is held by somebody who sleeps: look at the wait channels of its threads first, else use FileReader.
class ProcessReader final : public Reader {
 public:
  explicit ProcessReader(int pid) : pid_(pid) {}

  std::vector<bool> read_batch(std::span<const Piece> pieces) const override;

  int pid() const { return pid_; }

 private:
  int pid_;
};

}  // namespace hangtrace::memory
