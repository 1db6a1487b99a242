#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "open_files/programs.hpp"
#include "proc/files.hpp"
#include "registers/status.hpp"

namespace hangtrace::open_files {

/// How long calls on a socket wait at the most (SO_RCVTIMEO, SO_SNDTIMEO), and how long TCP waits for what it
/// has sent to be taken (TCP_USER_TIMEOUT); nullopt: for ever, or, of TCP, as long as the system has it.
struct SocketState {
  int pid = 0;
  int fd = 0;
  std::uint64_t inode = 0;
  std::optional<double> receive_s;
  std::optional<double> send_s;
  std::optional<double> user_s;
};

/// Bytes that lie in a pipe, and how many it takes.
struct PipeState {
  int pid = 0;
  int fd = 0;
  std::uint64_t inode = 0;
  std::uint64_t queued = 0;
  std::uint64_t capacity = 0;
};

struct States {
  std::vector<SocketState> sockets;
  std::vector<PipeState> pipes;
};

/// Which descriptors of which process, as we see their ids.
using Wanted = std::map<int, std::vector<int>>;

/// What only the kernel knows of open files, through BPF iterators: nothing of the target is opened,
/// duplicated or kept. Needs CAP_BPF and CAP_PERFMON, kernel type information, and Linux 5.11. Loaded at the
/// first question, and tried on files of our own: what is not understood to the last number is not said.
class Reader {
 public:
  /// Where the kernel's type information is.
  explicit Reader(std::string btf_path = "/sys/kernel/btf/vmlinux") : btf_path_(std::move(btf_path)) {}

  /// What is not a socket or a pipe, or is not there any more, is left out. Empty, with the reason in
  /// status(), if it cannot be had.
  States read(const Wanted& wanted);

  /// About sockets; pipes come with them, or not.
  const registers::RungStatus& status() const { return status_; }

 private:
  void load();
  bool loads(const bpf::Btf& types);
  bool understands_sockets();
  bool understands_users();
  bool understands_pipes();
  template <class Record>
  std::vector<Record> records(const proc::Descriptor& program, const Wanted& wanted);
  template <class Record>
  bool iterate(const proc::Descriptor& program, int pid, const Wanted& wanted, std::vector<Record>& found);

  std::string btf_path_;
  registers::RungStatus status_;
  bool loaded_ = false;
  bool filters_ = true;  // the kernel can iterate over one process
  std::int64_t ticks_per_s_ = 0;
  bool users_known_ = false;
  proc::Descriptor sockets_;
  proc::Descriptor pipes_;
};

}  // namespace hangtrace::open_files
