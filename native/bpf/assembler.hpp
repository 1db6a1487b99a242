#pragma once

#include <linux/bpf.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace hangtrace::bpf {

// Numbers of enum bpf_func_id, which older headers lack.
inline constexpr std::int32_t helper_probe_read_kernel = 113;
inline constexpr std::int32_t helper_seq_write = 127;
inline constexpr std::int32_t helper_sock_from_file = 162;
inline constexpr std::int32_t helper_task_pt_regs = 175;

/// Whether an instruction can reach a field that far from the start of its struct.
constexpr bool fits(std::uint32_t offset) {
  return offset <= static_cast<std::uint32_t>(std::numeric_limits<std::int16_t>::max());
}

constexpr std::int16_t near(std::uint32_t offset) {
  return static_cast<std::int16_t>(offset);
}

/// Puts instructions in a row. Sizes are BPF_B to BPF_DW; offsets of `store` count from the frame pointer.
class Assembler {
 public:
  void load(std::uint8_t size, std::uint8_t to, std::uint8_t from, std::int16_t offset) {
    add(BPF_LDX | BPF_MEM | size, to, from, offset, 0);
  }
  void store(std::uint8_t size, std::int16_t offset, std::uint8_t from) {
    add(BPF_STX | BPF_MEM | size, BPF_REG_10, from, offset, 0);
  }
  void store_constant(std::uint8_t size, std::int16_t offset, std::int32_t value) {
    add(BPF_ST | BPF_MEM | size, BPF_REG_10, 0, offset, value);
  }
  void move(std::uint8_t to, std::uint8_t from) { add(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0); }
  void set(std::uint8_t to, std::int32_t value) { add(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value); }
  /// `operation` is BPF_ADD, BPF_AND, BPF_MUL, …
  void with_constant(std::uint8_t operation, std::uint8_t to, std::int32_t value) {
    add(BPF_ALU64 | operation | BPF_K, to, 0, 0, value);
  }
  void with_register(std::uint8_t operation, std::uint8_t to, std::uint8_t from) {
    add(BPF_ALU64 | operation | BPF_X, to, from, 0, 0);
  }
  void call(std::int32_t helper) { add(BPF_JMP | BPF_CALL, 0, 0, 0, helper); }
  /// Ends the program.
  void exit_if(std::uint8_t comparison, std::uint8_t left, std::int32_t right) {
    exits_.push_back(code_.size());
    add(BPF_JMP | comparison | BPF_K, left, 0, 0, right);
  }
  /// A jump forward, to where `land` is called with what this returns.
  std::size_t jump_if_registers(std::uint8_t comparison, std::uint8_t left, std::uint8_t right) {
    add(BPF_JMP | comparison | BPF_X, left, right, 0, 0);
    return code_.size() - 1;
  }
  void land(std::size_t jump) { code_[jump].off = distance(jump, code_.size()); }
  std::size_t here() const { return code_.size(); }
  /// A jump back to what `here` gave.
  void repeat(std::size_t target) { add(BPF_JMP | BPF_JA, 0, 0, distance(code_.size(), target), 0); }
  std::vector<bpf_insn> finish() {
    for (const std::size_t jump : exits_) {
      land(jump);
    }
    set(BPF_REG_0, 0);
    add(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
    return std::move(code_);
  }

 private:
  static std::int16_t distance(std::size_t jump, std::size_t target) {
    return static_cast<std::int16_t>(static_cast<std::ptrdiff_t>(target) - static_cast<std::ptrdiff_t>(jump) -
                                     1);
  }
  void add(unsigned code, std::uint8_t to, std::uint8_t from, std::int16_t offset, std::int32_t value) {
    bpf_insn instruction{};
    instruction.code = static_cast<std::uint8_t>(code);
    instruction.dst_reg = to & 0xf;
    instruction.src_reg = from & 0xf;
    instruction.off = offset;
    instruction.imm = value;
    code_.push_back(instruction);
  }

  std::vector<bpf_insn> code_;
  std::vector<std::size_t> exits_;
};

}  // namespace hangtrace::bpf
