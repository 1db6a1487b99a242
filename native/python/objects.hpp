#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "memory/reader.hpp"
#include "python/layout.hpp"
#include "python/str_hash.hpp"

namespace hangtrace::python {

using memory::Address;

struct NoneValue {
  friend bool operator==(const NoneValue&, const NoneValue&) = default;
};
struct OpaqueValue {  // anything but None, bool, int that fits, float, str, bytes
  std::string type_name;
  Address address = 0;
  friend bool operator==(const OpaqueValue&, const OpaqueValue&) = default;
};
struct BytesValue {
  std::string data;
  friend bool operator==(const BytesValue&, const BytesValue&) = default;
};
using SimpleValue = std::variant<NoneValue, bool, std::int64_t, double, std::string, BytesValue, OpaqueValue>;

// True for what can be the address of an object or of a structure of the interpreter.
inline bool plausible(Address address) {
  return address >= 0x1000 && address < (Address{1} << 56) && address % 8 == 0;
}

template <class T>
T load(std::span<const std::byte> bytes, std::size_t offset) {
  T value{};
  if (offset <= bytes.size() && sizeof value <= bytes.size() - offset) {
    std::memcpy(&value, bytes.data() + offset, sizeof value);
  }
  return value;
}

// Reads many ranges of memory that are not known to be adjacent with few calls.
class Batch {
 public:
  explicit Batch(const memory::Reader& reader) : reader_(reader) {}
  void add(Address from, std::span<std::byte> into) { pieces_.push_back({from, into}); }
  // result[i] as in Reader::read_batch, in the order of add(); the batch is empty afterwards.
  std::vector<bool> read() {
    std::vector<bool> done = pieces_.empty() ? std::vector<bool>() : reader_.read_batch(pieces_);
    pieces_.clear();
    return done;
  }

 private:
  const memory::Reader& reader_;
  std::vector<memory::Piece> pieces_;
};

struct TypeInfo {
  std::string name;  // tp_name: "_thread.lock"; of a Python class the bare name
  std::uint64_t flags = 0;
  std::int64_t basic_size = 0;
  std::int64_t dict_offset = 0;
  Address cached_keys = 0;
};

// A reference as frames hold it since 3.13 (Include/internal/pycore_stackref.h). Both lowest bits set (since
// 3.14): an int in the upper bits, no object.
inline Address untagged(Address reference) {
  constexpr Address kTags = 3;
  return (reference & kTags) == kTags ? 0 : reference & ~kTags;
}

// Values of Python objects in another process. Every address is taken as untrusted; sizes and counts are
// bound.
class Objects {
 public:
  static constexpr std::size_t kMaxText = 4096;        // characters of a str, bytes of a bytes object
  static constexpr std::size_t kMaxEntries = 1 << 16;  // of a dict, list or tuple

  // With the secret of the process's hashes keys of large dicts are found faster.
  Objects(const memory::Reader& reader, const Layout& layout,
          std::optional<StrHash::Secret> hash_secret = std::nullopt)
      : reader_(reader), layout_(layout), hash_secret_(hash_secret) {}

  const memory::Reader& reader() const { return reader_; }
  const Layout& layout() const { return layout_; }

  // A member: so many words after the header.
  std::optional<Address> word(Address object, int index) const;
  std::optional<Address> type_of(Address object) const;
  // nullptr if it does not look like a type. Cached until forget_types().
  const TypeInfo* type(Address type_object);
  const TypeInfo* type_info_of(Address object);
  std::string type_name_of(Address object);  // "" if unreadable
  // Types may come and go between looks.
  void start_look() {
    types_.clear();
    positions_.clear();
    hash_refused_ = false;
  }

  using Item = std::pair<Address, Address>;  // key, value

  // Has the heads of objects read in one call, where the reader keeps what it has read.
  void touch(std::span<const Address> objects) const;

  // None where an object is no int or does not fit.
  std::vector<std::optional<std::int64_t>> integers(std::span<const Address> objects) const;

  // UTF-8 of a str; lone surrogates become U+FFFD. Longer strings are cut at kMaxText characters.
  std::optional<std::string> text(Address object) const;
  std::vector<std::optional<std::string>> texts(std::span<const Address> objects) const;
  std::optional<std::string> bytes(Address object, std::size_t max = kMaxText) const;
  std::vector<Address> tuple(Address object) const;
  std::vector<Address> list(Address object) const;
  std::vector<Address> set(Address object) const;                      // or a frozenset; in no order
  std::vector<Address> deque(Address object, std::size_t most) const;  // from the left

  // (key, value) of a dict in insertion order.
  std::vector<Item> dict(Address object) const;
  // Values of keys that are ASCII strs.
  std::optional<Address> find(Address dict, std::string_view key);
  std::vector<std::optional<Address>> find(Address dict, std::span<const std::string_view> keys);
  // The same by the hashes of the keys alone; nullopt if that does not tell.
  std::optional<std::vector<std::optional<Address>>> look_up(Address dict,
                                                             std::span<const std::string_view> keys);
  // Entry of the instance dictionary (inline values included); not slots, properties or class attributes.
  std::optional<Address> attribute(Address object, std::string_view name);

  SimpleValue value(Address object);

 private:
  // What a dict is made of: keys, with the values beside them or (values != 0) in an array of their own.
  struct Storage {
    Address keys = 0;
    Address values = 0;
    std::size_t capacity = kMaxEntries;
  };

  // What is found in a table of keys: index slots, then entries whose last two words are key and value.
  struct TableHead {
    std::size_t count = 0;  // entries, also unused ones
    std::size_t entry_words = 3;
    std::uint64_t slots = 0;
    std::uint64_t index_bytes = 0;
    Address indices = 0;
    Address entries = 0;
  };

  std::optional<TableHead> table_head(Address keys) const;
  bool learn_hash(const TableHead& table);
  std::optional<Address> look_up(const TableHead& table, std::string_view key, bool& told) const;
  bool is_ascii(Address object, std::string_view text) const;
  std::vector<Item> table(Address keys) const;  // every entry, also unused ones
  std::vector<Item> items(const Storage& storage) const;
  std::optional<Storage> dict_storage(Address dict) const;
  std::optional<Storage> instance_storage(Address object);
  std::vector<std::optional<Address>> pick(std::span<const Item> entries,
                                           std::span<const std::string_view> keys) const;
  std::vector<Address> words(Address from, std::size_t count) const;

  const memory::Reader& reader_;
  Layout layout_;
  std::optional<StrHash::Secret> hash_secret_;
  std::optional<StrHash> hash_;
  bool hash_refused_ = false;  // tried in this look, in vain
  std::unordered_map<Address, std::optional<TypeInfo>> types_;
  std::map<std::pair<Address, std::string>, std::optional<std::size_t>>
      positions_;  // of names in shared keys
};

}  // namespace hangtrace::python
