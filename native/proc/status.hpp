#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hangtrace::proc {

/// Selected lines of /proc/PID/status; sizes in bytes. O(1) for the kernel, takes no mmap lock. What this
/// kernel or process does not print is nullopt (a kernel thread and a zombie have no memory at all).
struct Status {
  std::string name;  // \n and \\ unescaped
  char state = '?';
  int process = 0;  // Tgid
  int parent = 0;
  int tracer = 0;
  std::optional<std::uint32_t> user;  // real uid
  std::vector<int> ids_by_namespace;  // NSpid: from the reader's namespace inwards
  std::optional<bool> kernel_thread;  // Kthread, kernel 6.9
  std::optional<std::uint64_t> vm_peak, vm_size, vm_locked, vm_pinned, vm_high_water, vm_rss;
  std::optional<std::uint64_t> rss_anon, rss_file, rss_shmem;
  std::optional<std::uint64_t> vm_page_tables, vm_swap, hugetlb;
  std::optional<std::uint64_t> threads, voluntary_switches, involuntary_switches;
};

Status parse_status(std::string_view text);
/// nullopt with errno set if it cannot be read.
std::optional<Status> read_status(const std::string& proc_root, int pid);

}  // namespace hangtrace::proc
