#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "memory/reader.hpp"

namespace hangtrace::python {

/// The hash of a str in another process: what its dicts are ordered by. Made of the process's own secret
/// (_Py_HashSecret, Include/pyhash.h) by one of several functions, chosen when Python was built; which one, a
/// str with a known hash tells.
class StrHash {
 public:
  using Secret = std::array<std::uint64_t, 2>;

  // The function that gives `text` its `hash`; nullopt if none does. An empty text tells nothing.
  static std::optional<StrHash> of(const Secret& secret, std::string_view text, std::uint64_t hash);

  // Of ASCII text.
  std::uint64_t operator()(std::string_view text) const;

 private:
  struct Rounds {
    int of_word;
    int at_end;
  };
  StrHash(const Secret& secret, Rounds rounds) : secret_(secret), rounds_(rounds) {}

  Secret secret_;
  Rounds rounds_;
};

}  // namespace hangtrace::python
