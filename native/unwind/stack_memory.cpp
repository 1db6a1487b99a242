#include "unwind/stack_memory.hpp"

#include <algorithm>
#include <cstring>

namespace hangtrace::unwind {

namespace {

constexpr Address block_size = 32 << 10;
constexpr std::size_t max_blocks = 512;

bool copy_from(Address base, std::span<const std::byte> bytes, Address address, std::span<std::byte> into) {
  if (address < base || address - base > bytes.size() || into.size() > bytes.size() - (address - base))
    return false;
  std::memcpy(into.data(), bytes.data() + (address - base), into.size());
  return true;
}

}  // namespace

bool StackMemory::read(Address address, std::span<std::byte> into) const {
  if (address + into.size() < address) return false;
  if (copy_from(base_, copy_, address, into)) return true;
  beyond_copy_ = true;
  return !only_copy_ && (read_block(address, into) || reader_.read(address, into));
}

bool StackMemory::read_block(Address address, std::span<std::byte> into) const {
  const Address index = address / block_size;
  auto found = blocks_.find(index);
  if (found == blocks_.end()) {
    const proc::Mapping* mapping = proc::find_mapping(mappings_, address);
    if (mapping == nullptr || !mapping->readable || blocks_.size() >= max_blocks) return false;
    Block block;
    block.base = std::max(index * block_size, mapping->start);
    block.bytes.resize(std::min((index + 1) * block_size, mapping->end) - block.base);
    if (!reader_.read(block.base, block.bytes)) block.bytes.clear();
    found = blocks_.emplace(index, std::move(block)).first;
  }
  return copy_from(found->second.base, found->second.bytes, address, into);
}

}  // namespace hangtrace::unwind
