// The walk over made code, tables and stacks: what is found, what is refused, and that it always ends.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>

#include "elf/process_modules.hpp"
#include "memory/buffer_reader.hpp"
#include "tests/elf_builder.hpp"
#include "unwind/call_site.hpp"
#include "unwind/naming.hpp"
#include "unwind/prologue.hpp"
#include "unwind/table_cache.hpp"
#include "unwind/unwinder.hpp"

using namespace hangtrace;
using namespace hangtrace::tests;
using unwind::End;
using unwind::FoundBy;

namespace {

constexpr memory::Address code_at = 0x7f0000000000;
constexpr memory::Address stack_at = 0x7ffe00000000;
constexpr std::size_t stack_size = 64 << 10;

// Functions of the made program, by their offset in .text.
constexpr std::uint64_t outer = 0x000;       // calls inner at once; outermost
constexpr std::uint64_t inner = 0x040;       // frame pointer, 32 bytes of locals, calls leaf
constexpr std::uint64_t leaf = 0x080;        // a system call
constexpr std::uint64_t recursive = 0x0c0;   // calls itself
constexpr std::uint64_t stuck = 0x100;       // its table never moves the stack pointer
constexpr std::uint64_t trampoline = 0x140;  // returns from signals, without table
constexpr std::uint64_t hidden = 0x180;  // frame pointer, moves the stack pointer by a register, calls leaf
constexpr std::uint64_t bare = 0x1c0;    // without table
constexpr std::uint64_t generated = 0x200;  // without table, as interpreters make them: calls leaf, returns
constexpr std::uint64_t nameless = 0x240;   // the same as bare, without symbol
constexpr std::uint64_t sharing = 0x280;    // keeps its return address in rdi over a system call, as vfork
constexpr std::uint64_t text_size = 0x2c0;
constexpr std::uint64_t function_size = 0x40;

constexpr std::uint64_t inner_call = inner + 13;
constexpr std::uint64_t inner_pointer_call = inner + 18;
constexpr std::uint64_t hidden_call = hidden + 16;
constexpr std::uint64_t bare_frame = 0x48;

void put(Bytes& text, std::uint64_t at, const Bytes& code) {
  std::ranges::copy(code, text.begin() + static_cast<std::ptrdiff_t>(at));
}

void put_call(Bytes& text, std::uint64_t at, std::uint64_t target) {
  Bytes code = bytes_of({0xe8});
  append_value(code, static_cast<std::int32_t>(target - (at + 5)));
  put(text, at, code);
}

struct Program {
  std::vector<proc::Mapping> mappings;
  memory::BufferReader reader;
  memory::Address text = 0;  // in the process
  elf::ModuleCache modules;
  unwind::UnwindCache cache;
  Bytes stack = Bytes(stack_size);

