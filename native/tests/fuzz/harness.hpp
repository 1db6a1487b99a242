#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "memory/reader.hpp"
#include "tests/elf_builder.hpp"

// Each fuzz_<thing>.cpp defines the functions below; driver.cpp mutates and runs, or libFuzzer does.
namespace hangtrace::tests {

/// Inputs to start from.
std::vector<Bytes> fuzz_seeds();
/// Files of the machine that are inputs, too; only what is small enough is taken.
std::vector<std::string> fuzz_files();
/// Runs one input; ends the program with fuzz_failure() where a promise is broken.
void fuzz_one(std::span<const std::byte> input);

[[noreturn]] inline void fuzz_failure(const char* what) {
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

inline void promise(bool kept, const char* what) {
  if (!kept) fuzz_failure(what);
}

/// Takes values from the front of an input; zeros once it is used up.
class Taker {
 public:
  explicit Taker(std::span<const std::byte> input) : left_(input) {}

  template <class T>
  T value() {
    T result{};
    const std::size_t count = std::min(sizeof result, left_.size());
    if (count != 0) std::memcpy(&result, left_.data(), count);
    left_ = left_.subspan(count);
    return result;
  }
  std::span<const std::byte> bytes(std::size_t most) {
    const auto result = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(result.size());
    return result;
  }
  std::span<const std::byte> rest() { return bytes(left_.size()); }

 private:
  std::span<const std::byte> left_;
};

/// Counts what is asked of memory, which is what a reader's work grows with.
class CountingReader final : public memory::Reader {
 public:
  CountingReader(const memory::Reader& behind, std::uint64_t most_bytes)
      : behind_(behind), left_(most_bytes) {}

  std::vector<bool> read_batch(std::span<const memory::Piece> pieces) const override {
    for (const memory::Piece& piece : pieces) {
      const std::uint64_t cost = piece.into.size() + 16;
      promise(cost <= left_, "more memory was asked for than any process has to show");
      left_ -= cost;
    }
    return behind_.read_batch(pieces);
  }

 private:
  const memory::Reader& behind_;
  mutable std::uint64_t left_;
};

}  // namespace hangtrace::tests
