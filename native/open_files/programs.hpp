#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bpf/btf.hpp"

// Programs for the iterator over the open files of tasks (iter/task_file, Linux 5.8).
namespace hangtrace::open_files {

/// How every record begins: whose descriptor it is, and of what.
struct FileHead {
  std::uint32_t process = 0;  // ids as the first pid namespace counts
  std::uint32_t thread = 0;
  std::uint32_t fd = 0;
  std::uint32_t unused = 0;
  std::uint64_t inode = 0;
};

/// What is written for each socket.
struct SocketRecord {
  FileHead head;
  std::int64_t receive = 0;  // sk_rcvtimeo, sk_sndtimeo: jiffies, no_timeout if there is none
  std::int64_t send = 0;
  std::uint32_t protocol = 0;  // sk_protocol
  std::uint32_t user = 0;      // of TCP, icsk_user_timeout: milliseconds, 0 if there is none
};

/// MAX_SCHEDULE_TIMEOUT
inline constexpr std::int64_t no_timeout = INT64_MAX;

/// What is written for each pipe and FIFO.
struct PipeRecord {
  FileHead head;
  std::uint64_t queued = 0;    // bytes
  std::uint32_t capacity = 0;  // pages
  std::uint32_t unused = 0;
};

struct FileOffsets {
  std::uint32_t thread = 0;   // task_struct.pid
  std::uint32_t process = 0;  // task_struct.tgid
  std::uint32_t inode = 0;    // file.f_inode
  std::uint32_t number = 0;   // inode.i_ino
};

struct SocketOffsets {
  std::uint32_t sock = 0;             // socket.sk
  std::uint32_t receive = 0;          // sock.sk_rcvtimeo
  std::uint32_t send = 0;             // sock.sk_sndtimeo
  std::uint32_t protocol = 0;         // sock.sk_protocol
  std::optional<std::uint32_t> user;  // inet_connection_sock.icsk_user_timeout
};

struct PipeOffsets {
  std::uint32_t mode = 0;  // inode.i_mode
  std::uint32_t pipe = 0;  // inode.i_pipe
  std::uint32_t head = 0;  // pipe_inode_info: head, tail, max_usage, ring_size, bufs (5.8)
  std::uint32_t tail = 0;
  std::uint32_t most = 0;
  std::uint32_t slots = 0;
  std::uint32_t ring = 0;
  std::uint32_t length = 0;       // pipe_buffer.len
  std::uint32_t buffer_size = 0;  // of pipe_buffer
};

/// nullopt if the kernel has no such fields, or they are too far from the start for one instruction.
std::optional<FileOffsets> file_offsets(const bpf::Btf& btf);
std::optional<SocketOffsets> socket_offsets(const bpf::Btf& btf);
std::optional<PipeOffsets> pipe_offsets(const bpf::Btf& btf);

/// Writes a SocketRecord for each socket. Needs bpf_sock_from_file (Linux 5.11).
std::vector<bpf_insn> socket_program(const FileOffsets& file, const SocketOffsets& socket);
/// Writes a PipeRecord for each pipe that has no more than 256 buffers in use. Needs bounded loops
/// (Linux 5.3).
std::vector<bpf_insn> pipe_program(const FileOffsets& file, const PipeOffsets& pipe);

}  // namespace hangtrace::open_files