  Program() {
    Bytes code(text_size, std::byte{0x90});
    for (std::uint64_t at = 0; at < text_size; at += function_size)
      put(code, at + function_size - 1, bytes_of({0xc3}));
    put_call(code, outer, inner);
    put_call(code, outer + 8, hidden);
    put_call(code, outer + 16, bare);
    put(code, inner, bytes_of({0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20}));
    put_call(code, inner + 8, leaf);
    put(code, inner + 16, bytes_of({0xff, 0xd0}));  // call rax
    put_call(code, recursive, recursive);
    put(code, trampoline, bytes_of({0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05}));
    put(code, hidden, bytes_of({0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0x48, 0x29, 0xc4}));
    put_call(code, hidden + 11, leaf);
    put_call(code, outer + 24, nameless);
    for (const std::uint64_t at : {bare, nameless}) {
      put(code, at, bytes_of({0x48, 0x83, 0xec, bare_frame}));
      put_call(code, at + 4, leaf);
      // test eax, eax; je + 0; add rsp, ...; ret
      put(code, at + 9, bytes_of({0x85, 0xc0, 0x74, 0, 0x48, 0x83, 0xc4, bare_frame, 0xc3}));
    }
    put_call(code, generated, leaf);
    // pop rbp; add rsp, 24; pop r12; ret
    put(code, generated + 5, bytes_of({0x5d, 0x48, 0x83, 0xc4, 24, 0x41, 0x5c, 0xc3}));

    put(code, sharing, bytes_of({0x5f, 0x0f, 0x05}));  // pop rdi; syscall

    ElfBuilder builder;
    const auto va = builder.add_section(".text", SHT_PROGBITS, code);
    EhFrameBuilder frames(bytes_of({0x0c, 7, 8, 0x90, 1}));
    const Bytes with_frame_pointer = bytes_of({0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6});
    frames.add_fde(va + outer, 0x40, bytes_of({0x07, 16}));
    frames.add_fde(va + inner, 0x40, with_frame_pointer);
    frames.add_fde(va + leaf, 0x40, {});
    frames.add_fde(va + recursive, 0x40, {});
    frames.add_fde(va + stuck, 0x40, bytes_of({0x0e, 0, 0x90, 0}));
    frames.add_fde(va + hidden, 0x40, with_frame_pointer);
    frames.add_fde(va + sharing, 0x40, bytes_of({0x41, 0x0e, 0, 0x09, 16, 5}));
    builder.add_section(".eh_frame", SHT_PROGBITS, frames.build());
    builder.add_symbols({{"outer", va + outer, 0x40},
                         {"inner", va + inner, 0x40},
                         {"exported", va + hidden, 8},
                         {"bare", va + bare, 0x40}});
    Bytes image = builder.build();
    image.resize((image.size() + 4095) / 4096 * 4096);
    reader.add(code_at, image);
    text = code_at + va - ElfBuilder::base_va;

    proc::Mapping mapping;
    mapping.start = code_at;
    mapping.end = code_at + image.size();
    mapping.readable = mapping.executable = true;
    mapping.path = "[vdso]";
    mappings.push_back(mapping);
    mapping = {};
    mapping.start = stack_at;
    mapping.end = stack_at + stack_size;
    mapping.readable = mapping.writable = true;
    mapping.path = "[stack]";
    mappings.push_back(mapping);
  }

  void poke(memory::Address at, std::uint64_t value) {
    std::memcpy(stack.data() + (at - stack_at), &value, sizeof value);
  }

  unwind::Stack unwind(memory::Address pc, memory::Address sp, unwind::Options options = {}) {
    return unwind_copy(pc, {sp, std::span(stack).subspan(sp - stack_at)}, options);
  }

  unwind::Stack unwind_copy(memory::Address pc, unwind::StackCopy copy, unwind::Options options = {}) {
    elf::ProcessModules process(modules, "/nonexistent", 0, mappings, reader);
    const unwind::Unwinder unwinder(process, cache, options);
    return unwinder.unwind(unwind::Registers::from_pc_sp(pc, copy.base, unwind::x86_64), copy);
  }

  // leaf <- inner <- outer; returns the leaf's stack pointer.
  memory::Address build_chain() {
    const memory::Address frame_pointer = stack_at + 0x1000;  // of inner
    poke(frame_pointer + 8, text + outer + 5);
    const memory::Address inside = frame_pointer - 0x20;
    poke(inside - 8, text + inner_call);
    return inside - 8;
  }
};

std::vector<memory::Address> offsets(const unwind::Stack& stack, memory::Address text) {
  std::vector<memory::Address> result;
  for (const unwind::Frame& frame : stack.frames) result.push_back(frame.pc - text);
  return result;
}

}  // namespace

TEST_CASE("an unknown frame pointer is computed from the prologue and checked by the call") {
  Program program;
  const auto sp = program.build_chain();
  const unwind::Stack stack = program.unwind(program.text + leaf + 2, sp);
  CHECK(stack.complete());
  CHECK(offsets(stack, program.text) == std::vector<memory::Address>{leaf + 2, inner_call, outer + 5});
  REQUIRE(stack.frames.size() == 3);
  CHECK(stack.frames[0].found_by == FoundBy::leaf);
  CHECK(stack.frames[1].found_by == FoundBy::cfi);
  CHECK(stack.frames[2].found_by == FoundBy::prologue);
  CHECK(stack.frames[1].va == stack.frames[1].pc - stack.frames[1].bias - 1);
}

TEST_CASE("a stack says whether memory outside of its copy was read") {
  Program program;
  const auto sp = program.build_chain();
  program.reader.add(stack_at, program.stack);
  const auto whole = std::span(program.stack).subspan(sp - stack_at);
  const auto pc = program.text + leaf + 2;
  const unwind::Stack inside = program.unwind_copy(pc, {sp, whole});
  CHECK(inside.complete());
  CHECK_FALSE(inside.beyond_copy);
  // The last return address lies right behind the copy.
  const unwind::Stack beyond = program.unwind_copy(pc, {sp, whole.first(0x30)});
  CHECK(beyond.complete());
  CHECK(beyond.beyond_copy);
  CHECK(offsets(beyond, program.text) == offsets(inside, program.text));
  const unwind::Stack only = program.unwind_copy(pc, {sp, whole.first(0x30), true});
  CHECK_FALSE(only.complete());
}

