#include "proc/smaps.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proc/files.hpp"
#include "proc/scan.hpp"

namespace hangtrace::proc {

namespace {

constexpr std::size_t not_a_size = smaps_keys.size();
// "%-16s%8lu kB\n" (fs/proc/task_mmu.c), unless the number has more than eight digits.
constexpr std::size_t key_size = 16;
constexpr std::size_t line_size = 28;

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

constexpr std::string_view flags_key = "VmFlags:";

// " rd wr mr \n": two letters each, and a space before. What was read of it.
std::size_t flag_bits(std::string_view flags, std::uint64_t& bits) {
  std::size_t at = 0;
  for (; at + 3 <= flags.size() && flags[at] == ' ' && flags[at + 1] != '\n'; at += 3) {
    const auto pair = [&](char first, char second) {
      return flags[at + 1] == first && flags[at + 2] == second;
    };
    bits |= pair('p', 'f') ? smaps_pfnmap : pair('i', 'o') ? smaps_io : pair('h', 't') ? smaps_hugetlb : 0;
  }
  return at;
}

}  // namespace

void SmapsParser::header(std::string_view line) {
  if (!parse_mapping(line, mapping_)) {
    return;
  }
  builder_.fill(mapping_, result_.records.add());
  position_ = 0;
}

void SmapsParser::learn(std::string_view line, std::size_t index) {
  if (position_ >= learned_.size()) {
    learned_.resize(position_ + 1);
    last_.resize(learned_.size() * line_size);
  }
  Learned& learned = learned_[position_];
  learned = Learned{};
  learned.index = index;
  if (index == not_a_size) {
    learned.other = line.substr(0, line.find(':'));
  } else if (line.size() + 1 == line_size && line.substr(0, key_size).find_last_of(" :") == key_size - 1 &&
             line.ends_with(" kB")) {
    learned.usual = kilobytes(line.substr(key_size), learned.value);
    std::ranges::copy(line, last_.begin() + static_cast<std::ptrdiff_t>(position_ * line_size));
    last_[(position_ + 1) * line_size - 1] = '\n';
  }
  count_usual();
}

void SmapsParser::count_usual() {
  sizes_.fill(0);
  for (usual_end_ = 0; usual_end_ < learned_.size() && learned_[usual_end_].usual; ++usual_end_) {
    sizes_[learned_[usual_end_].index] = learned_[usual_end_].value;
  }
}

// Takes lines at the begin of the piece, as long as they are the expected ones. Bytes taken.
std::size_t SmapsParser::known_lines(std::string_view piece) {
  if (result_.records.empty()) {
    return 0;
  }
  std::size_t taken = usual_lines(piece);
  for (;;) {
    const std::size_t more = other_line(piece.substr(taken));
    if (more == 0) {
      return taken;
    }
    taken += more;
  }
}

// A line without a size: of one that says the same as in the entry before, and of the flags, no end is
// searched.
std::size_t SmapsParser::other_line(std::string_view piece) {
  if (position_ >= learned_.size()) {
    return 0;
  }
  const std::string& before = learned_[position_].text;
  std::size_t taken = 0;
  if (before.starts_with(flags_key)) {
    std::uint64_t bits = 0;
    if (!piece.starts_with(flags_key)) {
      return 0;
    }
    taken = flags_key.size() + flag_bits(piece.substr(flags_key.size()), bits);
    if (!piece.substr(taken).starts_with(" \n")) {
      return 0;
    }
    taken += 2;
    result_.records.back().flags |= bits;
  } else if (!before.empty() && piece.starts_with(before)) {
    taken = before.size();
  } else {
    return 0;
  }
  ++position_;
  return taken;
}

// Lines of usual length.
std::size_t SmapsParser::usual_lines(std::string_view piece) {
  SmapsRecord& record = result_.records.back();
  std::size_t taken = 0;
  while (position_ < usual_end_ && piece.size() - taken >= line_size) {
    const char* const line = piece.data() + taken;
    // Most mappings end in the same lines as the one before: compared at once, their numbers are known.
    const std::size_t rest = (usual_end_ - position_) * line_size;
    if (piece.size() - taken >= rest && std::memcmp(line, last_.data() + position_ * line_size, rest) == 0) {
      if (position_ == 0) {
        record.sizes = sizes_;
        position_ = usual_end_;
      }
      for (; position_ < usual_end_; ++position_) {
        record.sizes[learned_[position_].index] = learned_[position_].value;
      }
      return taken + rest;
    }
    Learned& learned = learned_[position_];
    char* const last = last_.data() + position_ * line_size;
    if (std::memcmp(line, last, key_size) != 0 || line[line_size - 1] != '\n') {
      return taken;
    }
    const char* digit = line + key_size;
    const char* const end = line + line_size - 4;  // " kB\n"
    while (digit < end && *digit == ' ') {
      ++digit;
    }
    std::uint64_t number = 0;
    for (; digit < end && *digit >= '0' && *digit <= '9'; ++digit) {
      number = number * 10 + static_cast<unsigned>(*digit - '0');
    }
    if (digit != end) {
      return taken;
    }
    learned.value = number * 1024;
    std::memcpy(last, line, line_size);
    record.sizes[learned.index] = sizes_[learned.index] = learned.value;
    ++position_;
    taken += line_size;
  }
  return taken;
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
  std::size_t index = not_a_size;
  if (position_ >= learned_.size() || learned_[position_].other != key) {
    const bool known = position_ < learned_.size() && learned_[position_].index != not_a_size &&
                       smaps_keys[learned_[position_].index].key == key;
    index = known ? learned_[position_].index : key_index(key);
    if (!known) {
      learn(line, index);
    }
  }
  ++position_;
  if (index != not_a_size) {
    kilobytes(line.substr(colon + 1), record.sizes[index]);
    return;
  }
  learned_[position_ - 1].text.assign(line).push_back('\n');
  if (line.starts_with(flags_key)) {
    flag_bits(line.substr(flags_key.size()), record.flags);
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
    piece.remove_prefix(known_lines(piece));
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
