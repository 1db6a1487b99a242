#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bpf/btf.hpp"

/// Who holds the mmap lock of a process to change its memory map, by the kernel's own word: whoever reads
/// that memory waits for this thread.
namespace hangtrace::map_locks {

/// What the program writes of each thread.
struct LockRecord {
  std::int32_t process;
  std::int32_t thread;
  std::uint64_t task;   // the address of its task_struct
  std::uint64_t owner;  // of the lock of its memory: such an address, and flags in its lowest bits
};

/// Offsets of what that takes, in bytes.
struct LockOffsets {
  std::uint32_t process;  // task_struct.tgid
  std::uint32_t thread;   // task_struct.pid
  std::uint32_t memory;   // task_struct.mm
  std::uint32_t owner;    // mm_struct.mmap_lock.owner
};

/// nullopt if the kernel's types are others.
std::optional<LockOffsets> lock_offsets(const bpf::Btf& btf);

/// The program for an iterator over tasks.
std::vector<bpf_insn> lock_program(const LockOffsets& offsets);

/// The process of each locked map, and the thread that holds the lock for writing: one of any process. A lock
/// that is held for reading tells of no holder that can be relied on: such are left out.
std::map<int, int> writers(std::span<const LockRecord> records);

/// Those of all processes, as we see their ids. Touches no memory of theirs and takes no lock. Empty if it
/// cannot be had: it needs CAP_BPF and CAP_PERFMON, type information, Linux 5.8, and that ids are those of
/// the kernel.
std::map<int, int> read_writers(const std::string& btf_path = "/sys/kernel/btf/vmlinux");

}  // namespace hangtrace::map_locks