TEST_CASE("without repair the stack ends where the frame pointer is needed") {
  Program program;
  const auto sp = program.build_chain();
  const unwind::Stack stack = program.unwind(program.text + leaf + 2, sp, {.repair = false});
  CHECK(stack.end == End::unknown_register);
  CHECK(stack.frames.size() == 2);
  CHECK_FALSE(unwind::describe(stack.end).empty());
}

TEST_CASE("a return address of a call to something else is refused") {
  Program program;
  const auto sp = program.build_chain();
  program.poke(stack_at + 0x1008, program.text + outer + 13);  // after the call of another function
  const unwind::Stack stack = program.unwind(program.text + leaf + 2, sp);
  CHECK(stack.end == End::unknown_register);
  CHECK(stack.frames.size() == 2);
}

TEST_CASE("a frame of variable size is searched for, over older return addresses") {
  Program program;
  const memory::Address frame_pointer = stack_at + 0x1000;
  program.poke(frame_pointer + 8, program.text + outer + 13);
  const memory::Address inside = frame_pointer - 0x200;
  program.poke(inside - 8, program.text + hidden_call);
  program.poke(inside + 0x38, program.text + outer + 5);   // left by a call of inner
  program.poke(inside + 0x58, program.text + inner_call);  // left by a call of leaf
  const unwind::Stack stack = program.unwind(program.text + leaf + 2, inside - 8);
  CHECK(stack.complete());
  CHECK(offsets(stack, program.text) == std::vector<memory::Address>{leaf + 2, hidden_call, outer + 13});
  CHECK(stack.frames.back().found_by == FoundBy::scan);
}

TEST_CASE("a copy of the return address among the locals is not taken for it") {
  Program program;
  const memory::Address frame_pointer = stack_at + 0x1000;
  program.poke(frame_pointer, stack_at + 0x1800);
  program.poke(frame_pointer + 8, program.text + inner_pointer_call);
  program.poke(stack_at + 0x1808, program.text + outer + 5);
  const memory::Address inside = frame_pointer - 0x200;
  program.poke(inside - 8, program.text + hidden_call);
  program.poke(inside + 0x30, stack_at + 0x2000);  // as frame pointer it leads to a zero
  program.poke(inside + 0x38, program.text + inner_pointer_call);
  const unwind::Stack stack = program.unwind(program.text + leaf + 2, inside - 8);
  CHECK(stack.end == End::unknown_register);
  CHECK(offsets(stack, program.text) == std::vector<memory::Address>{leaf + 2, hidden_call});
}

TEST_CASE("code without table is left through the call that led there, if its size is known") {
  Program program;
  const memory::Address sp = stack_at + 0x1000;
  const memory::Address slot = sp + 8 + bare_frame;
  for (const std::uint64_t function : {bare, nameless}) {
    CAPTURE(function);
    program.poke(sp, program.text + function + 9);
    program.poke(slot, program.text + outer + (function == bare ? 21 : 29));
    // Left by earlier calls, each of which leads to the thread's start.
    program.poke(sp + 0x10, program.text + outer + 5);
    program.poke(sp + 0x28, program.text + outer + (function == bare ? 21 : 29));
    const unwind::Stack stack = program.unwind(program.text + leaf + 2, sp);
    if (function == bare) {
      CHECK(stack.complete());
      CHECK(offsets(stack, program.text) == std::vector<memory::Address>{leaf + 2, bare + 9, outer + 21});
      CHECK(stack.frames.back().found_by == FoundBy::prologue);
    } else {
      CHECK(stack.end == End::no_table);
      CHECK(offsets(stack, program.text) == std::vector<memory::Address>{leaf + 2, nameless + 9});
    }
    program.poke(slot, program.text + outer + 5);  // after the call of another function
    const unwind::Stack refused = program.unwind(program.text + leaf + 2, sp);
    CHECK(refused.end == End::no_table);
    CHECK(refused.frames.size() == 2);
  }
}

