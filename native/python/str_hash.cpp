#include "python/str_hash.hpp"

#include <bit>
#include <cstring>

namespace hangtrace::python {
namespace {

// SipHash (Aumasson, Bernstein 2012).
struct SipState {
  std::uint64_t a, b, c, d;

  void round() {
    a += b;
    c += d;
    b = std::rotl(b, 13) ^ a;
    d = std::rotl(d, 16) ^ c;
    a = std::rotl(a, 32);
    c += b;
    a += d;
    b = std::rotl(b, 17) ^ c;
    d = std::rotl(d, 21) ^ a;
    c = std::rotl(c, 32);
  }
  void rounds(int count) {
    for (int i = 0; i < count; ++i) round();
  }
};

}  // namespace

std::optional<StrHash> StrHash::of(const Secret& secret, std::string_view text, std::uint64_t hash) {
  if (text.empty()) return std::nullopt;
  // SipHash-1-3 since 3.11, SipHash-2-4 before that and where it was asked for.
  for (const Rounds rounds : {Rounds{1, 3}, Rounds{2, 4}}) {
    const StrHash candidate(secret, rounds);
    if (candidate(text) == hash) return candidate;
  }
  return std::nullopt;
}

std::uint64_t StrHash::operator()(std::string_view text) const {
  if (text.empty()) return 0;
  const auto [k0, k1] = secret_;
  SipState state{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261,
                 k1 ^ 0x7465646279746573};
  const auto take = [&](std::uint64_t word) {
    state.d ^= word;
    state.rounds(rounds_.of_word);
    state.a ^= word;
  };
  const std::uint64_t last = std::uint64_t{text.size()} << 56;
  for (; text.size() >= 8; text.remove_prefix(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), 8);
    take(word);
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, text.data(), text.size());
  take(last | rest);
  state.c ^= 0xff;
  state.rounds(rounds_.at_end);
  const std::uint64_t hash = state.a ^ state.b ^ state.c ^ state.d;
  return hash == ~std::uint64_t{0} ? hash - 1 : hash;  // -1 stands for an error
}

}  // namespace hangtrace::python
