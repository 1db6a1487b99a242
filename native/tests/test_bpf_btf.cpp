#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "bpf/btf.hpp"
#include "registers/bpf_program.hpp"

using namespace hangtrace::bpf;
using hangtrace::registers::task_offsets;
using hangtrace::registers::task_program;

namespace {

/// Type information made by hand; type ids count from 1 in the order of the calls.
class Builder {
 public:
  std::uint32_t name(const std::string& text) {
    const auto offset = static_cast<std::uint32_t>(strings_.size());
    strings_ += text + '\0';
    return offset;
  }
  std::uint32_t type(const std::string& text, unsigned kind, std::uint32_t count, std::uint32_t size_or_type,
                     const std::vector<std::uint32_t>& trailing = {}, bool kind_flag = false) {
    word(text.empty() ? 0 : name(text));
    word((kind_flag ? 1U << 31 : 0) | kind << 24 | count);
    word(size_or_type);
    for (const std::uint32_t value : trailing) word(value);
    return next_++;
  }
  struct Member {
    std::string name;
    std::uint32_t type;
    std::uint32_t bits;
  };
  std::uint32_t structure(const std::string& text, const std::vector<Member>& members, unsigned kind = 4,
                          bool kind_flag = false) {
    std::vector<std::uint32_t> trailing;
    for (const Member& member : members) {
      trailing.insert(trailing.end(),
                      {member.name.empty() ? 0 : name(member.name), member.type, member.bits});
    }
    return type(text, kind, static_cast<std::uint32_t>(members.size()), 64, trailing, kind_flag);
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::uint32_t> header{0x1eb9f,
                                      24,
                                      0,
                                      static_cast<std::uint32_t>(4 * types_.size()),
                                      static_cast<std::uint32_t>(4 * types_.size()),
                                      static_cast<std::uint32_t>(strings_.size())};
    std::vector<std::byte> result(4 * (header.size() + types_.size()) + strings_.size());
    std::memcpy(result.data(), header.data(), 4 * header.size());
    std::memcpy(result.data() + 4 * header.size(), types_.data(), 4 * types_.size());
    std::memcpy(result.data() + 4 * (header.size() + types_.size()), strings_.data(), strings_.size());
    return result;
  }

 private:
  void word(std::uint32_t value) { types_.push_back(value); }
  std::string strings_ = std::string(1, '\0');
  std::vector<std::uint32_t> types_;
  std::uint32_t next_ = 1;
};

// Every kind of Documentation/bpf/btf.rst, so that what stands behind each must be skipped rightly.
std::vector<std::byte> kernel_like() {
  Builder builder;
  const auto integer = builder.type("unsigned long", 1, 0, 8, {64});
  builder.type("", 2, 0, integer);
  builder.type("", 3, 0, 0, {integer, integer, 4});
  builder.type("color", 6, 2, 4, {0, 0, 0, 1});
  builder.type("later", 7, 0, 0);
  const auto defined = builder.type("u64", 8, 0, integer);
  builder.type("", 9, 0, integer);
  const auto constant = builder.type("", 10, 0, integer);
  builder.type("", 11, 0, integer);
  const auto prototype = builder.type("", 13, 1, 0, {0, integer});
  builder.type("bpf_iter_task_file", 12, 1, prototype);
  builder.type("jiffies", 14, 0, integer, {1});
  builder.type(".data", 15, 1, 0, {1, 0, 8});
  builder.type("double", 16, 0, 8);
  builder.type("tag", 17, 0, integer, {~0U});
  builder.type("user", 18, 0, integer);
  builder.type("big", 19, 1, 8, {0, 1, 2});
  const auto entity =
      builder.structure("sched_entity", {{"load", integer, 0}, {"sum_exec_runtime", defined, 128}});
  const auto aliased = builder.type("entity_t", 8, 0, entity);
  const auto unnamed = builder.structure("", {{"pid", integer, 64}, {"tgid", constant, 96}});
  const auto either = builder.structure("", {{"", unnamed, 0}, {"other", integer, 0}}, 5);
  builder.structure("task_struct",
                    {{"__state", integer, 0},
                     {"se", aliased, 1024},
                     {"", either, 2048},
                     {"flag", integer, 1 << 24 | 7},
                     {"on_cpu", integer, 4096}},
                    4, true);
  builder.type("bpf_iter_task", 12, 1, prototype);
  return builder.bytes();
}

}  // namespace

