#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <random>

#include "fake_proc.hpp"
#include "proc/map_records.hpp"
#include "proc/smaps.hpp"

using namespace hangtrace::proc;
using hangtrace::tests::FakeProc;

TEST_CASE("maps: one line of each sort") {
  const auto mappings = parse_maps(
      "55d0c000-55d0e000 r-xp 00001000 fe:01 260131                     /usr/bin/my prog\n"
      "7f0000000000-7f0000001000 rw-s 00000000 00:05 3078                   /dev/zero (deleted)\n"
      "7f0000001000-7f0000003000 ---p 00000000 00:00 0 \n"
      "7f0000003000-7f0000004000 rw-p 00000000 00:00 0                      [stack]\n"
      "7f0000004000-7f0000005000 r--p 00000000 103:2a 7                     /tmp/a\\012b\\134c (deleted) "
      "(deleted)\n"
      "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0              [vsyscall]\n");
  REQUIRE(mappings.size() == 6);
  CHECK(mappings[0].start == 0x55d0c000);
  CHECK(mappings[0].end == 0x55d0e000);
  CHECK(mappings[0].offset == 0x1000);
  CHECK(mappings[0].dev_major == 0xfe);
  CHECK(mappings[0].dev_minor == 1);
  CHECK(mappings[0].inode == 260131);
  CHECK(mappings[0].path == "/usr/bin/my prog");
  CHECK(mappings[0].readable);
  CHECK_FALSE(mappings[0].writable);
  CHECK(mappings[0].executable);
  CHECK_FALSE(mappings[0].shared);
  CHECK(mappings[1].shared);
  CHECK(mappings[1].deleted);
  CHECK(mappings[1].path == "/dev/zero");
  CHECK(mappings[2].path.empty());
  CHECK_FALSE(mappings[2].readable);
  CHECK(mappings[3].path == "[stack]");
  CHECK(mappings[4].path == "/tmp/a\nb\\134c (deleted)");
  CHECK(mappings[4].dev_major == 0x103);
  CHECK(mappings[4].deleted);
  CHECK(find_mapping(mappings, 0x55d0bfff) == nullptr);
  CHECK(find_mapping(mappings, 0x55d0c000) == &mappings[0]);
  CHECK(find_mapping(mappings, 0x55d0dfff) == &mappings[0]);
  CHECK(find_mapping(mappings, 0x55d0e000) == nullptr);
  CHECK(find_mapping(mappings, 0xffffffffff600fff) == &mappings[5]);
  CHECK(find_mapping({}, 1) == nullptr);
}

TEST_CASE("maps: lines that are none are left out, and a cut last line") {
  CHECK(parse_maps("").empty());
  CHECK(parse_maps("\n\nx\n1-\n2000-1000 r--p 0 0:0 0\n1000-2000 r-").empty());
  CHECK(parse_maps("1000-2000 r--p 00000000 00:00 0").size() == 1);
}

TEST_CASE("map records: each path once, as many records as mappings") {
  const std::string_view text =
      "1000-3000 r-xp 00001000 08:02 99 /bin/x (deleted)\nnonsense\n4000-5000 rw-p 00000000 00:00 0 \n"
      "5000-6000 rw-s 00000000 08:02 99 /bin/x (deleted)\n";
  const MapRecords parsed = parse_map_records(text);
  REQUIRE(parsed.records.size() == 3);
  CHECK(parsed.paths == std::vector<std::string>{"/bin/x", ""});
  CHECK(parsed.records[0].start == 0x1000);
  CHECK(parsed.records[0].end == 0x3000);
  CHECK(parsed.records[0].offset == 0x1000);
  CHECK(parsed.records[0].device == makedev(8, 2));
  CHECK(parsed.records[0].inode == 99);
  CHECK(parsed.records[0].flags == (map_read | map_exec | map_deleted));
  CHECK(parsed.records[1].path == 1);
  CHECK(parsed.records[2].path == 0);
  CHECK(parsed.records[2].flags == (map_read | map_write | map_shared | map_deleted));
  const auto ours = read_map_records("/proc", getpid());
  REQUIRE(ours);
  CHECK(ours->records.size() > 5);
  CHECK_FALSE(read_map_records("/proc", 1 << 30));
}

