#pragma once

#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capture/look.hpp"
#include "locks/decode.hpp"

namespace hangtrace::capture {

/// Who else may have written a thread id into an object in shared memory, and in which pid namespace. Memory
/// maps are read only of the processes that are looked at; of all others it is enough which file systems they
/// see, which takes no lock of theirs. Several threads may ask.
class SharersOf {
 public:
  /// Both must outlive it.
  SharersOf(std::span<const Look> all, const std::string& proc_root) : all_(all), proc_root_(proc_root) {}

  /// `named`: any process may map the file.
  locks::Sharers of(const Look& waiter, const locks::SharedKey& key, bool named);
  /// Whether the process of a thread maps the file; nullopt: it is none of those looked at.
  std::optional<bool> maps(int tid, const locks::SharedKey& key) const;

 private:
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
  std::optional<bool> maps(const Look& look, const locks::SharedKey& key) const;
  std::optional<bool> sees(int pid, std::uint64_t device) const;
  const std::vector<Process>& others();

  std::span<const Look> all_;
  const std::string& proc_root_;
  std::mutex asked_;
  std::optional<std::vector<Process>> others_;
  bool too_many_ = false;
  std::vector<Answer> answers_;
};

/// Whether a file system is mounted somewhere, by the text of a mountinfo file.
bool lists_device(std::string_view mountinfo, std::uint64_t device);

}  // namespace hangtrace::capture