TEST_CASE("members are found through typedefs and unnamed structs, whatever lies between the types") {
  const auto bytes = kernel_like();
  const auto btf = Btf::parse(bytes);
  REQUIRE(btf);
  CHECK(btf->type_count() == 24);
  const auto task = btf->find(BtfKind::structure, "task_struct");
  REQUIRE(task);
  CHECK(btf->size(*task) == 64);
  CHECK_FALSE(btf->size(23));  // a function
  constexpr std::array<std::string_view, 2> path{"se", "sum_exec_runtime"};
  REQUIRE(btf->member(*task, path));
  CHECK(btf->member(*task, path)->offset == 128 + 16);
  REQUIRE(btf->member(*task, "tgid"));
  CHECK(btf->member(*task, "tgid")->offset == 256 + 12);
  CHECK_FALSE(btf->member(*task, "flag"));  // a bit field
  CHECK_FALSE(btf->member(*task, "absent"));
  CHECK_FALSE(btf->member(*task, ""));
  CHECK_FALSE(btf->member(999, "pid"));
  CHECK(btf->find(BtfKind::function, "bpf_iter_task") == 23);
  CHECK_FALSE(btf->find(BtfKind::structure, "bpf_iter_task"));
  CHECK_FALSE(btf->find(BtfKind::function, "iter"));
}

TEST_CASE("type information that is cut or broken is refused or answers nothing") {
  const auto whole = kernel_like();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK_FALSE(Btf::parse(cut));
  }
  // Any byte may be any other: no answer is checked, only that there is one.
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const unsigned value : {0x00U, 0x13U, 0x7fU, 0x80U, 0xffU}) {
      auto changed = whole;
      changed[at] = static_cast<std::byte>(value);
      if (const auto btf = Btf::parse(changed)) {
        static_cast<void>(task_offsets(*btf));
        static_cast<void>(btf->find(BtfKind::function, "bpf_iter_task"));
      }
    }
  }
  Builder loop;
  loop.type("a", 8, 0, 2);
  loop.type("b", 8, 0, 1);
  const auto inner = loop.structure("inner", {{"", 3, 0}});
  const auto bytes = loop.bytes();
  const auto btf = Btf::parse(bytes);
  REQUIRE(btf);
  CHECK_FALSE(btf->member(1, "x"));
  CHECK_FALSE(btf->member(inner, "x"));
}

TEST_CASE("the program reads the fields at the offsets of this kernel") {
  const auto bytes = kernel_like();
  const auto btf = Btf::parse(bytes);
  REQUIRE(btf);
  const auto offsets = task_offsets(*btf);
  REQUIRE(offsets);
  CHECK(offsets->pid == 256 + 8);
  CHECK(offsets->run_ns == 144);
  CHECK(offsets->on_cpu == 512);
  const auto code = task_program(*offsets);
  const auto loads = [&code](unsigned size, std::int16_t offset) {
    int found = 0;
    for (const bpf_insn& instruction : code) {
      found += instruction.code == (BPF_LDX | BPF_MEM | size) && instruction.off == offset ? 1 : 0;
    }
    return found;
  };
  CHECK(loads(BPF_W, 264) == 1);
  CHECK(loads(BPF_DW, 144) == 2);  // run time, and the word of pt_regs that lies there
  CHECK(code.back().code == (BPF_JMP | BPF_EXIT));
  for (const bpf_insn& instruction : code) {
    if (instruction.code == (BPF_JMP | BPF_JEQ | BPF_K)) {
      const auto target = static_cast<std::size_t>(&instruction - code.data() + 1 + instruction.off);
      CHECK(target == code.size() - 2);
    }
  }
}

TEST_CASE("a field too far out for an instruction is not read") {
  Builder builder;
  const auto integer = builder.type("int", 1, 0, 4, {32});
  const auto entity = builder.structure("sched_entity", {{"sum_exec_runtime", integer, 0}});
  builder.structure("task_struct", {{"se", entity, 0}, {"on_cpu", integer, 0}, {"pid", integer, 8 * 40000}});
  const auto bytes = builder.bytes();
  const auto btf = Btf::parse(bytes);
  REQUIRE(btf);
  CHECK_FALSE(task_offsets(*btf));
}
