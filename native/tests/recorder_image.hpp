#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "memory/buffer_reader.hpp"
#include "torch/layout.hpp"
#include "torch/standard_types.hpp"

namespace hangtrace::tests {

using memory::Address;

/// One operation to be put into a ring.
struct MadeOperation {
  std::uint64_t id = 0;
  std::uint64_t epoch = 0;
  std::uint64_t pg_id = 0;
  std::string group = "0";
  std::string description = "default_pg";
  std::string name = "gloo:all_reduce";
  std::uint64_t collective = 1;
  std::uint64_t p2p = 0;
  bool is_p2p = false;
  bool retired = false;
  std::vector<std::vector<std::int64_t>> inputs = {{4, 2}};
  std::vector<std::vector<std::int64_t>> outputs = {{4, 2}};
  std::uint8_t dtype = 6;
  std::vector<std::pair<Address, int>> frames = {};
};

/// The memory of a process with a recorder of some layout, as the compiler of torch would have laid it out.
class RecorderImage {
 public:
  static constexpr Address instance = 0x10000000;
  static constexpr Address recorder = 0x20000000;
  static constexpr Address ring = 0x30000000;
  static constexpr Address heap = 0x40000000;

  explicit RecorderImage(const torch::RecorderLayout& layout) : layout(layout), head_(sized(layout.size)) {
    // Whole pages, as a process has them.
    memory.add(recorder, std::vector<std::byte>(4096));
    memory.add(ring, std::vector<std::byte>(64 << 10));
    memory.add(heap, std::vector<std::byte>(64 << 10));
    memory.add_value(instance, recorder);
    head_[at(layout.enabled)] = std::byte{1};
    set_status({});
    set_numbers(0, 0);
  }

  /// The ring as it is with these in its slots. `next`: the slot that comes next.
  void set(const std::vector<MadeOperation>& operations, std::uint64_t most, std::uint64_t next,
           std::uint64_t count, std::uint64_t epoch = 0) {
    most_ = most;
    slots_ = operations.size();
    for (std::size_t slot = 0; slot < operations.size(); ++slot) put_entry(slot, operations[slot]);
    if (layout.epoch >= 0) put(head_, layout.epoch, epoch);
    set_numbers(next, count);
    store();
  }

  void put_entry(std::size_t slot, const MadeOperation& operation) {
    const torch::EntryLayout& entry = layout.entry;
    const Address base = ring + slot * at(entry.size);
    std::vector<std::byte> bytes = sized(entry.size);
    put(bytes, entry.id, operation.id);
    if (entry.epoch >= 0) put(bytes, entry.epoch, operation.epoch);
    put(bytes, entry.pg_id, operation.pg_id);
    put_string(bytes, entry.group, base, operation.group);
    put_string(bytes, entry.description, base, operation.description);
    put_string(bytes, entry.name, base, operation.name);
    put_string(bytes, entry.thread_name, base, "python3");
    put(bytes, entry.collective, operation.collective);
    put(bytes, entry.p2p, operation.p2p);
    put(bytes, entry.op_id, operation.collective);
    put(bytes, entry.created, std::int64_t{1700000000000000000});
    put(bytes, entry.timeout, std::int64_t{1800000});
    put(bytes, entry.thread_id, std::uint64_t{0x7f00});
    put(bytes, entry.is_p2p, operation.is_p2p);
    put(bytes, entry.retired, operation.retired);
    std::vector<std::int64_t> sizes;
    const auto dims = [&](const auto& shapes) {
      std::vector<std::int64_t> result;
      for (const auto& shape : shapes) {
        result.push_back(static_cast<std::int64_t>(shape.size()));
        sizes.insert(sizes.end(), shape.begin(), shape.end());
      }
      return result;
    };
    put_small(bytes, entry.input_dims, base, dims(operation.inputs), 4);
    put_small(bytes, entry.output_dims, base, dims(operation.outputs), 4);
    put_small(bytes, entry.sizes, base, sizes, 8);
    put_types(bytes, entry.input_dtypes, operation.inputs.size(), operation.dtype);
    put_types(bytes, entry.output_dtypes, operation.outputs.size(), operation.dtype);
    if (!operation.frames.empty()) put(bytes, entry.traceback, put_traceback(operation.frames));
    memory.add(base, bytes);
  }

