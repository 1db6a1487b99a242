#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proc/map_records.hpp"

namespace hangtrace::proc {

struct SmapsKey {
  std::string_view key;   // as the kernel prints it
  std::string_view name;  // as we do
};

/// The sizes of an smaps entry in the order of SmapsRecord::sizes.
inline constexpr std::array<SmapsKey, 25> smaps_keys{{
    {"Size", "size"},
    {"KernelPageSize", "kernel_page_size"},
    {"MMUPageSize", "mmu_page_size"},
    {"Rss", "rss"},
    {"Pss", "pss"},
    {"Pss_Dirty", "pss_dirty"},  // kernel 6.0
    {"Pss_Anon", "pss_anon"},    // rollup only, as the next two
    {"Pss_File", "pss_file"},
    {"Pss_Shmem", "pss_shmem"},
    {"Shared_Clean", "shared_clean"},
    {"Shared_Dirty", "shared_dirty"},
    {"Private_Clean", "private_clean"},
    {"Private_Dirty", "private_dirty"},
    {"Referenced", "referenced"},
    {"Anonymous", "anonymous"},
    {"KSM", "ksm"},  // kernel 6.7
    {"LazyFree", "lazy_free"},
    {"AnonHugePages", "anon_huge_pages"},
    {"ShmemPmdMapped", "shmem_pmd_mapped"},
    {"FilePmdMapped", "file_pmd_mapped"},
    {"Shared_Hugetlb", "shared_hugetlb"},
    {"Private_Hugetlb", "private_hugetlb"},
    {"Swap", "swap"},
    {"SwapPss", "swap_pss"},
    {"Locked", "locked"},
}};

// Beside those of MapRecord:
inline constexpr std::uint64_t smaps_pfnmap = 32;    // VmFlags pf: driver pages, not in RSS
inline constexpr std::uint64_t smaps_io = 64;        // VmFlags io
inline constexpr std::uint64_t smaps_hugetlb = 128;  // VmFlags ht

/// One mapping; bytes. Plain, so that an array of it can be handed out as it is.
struct SmapsRecord : MapRecord {
  std::array<std::uint64_t, smaps_keys.size()> sizes;
};

struct Smaps {
  std::vector<SmapsRecord> records;
  std::vector<std::string> paths;  // distinct
};

/// Parses smaps text that arrives in pieces of any size, in one pass.
class SmapsParser {
 public:
  void feed(std::string_view piece);
  Smaps finish();

 private:
  void line(std::string_view line);
  void header(std::string_view line);

  Smaps result_;
  MapRecordBuilder builder_;
  std::string carry_;               // a line that is not whole yet
  std::vector<std::size_t> order_;  // position of a line in an entry -> index of its key, learned
  std::size_t position_ = 0;
  Mapping mapping_;
};

/// nullopt with errno set if it cannot be read. Waits while the mmap lock is held, and holds it for reading.
std::optional<Smaps> read_smaps(const std::string& proc_root, int pid);

struct SmapsRollup {
  std::array<std::optional<std::uint64_t>, smaps_keys.size()> sizes;  // bytes; what this kernel prints
};

SmapsRollup parse_smaps_rollup(std::string_view text);
std::optional<SmapsRollup> read_smaps_rollup(const std::string& proc_root, int pid);

}  // namespace hangtrace::proc
