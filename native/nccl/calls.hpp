#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "memory/reader.hpp"
#include "nccl/communicator.hpp"

namespace hangtrace::nccl {

/// A call of the API that has not returned: what the program asked for. The same in all releases from 2.18
/// to 2.32.
struct Call {
  int tid = 0;
  int function = -1;
  std::string name;
  std::uint64_t count = 0;
  int dtype = -1;
  int op = -1;
  int root = -1;  // root, or the peer of a message
  Address communicator = 0;
  Address stream = 0;
};

/// The description of a call (ncclInfo) that lies on the caller's stack while it lasts: the innermost one
/// from the stack pointer on, that is for one of `communicators`; nullopt: none. `is_library_text`: whether
/// an address is that of constants of the library.
std::optional<Call> call_on_stack(const memory::Reader& memory, int tid, Address stack_pointer,
                                  const std::vector<Communicator>& communicators,
                                  const std::function<bool(Address)>& is_library_text);

}  // namespace hangtrace::nccl
