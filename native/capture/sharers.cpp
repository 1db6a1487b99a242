#include "capture/sharers.hpp"

#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "proc/files.hpp"
#include "proc/maps.hpp"
#include "proc/status.hpp"
#include "proc/threads.hpp"

namespace hangtrace::capture {

namespace {

constexpr std::size_t most_processes = 8192;             // of the machine
constexpr std::size_t most_views = 256;                  // of file systems
constexpr std::size_t most_threads = 4096;               // of a process that is not looked at
constexpr auto longest = std::chrono::milliseconds(20);  // for the maps of those
// The first pid namespace has a number of its own (include/linux/proc_ns.h, PROC_PID_INIT_INO).
constexpr std::string_view first_namespace = "pid:[4026531836]";

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         std::ranges::all_of(text, [](char letter) { return letter >= '0' && letter <= '9'; });
}

}  // namespace

bool lists_device(std::string_view mountinfo, std::uint64_t device) {
  // "36 35 98:0 /root /mount ...": the third field of each line.
  const std::string wanted = std::to_string(major(device)) + ":" + std::to_string(minor(device));
  while (!mountinfo.empty()) {
    const std::string_view line = mountinfo.substr(0, mountinfo.find('\n'));
    mountinfo.remove_prefix(std::min(line.size() + 1, mountinfo.size()));
    const std::size_t second = line.find(' ');
    const std::size_t third = second == line.npos ? line.npos : line.find(' ', second + 1);
    if (third != line.npos && line.substr(third + 1).starts_with(wanted + " ")) {
      return true;
    }
  }
  return false;
}

bool map_may_be_locked(const std::string& proc_root, int pid) {
  const auto tasks = proc::TaskDirectory::open(proc_root, pid);
  if (tasks == nullptr) {
    return true;
  }
  const std::vector<int> tids = tasks->list();
  if (tids.size() > most_threads) {
    return true;
  }
  return std::ranges::any_of(tids, [&tasks](int tid) {
    const auto stat = tasks->stat(tid);
    return stat && stat->state == 'D' &&
           waits_for_map(tasks->wait_channel(tid, stat->state).value_or(""), tasks->syscall(tid).number);
  });
}

const std::vector<SharersOf::Process>& SharersOf::others() {
  if (others_) {
    return *others_;
  }
  others_.emplace();
  std::size_t seen = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(proc_root_, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!is_number(name)) {
      continue;
    }
    if (++seen > most_processes) {
      too_many_ = true;
      break;
    }
    const int pid = std::stoi(name);
    const auto status = proc::read_status(proc_root_, pid);
    const bool looked_at =
        std::ranges::any_of(all_, [pid](const Look& look) { return look.sampled.process.pid == pid; });
    const bool has_memory = status && (status->vm_size || status->threads.value_or(1) > 1);
    if (!has_memory || looked_at) {
      continue;  // gone, or without memory
    }
    const bool inside = status->ids_by_namespace.size() > 1;
    const auto link = inside ? proc::read_link(proc::process_path(proc_root_, pid, "ns/pid")) : std::nullopt;
    others_->push_back({pid, inside ? link.value_or("?") : ""});
  }
  return *others_;
}

std::optional<bool> SharersOf::sees(int pid, std::uint64_t device) const {
  const auto text = proc::read_file(proc::process_path(proc_root_, pid, "mountinfo"));
  return text ? std::optional(lists_device(*text, device)) : std::nullopt;
}

const SharersOf::Files& SharersOf::shared_files(int pid) {
  const auto known = files_.find(pid);
  if (known != files_.end()) {
    return known->second;
  }
  Files found;
  // A process without mappings is one whose first thread has ended: its memory is still that of the others.
  if (const auto all = proc::read_maps(proc_root_, pid); all && !all->empty()) {
    found.emplace();
    for (const proc::Mapping& mapping : *all) {
      if (mapping.shared && mapping.inode != 0) {
        found->push_back({makedev(mapping.dev_major, mapping.dev_minor), mapping.inode});
      }
    }
  }
  return files_.emplace(pid, std::move(found)).first->second;
}

