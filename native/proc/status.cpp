#include "proc/status.hpp"

#include <array>
#include <utility>

#include "proc/files.hpp"
#include "proc/scan.hpp"

namespace hangtrace::proc {

namespace {

using Number = std::optional<std::uint64_t> Status::*;

constexpr std::array<std::pair<std::string_view, Number>, 12> sizes{{
    {"VmPeak", &Status::vm_peak},
    {"VmSize", &Status::vm_size},
    {"VmLck", &Status::vm_locked},
    {"VmPin", &Status::vm_pinned},
    {"VmHWM", &Status::vm_high_water},
    {"VmRSS", &Status::vm_rss},
    {"RssAnon", &Status::rss_anon},
    {"RssFile", &Status::rss_file},
    {"RssShmem", &Status::rss_shmem},
    {"VmPTE", &Status::vm_page_tables},
    {"VmSwap", &Status::vm_swap},
    {"HugetlbPages", &Status::hugetlb},
}};

constexpr std::array<std::pair<std::string_view, Number>, 3> counts{{
    {"Threads", &Status::threads},
    {"voluntary_ctxt_switches", &Status::voluntary_switches},
    {"nonvoluntary_ctxt_switches", &Status::involuntary_switches},
}};

std::string unescape_name(std::string_view text) {
  std::string name;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == 'n' || text[i + 1] == '\\')) {
      ++i;
      name.push_back(text[i] == 'n' ? '\n' : '\\');
    } else {
      name.push_back(text[i]);
    }
  }
  return name;
}

int as_id(Scanner& scan) {
  std::uint64_t value = 0;
  scan.skip_spaces();
  return scan.decimal(value) ? static_cast<int>(value) : 0;
}

}  // namespace

Status parse_status(std::string_view text) {
  Status status;
  std::string_view line;
  while (next_line(text, line)) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) {
      continue;
    }
    const std::string_view key = line.substr(0, colon);
    std::string_view value = line.substr(colon + 1);
    Scanner scan(value);
    scan.skip_spaces();
    if (key == "Name") {
      status.name = unescape_name(scan.rest());
    } else if (key == "State") {
      status.state = scan.done() ? '?' : scan.peek();
    } else if (key == "Tgid") {
      status.process = as_id(scan);
    } else if (key == "PPid") {
      status.parent = as_id(scan);
    } else if (key == "TracerPid") {
      status.tracer = as_id(scan);
    } else if (key == "Uid") {
      std::uint64_t user = 0;
      if (scan.decimal(user)) {
        status.user = static_cast<std::uint32_t>(user);
      }
    } else if (key == "NSpid") {
      while (!scan.done()) {
        std::uint64_t id = 0;
        if (!scan.decimal(id)) {
          break;
        }
        status.ids_by_namespace.push_back(static_cast<int>(id));
        scan.skip_spaces();
      }
    } else if (key == "Kthread") {
      status.kernel_thread = scan.peek() == '1';
    } else {
      std::uint64_t number = 0;
      for (const auto& [name, field] : sizes) {
        if (key == name && scan.decimal(number)) {
          status.*field = number * 1024;
        }
      }
      for (const auto& [name, field] : counts) {
        if (key == name && scan.decimal(number)) {
          status.*field = number;
        }
      }
    }
  }
  return status;
}

std::optional<Status> read_status(const std::string& proc_root, int pid) {
  const std::optional<std::string> text = read_file(process_path(proc_root, pid, "status"), 4096);
  if (!text) {
    return std::nullopt;
  }
  return parse_status(*text);
}

}  // namespace hangtrace::proc
