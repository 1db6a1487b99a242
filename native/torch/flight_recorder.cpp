#include "torch/flight_recorder.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "memory/page_reader.hpp"
#include "torch/ring.hpp"
#include "torch/standard_types.hpp"

namespace hangtrace::torch {

namespace {

constexpr int attempts = 3;
constexpr std::size_t most_text = 512;
constexpr std::size_t most_tensors = 1 << 16;
constexpr std::size_t most_sizes = 1 << 18;
constexpr std::int64_t most_dimensions = 64;
constexpr std::size_t most_frames = 1 << 10;
constexpr std::size_t most_groups = 1 << 12;
constexpr std::size_t most_members = 1 << 17;
// Of all entries together: a damaged ring may repeat the largest vector in each of them.
constexpr std::size_t most_bytes = 64 << 20;

std::size_t at(int offset) {
  return static_cast<std::size_t>(offset);
}

bool is_printable(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
}

// Of which backend, and what: "gloo:all_reduce".
bool is_operation_name(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == 0 || colon == std::string_view::npos || colon + 1 == text.size()) {
    return false;
  }
  return is_printable(text) && std::ranges::all_of(text.substr(0, colon), [](unsigned char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
         });
}

class Decoder {
 public:
  Decoder(const memory::Reader& memory, const EntryLayout& layout) : memory_(memory), layout_(layout) {}

  // What the entry keeps elsewhere, for one read of all.
  void add_places(const Copy& entry, std::vector<Address>& into) const {
    for (const int offset : {layout_.group, layout_.description, layout_.name, layout_.thread_name,
                             layout_.input_dims, layout_.input_dtypes, layout_.output_dims,
                             layout_.output_dtypes, layout_.sizes, layout_.traceback}) {
      if (const auto place = outside_of(entry, at(offset))) {
        into.push_back(*place);
      }
    }
  }

  std::uint64_t pg_id(const Copy& entry) const { return entry.load<std::uint64_t>(at(layout_.pg_id)); }
  bool is_p2p(const Copy& entry) const { return entry.load<std::uint8_t>(at(layout_.is_p2p)) != 0; }
  bool is_open(const Copy& entry) const { return entry.load<std::uint8_t>(at(layout_.retired)) == 0; }

  // nullopt: it cannot be one.
  std::optional<RecordedOperation> decode(const Copy& entry, bool with_frames) {
    RecordedOperation result;
    const auto word = [&](int offset) { return entry.load<std::uint64_t>(at(offset)); };
    result.id = word(layout_.id);
    result.pg_id = word(layout_.pg_id);
    result.collective = word(layout_.collective);
    result.p2p = word(layout_.p2p);
    result.op_id = word(layout_.op_id);
    result.created = entry.load<std::int64_t>(at(layout_.created));
    result.timeout_ms = entry.load<std::int64_t>(at(layout_.timeout));
    result.thread_id = word(layout_.thread_id);
    const bool sound =
        text(entry, layout_.group, result.group) && text(entry, layout_.description, result.description) &&
        text(entry, layout_.name, result.name) && is_operation_name(result.name) &&
        text(entry, layout_.thread_name, result.thread_name) && flag(entry, layout_.is_p2p, result.is_p2p) &&
        flag(entry, layout_.retired, result.retired) &&
        optional(entry, layout_.duration, 4, result.duration_ms) &&
        optional(entry, layout_.started, 8, result.started) &&
        optional(entry, layout_.completed, 8, result.completed) && tensors(entry, result);
    if (!sound) {
      return std::nullopt;
    }
    if (with_frames) {
      result.frames = frames(word(layout_.traceback));
    }
    return result;
  }

 private:
  bool text(const Copy& entry, int offset, std::string& into) {
    auto found = read_string(memory_, entry, at(offset), most_text);
    if (!found) {
      return false;
    }
    into = std::move(*found);
    return true;
  }

  static bool flag(const Copy& entry, int offset, bool& into) {
    const auto value = entry.load<std::uint8_t>(at(offset));
    into = value != 0;
    return value <= 1;
  }

  // A std::optional: the value, and behind it whether there is one.
  template <class T>
  static bool optional(const Copy& entry, int offset, int size, std::optional<T>& into) {
    bool engaged = false;
    if (!flag(entry, offset + size, engaged)) {
      return false;
    }
    if (engaged) {
      into = entry.load<T>(at(offset));
    }
    return true;
  }

