#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capture/look.hpp"
#include "locks/decode.hpp"

namespace hangtrace::capture {

/// Who else may have written a thread id into an object in shared memory, and in which pid namespace. Of
/// processes that are not looked at memory maps are read only where a thread id counts otherwise, as long as
/// the time for that lasts and nobody there waits for the lock of the map; of the rest it is enough which
/// file systems they see. Each is read once. Several threads may ask.
class SharersOf {
 public:
  /// Both must outlive it.
  SharersOf(std::span<const Look> all, const std::string& proc_root) : all_(all), proc_root_(proc_root) {}

  /// `named`: any process may map the file.
  locks::Sharers of(const Look& waiter, const locks::SharedKey& key, bool named);
  /// Whether the process of a thread maps the file; nullopt: it is none of those looked at.
  std::optional<bool> maps(int tid, const locks::SharedKey& key);

 private:
  struct File {
    std::uint64_t device;
    std::uint64_t inode;
  };
  using Files = std::optional<std::vector<File>>;  // nullopt: cannot be told
  struct Process {
    int pid = 0;
    std::string pid_namespace;  // empty: ours
  };
  struct Answer {
    const Look* waiter;
    std::uint64_t device;
    std::uint64_t inode;
    locks::Sharers sharers;
  };

  locks::Sharers find(const Look& waiter, const locks::SharedKey& key, bool named);
  std::optional<bool> maps(const Look& look, const locks::SharedKey& key);
  std::optional<bool> stranger_maps(int pid, std::uint64_t inode);
  const Files& shared_files(int pid);
  std::optional<bool> sees(int pid, std::uint64_t device) const;
  const std::vector<Process>& others();

  std::span<const Look> all_;
  const std::string& proc_root_;
  std::mutex asked_;
  std::optional<std::vector<Process>> others_;
  bool too_many_ = false;
  std::map<int, Files> files_;  // mapped shared, by process
  std::chrono::steady_clock::duration spent_{};
  std::vector<Answer> answers_;
};

/// Whether a thread of a process waits for the lock of its memory map, or sleeps with it: reading its maps
/// may take for ever then. True also if that cannot be told.
bool map_may_be_locked(const std::string& proc_root, int pid);

/// Whether a file system is mounted somewhere, by the text of a mountinfo file.
bool lists_device(std::string_view mountinfo, std::uint64_t device);

}  // namespace hangtrace::capture