TEST_CASE("maps: read from a recorded process and from ourselves") {
  const FakeProc proc;
  proc.write("5/maps", "1000-2000 r--p 00000000 00:00 0 \n");
  CHECK(read_maps(proc.root(), 5)->size() == 1);
  CHECK_FALSE(read_maps(proc.root(), 6));
  const auto ours = read_maps("/proc", getpid());
  REQUIRE(ours);
  const Mapping* here = find_mapping(*ours, reinterpret_cast<Address>(&getpid));
  REQUIRE(here != nullptr);
  CHECK(here->executable);
}

namespace {

const std::string entry_a =
    "55d0c000-55d0e000 r-xp 00001000 fe:01 260131                     /usr/bin/my prog\n"
    "Size:                  8 kB\nKernelPageSize:        4 kB\nRss:                   8 kB\nPss:             "
    "      4 kB\n"
    "Shared_Clean:          8 kB\nSwapPss:               0 kB\nTHPeligible:           0\nVmFlags: rd ex mr "
    "\n";
const std::string entry_b =
    "7f0000000000-7f0000200000 rw-s 00000000 00:0f 77                     /dev/hugepages/x (deleted)\n"
    "Size:               2048 kB\nKernelPageSize:     2048 kB\nRss:                   0 kB\nPss:             "
    "      0 kB\n"
    "Shared_Clean:          0 kB\nPrivate_Hugetlb:    2048 kB\nSwapPss:              16 kB\nVmFlags: rd wr "
    "sh ht \n";
const std::string entry_c =
    "7f0000200000-7f0000201000 rw-s 00000000 00:06 9                      /dev/nvidia0\n"
    "Size:                  4 kB\nRss:                   0 kB\nVmFlags: rd wr sh pf io \n";

std::size_t key(std::string_view name) {
  for (std::size_t i = 0; i < smaps_keys.size(); ++i) {
    if (smaps_keys[i].name == name) {
      return i;
    }
  }
  FAIL("no such key");
  return 0;
}

}  // namespace

TEST_CASE("smaps: the same records whatever pieces the text arrives in") {
  const std::string text = entry_a + entry_b + entry_a + entry_c;
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{64}, text.size()}) {
    CAPTURE(piece);
    SmapsParser parser;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      parser.feed(std::string_view(text).substr(at, piece));
    }
    const Smaps smaps = parser.finish();
    REQUIRE(smaps.records.size() == 4);
    CHECK(smaps.paths == std::vector<std::string>{"/usr/bin/my prog", "/dev/hugepages/x", "/dev/nvidia0"});
    const SmapsRecord& a = smaps.records[2];
    CHECK(a.start == 0x55d0c000);
    CHECK(a.device == makedev(0xfe, 1));
    CHECK(a.inode == 260131);
    CHECK(a.path == 0);
    CHECK(a.flags == (map_read | map_exec));
    CHECK(a.sizes[key("pss")] == 4096);
    CHECK(a.sizes[key("shared_clean")] == 8192);
    const SmapsRecord& b = smaps.records[1];
    CHECK(b.flags == (map_read | map_write | map_shared | map_deleted | smaps_hugetlb));
    CHECK(b.sizes[key("private_hugetlb")] == 2048 * 1024);
    CHECK(b.sizes[key("swap_pss")] == 16 * 1024);
    CHECK(b.sizes[key("shared_hugetlb")] == 0);
    const SmapsRecord& c = smaps.records[3];
    CHECK(c.flags == (map_read | map_write | map_shared | smaps_pfnmap | smaps_io));
    CHECK(c.sizes[key("size")] == 4096);
  }
}

