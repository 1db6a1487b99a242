#include "proc/threads.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "proc/scan.hpp"
#include "proc/status.hpp"

namespace hangtrace::proc {

std::optional<Stat> parse_stat(std::string_view text) {
  // The command may hold anything, so it ends at the last parenthesis of the text.
  const std::size_t open = text.find('(');
  const std::size_t close = text.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
    return std::nullopt;
  }
  Stat stat;
  std::uint64_t id = 0;
  if (!Scanner(text.substr(0, open)).decimal(id)) {
    return std::nullopt;
  }
  stat.id = static_cast<int>(id);
  stat.comm = text.substr(open + 1, close - open - 1);
  Scanner scan(text.substr(close + 1));
  const std::string_view state = scan.word();
  if (state.size() != 1) {
    return std::nullopt;
  }
  stat.state = state.front();
  for (int field = 4; field <= 39; ++field) {
    std::int64_t value = 0;
    scan.skip_spaces();
    if (!scan.integer(value)) {
      return std::nullopt;
    }
    const auto magnitude = static_cast<std::uint64_t>(value);
    switch (field) {
      case 4:
        stat.parent = static_cast<int>(value);
        break;
      case 9:
        stat.flags = magnitude;
        break;
      case 10:
        stat.minor_faults = magnitude;
        break;
      case 12:
        stat.major_faults = magnitude;
        break;
      case 14:
        stat.user_ticks = magnitude;
        break;
      case 15:
        stat.system_ticks = magnitude;
        break;
      case 22:
        stat.start_ticks = magnitude;
        break;
      case 26:
        stat.code_start = magnitude;
        break;
      case 28:
        stat.stack_start = magnitude;
        break;
      case 39:
        stat.cpu = static_cast<int>(value);
        break;
      default:
        break;
    }
  }
  return stat;
}

std::optional<Stat> read_process_stat(const std::string& proc_root, int pid) {
  const std::optional<std::string> text = read_file(process_path(proc_root, pid, "stat"), 1024);
  return text ? parse_stat(*text) : std::nullopt;
}

std::optional<SchedStat> parse_schedstat(std::string_view text) {
  Scanner scan(text);
  SchedStat stat;
  if (!scan.decimal(stat.run_ns) || !scan.skip(' ') || !scan.decimal(stat.wait_ns) || !scan.skip(' ') ||
      !scan.decimal(stat.slices)) {
    return std::nullopt;
  }
  return stat;
}

SyscallState parse_syscall(std::string_view text) {
  SyscallState state;
  if (text.starts_with("running")) {
    state.activity = Activity::running;
    return state;
  }
  Scanner scan(text);
  const auto hex_word = [&scan](std::uint64_t& value) {
    scan.skip_spaces();
    return scan.skip('0') && scan.skip('x') && scan.hex(value);
  };
  SyscallState read;
  if (!scan.integer(read.number)) {
    return state;
  }
  if (read.number >= 0) {
    read.activity = Activity::in_syscall;
    for (std::uint64_t& argument : read.arguments) {
      if (!hex_word(argument)) {
        return state;
      }
    }
  } else {
    read.activity = Activity::outside;
  }
  if (!hex_word(read.stack_pointer) || !hex_word(read.program_counter)) {
    return state;
  }
  return read;
}

std::vector<std::string> parse_kernel_stack(std::string_view text) {
  // "[<0>] futex_wait_queue+0x61/0x90"; the address is hidden from all.
  std::vector<std::string> functions;
  std::string_view line;
  while (next_line(text, line)) {
    const std::size_t name = line.find("] ");
    if (name == std::string_view::npos) {
      continue;
    }
    line.remove_prefix(name + 2);
    const std::string_view function = line.substr(0, line.find('+'));
    if (!function.empty()) {
      functions.emplace_back(function);
    }
  }
  return functions;
}

int DescriptorBudget::available() {
  constexpr rlim_t reserve = 192;
  constexpr rlim_t most = 1 << 16;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return 0;
  }
  rlim_t used = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end;
       entry.increment(error)) {
    ++used;
  }
  const rlim_t allowed = std::min(limit.rlim_cur, most);
  return allowed > used + reserve ? static_cast<int>(allowed - used - reserve) : 0;
}

