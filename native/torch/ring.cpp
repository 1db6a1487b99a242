#include "torch/ring.hpp"

#include <algorithm>
#include <array>

namespace hangtrace::torch {

namespace {

constexpr std::uint64_t most_slots = 1 << 16;  // 32 MiB

}  // namespace

std::optional<Head> read_head(const memory::Reader& memory, const RecorderLayout& layout, Address recorder) {
  std::array<std::byte, 128> bytes{};
  if (!is_pointer(recorder) || !memory.read(recorder, bytes)) {
    return std::nullopt;
  }
  const Copy copy{bytes, recorder};
  const auto ring = static_cast<std::size_t>(layout.ring);
  const auto word = [&](std::size_t index) { return copy.load<std::uint64_t>(ring + 8 * index); };
  const auto enabled = copy.load<std::uint8_t>(static_cast<std::size_t>(layout.enabled));
  const auto cpp_stacks = copy.load<std::uint8_t>(static_cast<std::size_t>(layout.enabled) + 1);
  Head head;
  head.enabled = enabled != 0;
  head.held = copy.load<std::uint32_t>(static_cast<std::size_t>(layout.mutex)) != 0;
  head.begin = word(0);
  head.end = word(1);
  head.most = word(3);
  head.next = word(4);
  head.count = word(5);
  head.epoch = layout.epoch >= 0 ? copy.load<std::uint64_t>(static_cast<std::size_t>(layout.epoch)) : 0;
  const Address capacity = word(2);
  const bool vector = head.begin <= head.end && head.end <= capacity && head.begin % 8 == 0 &&
                      (is_pointer(head.begin) || capacity == 0);
  const bool numbers = (head.most == 0) == !head.enabled && head.most <= most_slots && head.next <= head.most;
  if (enabled > 1 || cpp_stacks > 1 || !vector || !numbers || (head.is_empty() && head.count != 0)) {
    return std::nullopt;
  }
  return head;
}

std::optional<Ring> Ring::read(const memory::Reader& memory, const RecorderLayout& layout, const Head& head) {
  const std::uint64_t length = head.end - head.begin;
  const auto size = static_cast<std::uint64_t>(layout.entry.size);
  if (length == 0 || length % size != 0 || length / size > head.most) {
    return std::nullopt;
  }
  Ring ring(layout.entry);
  ring.begin_ = head.begin;
  ring.bytes_.resize(length);
  if (!memory.read(head.begin, ring.bytes_) || !ring.put_in_order(head)) {
    return std::nullopt;
  }
  return ring;
}

Copy Ring::entry(std::size_t slot) const {
  return Copy{bytes_, begin_}.part(slot * size(), size());
}

// FlightRecorder::recordWithResetEnabled, with the mutex held: next_ goes on, the entry is put there, next_
// begins again behind the last slot, id_ goes on. So the slot before next_ is the newest one or the one being
// written.
bool Ring::put_in_order(const Head& head) {
  const std::size_t all = slots();
  const auto id = [&](std::size_t slot) {
    return entry(slot).load<std::uint64_t>(static_cast<std::size_t>(layout_->id));
  };
  const auto epoch = [&](std::size_t slot) {
    return layout_->epoch < 0 ? 0 : entry(slot).load<std::uint64_t>(static_cast<std::size_t>(layout_->epoch));
  };
  // Slots by age; the head was read before the slots, and whatever was written in between took the oldest
  // ones.
  const std::uint64_t expected = std::min<std::uint64_t>(head.count, all);
  const bool is_full = all == head.most;
  const auto order_from = [&](std::size_t back) {
    order_.clear();
    std::size_t torn = 0;
    bool newer = false;
    for (std::uint64_t age = 0; age < expected; ++age) {
      const std::size_t slot = (head.next % all + 2 * all - back - age) % all;
      if (!newer && id(slot) == head.count - 1 - age && epoch(slot) == head.epoch) {
        order_.push_back(slot);
        continue;
      }
      newer = true;
      torn += id(slot) != head.count + (all - 1 - age);
    }
    return !order_.empty() && (!newer || is_full) && torn <= 1;
  };
  const bool in_order = expected == 0 || order_from(1) || (head.held && order_from(2));
  // Those of before a reset have lower epochs.
  for (std::size_t slot = 0; slot < all; ++slot) {
    if (epoch(slot) > head.epoch) {
      return false;
    }
  }
  return in_order;
}

bool Ring::drop_written(const Head& before, const Head& after) {
  if (after.begin != before.begin || after.epoch != before.epoch || after.count < before.count) {
    return false;  // moved elsewhere, or reset
  }
  const std::uint64_t written =
      after.count - before.count + (before.held || after.held || after.count != before.count);
  // While the ring grows new ones have slots of their own.
  const std::uint64_t free = before.most - slots();
  if (written <= free) {
    return true;
  }
  if (written - free >= slots()) {
    return false;
  }
  const std::size_t left = slots() - (written - free);
  if (order_.size() > left) {
    order_.resize(left);
  }
  return true;
}

}  // namespace hangtrace::torch
