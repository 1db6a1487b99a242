// Made programs: any code, any unwind tables, any stack, for both machines.
#include "elf/process_modules.hpp"
#include "memory/buffer_reader.hpp"
#include "tests/fuzz/harness.hpp"
#include "unwind/expression.hpp"
#include "unwind/naming.hpp"
#include "unwind/unwinder.hpp"

namespace hangtrace::tests {

namespace {

constexpr memory::Address code_at = 0x7f0000000000;
constexpr memory::Address jit_at = 0x7f1000000000;  // the same code, without file
constexpr memory::Address stack_at = 0x7ffe00000000;
constexpr std::size_t stack_size = 16 << 10;
constexpr std::uint64_t text_va = ElfBuilder::base_va + sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Phdr);
constexpr memory::Address text_at = code_at + text_va - ElfBuilder::base_va;

constexpr std::uint8_t is_arm = 1;
constexpr std::uint8_t without_sections = 2;
constexpr std::uint8_t all_registers = 4;
constexpr std::uint8_t starts_in_jit = 8;

void put(Bytes& text, std::size_t at, const Bytes& code) {
  std::ranges::copy(code, text.begin() + static_cast<std::ptrdiff_t>(at));
}

// flags, PC, SP (as offsets), sizes of text and tables, registers, text, tables, stack
Bytes input(unsigned flags, unsigned pc, unsigned sp, const Bytes& text, const Bytes& frames,
            const std::vector<std::uint64_t>& stack) {
  Bytes bytes;
  append_value(bytes, static_cast<std::uint8_t>(flags));
  append_value(bytes, static_cast<std::uint16_t>(pc));
  append_value(bytes, static_cast<std::uint16_t>(sp));
  append_value(bytes, static_cast<std::uint16_t>(text.size()));
  append_value(bytes, static_cast<std::uint16_t>(frames.size()));
  for (std::uint64_t number = 0; number < 33; ++number) append_value(bytes, stack_at + 0x100 + 16 * number);
  append(bytes, text);
  append(bytes, frames);
  for (const std::uint64_t word : stack) append_value(bytes, word);
  return bytes;
}

Bytes x86_text() {
  Bytes text(0x200, std::byte{0x90});
  put(text, 0x00, bytes_of({0xe8, 0x3b, 0, 0, 0}));  // calls 0x40
  put(text, 0x08, bytes_of({0xe8, 0x73, 0, 0, 0}));  // calls 0x80
  put(text, 0x10, bytes_of({0xff, 0xd0}));           // calls rax
  put(text, 0x40, bytes_of({0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0xe8, 0x73, 0, 0, 0}));  // 0xc0
  put(text, 0x80, bytes_of({0x55, 0x48, 0x89, 0xe5, 0x48, 0x29, 0xc4, 0xe8, 0x34, 0, 0, 0}));        // 0xc0
  put(text, 0x140, bytes_of({0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05}));  // signal trampoline
  return text;
}

Bytes x86_frames(std::uint64_t text) {
  EhFrameBuilder frames(bytes_of({0x0c, 7, 8, 0x90, 1}));
  const Bytes with_frame_pointer = bytes_of({0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6});
  frames.add_fde(text, 0x40, bytes_of({0x07, 16}));
  frames.add_fde(text + 0x40, 0x40, with_frame_pointer);
  frames.add_fde(text + 0x80, 0x40, with_frame_pointer);
  frames.add_fde(text + 0xc0, 0x40, {});
  frames.add_fde(text + 0x100, 0x40,
                 bytes_of({0x0f, 3, 0x77, 8, 6, 0x10, 6, 2, 0x77, 0, 0x16, 3, 3, 0x76, 0, 6}));
  return frames.build();
}

Bytes arm_text() {
  Bytes text(0x200);
  const auto words = [&](std::size_t at, std::initializer_list<std::uint32_t> code) {
    Bytes bytes;
    for (const std::uint32_t word : code) append_value(bytes, word);
    put(text, at, bytes);
  };
  words(0x00, {0xa9be7bfd, 0x910003fd, 0x9400000e});              // stp, mov x29, sp, bl 0x40
  words(0x40, {0xa9be7bfd, 0x910003fd, 0xcb2063ff, 0x9400001d});  // sub sp, sp, x0; bl 0xc0
  words(0xc0, {0xd65f03c0});                                      // ret
  words(0x140, {0xd2801168, 0xd4000001});                         // signal trampoline
  return text;
}

Bytes arm_frames(std::uint64_t text) {
  // def_cfa sp 0; frame record at the bottom of 32 bytes
  EhFrameBuilder frames(bytes_of({0x0c, 31, 0}));
  frames.add_fde(text, 0x40, bytes_of({0x07, 30}));
  frames.add_fde(text + 0x40, 0x40, bytes_of({0x44, 0x0e, 32, 0x9d, 4, 0x9e, 3, 0x44, 0x0d, 29, 0x2d}));
  frames.add_fde(text + 0xc0, 0x40, {});
  Bytes bytes = frames.build();
  bytes[15] = std::byte{30};  // the return address' column of the CIE
  return bytes;
}

struct Program {
  elf::ModuleCache modules;
  unwind::UnwindCache cache;
  memory::BufferReader memory;
  std::vector<proc::Mapping> mappings;

