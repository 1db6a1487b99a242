// The parsers of /proc text, and of pagemap.
#include "proc/files.hpp"
#include "proc/map_records.hpp"
#include "proc/pagemap.hpp"
#include "proc/smaps.hpp"
#include "proc/status.hpp"
#include "proc/threads.hpp"
#include "tests/fuzz/harness.hpp"

namespace hangtrace::tests {

namespace {

Bytes text(std::string_view content) {
  const auto bytes = std::as_bytes(std::span(content));
  return {bytes.begin(), bytes.end()};
}

// Any eight bytes may be an entry: sums hold, and two halves together have what each has.
void fuzz_pages(std::span<const std::byte> input) {
  constexpr std::size_t most = 4096;  // a frame may take a block of 4 KiB
  std::vector<std::uint64_t> entries(std::min(input.size() / 8, most));
  if (entries.empty()) return;
  std::memcpy(entries.data(), input.data(), entries.size() * 8);
  proc::FrameGroup group;
  std::uint64_t sum = 0;
  const std::span all(entries);
  for (const auto half : {all.first(entries.size() / 2), all.subspan(entries.size() / 2)}) {
    proc::PageCounts counts;
    auto frames = std::make_shared<proc::FrameSet>();
    proc::count_pages(half, proc::ZeroPages{1, 512, 1024}, counts, *frames);
    promise(counts.present + counts.swapped <= half.size(), "more pages than entries");
    promise(frames->size() <= counts.numbered && counts.numbered <= counts.present, "more frames than pages");
    sum += frames->size();
    group.add(static_cast<int>(sum), std::move(frames));
  }
  promise(group.size() <= sum && group.unique() <= group.size(), "a group larger than its members");
}

}  // namespace

std::vector<Bytes> fuzz_seeds() {
  std::vector<Bytes> seeds{
      text("7f0000000000-7f0000021000 r-xp 00001000 fd:01 1234   /usr/lib/lib\\012c.so (deleted)\n"
           "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0      [stack]\n"),
      text("7f0000000000-7f0000021000 rw-s 00000000 00:01 99  /dev/zero\nSize:   132 kB\nRss:  4 kB\n"
           "Pss_Dirty:  0 kB\nTHPeligible:    0\nProtectionKey:  0\nVmFlags: rd wr sh mr mw me ms pf io ht "
           "\n"),
      text("Name:\ta\\nb\nState:\tS (sleeping)\nTgid:\t7\nPPid:\t1\nTracerPid:\t0\nUid:\t0\t0\t0\t0\n"
           "NSpid:\t4007\t7\nKthread:\t0\nVmRSS:\t  12 kB\nThreads:\t3\nvoluntary_ctxt_switches:\t9\n"),
      text("7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 999 123 45 18446744073709551615 1 2 3 "
           "4 5 "
           "0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"),
      text("202 0x7f00deadbeef 0x189 0x0 0x0 0x0 0xffffffff 0x7ffc00001000 0x7f0000001234\n"),
      text("-1 0x7ffc00001000 0x7f0000001234\n"),
      text("running\n"),
      text("123456789 1000 42\n"),
      text("[<0>] futex_wait_queue+0x60/0x90\n[<0>] __futex_wait+0x14a/0x1b0\n"),
  };
  for (const char* name : {"maps", "smaps", "smaps_rollup", "status", "stat", "schedstat", "syscall"}) {
    if (const auto content = proc::read_file(std::string("/proc/self/") + name))
      seeds.push_back(text(*content));
  }
  const std::uint64_t pages[] = {0, std::uint64_t{1} << 63 | 7, std::uint64_t{3} << 62 | 7,
                                 std::uint64_t{0x81} << 56 | 1024, std::uint64_t{0xa1} << 56 | 40000};
  const auto bytes = std::as_bytes(std::span(pages));
  seeds.emplace_back(bytes.begin(), bytes.end());
  return seeds;
}

std::vector<std::string> fuzz_files() {
  return {};
}

void fuzz_one(std::span<const std::byte> input) {
  const std::string_view all(reinterpret_cast<const char*>(input.data()), input.size());
  auto mappings = proc::parse_maps(all);
  if (!mappings.empty()) {
    std::ranges::sort(mappings, {}, &proc::Mapping::start);
    for (const memory::Address address : {mappings[0].start, mappings[0].end, ~memory::Address{0}}) {
      const proc::Mapping* found = proc::find_mapping(mappings, address);
      promise(found == nullptr || (address >= found->start && address < found->end), "a mapping elsewhere");
    }
  }
  for (const std::size_t piece : {std::size_t{7}, std::size_t{4096}}) {
    if (piece == 7 && input.size() > 65536) continue;
    proc::SmapsParser parser;
    for (std::size_t at = 0; at < all.size(); at += piece) parser.feed(all.substr(at, piece));
    const proc::Smaps smaps = parser.finish();
    for (const proc::SmapsRecord& record : smaps.records)
      promise(record.path < smaps.paths.size(), "a path that is not there");
  }
  const proc::MapRecords records = proc::parse_map_records(all);
  for (const proc::MapRecord& record : records.records)
    promise(record.path < records.paths.size() && record.start < record.end, "a record of nothing");
  fuzz_pages(input);
  proc::parse_smaps_rollup(all);
  proc::parse_status(all);
  proc::parse_stat(all);
  proc::parse_schedstat(all);
  proc::parse_syscall(all);
  proc::parse_kernel_stack(all);
}

}  // namespace hangtrace::tests
