#include "nccl/calls.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace hangtrace::nccl {

namespace {

constexpr std::size_t most_of_stack = 64 << 10;
constexpr std::size_t piece = 4096;
constexpr std::size_t max_name = 24;
constexpr int max_functions = 16;
constexpr int max_dtypes = 13;

// struct ncclInfo begins so, by the debug information of 2.18.1 to 2.32.3.
struct Info {
  std::int32_t function;
  std::int32_t padding;
  std::uint64_t name;
  std::uint64_t send_buffer;
  std::uint64_t receive_buffer;
  std::uint64_t count;
  std::int32_t dtype;
  std::int32_t op;
  std::int32_t root;
  std::int32_t padding_2;
  std::uint64_t communicator;
  std::uint64_t stream;
};
static_assert(sizeof(Info) == 72);

constexpr std::array names = {"AllReduce", "Broadcast", "Reduce",    "AllGather", "ReduceScatter",
                              "Send",      "Recv",      "AlltoAll",  "Gather",    "Scatter",
                              "PutSignal", "Signal",    "WaitSignal"};

}  // namespace

std::optional<Call> call_on_stack(const memory::Reader& memory, int tid, Address stack_pointer,
                                  const std::vector<Communicator>& communicators,
                                  const std::function<bool(Address)>& is_library_text) {
  // Piece by piece: the stack may end before.
  std::vector<std::byte> stack;
  for (Address at = stack_pointer; stack.size() < most_of_stack;) {
    const std::size_t size = piece - at % piece;
    stack.resize(stack.size() + size);
    if (!memory.read(at, std::span(stack).last(size))) {
      stack.resize(stack.size() - size);
      break;
    }
    at += size;
  }
  for (std::size_t i = (8 - stack_pointer % 8) % 8; i + sizeof(Info) <= stack.size(); i += 8) {
    Info info;
    std::memcpy(&info, &stack[i], sizeof info);
    if (info.function < 0 || info.function >= max_functions || info.dtype < 0 || info.dtype >= max_dtypes ||
        !is_library_text(info.name)) {
      continue;
    }
    if (std::ranges::none_of(communicators, [&info](const Communicator& communicator) {
          return communicator.address == info.communicator;
        })) {
      continue;
    }
    const auto name = memory.read_cstring(info.name, max_name);
    if (!name || std::ranges::find(names, *name) == names.end()) continue;
    return Call{tid,       info.function,     *name,      info.count, info.dtype, info.op,
                info.root, info.communicator, info.stream};
  }
  return std::nullopt;
}

}  // namespace hangtrace::nccl