TEST_CASE("smaps: long numbers, other lines and another order than in the entry before") {
  const std::string head = "1000-3000 rw-p 00000000 00:00 0 \n";
  const std::string usual =
      "Rss:                   8 kB\nPss:              123456 kB\nTHPeligible:           0\n"
      "Swap:                 12 kB\nVmFlags: rd wr ht \n";
  const std::string text = head + usual + head + usual + head +
                           "Rss:            123456789 kB\nPss:                   x kB\n"
                           "Swap:                  9 kB\nTHPeligible:           1\nVmFlags: rd io \n" +
                           head + "NewKey:                7 kB\nSwap:                  3 kB\n" + head + usual;
  for (const std::size_t piece : {std::size_t{1}, std::size_t{29}, text.size()}) {
    CAPTURE(piece);
    SmapsParser parser;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      parser.feed(std::string_view(text).substr(at, piece));
    }
    const Smaps smaps = parser.finish();
    REQUIRE(smaps.records.size() == 5);
    for (const std::size_t index : {0, 1, 4}) {
      const SmapsRecord& record = smaps.records[index];
      CHECK(record.sizes[key("rss")] == 8 * 1024);
      CHECK(record.sizes[key("pss")] == 123456 * 1024);
      CHECK(record.sizes[key("swap")] == 12 * 1024);
      CHECK(record.flags == (map_read | map_write | smaps_hugetlb));
    }
    CHECK(smaps.records[2].sizes[key("rss")] == std::uint64_t{123456789} * 1024);
    CHECK(smaps.records[2].sizes[key("pss")] == 0);
    CHECK(smaps.records[2].sizes[key("swap")] == 9 * 1024);
    CHECK(smaps.records[2].flags == (map_read | map_write | smaps_io));
    CHECK(smaps.records[3].sizes[key("swap")] == 3 * 1024);
  }
}

TEST_CASE("smaps: each entry says what it says alone, whatever came before it") {
  std::mt19937 random(7);
  const auto pick = [&](std::initializer_list<const char*> lines) {
    return std::string(lines.begin()[random() % lines.size()]);
  };
  std::vector<std::string> entries;
  std::string text;
  for (int i = 0; i < 400; ++i) {
    std::string entry = pick({"1000-3000 rw-p 00000000 00:00 0 \n",
                              "2000-3000 r--s 00000010 08:01 5                     /lib/y\n"});
    entry += pick({"", "", "Size:                  8 kB\n", "Size:               2048 kB\n"});
    entry += pick({"Rss:                   8 kB\n", "Rss:                   0 kB\n",
                   "Rss:            123456789 kB\n",
                   "Rss:                   0 kB\nPss:                   7 kB\n"});
    entry +=
        pick({"Shared_Hugetlb:        0 kB\nPrivate_Hugetlb:    2048 kB\n", "Private_Hugetlb:       0 kB\n",
              "Private_Hugetlb: 123456789 kB\n", "Swap:                  1 kB\n"});
    entry += pick({"", "THPeligible:           0\n", "THPeligible:           1\n", "THPeligible:    0\n"});
    entry += pick({"", "ProtectionKey:         3\n"});
    entry += pick({"VmFlags: rd wr ht \n", "VmFlags: rd mr pf\n", "VmFlags: rd mr \n", "VmFlags:\n",
                   "VmFlags: io p\n"});
    entries.push_back(entry);
    text += entry;
  }
  SmapsParser parser;
  parser.feed(text);
  const Smaps all = parser.finish();
  REQUIRE(all.records.size() == entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    CAPTURE(entries[i]);
    SmapsParser alone;
    alone.feed(entries[i]);
    const Smaps one = alone.finish();
    REQUIRE(one.records.size() == 1);
    CHECK(all.records[i].sizes == one.records[0].sizes);
    CHECK(all.records[i].flags == one.records[0].flags);
  }
}

TEST_CASE("smaps: a cut number is left out") {
  SmapsParser parser;
  const std::string text = entry_a + "Rss:                  12";
  parser.feed(text);
  const Smaps smaps = parser.finish();
  REQUIRE(smaps.records.size() == 1);
  CHECK(smaps.records[0].sizes[key("rss")] == 8192);
}

TEST_CASE("smaps: lines before any entry are ignored") {
  SmapsParser parser;
  parser.feed("Rss: 5 kB\nnonsense\n");
  CHECK(parser.finish().records.empty());
}

