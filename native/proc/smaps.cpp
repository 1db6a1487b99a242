#include "proc/smaps.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "proc/files.hpp"
#include "proc/scan.hpp"

namespace hangtrace::proc {

namespace {

constexpr std::size_t not_a_size = smaps_keys.size();

std::size_t key_index(std::string_view key) {
  for (std::size_t i = 0; i < smaps_keys.size(); ++i) {
    if (smaps_keys[i].key == key) {
      return i;
    }
  }
  return not_a_size;
}

// "Rss:                1234 kB" after the colon.
bool kilobytes(std::string_view text, std::uint64_t& bytes) {
  Scanner scan(text);
  scan.skip_spaces();
  std::uint64_t number = 0;
  if (!scan.decimal(number)) {
    return false;
  }
  bytes = number * 1024;
  return true;
}

std::uint64_t flag_bits(std::string_view flags) {
  std::uint64_t bits = 0;
  Scanner scan(flags);
  while (!scan.done()) {
    const std::string_view flag = scan.word();
    if (flag == "pf") {
      bits |= smaps_pfnmap;
    } else if (flag == "io") {
      bits |= smaps_io;
    } else if (flag == "ht") {
      bits |= smaps_hugetlb;
    } else if (flag.empty()) {
      break;
    }
  }
  return bits;
}

}  // namespace

void SmapsParser::header(std::string_view line) {
  if (!parse_mapping(line, mapping_)) {
    return;
  }
  const SmapsRecord record{builder_.record(mapping_), {}};
  result_.records.push_back(record);
  position_ = 0;
}

void SmapsParser::line(std::string_view line) {
  // A key starts with a capital letter, the first line of an entry with a hexadecimal digit.
  if (line.empty() || line.front() < 'A' || line.front() > 'Z') {
    header(line);
    return;
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || result_.records.empty()) {
    return;
  }
  SmapsRecord& record = result_.records.back();
  const std::string_view key = line.substr(0, colon);
  // All entries have the same lines in the same order, so the key of a position need only be confirmed.
  std::size_t index = position_ < order_.size() ? order_[position_] : not_a_size;
  if (index == not_a_size || smaps_keys[index].key != key) {
    index = key_index(key);
    if (position_ >= order_.size()) {
      order_.resize(position_ + 1, not_a_size);
    }
    order_[position_] = index;
  }
  ++position_;
  if (index != not_a_size) {
    kilobytes(line.substr(colon + 1), record.sizes[index]);
  } else if (key == "VmFlags") {
    record.flags |= flag_bits(line.substr(colon + 1));
  }
}

void SmapsParser::feed(std::string_view piece) {
  if (!carry_.empty()) {
    const std::size_t end = piece.find('\n');
    carry_.append(piece.substr(0, end));
    if (end == std::string_view::npos) {
      return;
    }
    piece.remove_prefix(end + 1);
    line(carry_);
    carry_.clear();
  }
  for (;;) {
    const std::size_t end = piece.find('\n');
    if (end == std::string_view::npos) {
      carry_.assign(piece);
      return;
    }
    line(piece.substr(0, end));
    piece.remove_prefix(end + 1);
  }
}

Smaps SmapsParser::finish() {
  // A line without its newline was cut and its number may be too: it is left out.
  carry_.clear();
  result_.paths = builder_.take_paths();
  return std::move(result_);
}

std::optional<Smaps> read_smaps(const std::string& proc_root, int pid) {
  const Descriptor file(open(process_path(proc_root, pid, "smaps").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    return std::nullopt;
  }
  SmapsParser parser;
  std::array<char, 16384> buffer;  // the kernel gives at most a page at a time
  for (;;) {
    const ssize_t got = read(file.get(), buffer.data(), buffer.size());
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      return std::nullopt;
    }
    if (got == 0) {
      return parser.finish();
    }
    parser.feed(std::string_view(buffer.data(), static_cast<std::size_t>(got)));
  }
}

SmapsRollup parse_smaps_rollup(std::string_view text) {
  SmapsRollup rollup;
  std::string_view line;
  while (next_line(text, line)) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) {
      continue;
    }
    const std::size_t index = key_index(line.substr(0, colon));
    std::uint64_t bytes = 0;
    if (index != not_a_size && kilobytes(line.substr(colon + 1), bytes)) {
      rollup.sizes[index] = bytes;
    }
  }
  return rollup;
}

std::optional<SmapsRollup> read_smaps_rollup(const std::string& proc_root, int pid) {
  const std::optional<std::string> text = read_file(process_path(proc_root, pid, "smaps_rollup"), 2048);
  if (!text) {
    return std::nullopt;
  }
  return parse_smaps_rollup(*text);
}

}  // namespace hangtrace::proc
