#include "elf/perf_map.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "elf/open.hpp"
#include "proc/scan.hpp"
#include "proc/status.hpp"
#include "proc/threads.hpp"

namespace hangtrace::elf {

namespace {

constexpr std::uint64_t max_file = 64 << 20;
constexpr std::size_t part_size = 256 << 10;
constexpr std::size_t max_name = 4096;
constexpr std::int64_t second_ns = 1'000'000'000;
// The wall clock may have been set since: only what is clearly older is left over from another process.
constexpr std::int64_t clock_slack_ns = 60 * second_ns;

struct Line {
  Address start = 0;
  std::uint64_t size = 0;
  std::string_view name;
};

std::optional<Line> parse(std::string_view text) {
  if (text.starts_with("0x")) text.remove_prefix(2);
  proc::Scanner scan(text);
  Line line;
  if (!scan.hex(line.start) || !scan.skip(' ') || !scan.hex(line.size) || !scan.skip(' '))
    return std::nullopt;
  line.name = scan.rest();
  return line;
}

// Calls visit(Line) for each whole line.
template <class Visit>
void each_line(const Source& source, Visit visit) {
  std::string kept;  // the beginning of a line whose end is in the next part
  std::vector<std::byte> part(part_size);
  const std::uint64_t end = std::min(source.size(), max_file);
  for (std::uint64_t offset = 0; offset < end;) {
    const std::size_t count =
        source.read_some(offset, std::span(part).first(std::min<std::uint64_t>(part_size, end - offset)));
    if (count == 0) return;
    offset += count;
    std::string_view text(reinterpret_cast<const char*>(part.data()), count);
    for (std::size_t newline; (newline = text.find('\n')) != std::string_view::npos;) {
      std::string_view line = text.substr(0, newline);
      if (!kept.empty()) line = kept.append(line);
      if (const auto parsed = parse(line)) visit(*parsed);
      kept.clear();
      text.remove_prefix(newline + 1);
    }
    if (kept.size() + text.size() <= part_size) kept.append(text);
  }
}

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * second_ns + now.tv_nsec;
}

// When the process began, by the wall clock; nullopt if the kernel does not say.
std::optional<std::int64_t> began_ns(const std::string& proc_root, int pid) {
  const auto stat = proc::read_process_stat(proc_root, pid);
  const long ticks = sysconf(_SC_CLK_TCK);
  if (!stat || ticks <= 0) return std::nullopt;
  const auto seconds = static_cast<std::int64_t>(stat->start_ticks / static_cast<std::uint64_t>(ticks));
  return clock_ns(CLOCK_REALTIME) - (clock_ns(CLOCK_BOOTTIME) - seconds * second_ns);
}

std::unique_ptr<FileSource> open_map(const std::string& proc_root, int pid) {
  const auto status = proc::read_status(proc_root, pid);
  if (!status || !status->user) return nullptr;
  const int inside = status->ids_by_namespace.empty() ? pid : status->ids_by_namespace.back();
  auto source = open_below(proc_root + "/" + std::to_string(pid) + "/root",
                           "/tmp/perf-" + std::to_string(inside) + ".map");
  // /tmp is everybody's: a name that a stranger wrote there is none.
  if (source && source->owner() != 0 && source->owner() != status->user) return nullptr;
  // Process ids come again, and nobody removes these files.
  const auto began = source ? began_ns(proc_root, pid) : std::nullopt;
  if (began && source->mtime_ns() < *began - clock_slack_ns) return nullptr;
  return source;
}

}  // namespace

std::vector<std::optional<JitSymbol>> PerfMap::names(std::span<const Address> addresses) {
  std::vector<std::optional<JitSymbol>> result(addresses.size());
  const auto source = addresses.empty() ? nullptr : open_map(proc_root_, pid_);
  if (!source) return result;
  if (source->mtime_ns() != mtime_ns_ || source->size() != size_) known_.clear();
  mtime_ns_ = source->mtime_ns();
  size_ = source->size();

  std::vector<Address> wanted;
  for (const Address address : addresses) {
    if (!known_.contains(address)) wanted.push_back(address);
  }
  if (!wanted.empty()) {
    std::ranges::sort(wanted);
    wanted.erase(std::ranges::unique(wanted).begin(), wanted.end());
    for (const Address address : wanted) known_[address] = std::nullopt;
    each_line(*source, [&](const Line& line) {
      // Code may be made anew at the same place: the last line tells what is there now.
      for (auto at = std::ranges::lower_bound(wanted, line.start);
           at != wanted.end() && *at - line.start < line.size; ++at) {
        known_[*at] = JitSymbol{std::string(line.name.substr(0, max_name)), line.start, line.size};
      }
    });
  }
  for (std::size_t i = 0; i < addresses.size(); ++i) result[i] = known_[addresses[i]];
  return result;
}

}  // namespace hangtrace::elf
