#pragma once

#include <cstdint>

// Numbers of DWARF 5 (dwarfstd.org, section 7) and of the GNU extensions to DWARF 4 that are read here.
namespace hangtrace::dwarf {

namespace tag {
constexpr std::uint64_t class_type = 0x02;
constexpr std::uint64_t member = 0x0d;
constexpr std::uint64_t structure_type = 0x13;
constexpr std::uint64_t inlined_subroutine = 0x1d;
constexpr std::uint64_t subprogram = 0x2e;
}  // namespace tag

namespace attribute {
constexpr std::uint64_t sibling = 0x01;
constexpr std::uint64_t name = 0x03;
constexpr std::uint64_t byte_size = 0x0b;
constexpr std::uint64_t bit_offset = 0x0c;
constexpr std::uint64_t bit_size = 0x0d;
constexpr std::uint64_t statement_list = 0x10;
constexpr std::uint64_t low_pc = 0x11;
constexpr std::uint64_t high_pc = 0x12;
constexpr std::uint64_t compilation_directory = 0x1b;
constexpr std::uint64_t abstract_origin = 0x31;
constexpr std::uint64_t data_member_location = 0x38;
constexpr std::uint64_t specification = 0x47;
constexpr std::uint64_t ranges = 0x55;
constexpr std::uint64_t call_file = 0x58;
constexpr std::uint64_t call_line = 0x59;
constexpr std::uint64_t data_bit_offset = 0x6b;
constexpr std::uint64_t linkage_name = 0x6e;
constexpr std::uint64_t string_offsets_base = 0x72;
constexpr std::uint64_t address_base = 0x73;
constexpr std::uint64_t range_lists_base = 0x74;
constexpr std::uint64_t split_name = 0x76;
constexpr std::uint64_t mips_linkage_name = 0x2007;
constexpr std::uint64_t gnu_split_name = 0x2130;
constexpr std::uint64_t gnu_ranges_base = 0x2132;
constexpr std::uint64_t gnu_address_base = 0x2133;
}  // namespace attribute

namespace form {
constexpr std::uint64_t addr = 0x01;
constexpr std::uint64_t block2 = 0x03;
constexpr std::uint64_t block4 = 0x04;
constexpr std::uint64_t data2 = 0x05;
constexpr std::uint64_t data4 = 0x06;
constexpr std::uint64_t data8 = 0x07;
constexpr std::uint64_t string = 0x08;
constexpr std::uint64_t block = 0x09;
constexpr std::uint64_t block1 = 0x0a;
constexpr std::uint64_t data1 = 0x0b;
constexpr std::uint64_t flag = 0x0c;
constexpr std::uint64_t sdata = 0x0d;
constexpr std::uint64_t strp = 0x0e;
constexpr std::uint64_t udata = 0x0f;
constexpr std::uint64_t ref_addr = 0x10;
constexpr std::uint64_t ref1 = 0x11;
constexpr std::uint64_t ref2 = 0x12;
constexpr std::uint64_t ref4 = 0x13;
constexpr std::uint64_t ref8 = 0x14;
constexpr std::uint64_t ref_udata = 0x15;
constexpr std::uint64_t indirect = 0x16;
constexpr std::uint64_t sec_offset = 0x17;
constexpr std::uint64_t exprloc = 0x18;
constexpr std::uint64_t flag_present = 0x19;
constexpr std::uint64_t strx = 0x1a;
constexpr std::uint64_t addrx = 0x1b;
constexpr std::uint64_t ref_sup4 = 0x1c;
constexpr std::uint64_t strp_sup = 0x1d;
constexpr std::uint64_t data16 = 0x1e;
constexpr std::uint64_t line_strp = 0x1f;
constexpr std::uint64_t ref_sig8 = 0x20;
constexpr std::uint64_t implicit_const = 0x21;
constexpr std::uint64_t loclistx = 0x22;
constexpr std::uint64_t rnglistx = 0x23;
constexpr std::uint64_t ref_sup8 = 0x24;
constexpr std::uint64_t strx1 = 0x25;
constexpr std::uint64_t strx2 = 0x26;
constexpr std::uint64_t strx3 = 0x27;
constexpr std::uint64_t strx4 = 0x28;
constexpr std::uint64_t addrx1 = 0x29;
constexpr std::uint64_t addrx2 = 0x2a;
constexpr std::uint64_t addrx3 = 0x2b;
constexpr std::uint64_t addrx4 = 0x2c;
constexpr std::uint64_t gnu_addr_index = 0x1f01;
constexpr std::uint64_t gnu_str_index = 0x1f02;
constexpr std::uint64_t gnu_ref_alt = 0x1f20;
constexpr std::uint64_t gnu_strp_alt = 0x1f21;
}  // namespace form

namespace unit_type {
constexpr std::uint8_t compile = 1;
constexpr std::uint8_t type = 2;
constexpr std::uint8_t partial = 3;
constexpr std::uint8_t skeleton = 4;
constexpr std::uint8_t split_compile = 5;
constexpr std::uint8_t split_type = 6;
}  // namespace unit_type

}  // namespace hangtrace::dwarf