  bool tensors(const Copy& entry, RecordedOperation& into) {
    const auto dims = [&](int offset) {
      return read_small_vector(memory_, entry, at(offset), std::min(most_tensors, left_ / 8));
    };
    const auto types = [&](int offset) {
      return read_vector(memory_, entry, at(offset), 1, std::min(most_tensors, left_));
    };
    const auto inputs = dims(layout_.input_dims);
    const auto outputs = dims(layout_.output_dims);
    const auto input_types = types(layout_.input_dtypes);
    const auto output_types = types(layout_.output_dtypes);
    const auto sizes = read_small_vector(memory_, entry, at(layout_.sizes), std::min(most_sizes, left_ / 8));
    if (!inputs || !outputs || !sizes || !input_types || !output_types ||
        inputs->size() != input_types->size() || outputs->size() != output_types->size() ||
        !spend(8 * sizes->size() + 32 * (inputs->size() + outputs->size()))) {
      return false;
    }
    auto next = sizes->begin();
    const auto shapes = [&](const std::vector<std::int64_t>& dimensions, Shapes& shapes_of) {
      for (const std::int64_t count : dimensions) {
        if (count < 0 || count > most_dimensions || count > sizes->end() - next) {
          return false;
        }
        shapes_of.emplace_back(next, next + count);
        next += count;
      }
      return true;
    };
    if (!shapes(*inputs, into.inputs) || !shapes(*outputs, into.outputs) || next != sizes->end() ||
        std::ranges::any_of(*sizes, [](std::int64_t size) { return size < 0; })) {
      return false;
    }
    const auto numbers = [](const std::vector<std::byte>& types) {
      std::vector<std::uint8_t> result;
      for (const std::byte type : types) {
        result.push_back(static_cast<std::uint8_t>(type));
      }
      return result;
    };
    into.input_dtypes = numbers(*input_types);
    into.output_dtypes = numbers(*output_types);
    return true;
  }

  // torch::CapturedTraceback (torch/csrc/profiler/combined_traceback.h): virtual table, then
  // std::vector<PyFrame{PyCodeObject*, int}>.
  std::vector<python::CodePlace> frames(Address traceback) {
    struct Frame {
      Address code;
      std::int32_t instruction;
      std::int32_t unused;
    };
    std::array<std::byte, 32> head{};
    if (!is_pointer(traceback) || !memory_.read(traceback, head)) {
      return {};
    }
    const auto raw = read_vector(memory_, {head, traceback}, 8, sizeof(Frame), most_frames);
    if (!raw || !spend(raw->size())) {
      return {};
    }
    std::vector<python::CodePlace> result;
    for (std::size_t i = 0; i < raw->size(); i += sizeof(Frame)) {
      const Frame frame = Copy{*raw, 0}.load<Frame>(i);
      result.push_back({frame.code, frame.instruction});
    }
    return result;
  }

  bool spend(std::size_t bytes) {
    if (bytes > left_) {
      return false;
    }
    left_ -= bytes;
    return true;
  }

