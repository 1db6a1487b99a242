#include "map_locks/writers.hpp"

#include <array>
#include <cstddef>
#include <string_view>
#include <unordered_map>

#include "bpf/iterator.hpp"
#include "bpf/programs.hpp"

namespace hangtrace::map_locks {

namespace {

// Registers that calls keep.
constexpr std::uint8_t context = BPF_REG_6;
constexpr std::uint8_t task = BPF_REG_7;
constexpr std::uint8_t memory = BPF_REG_8;

// kernel/locking/rwsem.c: RWSEM_READER_OWNED, and up to two bits that are about spinning.
constexpr std::uint64_t of_readers = 1;
constexpr std::uint64_t flags = 7;

constexpr std::int16_t at(std::size_t field) {
  return bpf::at<LockRecord>(field);
}

}  // namespace

std::optional<LockOffsets> lock_offsets(const bpf::Btf& btf) {
  const auto of_thread = btf.find(bpf::BtfKind::structure, "task_struct");
  const auto of_memory = btf.find(bpf::BtfKind::structure, "mm_struct");
  if (!of_thread || !of_memory) {
    return std::nullopt;
  }
  constexpr std::array<std::string_view, 2> owner_path{"mmap_lock", "owner"};
  const auto process = btf.member(*of_thread, "tgid");
  const auto thread = btf.member(*of_thread, "pid");
  const auto mm = btf.member(*of_thread, "mm");
  const auto owner = btf.member(*of_memory, owner_path);
  if (!bpf::all_fit({process, thread, mm, owner})) {
    return std::nullopt;
  }
  return LockOffsets{process->offset, thread->offset, mm->offset, owner->offset};
}

std::vector<bpf_insn> lock_program(const LockOffsets& offsets) {
  using bpf::near;
  bpf::Assembler code;
  bpf::begin_task(code, context, task);
  code.load(BPF_DW, memory, task, near(offsets.memory));
  code.exit_if(BPF_JEQ, memory, 0);  // a thread of the kernel, or one that has ended
  code.load(BPF_W, BPF_REG_1, task, near(offsets.process));
  code.store(BPF_W, at(offsetof(LockRecord, process)), BPF_REG_1);
  code.load(BPF_W, BPF_REG_1, task, near(offsets.thread));
  code.store(BPF_W, at(offsetof(LockRecord, thread)), BPF_REG_1);
  code.store(BPF_DW, at(offsetof(LockRecord, task)), task);
  code.store_constant(BPF_DW, at(offsetof(LockRecord, owner)), 0);
  bpf::copy_field(code, at(offsetof(LockRecord, owner)), sizeof(LockRecord::owner), memory, offsets.owner);
  return bpf::write<LockRecord>(code, context);
}

std::map<int, int> writers(std::span<const LockRecord> records) {
  std::unordered_map<std::uint64_t, int> threads;
  for (const LockRecord& record : records) {
    threads.emplace(record.task, record.thread);
  }
  std::map<int, int> found;
  for (const LockRecord& record : records) {
    if ((record.owner & of_readers) != 0) {
      continue;
    }
    if (const auto thread = threads.find(record.owner & ~flags); thread != threads.end()) {
      found.emplace(record.process, thread->second);
    }
  }
  return found;
}

std::map<int, int> read_writers(const std::string& btf_path) {
  if (bpf::refusal() != 0 || !bpf::in_first_namespace()) {
    return {};
  }
  const bpf::TypeInformation information(btf_path);
  if (!information.types()) {
    return {};
  }
  const auto iterator = information.types()->find(bpf::BtfKind::function, "bpf_iter_task");
  const auto offsets = lock_offsets(*information.types());
  proc::Descriptor program;
  if (!iterator || !offsets ||
      bpf::load_iterator(lock_program(*offsets), *iterator, "ht_map_locks", program) != 0) {
    return {};
  }
  const auto found = bpf::records<LockRecord>(program, {});
  return found ? writers(*found) : std::map<int, int>{};
}

}  // namespace hangtrace::map_locks
