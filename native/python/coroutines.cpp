#include "python/coroutines.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

namespace hangtrace::python {
namespace {

constexpr std::size_t kMaxDepth = 100;
constexpr std::size_t kMaxFrames = 1 << 16;  // of all chains
constexpr std::size_t kMaxStackTop = 1 << 16;
constexpr std::size_t kMaxStackWords = 64;  // of one coroutine
constexpr std::size_t kPrefetched = 160;    // bytes of an object that are read with others

constexpr int kOwnedByGenerator = 1;

// Include/opcode.h.
constexpr std::uint8_t kYieldFrom = 72;            // 3.8 to 3.10
constexpr std::uint8_t kResume = 151;              // 3.11, 3.12; oparg 2: after yield from, 3: after await
constexpr std::uint8_t kResumeQuick = 150;         // 3.11
constexpr std::uint8_t kInstrumentedResume = 240;  // 3.12

enum class Kind { generator, wrapper, other };

// Objects that stand between a coroutine and what it awaits keep it as their first member
// (Objects/genobject.c, iterobject.c, Modules/_asynciomodule.c).
Kind kind_of(std::string_view type) {
  for (std::string_view name : {"coroutine", "generator", "async_generator"}) {
    if (type == name) return Kind::generator;
  }
  for (std::string_view name : {"coroutine_wrapper", "async_generator_asend", "async_generator_athrow",
                                "anext_awaitable", "_asyncio.FutureIter"}) {
    if (type == name) return Kind::wrapper;
  }
  return Kind::other;
}

class Follower {
 public:
  Follower(Objects& objects, const AsyncLayout& async)
      : objects_(objects), layout_(objects.layout()), async_(async), reader_(objects.reader()) {}

  std::vector<AwaitChain> follow(const std::vector<Address>& coroutines) {
    std::vector<AwaitChain> chains(coroutines.size());
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < chains.size(); ++i) {
      chains[i].last = coroutines[i];
      open.push_back(i);
    }
    std::size_t frames = 0;
    // A wrapper takes a step too.
    for (std::size_t step = 0; step < 2 * kMaxDepth && !open.empty(); ++step) {
      prefetch(chains, open);
      std::erase_if(open, [&](std::size_t i) {
        const bool done = !advance(chains[i]);
        frames += chains[i].frames.empty() ? 0 : 1;
        return done;
      });
      if (frames > kMaxFrames) break;
    }
    for (std::size_t i : open) give_up(chains[i], "too many coroutines");
    return chains;
  }

 private:
  static bool give_up(AwaitChain& chain, const char* problem) {
    chain.end = ChainEnd::unreadable;
    chain.problem = problem;
    return false;
  }
  static bool ends(AwaitChain& chain, ChainEnd end) {
    chain.end = end;
    return false;
  }

  // The reader keeps pages: one call for all of them here, none in advance().
  void prefetch(const std::vector<AwaitChain>& chains, const std::vector<std::size_t>& open) {
    std::vector<std::byte> scratch(open.size() * kPrefetched);
    Batch batch(reader_);
    for (std::size_t k = 0; k < open.size(); ++k) {
      if (plausible(chains[open[k]].last)) {
        batch.add(chains[open[k]].last, std::span(scratch).subspan(k * kPrefetched, kPrefetched));
      }
    }
    batch.read();
  }

  template <class T>
  std::optional<T> at(Address base, int offset) const {
    return reader_.read_value<T>(base + static_cast<Address>(offset));
  }

  // One step from chain.last; false if the chain ends there.
  bool advance(AwaitChain& chain) {
    const TypeInfo* type = objects_.type_info_of(chain.last);
    if (type == nullptr) return give_up(chain, "an awaited object is not readable");
    switch (kind_of(type->name)) {
      case Kind::other:
        return ends(chain, ChainEnd::awaits);
      case Kind::wrapper: {
        const auto inner = at<Address>(chain.last, layout_.after_header(0));
        if (!inner || !plausible(*inner)) return give_up(chain, "an awaited object changed");
        chain.last = *inner;
        return true;
      }
      case Kind::generator:
        break;
    }
    if (chain.frames.size() >= kMaxDepth) return give_up(chain, "too many coroutines");
    return layout_.minor >= 11 ? advance_inline(chain) : advance_old(chain);
  }

