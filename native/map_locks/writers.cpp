#include "map_locks/writers.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <string_view>
#include <unordered_map>

#include "bpf/assembler.hpp"
#include "bpf/iterator.hpp"

namespace hangtrace::map_locks {

namespace {

// struct bpf_iter__task: meta and task; struct bpf_iter_meta begins with seq.
constexpr std::int16_t context_meta = 0;
constexpr std::int16_t context_task = 8;
constexpr std::int16_t meta_seq = 0;

constexpr std::int16_t record_at = -static_cast<std::int16_t>(sizeof(LockRecord));  // from the frame pointer

// kernel/locking/rwsem.c: RWSEM_READER_OWNED, and up to two bits that are about spinning.
constexpr std::uint64_t of_readers = 1;
constexpr std::uint64_t flags = 7;

constexpr std::int16_t at(std::size_t field) {
  return static_cast<std::int16_t>(record_at + static_cast<std::int16_t>(field));
}

}  // namespace

std::optional<LockOffsets> lock_offsets(const bpf::Btf& btf) {
  const auto task = btf.find(bpf::BtfKind::structure, "task_struct");
  const auto memory = btf.find(bpf::BtfKind::structure, "mm_struct");
  if (!task || !memory) {
    return std::nullopt;
  }
  constexpr std::array<std::string_view, 2> owner_path{"mmap_lock", "owner"};
  const auto process = btf.member(*task, "tgid");
  const auto thread = btf.member(*task, "pid");
  const auto mm = btf.member(*task, "mm");
  const auto owner = btf.member(*memory, owner_path);
  for (const auto& field : {process, thread, mm, owner}) {
    if (!field || !bpf::fits(field->offset)) {
      return std::nullopt;
    }
  }
  return LockOffsets{process->offset, thread->offset, mm->offset, owner->offset};
}

std::vector<bpf_insn> lock_program(const LockOffsets& offsets) {
  using bpf::near;
  bpf::Assembler code;
  code.load(BPF_DW, BPF_REG_6, BPF_REG_1, context_meta);
  code.load(BPF_DW, BPF_REG_7, BPF_REG_1, context_task);
  code.exit_if(BPF_JEQ, BPF_REG_7, 0);  // the call after the last task
  code.load(BPF_DW, BPF_REG_8, BPF_REG_7, near(offsets.memory));
  code.exit_if(BPF_JEQ, BPF_REG_8, 0);  // a thread of the kernel, or one that has ended
  code.load(BPF_W, BPF_REG_1, BPF_REG_7, near(offsets.process));
  code.store(BPF_W, at(offsetof(LockRecord, process)), BPF_REG_1);
  code.load(BPF_W, BPF_REG_1, BPF_REG_7, near(offsets.thread));
  code.store(BPF_W, at(offsetof(LockRecord, thread)), BPF_REG_1);
  code.store(BPF_DW, at(offsetof(LockRecord, task)), BPF_REG_7);
  code.store_constant(BPF_DW, at(offsetof(LockRecord, owner)), 0);
  code.move(BPF_REG_3, BPF_REG_8);
  code.with_constant(BPF_ADD, BPF_REG_3, static_cast<std::int32_t>(offsets.owner));
  code.move(BPF_REG_1, BPF_REG_10);
  code.with_constant(BPF_ADD, BPF_REG_1, at(offsetof(LockRecord, owner)));
  code.set(BPF_REG_2, sizeof(LockRecord::owner));
  code.call(bpf::helper_probe_read_kernel);
  code.load(BPF_DW, BPF_REG_1, BPF_REG_6, meta_seq);
  code.move(BPF_REG_2, BPF_REG_10);
  code.with_constant(BPF_ADD, BPF_REG_2, record_at);
  code.set(BPF_REG_3, static_cast<std::int32_t>(sizeof(LockRecord)));
  code.call(bpf::helper_seq_write);
  return code.finish();
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
  proc::Descriptor program;
  if (const int error = bpf::load_iterator({}, 0, "ht_map_locks", program);
      error == EPERM || error == EACCES || !bpf::in_first_namespace()) {
    return {};  // found out before the type information is read
  }
  const bpf::TypeInformation information(btf_path);
  if (!information.types()) {
    return {};
  }
  const auto iterator = information.types()->find(bpf::BtfKind::function, "bpf_iter_task");
  const auto offsets = lock_offsets(*information.types());
  if (!iterator || !offsets ||
      bpf::load_iterator(lock_program(*offsets), *iterator, "ht_map_locks", program) != 0) {
    return {};
  }
  const auto found = bpf::records<LockRecord>(program, {});
  return found ? writers(*found) : std::map<int, int>{};
}

}  // namespace hangtrace::map_locks
