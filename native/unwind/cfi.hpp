#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "elf/module.hpp"
#include "unwind/registers.hpp"

namespace hangtrace::unwind {

enum class RuleKind : std::uint8_t {
  same,            // not mentioned, or DW_CFA_same_value
  undefined,       // cannot be recovered; for the return address: the outermost frame
  offset,          // at CFA + value
  value_offset,    // is CFA + value
  other_register,  // is in register `value`
  expression,      // at the address which the expression gives
  value_expression,
};

/// Where one register of the caller is. For expressions `value` and `size` are a range of Row::expressions.
struct Rule {
  std::int64_t value = 0;
  std::uint32_t size = 0;
  RuleKind kind = RuleKind::same;
};

enum class CfaKind : std::uint8_t { none, register_offset, expression };

/// The unwinding rules at one address of a function.
struct Row {
  CfaKind cfa_kind = CfaKind::none;
  unsigned cfa_register = 0;
  std::int64_t cfa_offset = 0;  // or begin of the expression in `expressions`
  std::uint32_t cfa_expression_size = 0;
  std::array<Rule, max_registers> rules{};
  std::vector<std::byte> expressions;
  unsigned return_address = 0;  // column
  bool signal_frame = false;
  Address begin = 0;  // va range of the FDE
  Address end = 0;

  std::span<const std::byte> expression(std::int64_t begin_at, std::uint32_t size) const {
    return std::span(expressions).subspan(static_cast<std::size_t>(begin_at), size);
  }
};

/// A Common Information Entry, decoded.
struct Cie {
  elf::Machine machine = elf::Machine::x86_64;
  std::uint64_t code_alignment = 1;
  std::int64_t data_alignment = 1;
  unsigned return_address = 0;
  std::uint8_t pointer_encoding = 0;  // DW_EH_PE_*
  bool has_augmentation = false;
  bool signal_frame = false;
  std::vector<std::byte> instructions;
};

/// An entry of .eh_frame or .debug_frame without its length field.
struct Entry {
  Address position = 0;  // va (.eh_frame) or section offset (.debug_frame) of bytes[0]
  std::vector<std::byte> bytes;
  bool is_64_bit = false;  // DWARF format
};

enum class Flavour { eh_frame, debug_frame };

/// Decodes a CIE; nullopt if it is broken or of a form that cannot be evaluated. `machine` gives a meaning to
/// the instructions that each machine defines for itself.
std::optional<Cie> parse_cie(const Entry& entry, Flavour flavour, elf::Machine machine);

/// Where the CIE of an FDE is (position of its length field); nullopt if the entry is itself a CIE or broken.
std::optional<Address> cie_position(const Entry& fde, Flavour flavour);

struct FdeRange {
  Address begin;
  Address end;
  std::size_t instructions;  // offset in the entry's bytes
};
/// `data_base` is what DW_EH_PE_datarel is relative to.
std::optional<FdeRange> parse_fde(const Entry& fde, const Cie& cie, Flavour flavour, Address data_base,
                                  const elf::Module* module);

/// The rules in force at `va`, which lies in the FDE; nullopt if an instruction is broken or not known.
std::optional<Row> evaluate(const Entry& fde, const FdeRange& range, const Cie& cie, Address va);

}  // namespace hangtrace::unwind