TEST_CASE("smaps and rollup of ourselves agree") {
  constexpr std::size_t size = std::size_t{8} << 20;
  auto* const memory = static_cast<char*>(
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  REQUIRE(memory != MAP_FAILED);
  const auto smaps = read_smaps("/proc", getpid());
  REQUIRE(smaps);
  std::uint64_t rss = 0;
  bool found = false;
  for (const SmapsRecord& record : smaps->records) {
    rss += record.sizes[key("rss")];
    const auto at = reinterpret_cast<Address>(memory);
    if (record.start <= at && at < record.end) {
      found = true;
      CHECK(record.sizes[key("anonymous")] >= size);
      CHECK(record.sizes[key("private_dirty")] >= size);
    }
  }
  CHECK(found);
  const auto rollup = read_smaps_rollup("/proc", getpid());
  REQUIRE(rollup);
  const auto rolled = static_cast<double>(rollup->sizes[key("rss")].value());
  CHECK(static_cast<double>(rss) == doctest::Approx(rolled).epsilon(0.05));
  munmap(memory, size);
}

TEST_CASE("rollup: what this kernel does not print is absent") {
  const FakeProc proc;
  proc.write("5/smaps_rollup",
             "55d0c000-7fff0000 ---p 00000000 00:00 0    [rollup]\nRss:  8 kB\nPss_Anon:  4 kB\n");
  const auto rollup = read_smaps_rollup(proc.root(), 5);
  REQUIRE(rollup);
  CHECK(rollup->sizes[key("rss")] == 8192u);
  CHECK(rollup->sizes[key("pss_anon")] == 4096u);
  CHECK_FALSE(rollup->sizes[key("swap")]);
  CHECK_FALSE(read_smaps_rollup(proc.root(), 6));
}

TEST_CASE("still mapped: seen at once when code, or what an address points to, is another mapping") {
  constexpr std::size_t page = 4096;
  const auto query = MapsQuery::open("/proc", getpid());
  REQUIRE(query);
  const auto map = [](void* at, int protection) {
    return mmap(at, page, protection, MAP_PRIVATE | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED : 0), -1, 0);
  };
  void* const data = map(nullptr, PROT_READ | PROT_WRITE);
  REQUIRE(data != MAP_FAILED);
  const std::array<Address, 2> addresses{8, reinterpret_cast<Address>(data)};
  Mapping mapping;
  if (query->at(addresses[1], MapsQuery::Which::holding, mapping) == MapsQuery::Answer::failed) {
    MESSAGE("skipped: the kernel cannot be asked for single mappings (Linux 6.11)");
    return;
  }
  const auto before = read_maps("/proc", getpid());
  REQUIRE(before);
  CHECK(still_mapped(*query, *before, addresses));

  REQUIRE(map(data, PROT_READ) == data);
  CHECK_FALSE(still_mapped(*query, *before, addresses));
  CHECK(still_mapped(*query, *before, std::span(addresses).first(1)));  // nobody asked for it

  const auto changed = read_maps("/proc", getpid());
  REQUIRE(changed);
  CHECK(still_mapped(*query, *changed, addresses));
  void* const code = map(nullptr, PROT_READ | PROT_EXEC);
  REQUIRE(code != MAP_FAILED);
  CHECK_FALSE(still_mapped(*query, *changed, addresses));
  munmap(code, page);
  CHECK(still_mapped(*query, *changed, addresses));
  munmap(data, page);
  CHECK_FALSE(still_mapped(*query, *changed, addresses));
}

namespace {

bool same(const Mapping& a, const Mapping& b) {
  return a.start == b.start && a.end == b.end && a.offset == b.offset && a.dev_major == b.dev_major &&
         a.dev_minor == b.dev_minor && a.inode == b.inode && a.readable == b.readable &&
         a.writable == b.writable && a.executable == b.executable && a.shared == b.shared &&
         a.deleted == b.deleted && a.path == b.path;
}

}  // namespace