TEST_CASE("a function that its caller did not align the stack for is not passed over") {
  Program program;
  const memory::Address frame_pointer = stack_at + 0x1008;  // of inner, at its last instruction
  program.poke(frame_pointer, stack_at + 0x1800);
  program.poke(frame_pointer + 8, program.text + outer + 5);
  program.poke(frame_pointer + 16, stack_at + 0x2000);
  program.poke(frame_pointer + 24, program.text + inner_pointer_call);
  const unwind::Stack stack = program.unwind(program.text + inner + 20, frame_pointer - 0x20);
  CHECK(stack.complete());
  CHECK(offsets(stack, program.text) == std::vector<memory::Address>{inner + 20, outer + 5});
}

TEST_CASE("walk: code without table that goes straight to its return") {
  Program program;
  const memory::Address sp = stack_at + 0x800;
  program.poke(sp, program.text + generated + 5);  // return address of leaf
  program.poke(sp + 8, stack_at + 0x1000);         // rbp of inner
  // 24 bytes of anything, among them what looks like a return address too
  program.poke(sp + 16, program.text + outer + 21);
  program.poke(sp + 40, 12);  // r12
  program.poke(sp + 48, program.text + inner_pointer_call);
  program.poke(stack_at + 0x1008, program.text + outer + 5);
  const unwind::Stack stack = program.unwind(program.text + leaf + 2, sp);
  CHECK(stack.complete());
  CHECK(offsets(stack, program.text) ==
        std::vector<memory::Address>{leaf + 2, generated + 5, inner_pointer_call, outer + 5});
  CHECK(stack.frames.at(2).found_by == unwind::FoundBy::prologue);
  // Not after a call: it is no return address.
  program.poke(sp + 48, program.text + inner + 1);
  CHECK(offsets(program.unwind(program.text + leaf + 2, sp), program.text) ==
        std::vector<memory::Address>{leaf + 2, generated + 5});
}

TEST_CASE("a signal trampoline gives back the interrupted registers") {
  Program program;
  const memory::Address context = stack_at + 0x800;  // struct ucontext
  const memory::Address interrupted_sp = program.build_chain();
  program.poke(context - 8, program.text + trampoline);
  program.poke(context + 160, interrupted_sp);
  program.poke(context + 168, program.text + leaf);  // interrupted at its first instruction
  program.poke(context + 120, stack_at + 0x1000);    // rbp
  const unwind::Stack stack = program.unwind(program.text + leaf + 2, context - 8, {.repair = false});
  CHECK(stack.complete());
  CHECK(offsets(stack, program.text) ==
        std::vector<memory::Address>{leaf + 2, trampoline, leaf, inner_call, outer + 5});
  CHECK(stack.frames[1].signal_frame);
  CHECK(stack.frames[2].va == stack.frames[2].pc - stack.frames[2].bias);
}

TEST_CASE("a table that leads to what no call returns to is not followed there") {
  Program program;
  const memory::Address sp = stack_at + 0x800;
  program.poke(sp, program.text + recursive + 5);
  program.poke(sp + 8, program.text + inner + 11);
  const unwind::Stack stack = program.unwind(program.text + leaf + 2, sp);
  CHECK(stack.end == End::no_call);
  CHECK(offsets(stack, program.text) == std::vector<memory::Address>{leaf + 2, recursive + 5});
  CHECK_FALSE(unwind::describe(stack.end).empty());
}

TEST_CASE("the arguments of a system call tell a return address that is kept in a register") {
  Program program;
  const memory::Address sp = stack_at + 0x800;
  program.poke(sp, program.text + outer + 5);
  const std::array<std::uint64_t, 6> arguments{program.text + recursive + 5};
  elf::ProcessModules process(program.modules, "/nonexistent", 0, program.mappings, program.reader);
  const unwind::Unwinder unwinder(process, program.cache);
  const unwind::StackCopy copy{sp, std::span(program.stack).subspan(sp - stack_at)};
  const auto pc = program.text + sharing + 3;
  const auto known = unwinder.in_system_call(pc, sp, arguments, unwind::x86_64);
  const unwind::Stack stack = unwinder.unwind(known, copy);
  CHECK(stack.complete());
  CHECK(offsets(stack, program.text) == std::vector<memory::Address>{sharing + 3, recursive + 5, outer + 5});
  // Without them, and where no system call was made, it is not known.
  CHECK(program.unwind(pc, sp).end == End::unknown_register);
  const auto elsewhere = unwinder.in_system_call(pc + 1, sp, arguments, unwind::x86_64);
  CHECK_FALSE(elsewhere.has(5));
  CHECK(elsewhere.get(16) == pc + 1);
}