  void map(memory::Address start, std::span<const std::byte> bytes, bool executable, const char* path) {
    proc::Mapping mapping;
    mapping.start = start;
    mapping.end = start + bytes.size();
    mapping.readable = true;
    mapping.writable = !executable;
    mapping.executable = executable;
    mapping.path = path;
    mappings.push_back(mapping);
    memory.add(start, bytes);
  }
};

Bytes whole_pages(Bytes bytes) {
  bytes.resize((bytes.size() + 4095) / 4096 * 4096);
  return bytes;
}

}  // namespace

std::vector<Bytes> fuzz_seeds() {
  const std::uint64_t t = text_at;
  std::vector<std::uint64_t> chain(128);
  chain[0] = t + 0x4d;  // leaf, called by the function with a frame pointer
  chain[1 + 4] = stack_at + 0x200;
  chain[1 + 5] = t + 0x05;
  std::vector<std::uint64_t> variable(128);
  variable[0] = t + 0x8c;
  variable[21] = t + 0x0d;
  std::vector<std::uint64_t> signalled(128);
  signalled[0] = t + 0x140;
  signalled[1 + 20] = stack_at + 0x300;
  signalled[1 + 21] = t + 0xc0;
  signalled[96] = t + 0x12;
  std::vector<std::uint64_t> from_jit(128);
  from_jit[3] = jit_at + text_va - ElfBuilder::base_va + 0x4d;
  from_jit[9] = t + 0x12;
  std::vector<std::uint64_t> arm(128);
  arm[0] = stack_at + 0x40;
  arm[1] = t + 0x0c;
  arm[8] = 0;
  arm[9] = (t + 0x0c) | std::uint64_t{0x2b} << 48;
  std::vector<Bytes> seeds;
  // Every operator, with an operand where it takes one, again and again: also as it is run, as an expression.
  Bytes operators;
  for (const unsigned operation : {0x03u, 0x0eu, 0x0fu}) {
    append(operators, bytes_of({operation}));
    append_value(operators, stack_at + 8 * operation);
  }
  append(operators, bytes_of({0x06, 0x08, 1,    0x09, 2,    0x0a, 3,    0,    0x0b, 4,    0,    0x0c, 5,
                              0,    0,    0,    0x0d, 6,    0,    0,    0,    0x10, 7,    0x11, 8,    0x12,
                              0x12, 0x13, 0x14, 0x15, 1,    0x16, 0x17, 0x19, 0x1a, 0x12, 0x1b, 0x31, 0x1c,
                              0x12, 0x1d, 0x3f, 0x1e, 0x1f, 0x20, 0x35, 0x21, 0x3a, 0x22, 0x23, 9,    0x34,
                              0x24, 0x31, 0x25, 0x32, 0x26, 0x37, 0x27, 0x30, 0x28, 0,    0,    0x33, 0x29,
                              0x33, 0x2a, 0x33, 0x2b, 0x33, 0x2c, 0x33, 0x2d, 0x33, 0x2e, 0x2f, 0,    0,
                              0x77, 8,    0x8f, 0,    0x92, 31,   0,    0x77, 0,    0x94, 4,    0x96}));
  for (unsigned flags : {0u, unsigned{is_arm}})
    seeds.push_back(input(flags | all_registers, 0xc2, 0, x86_text(), operators, chain));
  for (const unsigned flags :
       {0u, unsigned{all_registers}, unsigned{without_sections}, unsigned{starts_in_jit}}) {
    for (const auto& stack : {chain, variable, signalled, from_jit})
      seeds.push_back(input(flags, 0xc2, 0, x86_text(), x86_frames(text_va), stack));
    seeds.push_back(input(flags | is_arm, 0x50, 0, arm_text(), arm_frames(text_va), arm));
    seeds.push_back(input(flags | is_arm, 0xc0, 0, arm_text(), arm_frames(text_va), arm));
  }
  return seeds;
}