std::optional<bool> SharersOf::maps(const Look& look, const locks::SharedKey& key) {
  if (!look.known) {
    return std::nullopt;
  }
  const auto mapped = [&key](const proc::Mapping& mapping) {
    return mapping.shared && mapping.inode == key.inode &&
           makedev(mapping.dev_major, mapping.dev_minor) == key.device;
  };
  if (std::ranges::any_of(look.known->mappings(), mapped)) {
    return true;
  }
  const Files& files = shared_files(look.sampled.memory_id);
  const auto is_it = [&key](const File& file) {
    return file.inode == key.inode && file.device == key.device;
  };
  return files ? std::optional(std::ranges::any_of(*files, is_it)) : std::nullopt;
}

std::optional<bool> SharersOf::maps(int tid, const locks::SharedKey& key) {
  const std::scoped_lock asked(asked_);
  for (const Look& look : all_) {
    if (find_thread(look.sampled.process, tid) != nullptr) {
      return maps(look, key);
    }
  }
  return std::nullopt;
}

std::optional<bool> SharersOf::stranger_maps(int pid, std::uint64_t inode) {
  if (!files_.contains(pid)) {
    if (spent_ >= longest) {
      return std::nullopt;
    }
    const auto began = std::chrono::steady_clock::now();
    if (map_may_be_locked(proc_root_, pid)) {
      files_.emplace(pid, std::nullopt);
    } else {
      shared_files(pid);
    }
    spent_ += std::chrono::steady_clock::now() - began;
  }
  const Files& files = shared_files(pid);
  // Layered file systems show one file under several numbers of devices: that of the inode has to do.
  const auto is_it = [inode](const File& file) { return file.inode == inode; };
  return files ? std::optional(std::ranges::any_of(*files, is_it)) : std::nullopt;
}

locks::Sharers SharersOf::of(const Look& waiter, const locks::SharedKey& key, bool named) {
  const std::scoped_lock asked(asked_);
  for (const Answer& answer : answers_) {
    if (answer.waiter == &waiter && answer.device == key.device && answer.inode == key.inode) {
      return answer.sharers;
    }
  }
  const locks::Sharers found = find(waiter, key, named);
  answers_.push_back({&waiter, key.device, key.inode, found});
  return found;
}

locks::Sharers SharersOf::find(const Look& waiter, const locks::SharedKey& key, bool named) {
  for (const Look& look : all_) {
    if (look.pid_namespace != waiter.pid_namespace && maps(look, key).value_or(true)) {
      return locks::Sharers::apart;
    }
  }
  if (!named) {
    return locks::Sharers::alike;  // inherited, by processes of the job
  }
  std::vector<int> elsewhere;
  std::set<std::string> views;
  for (const Process& other : others()) {
    if (other.pid_namespace == waiter.pid_namespace && other.pid_namespace != "?") {
      continue;
    }
    if (const auto mapped = stranger_maps(other.pid, key.inode)) {
      if (*mapped) {
        return locks::Sharers::apart;
      }
      continue;
    }
    const auto view = proc::read_link(proc::process_path(proc_root_, other.pid, "ns/mnt"));
    if (!view || views.insert(*view).second) {
      elsewhere.push_back(other.pid);
    }
  }
  if (too_many_ || elsewhere.size() > most_views) {
    return locks::Sharers::apart;
  }
  if (!elsewhere.empty() && !sees(waiter.sampled.process.pid, key.device).value_or(false)) {
    return locks::Sharers::apart;  // its number is no help
  }
  for (const int pid : elsewhere) {
    if (sees(pid, key.device).value_or(true)) {
      return locks::Sharers::apart;
    }
  }
  const auto ours = proc::read_link(proc_root_ + "/self/ns/pid");
  return ours && *ours == first_namespace ? locks::Sharers::alike : locks::Sharers::unseen;
}

}  // namespace hangtrace::capture