TEST_CASE("a return to an address that was put on the stack is a jump to anywhere") {
  const auto has_such = [](std::initializer_list<unsigned char> bytes) {
    std::vector<unwind::Jump> jumps;
    REQUIRE(unwind::x86_64_code().find_jumps(std::vector<std::uint8_t>(bytes), 0x1000, jumps));
    return std::ranges::count(jumps, unwind::Jump::Kind::as_return, &unwind::Jump::kind) != 0;
  };
  // call + 7; pause; lfence; jmp - 7; mov [rsp], rax; ret
  CHECK(has_such({0xe8, 7, 0, 0, 0, 0xf3, 0x90, 0x0f, 0xae, 0xe8, 0xeb, 0xf9, 0x48, 0x89, 0x04, 0x24, 0xc3}));
  CHECK(has_such({0x41, 0x53, 0xc3}));                                // push r11; ret
  CHECK(has_such({0x4c, 0x89, 0x1c, 0x24, 0xc3}));                    // mov [rsp], r11; ret
  CHECK_FALSE(has_such({0x48, 0x8d, 0x64, 0x24, 0x08, 0xc3}));        // lea rsp, [rsp + 8]; ret
  CHECK_FALSE(has_such({0x48, 0x89, 0x44, 0x24, 0x08, 0xc3}));        // mov [rsp + 8], rax; ret
  CHECK_FALSE(has_such({0x48, 0x89, 0x04, 0x24, 0x31, 0xc0, 0xc3}));  // mov [rsp], rax; xor eax, eax; ret
}

TEST_CASE("endless stacks end") {
  Program program;
  for (memory::Address at = stack_at; at < stack_at + stack_size; at += 8)
    program.poke(at, program.text + recursive + 5);
  const unwind::Stack deep = program.unwind(program.text + recursive + 5, stack_at);
  CHECK(deep.end == End::too_deep);
  CHECK(deep.frames.size() == unwind::Options{}.max_frames);
  program.poke(stack_at + 8, program.text + stuck + 1);
  const unwind::Stack circle = program.unwind(program.text + stuck + 1, stack_at + 8);
  CHECK(circle.end == End::no_progress);
}

TEST_CASE("PCs and stack pointers that lead nowhere") {
  Program program;
  CHECK(program.unwind(0, stack_at).end == End::no_code);
  CHECK(program.unwind(stack_at + 64, stack_at).end == End::no_code);
  CHECK(program.unwind(0x1234, stack_at).frames.size() == 1);
  CHECK(program.unwind(program.text + leaf, stack_at + stack_size - 4).end == End::unreadable);
  CHECK(program.unwind(program.text + leaf, stack_at + 16).end == End::thread_start);  // return address 0
}

TEST_CASE("any stack content gives an end and no frame outside of code") {
  Program program;
  std::mt19937_64 random(20240607);
  for (int round = 0; round < 300; ++round) {
    for (memory::Address at = stack_at; at < stack_at + 0x2000; at += 8) {
      const std::uint64_t kinds[] = {random(),
                                     program.text + random() % text_size,
                                     stack_at + random() % stack_size,
                                     program.text + outer + 5,
                                     program.text + inner_call,
                                     0};
      program.poke(at, kinds[random() % 6]);
    }
    const std::uint64_t starts[] = {leaf + 2, inner + 9, hidden + 12, bare + 3, trampoline, stuck, recursive};
    const unwind::Stack stack =
        program.unwind(program.text + starts[random() % 7], stack_at + random() % 0x400 * 8);
    CHECK(stack.frames.size() <= unwind::Options{}.max_frames);
    for (const unwind::Frame& frame : stack.frames) {
      CHECK(frame.pc >= program.mappings[0].start);
      CHECK(frame.pc <= program.mappings[0].end);
    }
  }
}

