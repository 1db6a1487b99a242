#pragma once

#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "proc/files.hpp"
#include "registers/bpf_program.hpp"
#include "registers/status.hpp"

namespace hangtrace::registers {

/// User registers of sleeping threads through a BPF task iterator: nobody is stopped. Needs CAP_BPF and
/// CAP_PERFMON, kernel type information, and Linux 5.15 for bpf_task_pt_regs. Loaded at the first question.
class TaskRegisters {
 public:
  /// Where the kernel's type information is.
  explicit TaskRegisters(std::string btf_path = "/sys/kernel/btf/vmlinux") : btf_path_(std::move(btf_path)) {}

  /// Threads by their ids as we see them; `pids` are the processes they are in. What is not there any more is
  /// left out. Empty, with the reason in status(), if it cannot be had.
  std::unordered_map<int, TaskRecord> read(std::span<const int> pids, std::span<const int> tids);

  const RungStatus& status() const { return status_; }

 private:
  void load();
  std::unordered_map<int, TaskRecord> by_process(std::span<const int> pids, std::span<const int> tids);
  std::unordered_map<int, TaskRecord> by_thread(std::span<const int> tids);

  std::string btf_path_;
  RungStatus status_;
  bool loaded_ = false;
  bool filters_ = true;           // the kernel can iterate over the threads of one process
  bool first_namespace_ = false;  // ids are those the kernel keeps
  proc::Descriptor program_;
};

}  // namespace hangtrace::registers
