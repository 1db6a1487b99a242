#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "memory/buffer_reader.hpp"
#include "proc/maps.hpp"
#include "python/process.hpp"

namespace hangtrace::tests {

using memory::Address;

// Memory of a CPython process made by hand: an interpreter with threads, frames and objects. attach() takes
// it for 3.11, whose layout is the default; with others the readers below PythonProcess can be tested.
class FakePython {
 public:
  static constexpr Address kBase = 0x7f0000000000;
  const python::Layout layout;

  explicit FakePython(const python::Layout& of = *python::known_layout(11)) : layout(of) {
    version_ = put_word(0x030b07f0);
    runtime_ = space(4096);
    interpreter_ = space(static_cast<std::size_t>(layout.interpreter_size));
    set(runtime_ + layout.runtime_interpreters, interpreter_);
    for (const auto& [name, flags] :
         std::map<std::string, std::uint64_t>{{"code", 0},
                                              {"str", 1 << 28},
                                              {"bytes", 1 << 27},
                                              {"int", 1 << 24},
                                              {"bool", 1 << 24},
                                              {"float", 0},
                                              {"NoneType", 0},
                                              {"tuple", 1 << 26},
                                              {"list", 1 << 25},
                                              {"dict", 1 << 29},
                                              {"module", 0},
                                              {"cell", 0},
                                              {"_thread.lock", 0},
                                              {"_thread.RLock", 0},
                                              {"builtin_function_or_method", 0}}) {
      types_[name] = type(name, flags);
    }
    modules_.emplace_back(str("threading"), module({{str("_active"), dict({})}}));
    set(interpreter_ + layout.interpreter_sysdict, dict({{str("argv"), list({str("a.py")})}}));
  }

  Address space(std::size_t size) {
    const Address at = kBase + bytes_.size();
    bytes_.resize(bytes_.size() + (size + 15) / 16 * 16);
    return at;
  }
  void set(Address at, std::uint64_t value) { std::memcpy(&bytes_.at(at - kBase), &value, 8); }
  void set32(Address at, std::uint32_t value) { std::memcpy(&bytes_.at(at - kBase), &value, 4); }
  void set8(Address at, std::uint8_t value) { std::memcpy(&bytes_.at(at - kBase), &value, 1); }
  void copy(Address at, const void* data, std::size_t size) {
    if (size > 0) std::memcpy(&bytes_.at(at - kBase), data, size);
  }
  Address put_word(std::uint64_t value) {
    const Address at = space(8);
    set(at, value);
    return at;
  }
  std::vector<std::byte>& bytes() { return bytes_; }

  Address type(const std::string& name, std::uint64_t flags, Address cached_keys = 0) {
    const Address at = space(static_cast<std::size_t>(layout.type_cached_keys) + 8);
    const Address text = space(name.size() + 1);
    copy(text, name.c_str(), name.size() + 1);
    set(at + layout.type_name, text);
    set(at + layout.type_flags, flags | (cached_keys ? 1 << 9 : 0));
    set(at + layout.type_cached_keys, cached_keys);
    return at;
  }
  Address object(Address type_address, const std::vector<std::uint64_t>& words, std::size_t extra = 0) {
    const auto header = static_cast<std::size_t>(layout.object_size);
    const Address at = space(header + 8 * words.size() + extra);
    set(at, 1);
    set(at + static_cast<Address>(layout.object_type), type_address);
    for (std::size_t i = 0; i < words.size(); ++i) set(at + header + 8 * i, words[i]);
    return at;
  }
  Address object_of(const std::string& type_name, const std::vector<std::uint64_t>& words) {
    return object(types_.at(type_name), words);
  }

  // kind: bytes of a character; `length` characters are in `data`.
  Address str(const void* data, std::size_t length, int kind, bool ascii) {
    const int start = ascii ? layout.string_ascii_data : layout.string_compact_data;
    const Address at = object(types_.at("str"), {length}, static_cast<std::size_t>(start) + length * 4 + 8);
    const int state = (kind | 1 << 3 | (ascii ? 1 << 4 : 0)) << layout.string_kind_shift;
    set32(at + layout.string_state, static_cast<std::uint32_t>(state));
    copy(at + static_cast<Address>(start), data, length * static_cast<std::size_t>(kind));
    return at;
  }
  Address str(const std::string& text) { return str(text.data(), text.size(), 1, true); }
  Address bytes_object(const std::string& data) {
    const Address at = object(types_.at("bytes"), {data.size()}, data.size() + 24);
    copy(at + layout.bytes_data, data.data(), data.size());
    return at;
  }
  Address integer(std::int64_t value) {
    std::uint64_t rest =
        value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
    const Address at = object(types_.at("int"), {0, 0, 0});
    int digits = 0;
    for (; rest != 0; rest >>= 30) {
      set32(at + layout.int_digits + 4 * digits++, static_cast<std::uint32_t>(rest & 0x3fffffff));
    }
    set(at + layout.int_size, static_cast<std::uint64_t>(value < 0 ? -digits : digits));
    return at;
  }
  Address tuple(const std::vector<Address>& items) {
    std::vector<std::uint64_t> words(static_cast<std::size_t>(layout.tuple_items - layout.object_size) / 8);
    words[0] = items.size();
    words.insert(words.end(), items.begin(), items.end());
    return object_of("tuple", words);
  }
  Address list(const std::vector<Address>& items) {
    const Address data = space(8 * items.size() + 8);
    for (std::size_t i = 0; i < items.size(); ++i) set(data + 8 * i, items[i]);
    return object_of("list", {items.size(), data, items.size()});
  }
  // kind: 0 general, 1 only str keys, 2 keys shared by instances.
  Address keys(const std::vector<std::pair<Address, Address>>& items, int kind) {
    const std::size_t words = kind == 0 ? 3 : 2;
    const auto start = static_cast<Address>(layout.keys_indices) + 8;
    const Address at = space(start + 8 * words * items.size() + 8);
    set8(at + layout.keys_log2_index_bytes, 3);
    set8(at + layout.keys_kind, static_cast<std::uint8_t>(kind));
    set(at + layout.keys_entries_used, items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      set(at + start + 8 * (words * (i + 1) - 2), items[i].first);
      set(at + start + 8 * (words * (i + 1) - 1), items[i].second);
    }
    return at;
  }
  Address dict(const std::vector<std::pair<Address, Address>>& items, int kind = 1) {
    return object_of("dict", {items.size(), 0, keys(items, kind), 0});
  }
  Address module(const std::vector<std::pair<Address, Address>>& globals) {
    return object_of("module", {dict(globals)});
  }
  void add_module(const std::string& name, const std::vector<std::pair<Address, Address>>& globals) {
    modules_.emplace_back(str(name), module(globals));
  }

