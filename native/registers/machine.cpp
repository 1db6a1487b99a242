#include "registers/machine.hpp"

#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

#include "registers/status.hpp"

namespace hangtrace::registers {

namespace {

constexpr std::uint64_t user32_cs = 0x23;  // arch/x86/include/asm/segment.h
constexpr unsigned rax = 0;
constexpr unsigned rcx = 2;
constexpr unsigned r11 = 11;
// rbx, rbp, r12-r15: what a kernel that did not save them at its entry reports as all ones.
constexpr std::array<unsigned, 6> callee_saved{3, 6, 12, 13, 14, 15};

}  // namespace

const char* name(RungState state) {
  switch (state) {
    case RungState::unused:
      return "skipped";
    case RungState::used:
      return "used";
    case RungState::refused:
      return "refused";
    case RungState::absent:
      return "absent";
    case RungState::failed:
      return "failed";
    case RungState::limited:
      return "limited";
  }
  return "failed";
}

RungStatus status_of(int error, const char* what) {
  const bool refused = error == EPERM || error == EACCES;
  return {refused ? RungState::refused : RungState::failed, std::string(what) + ": " + std::strerror(error)};
}

RungStatus status_of_load(int error) {
  if (error == EINVAL) {
    return {RungState::absent, "this kernel does not know a function that the program calls"};
  }
  return {RungState::failed, std::string("loading the program: ") + std::strerror(error)};
}

RungStatus status_of_missing(bool iterator, const char* what) {
  if (!iterator) {
    return {RungState::absent, "the kernel's type information has no iterator that the program is for"};
  }
  return {RungState::failed, std::string("this kernel keeps ") + what + " in fields that are not known here"};
}

RungStatus status_of_types(int error, const std::string& path) {
  if (error == ENOENT || error == ENOTDIR) {
    return {RungState::absent, "the kernel has no type information (" + path + ")"};
  }
  return status_of(error, path.c_str());
}

bool from_pt_regs(std::span<const std::uint64_t, pt_regs_words> words, unwind::Registers& into) {
  constexpr std::uint64_t ring_3 = 3;
  const std::uint64_t cs = words[pt_regs_cs];
  if ((cs & 3) != ring_3 || cs == user32_cs) {
    return false;
  }
  unwind::Registers registers(unwind::x86_64);
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (pt_regs_order[i] != no_register) {
      registers.set(static_cast<unsigned>(pt_regs_order[i]), words[i]);
    }
  }
  if (static_cast<std::int64_t>(words[pt_regs_orig_rax]) >= 0) {
    registers.forget(rax);
    registers.forget(rcx);
    registers.forget(r11);
  }
  into = registers;
  return true;
}

bool from_perf(std::span<const std::uint64_t> values, unwind::Registers& into) {
  if (values.size() != static_cast<std::size_t>(std::popcount(perf_mask()))) {
    return false;
  }
  unwind::Registers registers(unwind::x86_64);
  std::size_t next = 0;
  for (const int number : perf_order) {
    if (number != no_register) {
      registers.set(static_cast<unsigned>(number), values[next++]);
    }
  }
  bool all_ones = true;
  for (const unsigned number : callee_saved) {
    all_ones = all_ones && registers.get(number) == ~std::uint64_t{0};
  }
  if (all_ones) {
    for (const unsigned number : callee_saved) {
      registers.forget(number);
    }
  }
  into = registers;
  return true;
}

}  // namespace hangtrace::registers
