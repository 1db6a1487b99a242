#pragma once

#include <cstdint>

namespace hangtrace::nccl {

/// NCCL_MAGIC: the first and the last word of a communicator since 2.21.
constexpr std::uint64_t magic = 0x0280028002800280;

}  // namespace hangtrace::nccl
