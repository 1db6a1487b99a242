#pragma once

#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "alarms/program.hpp"
#include "proc/files.hpp"
#include "registers/status.hpp"

namespace hangtrace::alarms {

/// When alarm(2) or setitimer(2), ITIMER_REAL, is to send SIGALRM to processes, which no file of /proc tells:
/// through a BPF task iterator. Needs CAP_BPF and CAP_PERFMON, and kernel type information. Loaded at the
/// first question, when it sets an alarm of our own for a moment to see that the kernel is understood.
class Reader {
 public:
  explicit Reader(std::string btf_path = "/sys/kernel/btf/vmlinux") : btf_path_(std::move(btf_path)) {}

  /// Seconds to go by process, for those that have an alarm set. Empty, with the reason in status(), if it
  /// cannot be had.
  std::unordered_map<int, double> read(std::span<const int> pids);

  const registers::RungStatus& status() const { return status_; }

 private:
  void load();
  bool understands();
  /// nullopt with errno if the kernel refuses; no seconds: none is set.
  std::optional<std::unordered_map<int, double>> ask(std::span<const int> pids);

  std::string btf_path_;
  registers::RungStatus status_;
  bool loaded_ = false;
  proc::Descriptor program_;
};

}  // namespace hangtrace::alarms