  // Each line of code takes one code unit, from `first_line` on.
  Address code(const std::string& function, int first_line, const std::vector<std::string>& names,
               int stack_size, const std::string& exceptions = "",
               const std::vector<std::string>& calls = {}) {
    const Address at = object(types_.at("code"), {}, static_cast<std::size_t>(layout.code_size) + 64);
    std::string lines(1, static_cast<char>(128 | 13 << 3));
    lines += '\0';
    for (int i = 0; i < 20; ++i) lines += {static_cast<char>(128 | 13 << 3), 2};
    std::vector<Address> texts;
    for (const std::string& name : names) texts.push_back(str(name));
    set(at + layout.tuple_size, 32);  // ob_size: code units
    set(at + layout.code_filename, str("/app/" + function + ".py"));
    set(at + layout.code_name, str(function));
    set(at + layout.code_qualname, str("Class." + function));
    set(at + layout.code_lines, bytes_object(lines));
    set(at + layout.code_exceptions, bytes_object(exceptions));
    set(at + layout.code_names, tuple(texts));
    std::vector<Address> called;
    for (const std::string& name : calls) called.push_back(str(name));
    set(at + layout.code_exceptions - 8, tuple(called));  // co_names
    set32(at + layout.code_first_line, static_cast<std::uint32_t>(first_line));
    set32(at + layout.code_stack_size, static_cast<std::uint32_t>(stack_size));
    return at;
  }
  Address frame(Address code_address, int unit, Address previous, const std::vector<Address>& slots) {
    const Address at = space(static_cast<std::size_t>(layout.frame_slots) + 8 * slots.size() + 8);
    set(at + layout.frame_code, code_address);
    set(at + layout.frame_previous, previous);
    set(at + layout.frame_instruction, code_address + static_cast<Address>(layout.code_adaptive + 2 * unit));
    if (layout.frame_is_entry >= 0) set8(at + layout.frame_is_entry, previous == 0 ? 1 : 0);
    for (std::size_t i = 0; i < slots.size(); ++i) set(at + layout.frame_slots + 8 * i, slots[i]);
    return at;
  }
  Address thread(std::uint64_t ident, int native_id, Address innermost) {
    const Address at = space(static_cast<std::size_t>(layout.thread_size));
    if (layout.thread_cframe >= 0) {
      const Address cframe = space(64);
      set(cframe + static_cast<Address>(layout.cframe_frame), innermost);
      set(at + layout.thread_cframe, cframe);
    } else {
      set(at + layout.thread_frame, innermost);
    }
    set(at + layout.thread_interpreter, interpreter_);
    set(at + layout.thread_ident, ident);
    set(at + layout.thread_native_id, static_cast<std::uint64_t>(native_id));
    set(at + layout.thread_next, first_thread_);
    first_thread_ = at;
    set(interpreter_ + layout.interpreter_threads, first_thread_);
    return at;
  }

  Address runtime() const { return runtime_; }
  Address interpreter() const { return interpreter_; }

  // The process as it is now; `reader` gets its memory.
  std::optional<python::PythonProcess> attach(memory::BufferReader& reader) {
    set(interpreter_ + layout.interpreter_modules, dict(modules_));
    reader.add(kBase, bytes_);
    return attach_only(reader);
  }
  std::optional<python::PythonProcess> attach_only(const memory::Reader& reader) const {
    static const std::vector<proc::Mapping> mappings = [] {
      proc::Mapping mapping;
      mapping.executable = true;
      mapping.inode = 1;
      mapping.path = "/opt/renamed/interp.so";
      return std::vector{mapping};
    }();
    return python::PythonProcess::attach(
        reader, mappings, [this](const proc::Mapping&, const char* symbol) -> std::optional<Address> {
          if (symbol == std::string("_PyRuntime")) return runtime_;
          if (symbol == std::string("Py_Version")) return version_;
          return std::nullopt;
        });
  }

 private:
  std::vector<std::byte> bytes_;
  Address version_ = 0;
  Address runtime_ = 0;
  Address interpreter_ = 0;
  Address first_thread_ = 0;
  std::map<std::string, Address> types_;
  std::vector<std::pair<Address, Address>> modules_;
};

}  // namespace hangtrace::tests