  void set_enabled(bool enabled) {
    head_[at(layout.enabled)] = std::byte{enabled};
    store();
  }
  void set_held(bool held) {
    put(head_, layout.mutex, std::uint32_t{held});
    store();
  }
  /// next_ and id_ as they stand now.
  void set_numbers(std::uint64_t next, std::uint64_t count) {
    const Address end = ring + slots_ * at(layout.entry.size);
    const std::array<std::uint64_t, 6> numbers = {
        slots_ != 0 ? ring : 0, slots_ != 0 ? end : 0, slots_ != 0 ? end : 0, most_, next, count};
    put(head_, layout.ring, numbers);
    store();
  }
  /// all_pg_status_, of one group each: {pg_id, enqueued, started, completed}.
  void set_status(const std::vector<std::array<std::int64_t, 4>>& groups) {
    std::vector<std::vector<std::byte>> values;
    for (const auto& group : groups) {
      std::vector<std::byte> value = sized(24);
      const Address numbers = allocate(24);
      memory.add_value(numbers, std::array{group[1], group[2], group[3]});
      put(value, 0, group[0]);
      put(value, 8, numbers);
      values.push_back(value);
    }
    put_map(layout.status, values);
  }
  /// pg_name_to_ranks_
  void set_ranks(const std::string& name, const std::string& description, std::vector<std::uint64_t> ranks) {
    std::vector<std::byte> value = sized(88);
    const Address node = next_;  // where put_map will allocate it
    const Address base = node + 32;
    next_ += 32 + 88;
    put_string(value, 0, base, description);
    put_string(value, 32, base, name);
    const Address members = allocate(8 * ranks.size());
    for (std::size_t i = 0; i < ranks.size(); ++i) memory.add_value(members + 8 * i, ranks[i]);
    put(value, 64, std::array{members, members + 8 * ranks.size(), members + 8 * ranks.size()});
    memory.add(base, value);
    memory.add_value(node, std::array<Address, 4>{1, recorder + at(layout.ranks) + 8, 0, 0});
    put(head_, layout.ranks + 8, std::array<Address, 5>{0, node, node, node, 1});
    store();
  }
  void set_library_version(const std::string& text) {
    put_string(head_, layout.library_version, recorder, text);
    store();
  }

  const torch::RecorderLayout& layout;
  memory::BufferReader memory;

 private:
  static std::size_t at(int offset) { return static_cast<std::size_t>(offset); }
  static std::vector<std::byte> sized(int size) { return std::vector<std::byte>(at(size)); }

  template <class T>
  static void put(std::vector<std::byte>& into, int offset, const T& value) {
    std::memcpy(into.data() + offset, &value, sizeof value);
  }
  Address allocate(std::size_t size) {
    const Address place = next_;
    next_ += (size + 31) / 16 * 16;
    return place;
  }
  void store() { memory.add(recorder, head_); }

  void put_string(std::vector<std::byte>& into, int offset, Address base, std::string_view text) {
    Address place = base + at(offset) + 16;
    if (text.size() > 15) {
      place = allocate(text.size() + 1);
      memory.add(place, std::as_bytes(std::span(text)));
      put(into, offset + 16, text.size());
    } else {
      std::memcpy(into.data() + offset + 16, text.data(), text.size());
    }
    put(into, offset, place);
    put(into, offset + 8, text.size());
  }
  void put_small(std::vector<std::byte>& into, int offset, Address base,
                 const std::vector<std::int64_t>& values, std::size_t room) {
    const auto bytes = std::as_bytes(std::span(values));
    Address place = base + at(offset) + 16;
    if (values.size() > room) {
      place = allocate(bytes.size());
      memory.add(place, bytes);
    } else if (!bytes.empty()) {
      std::memcpy(into.data() + offset + 16, bytes.data(), bytes.size());
    }
    put(into, offset, place);
    put(into, offset + 8, static_cast<std::uint32_t>(values.size()));
    put(into, offset + 12, static_cast<std::uint32_t>(std::max(values.size(), room)));
  }
  void put_types(std::vector<std::byte>& into, int offset, std::size_t count, std::uint8_t type) {
    const Address place = allocate(count);
    memory.add(place, std::vector<std::byte>(count, std::byte{type}));
    put(into, offset, std::array{place, place + count, place + count});
  }
  Address put_traceback(const std::vector<std::pair<Address, int>>& frames) {
    const Address list = allocate(16 * frames.size());
    for (std::size_t i = 0; i < frames.size(); ++i) {
      memory.add_value(list + 16 * i, std::array<std::uint64_t, 2>{
                                          frames[i].first, static_cast<std::uint64_t>(frames[i].second)});
    }
    const Address end = list + 16 * frames.size();
    const Address traceback = allocate(32);
    memory.add_value(traceback, std::array{Address{0x7000}, list, end, end});
    return traceback;
  }
  // A tree that leans to the right.
  void put_map(int offset, const std::vector<std::vector<std::byte>>& values) {
    const Address header = recorder + at(offset) + 8;
    std::vector<Address> nodes;
    for (const auto& value : values) nodes.push_back(allocate(32 + value.size()));
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Address parent = i == 0 ? header : nodes[i - 1];
      memory.add_value(nodes[i],
                       std::array<Address, 4>{i % 2, parent, 0, i + 1 < nodes.size() ? nodes[i + 1] : 0});
      memory.add(nodes[i] + 32, values[i]);
    }
    const Address root = nodes.empty() ? 0 : nodes.front();
    const Address last = nodes.empty() ? header : nodes.back();
    put(head_, offset + 8, std::array<Address, 5>{0, root, root != 0 ? root : header, last, nodes.size()});
    store();
  }

  std::vector<std::byte> head_;
  std::uint64_t most_ = 2000;
  std::size_t slots_ = 0;
  Address next_ = heap;
};

}  // namespace hangtrace::tests