std::vector<std::string> fuzz_files() {
  return {};
}

void fuzz_one(std::span<const std::byte> bytes) {
  Taker taker(bytes);
  const auto flags = taker.value<std::uint8_t>();
  const auto pc = taker.value<std::uint16_t>();
  const auto sp = taker.value<std::uint16_t>();
  const std::size_t text_size = taker.value<std::uint16_t>() % 0x2000;
  const std::size_t frames_size = taker.value<std::uint16_t>();
  const unwind::Layout& layout = (flags & is_arm) != 0 ? unwind::aarch64 : unwind::x86_64;
  const memory::Address code = (flags & starts_in_jit) != 0 ? jit_at : code_at;
  auto registers = unwind::Registers::from_pc_sp(code + text_va - ElfBuilder::base_va + pc % 0x2000,
                                                 stack_at + sp % stack_size, layout);
  for (unsigned number = 0; number < 33; ++number) {
    const auto value = taker.value<std::uint64_t>();
    if ((flags & all_registers) != 0 && number != layout.program_counter && number != layout.stack_pointer)
      registers.set(number, value);
  }
  const auto text = taker.bytes(text_size);
  const auto frames = taker.bytes(frames_size);
  Bytes stack(stack_size);
  const auto stack_bytes = taker.bytes(stack_size);
  std::ranges::copy(stack_bytes, stack.begin());

  {
    memory::BufferReader memory;
    memory.add(stack_at, stack);
    const std::vector<proc::Mapping> nowhere;
    const unwind::StackMemory around(stack_at, stack, memory, nowhere);
    unwind::run_expression(frames.first(std::min<std::size_t>(frames.size(), 256)), registers, around,
                           stack_at);
  }

  ElfBuilder builder;
  const auto va = builder.add_section(".text", SHT_PROGBITS, Bytes(text.begin(), text.end()));
  builder.add_section(".eh_frame", SHT_PROGBITS, Bytes(frames.begin(), frames.end()));
  builder.add_symbols({{"outer", va, 0x40}, {"inner", va + 0x40, 0x40}});
  Bytes file = builder.build();
  Elf64_Ehdr header;
  std::memcpy(&header, file.data(), sizeof header);
  header.e_machine = (flags & is_arm) != 0 ? EM_AARCH64 : EM_X86_64;
  if ((flags & without_sections) != 0) header.e_shoff = 0;
  std::memcpy(file.data(), &header, sizeof header);
  file = whole_pages(std::move(file));

  Program program;
  program.map(code_at, file, true, "[vdso]");
  program.map(jit_at, file, true, "");
  program.map(stack_at, stack, false, "[stack]");
  const CountingReader reader(program.memory, 64 << 20);
  elf::ProcessModules process(program.modules, "/nonexistent", 0, program.mappings, reader);
  for (const bool repair : {true, false}) {
    const unwind::Unwinder unwinder(process, program.cache, {.repair = repair});
    const std::vector<unwind::Stack> stacks{unwinder.unwind(registers, {stack_at, stack})};
    const auto& found = stacks[0].frames;
    promise(found.size() <= unwind::Options{}.max_frames, "too many frames");
    for (std::size_t i = 1; i < found.size(); ++i) {
      const proc::Mapping* mapping = proc::find_mapping(program.mappings, found[i].va + found[i].bias);
      promise(mapping != nullptr && mapping->executable, "a frame outside of code");
    }
    promise(!found.empty(), "no frame at all");
    const unwind::NamingJob job{&process, stacks};
    promise(unwind::name_stacks(std::span(&job, 1))[0][0].size() == found.size(), "names for other frames");
  }
}

}  // namespace hangtrace::tests