TEST_CASE("query code: what the text says of code and of addresses, and the rest when it is asked for") {
  constexpr std::size_t page = 4096;
  void* const data = mmap(nullptr, page, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(data != MAP_FAILED);
  const int local = 0;
  static int other = 0;
  std::array<Address, 4> addresses{8, reinterpret_cast<Address>(data), reinterpret_cast<Address>(&local),
                                   reinterpret_cast<Address>(&local) + 1};
  std::ranges::sort(addresses);
  const auto query = MapsQuery::open("/proc", getpid());
  REQUIRE(query);
  Mapping any;
  if (query->at(addresses[1], MapsQuery::Which::holding, any) == MapsQuery::Answer::failed) {
    MESSAGE("skipped: the kernel cannot be asked for single mappings (Linux 6.11)");
    return;
  }
  const auto listed = query_code(*query, addresses);
  const auto text = read_maps("/proc", getpid());
  REQUIRE(listed);
  REQUIRE(text);
  CHECK(std::ranges::is_sorted(*listed, {}, &Mapping::start));
  CHECK(listed->size() < text->size());
  for (const Mapping& mapping : *listed) {
    CAPTURE(mapping.path);
    const Mapping* const found = find_mapping(*text, mapping.start);
    REQUIRE(found != nullptr);
    CHECK(same(*found, mapping));
  }
  for (const Mapping& mapping : *text) {
    const bool asked = std::ranges::any_of(
        addresses, [&](Address address) { return address >= mapping.start && address < mapping.end; });
    if ((mapping.executable && mapping.path != "[vsyscall]") || asked) {
      CAPTURE(mapping.path);
      CHECK(find_mapping(*listed, mapping.start) != nullptr);
    }
  }
  CHECK(still_mapped(*query, *listed, addresses));

  const auto unasked = reinterpret_cast<Address>(&other);
  CHECK(find_mapping(*listed, unasked) == nullptr);
  UnlistedMappings unlisted("/proc", getpid());
  const Mapping* const found = unlisted.at(unasked);
  REQUIRE(found != nullptr);
  CHECK(found->start == find_mapping(*text, unasked)->start);
  CHECK(found->writable);
  CHECK(unlisted.at(unasked + 1) == found);
  CHECK(unlisted.at(8) == nullptr);
  CHECK(unlisted.all().size() >= listed->size());
  CHECK(unlisted.at(unasked) != found);  // now of all
  munmap(data, page);
}

TEST_CASE("query code: nothing where code without file, or of an unlinked one, needs what is around it") {
  constexpr std::size_t page = 4096;
  const auto query = MapsQuery::open("/proc", getpid());
  REQUIRE(query);
  Mapping any;
  if (query->at(reinterpret_cast<Address>(&any), MapsQuery::Which::holding, any) ==
      MapsQuery::Answer::failed) {
    MESSAGE("skipped: the kernel cannot be asked for single mappings (Linux 6.11)");
    return;
  }
  REQUIRE(query_code(*query, {}));
  const int file = memfd_create("code", MFD_CLOEXEC);
  REQUIRE(file >= 0);
  REQUIRE(ftruncate(file, page) == 0);
  for (const int from : {-1, file}) {
    CAPTURE(from);
    void* const code =
        mmap(nullptr, page, PROT_READ | PROT_EXEC, MAP_PRIVATE | (from < 0 ? MAP_ANONYMOUS : 0), from, 0);
    REQUIRE(code != MAP_FAILED);
    CHECK_FALSE(query_code(*query, {}));
    munmap(code, page);
    CHECK(query_code(*query, {}));
  }
  close(file);
}

TEST_CASE("query code: no answer where /proc is a recorded one") {
  const FakeProc proc;
  proc.write("5/maps", "1000-2000 rw-p 00000000 00:00 0 \n");
  const auto query = MapsQuery::open(proc.root(), 5);
  REQUIRE(query);
  CHECK_FALSE(query_code(*query, {}));
  UnlistedMappings unlisted(proc.root(), 5);
  CHECK(unlisted.at(0x1000) == nullptr);
  REQUIRE(unlisted.all().size() == 1);
  CHECK(unlisted.at(0x1000) == unlisted.all().data());
}