  const memory::Reader& memory_;
  const EntryLayout& layout_;
  std::size_t left_ = most_bytes;
};

// Of each group the last operation of each kind, and those that are open: whoever waits may wait for the
// first or the last of them.
std::vector<std::size_t> that_matter(const Ring& ring, const Decoder& decoder, std::size_t most_open) {
  std::map<std::uint64_t, std::vector<std::size_t>> open;  // newest first
  std::set<std::pair<std::uint64_t, bool>> seen;
  std::set<std::size_t> kept;
  for (std::size_t age = 0; age < ring.order().size(); ++age) {
    const Copy entry = ring.entry(ring.order()[age]);
    const std::uint64_t group = decoder.pg_id(entry);
    if (seen.insert({group, decoder.is_p2p(entry)}).second) {
      kept.insert(age);
    }
    if (decoder.is_open(entry)) {
      open[group].push_back(age);
    }
  }
  for (const auto& [group, ages] : open) {
    const std::size_t oldest = std::min(ages.size(), most_open);
    kept.insert(ages.end() - static_cast<std::ptrdiff_t>(oldest), ages.end());
  }
  std::vector<std::size_t> slots;
  for (const std::size_t age : kept) {
    slots.push_back(ring.order()[age]);
  }
  return slots;
}

// So that many small objects far apart cost one read.
void read_ahead(const memory::PageReader& memory, const std::vector<Address>& places) {
  std::vector<std::byte> unused(places.size());
  std::vector<memory::Piece> pieces;
  for (std::size_t i = 0; i < places.size(); ++i) {
    pieces.push_back({places[i], std::span(unused).subspan(i, 1)});
  }
  memory.read_batch(pieces);
}

void read_groups(const memory::Reader& memory, Address recorder, const RecorderLayout& layout,
                 Recording& into) {
  std::vector<std::byte> bytes(at(layout.size));
  if (!memory.read(recorder, bytes)) {
    return;
  }
  const Copy copy{bytes, recorder};
  into.library_version =
      read_string(memory, copy, at(layout.library_version), most_text).value_or(std::string());
  // std::map<size_t, std::shared_ptr<ProcessGroupStatus>>, whose first members are the three numbers.
  for (const Address place :
       read_map(memory, copy, at(layout.status), most_groups).value_or(std::vector<Address>())) {
    struct Numbers {
      std::int64_t enqueued, started, completed;
    };
    const auto id = memory.read_value<std::uint64_t>(place);
    const auto object = memory.read_value<Address>(place + 8);
    const auto numbers = object && is_pointer(*object) ? memory.read_value<Numbers>(*object) : std::nullopt;
    if (id && numbers) {
      into.status.push_back({*id, numbers->enqueued, numbers->started, numbers->completed});
    }
  }
  // std::map<std::tuple<std::string, std::string>, std::vector<uint64_t>>
  std::size_t members = 0;
  for (const Address place :
       read_map(memory, copy, at(layout.ranks), most_groups).value_or(std::vector<Address>())) {
    std::vector<std::byte> value(32 + 32 + 24);
    if (!memory.read(place, value)) {
      return;
    }
    const Copy pair{value, place};
    const auto description = read_string(memory, pair, 0, most_text);
    const auto name = read_string(memory, pair, 32, most_text);
    const auto ranks = read_vector(memory, pair, 64, 8, most_members - members);
    if (!description || !name || !ranks) {
      return;
    }
    GroupRanks group{*name, *description, {}};
    for (std::size_t i = 0; i < ranks->size(); i += 8) {
      group.ranks.push_back(Copy{*ranks, 0}.load<std::uint64_t>(i));
    }
    members += group.ranks.size();
    into.ranks.push_back(std::move(group));
  }
}

// One reading; `moving` if it is worth another one.
Recording read_once(const memory::Reader& memory, Address recorder, const RecorderLayout& layout,
                    const Head& head, const Wanted& wanted) {
  Recording result;
  result.outcome = Outcome::unknown_layout;
  memory::PageReader pages(memory);
  pages.begin();
  auto ring = Ring::read(memory, layout, head);
  if (!ring) {
    const auto now = read_head(memory, layout, recorder);
    if (!now || now->count != head.count) {
      result.outcome = Outcome::moving;
    }
    return result;
  }
  Decoder decoder(pages, layout.entry);
  std::vector<std::size_t> slots = wanted.all ? ring->order() : that_matter(*ring, decoder, wanted.most_open);
  std::vector<Address> places;
  for (const std::size_t slot : slots) {
    decoder.add_places(ring->entry(slot), places);
  }
  read_ahead(pages, places);
  std::map<std::size_t, std::optional<RecordedOperation>> decoded;
  for (const std::size_t slot : slots) {
    decoded[slot] = decoder.decode(ring->entry(slot), wanted.frames);
  }
  if (wanted.all) {
    read_groups(pages, recorder, layout, result);
  }
  const auto after = read_head(memory, layout, recorder);
  if (!after || !ring->drop_written(head, *after)) {
    result.outcome = Outcome::moving;
    return result;
  }
  const std::set<std::size_t> valid(ring->order().begin(), ring->order().end());
  for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
    if (!valid.contains(*slot)) {
      continue;
    }
    if (!decoded[*slot]) {
      return result;
    }
    result.operations.push_back(std::move(*decoded[*slot]));
  }
  result.outcome = Outcome::read;
  result.layout = &layout;
  result.whole = head.epoch == 0 && head.count == ring->order().size();
  return result;
}

Recording read_once(const memory::Reader& memory, Address recorder, const Wanted& wanted) {
  Recording result;
  std::uint8_t first = 0;
  if (!memory.read(recorder, std::as_writable_bytes(std::span(&first, 1)))) {
    return result;
  }
  result.outcome = Outcome::unknown_layout;
  for (const RecorderLayout& layout : known_layouts()) {
    const auto head = read_head(memory, layout, recorder);
    if (!head) {
      continue;
    }
    Recording found;
    if (!head->enabled) {
      found.outcome = Outcome::off;
    } else if (head->is_empty()) {
      // Which of two layouts it is nobody can tell, and nobody needs to know.
      found.outcome = Outcome::read;
      found.layout = &layout;
      found.whole = head->epoch == 0;
    } else {
      found = read_once(memory, recorder, layout, *head, wanted);
    }
    found.most = head->most;
    found.recorded = head->count;
    found.epoch = head->epoch;
    if (found.outcome != Outcome::unknown_layout) {
      return found;
    }
  }
  return result;
}

}  // namespace

const char* name(Outcome outcome) {
  switch (outcome) {
    case Outcome::read:
      return "read";
    case Outcome::off:
      return "off";
    case Outcome::never_made:
      return "never_made";
    case Outcome::unreadable:
      return "unreadable";
    case Outcome::unknown_layout:
      return "unknown_layout";
    case Outcome::moving:
      return "moving";
  }
  return "unreadable";
}

Recording read_recorder(const memory::Reader& memory, Address instance, const Wanted& wanted) {
  Recording result;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const auto recorder = memory.read_value<Address>(instance);
    if (!recorder) {
      return result;
    }
    if (*recorder == 0) {
      result.outcome = Outcome::never_made;
      return result;
    }
    result = read_once(memory, *recorder, wanted);
    // One that was being written looks like none.
    if (result.outcome != Outcome::moving && result.outcome != Outcome::unknown_layout) {
      return result;
    }
  }
  return result;
}

}  // namespace hangtrace::torch
