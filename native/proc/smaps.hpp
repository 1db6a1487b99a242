#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proc/map_records.hpp"
#include "proc/record_array.hpp"

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
  RecordArray<SmapsRecord> records;
  std::vector<std::string> paths;  // distinct
};

/// Parses smaps text that arrives in pieces of any size, in one pass.
class SmapsParser {
 public:
  void feed(std::string_view piece);
  Smaps finish();

 private:
  // What a line at some position of an entry was: all entries have the same lines in the same order.
  struct Learned {
    std::size_t index = 0;    // of the key
    bool usual = false;       // key and number have the places they usually have
    std::uint64_t value = 0;  // in bytes, of the line that last_ holds
    std::string other;        // the key, of a line without a size
    std::string text;         // such a line as it was last, newline included
  };

  std::size_t known_lines(std::string_view piece);
  std::size_t usual_lines(std::string_view piece);
  std::size_t other_line(std::string_view piece);
  void line(std::string_view line);
  void header(std::string_view line);
  void learn(std::string_view line, std::size_t index);
  void count_usual();

  Smaps result_;
  MapRecordBuilder builder_;
  std::string carry_;             // a line that is not whole yet
  std::vector<Learned> learned_;  // by position in an entry
  std::vector<char> last_;        // the usual lines as they were last, at a distance of a line each
  std::array<std::uint64_t, smaps_keys.size()> sizes_{};  // what these say
  std::size_t usual_end_ = 0;                             // the first position that is not usual
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