bool DescriptorBudget::take() {
  int left = left_.load(std::memory_order_relaxed);
  while (left > 0) {
    if (left_.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

std::unique_ptr<TaskDirectory> TaskDirectory::open(const std::string& proc_root, int pid,
                                                   std::shared_ptr<DescriptorBudget> budget) {
  Descriptor directory(
      ::open(process_path(proc_root, pid, "task").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) {
    return nullptr;
  }
  return std::unique_ptr<TaskDirectory>(new TaskDirectory(std::move(directory), std::move(budget)));
}

TaskDirectory::~TaskDirectory() {
  keep_only({});
  if (counted_) {
    budget_->give_back();
  }
}

void TaskDirectory::close_kept(Files& files) const {
  for (Descriptor& file : files) {
    if (file) {
      file = Descriptor();
      budget_->give_back();
    }
  }
}

void TaskDirectory::keep_only(std::span<const int> tids) {
  for (auto entry = kept_.begin(); entry != kept_.end();) {
    if (std::ranges::binary_search(tids, entry->first)) {
      ++entry;
    } else {
      close_kept(entry->second);
      entry = kept_.erase(entry);
    }
  }
}

std::vector<int> TaskDirectory::list() const {
  struct Entry {  // struct linux_dirent64
    std::uint64_t inode;
    std::int64_t offset;
    std::uint16_t size;
    std::uint8_t type;
    char name[1];
  };
  std::vector<int> tids;
  if (lseek(directory_.get(), 0, SEEK_SET) != 0) {
    return tids;
  }
  alignas(Entry) std::array<char, 16384> buffer;
  for (;;) {
    const long got = ::syscall(SYS_getdents64, directory_.get(), buffer.data(), buffer.size());
    if (got <= 0) {
      break;
    }
    for (long at = 0; at + static_cast<long>(offsetof(Entry, name)) < got;) {
      std::uint16_t size = 0;
      std::memcpy(&size, buffer.data() + at + offsetof(Entry, size), sizeof size);
      if (size == 0 || at + size > got) {
        break;
      }
      const char* const name = buffer.data() + at + offsetof(Entry, name);
      std::uint64_t tid = 0;
      Scanner scan(std::string_view(name, strnlen(name, size - offsetof(Entry, name))));
      if (scan.decimal(tid) && scan.done()) {
        tids.push_back(static_cast<int>(tid));
      }
      at += size;
    }
  }
  std::ranges::sort(tids);
  return tids;
}

Descriptor TaskDirectory::open_file(int tid, const char* name) const {
  std::array<char, 48> path;
  std::snprintf(path.data(), path.size(), "%d/%s", tid, name);
  return Descriptor(openat(directory_.get(), path.data(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

std::optional<std::string> TaskDirectory::read_all(int tid, const char* name,
                                                   std::size_t expected_size) const {
  std::array<char, 48> path;
  std::snprintf(path.data(), path.size(), "%d/%s", tid, name);
  return read_file(directory_.get(), path.data(), expected_size);
}

namespace {

// Small files of procfs are made anew, and whole, by each read from their begin.
std::optional<std::string_view> read_begin(const Descriptor& file, std::span<char> buffer) {
  for (;;) {
    const ssize_t got = pread(file.get(), buffer.data(), buffer.size(), 0);
    if (got >= 0) {
      return std::string_view(buffer.data(), static_cast<std::size_t>(got));
    }
    if (errno != EINTR) {
      return std::nullopt;
    }
  }
}

}  // namespace

std::optional<std::string_view> TaskDirectory::read_once(int tid, const char* name, Buffer& buffer) const {
  const Descriptor file = open_file(tid, name);
  return file ? read_begin(file, buffer) : std::nullopt;
}

std::optional<std::string_view> TaskDirectory::read_kept(int tid, Kept which, Buffer& buffer) const {
  constexpr std::array<const char*, kept_count> names{"schedstat", "syscall"};
  if (!budget_) {
    return read_once(tid, names[which], buffer);
  }
  if (const auto found = kept_.find(tid); found != kept_.end() && found->second[which]) {
    if (const auto text = read_begin(found->second[which], buffer)) {
      return text;
    }
    // Not only when it has ended: another one may have its id by now.
    close_kept(found->second);
  }
  Descriptor file = open_file(tid, names[which]);
  if (!file) {
    return std::nullopt;
  }
  const auto text = read_begin(file, buffer);
  if (text && budget_->take()) {
    kept_[tid][which] = std::move(file);
  }
  return text;
}

std::optional<Stat> TaskDirectory::stat(int tid) const {
  Buffer buffer;
  const auto text = read_once(tid, "stat", buffer);
  return text ? parse_stat(*text) : std::nullopt;
}

std::optional<SchedStat> TaskDirectory::schedstat(int tid) const {
  Buffer buffer;
  const auto text = read_kept(tid, kept_schedstat, buffer);
  return text ? parse_schedstat(*text) : std::nullopt;
}

SyscallState TaskDirectory::syscall(int tid) const {
  Buffer buffer;
  const auto text = read_kept(tid, kept_syscall, buffer);
  return text ? parse_syscall(*text) : SyscallState{};
}

std::optional<std::string> TaskDirectory::wait_channel(int tid, char state) const {
  Buffer buffer;
  const auto text = read_once(tid, "wchan", buffer);
  if (!text) {
    return std::nullopt;
  }
  if (!text->empty() && *text != "0") {
    return std::string(*text);
  }
  // Since Linux 5.16 ("x86: Fix get_wchan() to support the ORC unwinder") x86-64 names it. Before, it is what
  // the stack begins with, which leaves out the scheduler's functions as well; only root may read that.
  if (state != 'S' && state != 'D' && state != 'T' && state != 't') {
    return std::string();
  }
  const auto stack = kernel_stack(tid);
  const auto now = stack.empty() ? std::nullopt : stat(tid);
  if (!now || now->state != state || stack.front().starts_with("0x")) {
    return std::string();
  }
  return stack.front().substr(0, stack.front().find(' '));  // without the name of a module
}

std::vector<std::string> TaskDirectory::kernel_stack(int tid) const {
  const std::optional<std::string> text = read_all(tid, "stack", 4096);
  return text ? parse_kernel_stack(*text) : std::vector<std::string>{};
}

std::optional<int> TaskDirectory::id_inside(int tid) const {
  const std::optional<std::string> text = read_all(tid, "status", 4096);
  if (!text) {
    return std::nullopt;
  }
  const Status status = parse_status(*text);
  return status.ids_by_namespace.empty() ? std::nullopt : std::optional(status.ids_by_namespace.back());
}

}  // namespace hangtrace::proc
