#pragma once

#include <linux/bpf.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "bpf/assembler.hpp"
#include "bpf/btf.hpp"

/// What all programs of iterators over tasks have in common: how they are called, and how they write a
/// record.
namespace hangtrace::bpf {

// struct bpf_iter__task and bpf_iter__task_file begin alike; struct bpf_iter_meta begins with seq.
inline constexpr std::int16_t context_meta = 0;
inline constexpr std::int16_t context_task = 8;
inline constexpr std::int16_t meta_seq = 0;

/// Whether the kernel has all of these fields, each near enough to the start of its struct for one
/// instruction.
inline bool all_fit(std::initializer_list<std::optional<Btf::Member>> fields) {
  for (const auto& field : fields) {
    if (!field || !fits(field->offset)) {
      return false;
    }
  }
  return true;
}

/// How an instruction reads a number of so many bytes; nullopt if none does.
inline std::optional<std::uint8_t> width_of(std::optional<std::uint32_t> size) {
  switch (size.value_or(0)) {
    case 1:
      return BPF_B;
    case 2:
      return BPF_H;
    case 4:
      return BPF_W;
    case 8:
      return BPF_DW;
    default:
      return std::nullopt;
  }
}

/// Offset from the frame pointer of a field of a record that ends there.
template <class Record>
constexpr std::int16_t at(std::size_t field) {
  return static_cast<std::int16_t>(static_cast<std::int16_t>(field) -
                                   static_cast<std::int16_t>(sizeof(Record)));
}

/// Begins a program of iter/task: its context in `context` and the task in `task`, registers that calls keep.
inline void begin_task(Assembler& code, std::uint8_t context, std::uint8_t task) {
  code.move(context, BPF_REG_1);
  code.load(BPF_DW, task, context, context_task);
  code.exit_if(BPF_JEQ, task, 0);  // the call after the last task
}

/// Copies kernel memory at r3 to the stack, whatever is there: zeros if it cannot be read. Overwrites r0 to
/// r5.
inline void copy(Assembler& code, std::int16_t to, std::int32_t size) {
  code.move(BPF_REG_1, BPF_REG_10);
  code.with_constant(BPF_ADD, BPF_REG_1, to);
  code.set(BPF_REG_2, size);
  code.call(helper_probe_read_kernel);
}

/// The same of what lies `offset` bytes after the address in `from`.
inline void copy_field(Assembler& code, std::int16_t to, std::int32_t size, std::uint8_t from,
                       std::uint32_t offset) {
  code.move(BPF_REG_3, from);
  code.with_constant(BPF_ADD, BPF_REG_3, static_cast<std::int32_t>(offset));
  copy(code, to, size);
}

/// Writes the record on the stack, and ends the program.
template <class Record>
std::vector<bpf_insn> write(Assembler& code, std::uint8_t context) {
  code.load(BPF_DW, BPF_REG_1, context, context_meta);
  code.load(BPF_DW, BPF_REG_1, BPF_REG_1, meta_seq);
  code.move(BPF_REG_2, BPF_REG_10);
  code.with_constant(BPF_ADD, BPF_REG_2, at<Record>(0));
  code.set(BPF_REG_3, static_cast<std::int32_t>(sizeof(Record)));
  code.call(helper_seq_write);
  return code.finish();
}

}  // namespace hangtrace::bpf