  bool advance_inline(AwaitChain& chain) {
    const Address frame = chain.last + static_cast<Address>(async_.generator_frame);
    const auto state = at<std::int8_t>(chain.last, async_.generator_state);
    const auto code = at<Address>(frame, layout_.frame_code);
    const auto instruction = at<Address>(frame, layout_.frame_instruction);
    const auto owner = at<std::uint8_t>(frame, layout_.frame_owner);
    if (!state || !code || !instruction || !owner) return give_up(chain, "a coroutine is not readable");
    if (*state > async_.state_executing) return ends(chain, ChainEnd::finished);
    if (*state == async_.state_executing) return runs(chain, frame);
    if (*state < async_.state_created || *owner != kOwnedByGenerator)
      return give_up(chain, "a coroutine is damaged");
    SuspendedFrame suspended{frame, layout_.minor >= 13 ? *code & ~Address{3} : *code, *instruction, 0, 0};
    suspended.start = start_of_code(suspended);
    chain.frames.push_back(suspended);
    if (*state == async_.state_created) return ends(chain, ChainEnd::not_started);
    const bool awaits =
        layout_.minor >= 13 ? *state >= async_.state_awaits : resumes_after_await(*instruction + 2);
    if (!awaits) return ends(chain, ChainEnd::yields);
    std::optional<Address> top;
    const Address slots = frame + static_cast<Address>(layout_.frame_slots);
    if (layout_.minor >= 14) {
      const auto end = at<Address>(frame, async_.frame_stack_top);
      // Since 3.15 an iterator on the stack has its position, or nothing, on top of it.
      const Address below = layout_.minor >= 15 ? 16 : 8;
      if (end && *end >= slots + below && *end - slots <= 8 * kMaxStackTop) top = *end - below;
    } else {
      const auto count = at<std::int32_t>(frame, async_.frame_stack_top);
      if (count && *count > 0 && *count <= static_cast<std::int32_t>(kMaxStackTop)) {
        top = slots + 8 * static_cast<Address>(*count - 1);
      }
    }
    return to_awaited(chain, top);
  }

  // Since 3.14 threads of a free-threaded build may run copies of the instructions, in a _PyCodeArray {size,
  // entries}.
  Address start_of_code(const SuspendedFrame& frame) const {
    const Address own = frame.code + static_cast<Address>(layout_.code_adaptive);
    if (layout_.frame_tlbc_index < 0 || layout_.code_tlbc < 0) return own;
    const std::int32_t copy = at<std::int32_t>(frame.frame, layout_.frame_tlbc_index).value_or(0);
    if (copy <= 0) return own;
    const Address array = at<Address>(frame.code, layout_.code_tlbc).value_or(0);
    const auto size = plausible(array) ? reader_.read_value<Address>(array) : std::nullopt;
    if (!size || *size <= static_cast<Address>(copy)) return 0;
    return reader_.read_value<Address>(array + 8 + 8 * static_cast<Address>(copy)).value_or(0);
  }

  bool resumes_after_await(Address instruction) const {
    const auto unit = reader_.read_value<std::array<std::uint8_t, 2>>(instruction);
    if (!unit) return false;
    const auto [operation, argument] = *unit;
    const bool resume = operation == kResume || (layout_.minor == 11 && operation == kResumeQuick);
    // An instrumented instruction has lost nothing but its number.
    return (resume || (layout_.minor == 12 && operation == kInstrumentedResume)) && argument >= 2;
  }

