#include "elf/demangle.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace hangtrace::elf {

namespace {

// The demangler's work can grow faster than its input; longer names stay as they are.
constexpr std::size_t max_mangled = 16 << 10;
constexpr std::size_t max_code_point = 6;  // hex digits

// Until Rust's own mangling (v0, "_R") names were C++'s with a hash as last component, and what C++ does not
// allow in an identifier was written between dollars.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> rust_escapes{{{"SP", "@"},
                                                                                     {"BP", "*"},
                                                                                     {"RF", "&"},
                                                                                     {"LT", "<"},
                                                                                     {"GT", ">"},
                                                                                     {"LP", "("},
                                                                                     {"RP", ")"},
                                                                                     {"C", ","},
                                                                                     {"u7e", "~"}}};

bool is_hex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// The name without "::h<16 hex digits>", if it is Rust's.
std::optional<std::string_view> without_rust_hash(std::string_view name) {
  constexpr std::size_t length = 19;
  if (name.size() <= length) return std::nullopt;
  const std::string_view hash = name.substr(name.size() - length);
  if (!hash.starts_with("::h") || !is_hex(hash.substr(3))) return std::nullopt;
  return name.substr(0, name.size() - length);
}

// What "$...$" stands for; empty: nothing known. Only ASCII code points are written so in practice.
std::string unescape(std::string_view escape) {
  for (const auto& [code, text] : rust_escapes) {
    if (escape == code) return std::string(text);
  }
  if (!escape.starts_with('u') || escape.size() > max_code_point + 1 || !is_hex(escape.substr(1))) return {};
  const unsigned long value = std::strtoul(std::string(escape.substr(1)).c_str(), nullptr, 16);
  return value >= 0x20 && value < 0x7f ? std::string(1, static_cast<char>(value)) : std::string();
}

std::string rust_name(std::string_view name) {
  std::string result;
  for (std::size_t at = 0; at < name.size();) {
    const bool component_begins = at == 0 || (at >= 2 && name.substr(at - 2, 2) == "::");
    if (component_begins && name.substr(at).starts_with("_$")) {
      ++at;  // an identifier may not begin with a dollar
    } else if (name[at] == '$') {
      const std::size_t end = name.find('$', at + 1);
      const std::string text =
          end == std::string_view::npos ? std::string() : unescape(name.substr(at + 1, end - at - 1));
      result += text.empty() ? "$" : text;
      at = text.empty() ? at + 1 : end + 1;
    } else if (name.substr(at).starts_with("..")) {
      result += "::";
      at += 2;
    } else {
      result += name[at++];
    }
  }
  return result;
}

}  // namespace

std::string demangle(const std::string& name) {
  if (!name.starts_with("_Z") || name.size() > max_mangled) return name;
  int status = 0;
  // A suffix given by LLVM (".llvm.123") is no part of a mangled name.
  const std::size_t suffix = name.find(".llvm.");
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.substr(0, suffix).c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0 || !text) return name;
  const auto rust = without_rust_hash(text.get());
  return rust ? rust_name(*rust) : std::string(text.get());
}

}  // namespace hangtrace::elf