TEST_CASE("a function without symbol is named by the call that entered its module") {
  Program program;
  const memory::Address frame_pointer = stack_at + 0x1000;
  program.poke(frame_pointer + 8,
               program.text + outer + 13);  // called `exported`, whose symbol covers 8 bytes only
  const memory::Address inside = frame_pointer - 0x200;
  program.poke(inside - 8, program.text + hidden_call);
  elf::ProcessModules process(program.modules, "/nonexistent", 0, program.mappings, program.reader);
  const std::vector<unwind::Stack> stacks{program.unwind(program.text + leaf + 2, inside - 8)};
  REQUIRE(stacks[0].frames.size() == 3);
  const unwind::NamingJob job{&process, stacks};
  const auto names = unwind::name_stacks(std::span(&job, 1)).front().front();
  CHECK(names[0].function.empty());  // called directly, and the target has no name
  CHECK(names[1].function == "exported");
  CHECK(names[1].by_call_site);
  CHECK(names[2].function == "outer");
  CHECK_FALSE(names[2].by_call_site);
  CHECK(names[2].offset == 12);
}

TEST_CASE("call instructions are recognised by the bytes before a return address") {
  const auto before = [](const Bytes& code) {
    ElfBuilder builder;
    Bytes text(16, std::byte{0x90});
    append(text, code);
    append(text, Bytes(64, std::byte{0x90}));
    const auto va = builder.add_section(".text", SHT_PROGBITS, text);
    const auto module =
        elf::Module::open(std::make_unique<elf::BufferSource>(builder.build()), "made").module;
    return unwind::call_before(*module, va + 16 + code.size());
  };
  CHECK(before(bytes_of({0xe8, 0x10, 0, 0, 0})).direct);
  CHECK_FALSE(before(bytes_of({0xe8, 0, 0, 0, 0x70})).direct);  // to where no code is
  CHECK(before(bytes_of({0xff, 0x15, 0x10, 0, 0, 0})).slot);
  CHECK(before(bytes_of({0xff, 0xd0})).indirect);                    // call rax
  CHECK(before(bytes_of({0x41, 0xff, 0xd4})).indirect);              // call r12
  CHECK(before(bytes_of({0xff, 0x50, 0x18})).indirect);              // call [rax + 24]
  CHECK(before(bytes_of({0xff, 0x94, 0xc8, 0, 1, 0, 0})).indirect);  // call [rax + rcx * 8 + 256]
  CHECK(before(bytes_of({0x42, 0xff, 0x14, 0xf8})).indirect);        // call [rax + r15 * 8]
  CHECK_FALSE(before(bytes_of({0xff, 0xe0})).any());                 // jmp rax
  CHECK_FALSE(before(bytes_of({0x0f, 0x05})).any());                 // syscall
}

TEST_CASE("prologues are read as far as they are understood") {
  const auto read = [](const Bytes& code) {
    ElfBuilder builder;
    const auto va = builder.add_section(".text", SHT_PROGBITS, code);
    const auto module =
        elf::Module::open(std::make_unique<elf::BufferSource>(builder.build()), "made").module;
    return unwind::read_prologue(*module, va, va + code.size(), va + code.size());
  };
  // endbr64; push rbp; mov rbp, rsp; push r15; mov r15, rdi; push rbx; sub rsp, 0x118; call
  const auto usual =
      read(bytes_of({0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0x49, 0x89, 0xff,
                     0x53, 0x48, 0x81, 0xec, 0x18, 1,    0,    0,    0xe8, 0,    0,    0,    0}));
  CHECK(usual.sets_frame_pointer);
  CHECK(usual.exact);
  CHECK(usual.below == 0x128);
  CHECK(usual.alignment == 0);
  // push rbp; mov rbp, rsp; and rsp, -64; sub rsp, 64
  const auto aligned =
      read(bytes_of({0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xe4, 0xc0, 0x48, 0x83, 0xec, 0x40, 0x90}));
  CHECK(aligned.alignment == 64);
  CHECK(aligned.below == 64);
  CHECK(aligned.exact);
  // ...; sub rsp, rax
  const auto variable =
      read(bytes_of({0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0x90, 0x48, 0x29, 0xc4, 0x90}));
  CHECK_FALSE(variable.exact);
  // ...; lea rsp, [rbp - 40] is the way out, not a change of size
  const auto left =
      read(bytes_of({0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0x48, 0x8d, 0x65, 0xd8, 0x90}));
  CHECK(left.exact);
  CHECK_FALSE(read(bytes_of({0x48, 0x83, 0xec, 0x10, 0x90})).sets_frame_pointer);
  // a jump before the locals are made: the size is not known
  const auto early = read(bytes_of({0x55, 0x48, 0x89, 0xe5, 0x74, 0x10, 0x48, 0x83, 0xec, 0x20, 0x90}));
  CHECK(early.sets_frame_pointer);
  CHECK_FALSE(early.exact);
}