  bool advance_old(AwaitChain& chain) {
    const auto frame = at<Address>(chain.last, async_.generator_frame);
    if (!frame) return give_up(chain, "a coroutine is not readable");
    if (*frame == 0) return ends(chain, ChainEnd::finished);
    if (!plausible(*frame)) return give_up(chain, "a coroutine is damaged");
    const auto code = at<Address>(*frame, layout_.frame_code);
    const auto last = at<std::int32_t>(*frame, layout_.frame_instruction);
    if (!code || !last) return give_up(chain, "a coroutine is not readable");
    std::optional<Address> top;
    if (async_.frame_state >= 0) {
      const auto state = at<std::int8_t>(*frame, async_.frame_state);
      const auto values = at<Address>(*frame, async_.frame_values);
      const auto depth = at<std::int32_t>(*frame, async_.frame_stack_top);
      if (!state || !values || !depth) return give_up(chain, "a coroutine is not readable");
      if (*state == async_.state_executing) return runs(chain, *frame);
      if (*state > async_.state_executing) return ends(chain, ChainEnd::finished);
      if (*state < async_.state_created) return give_up(chain, "a coroutine is damaged");
      if (*depth > 0 && *depth <= static_cast<std::int32_t>(kMaxStackTop) && plausible(*values)) {
        top = *values + 8 * static_cast<Address>(*depth - 1);
      }
    } else {
      const auto running = at<std::uint8_t>(chain.last, async_.generator_running);
      const auto end = at<Address>(*frame, async_.frame_stack_top);
      if (!running || !end) return give_up(chain, "a coroutine is not readable");
      if (*running != 0) return runs(chain, *frame);
      if (plausible(*end)) top = *end - 8;
    }
    chain.frames.push_back({*frame, *code, static_cast<std::uint32_t>(*last), *code, 0});
    if (*last < 0) return ends(chain, ChainEnd::not_started);
    const auto bytes = at<Address>(*code, layout_.code_bytes);
    const Address next = static_cast<Address>(*last) * (layout_.minor == 10 ? 2 : 1) + 2;
    const auto operation =
        bytes && plausible(*bytes)
            ? reader_.read_value<std::uint8_t>(*bytes + static_cast<Address>(layout_.bytes_data) + next)
            : std::nullopt;
    if (!operation) return give_up(chain, "a coroutine's code is not readable");
    if (*operation != kYieldFrom) return ends(chain, ChainEnd::yields);
    return to_awaited(chain, top);
  }

  static bool runs(AwaitChain& chain, Address frame) {
    chain.last = frame;
    return ends(chain, ChainEnd::running);
  }

  bool to_awaited(AwaitChain& chain, std::optional<Address> top) const {
    chain.frames.back().stack_end = top.value_or(0);
    const auto value = top ? reader_.read_value<Address>(*top) : std::nullopt;
    if (!value) return give_up(chain, "what a coroutine awaits is not readable");
    chain.last = layout_.minor >= 13 ? *value & ~Address{3} : *value;  // tag bits of a _PyStackRef
    if (!plausible(chain.last)) return give_up(chain, "what a coroutine awaits is not readable");
    return true;
  }

  Objects& objects_;
  const Layout& layout_;
  const AsyncLayout& async_;
  const memory::Reader& reader_;
};

}  // namespace

std::vector<AwaitChain> follow_awaits(Objects& objects, const AsyncLayout& layout,
                                      const std::vector<Address>& coroutines) {
  return Follower(objects, layout).follow(coroutines);
}

std::vector<Address> stack_values(const Objects& objects, const SuspendedFrame& frame,
                                  std::size_t named_slots) {
  const Layout& layout = objects.layout();
  const Address begin = frame.frame + static_cast<Address>(layout.frame_slots) + 8 * named_slots;
  if (frame.stack_end <= begin || frame.stack_end - begin > 8 * kMaxStackWords) return {};
  std::vector<Address> values((frame.stack_end - begin) / 8);
  if (!objects.reader().read(begin, std::as_writable_bytes(std::span(values)))) return {};
  if (layout.minor >= 13) std::ranges::transform(values, values.begin(), untagged);
  return values;
}

}  // namespace hangtrace::python
