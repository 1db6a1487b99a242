#include "open_files/programs.hpp"

#include <cstddef>
#include <string_view>

#include "bpf/programs.hpp"

namespace hangtrace::open_files {

namespace {

using bpf::all_fit;
using bpf::Assembler;
using bpf::at;
using bpf::copy;
using bpf::copy_field;
using bpf::near;

// struct bpf_iter__task_file: meta, task, fd and file.
constexpr std::int16_t context_fd = 16;
constexpr std::int16_t context_file = 24;

constexpr std::int32_t format_bits = 0170000;  // S_IFMT
constexpr std::int32_t is_fifo = 0010000;      // S_IFIFO
constexpr std::int32_t most_buffers = 256;     // a pipe of a megabyte, the most without privilege

// Registers that calls keep.
constexpr std::uint8_t context = BPF_REG_6;
constexpr std::uint8_t file = BPF_REG_7;
constexpr std::uint8_t inode = BPF_REG_8;

using Field = std::optional<bpf::Btf::Member>;

// Fills in the head; afterwards `file` and `inode` are set, unless the program has ended.
template <class Record>
void begin(Assembler& code, const FileOffsets& offsets) {
  code.move(context, BPF_REG_1);
  code.load(BPF_DW, file, context, context_file);
  code.exit_if(BPF_JEQ, file, 0);  // the call after the last file
  code.load(BPF_DW, BPF_REG_1, context, bpf::context_task);
  code.exit_if(BPF_JEQ, BPF_REG_1, 0);
  code.load(BPF_W, BPF_REG_2, BPF_REG_1, near(offsets.process));
  code.store(BPF_W, at<Record>(offsetof(FileHead, process)), BPF_REG_2);
  code.load(BPF_W, BPF_REG_2, BPF_REG_1, near(offsets.thread));
  code.store(BPF_W, at<Record>(offsetof(FileHead, thread)), BPF_REG_2);
  code.load(BPF_W, BPF_REG_1, context, context_fd);
  code.store(BPF_W, at<Record>(offsetof(FileHead, fd)), BPF_REG_1);
  code.store_constant(BPF_W, at<Record>(offsetof(FileHead, unused)), 0);
  code.load(BPF_DW, inode, file, near(offsets.inode));
  code.load(BPF_DW, BPF_REG_1, inode, near(offsets.number));
  code.store(BPF_DW, at<Record>(offsetof(FileHead, inode)), BPF_REG_1);
}

}  // namespace

std::optional<FileOffsets> file_offsets(const bpf::Btf& btf) {
  const auto task = btf.find(bpf::BtfKind::structure, "task_struct");
  const auto open = btf.find(bpf::BtfKind::structure, "file");
  const auto node = btf.find(bpf::BtfKind::structure, "inode");
  if (!task || !open || !node) {
    return std::nullopt;
  }
  const Field thread = btf.member(*task, "pid");
  const Field process = btf.member(*task, "tgid");
  const Field f_inode = btf.member(*open, "f_inode");
  const Field number = btf.member(*node, "i_ino");
  if (!all_fit({thread, process, f_inode, number})) {
    return std::nullopt;
  }
  return FileOffsets{thread->offset, process->offset, f_inode->offset, number->offset};
}

std::optional<SocketOffsets> socket_offsets(const bpf::Btf& btf) {
  const auto socket = btf.find(bpf::BtfKind::structure, "socket");
  const auto sock = btf.find(bpf::BtfKind::structure, "sock");
  if (!socket || !sock) {
    return std::nullopt;
  }
  const Field inner = btf.member(*socket, "sk");
  const Field receive = btf.member(*sock, "sk_rcvtimeo");
  const Field send = btf.member(*sock, "sk_sndtimeo");
  const Field protocol = btf.member(*sock, "sk_protocol");
  if (!all_fit({inner, receive, send, protocol})) {
    return std::nullopt;
  }
  SocketOffsets offsets{inner->offset, receive->offset, send->offset, protocol->offset, {}};
  if (const auto connection = btf.find(bpf::BtfKind::structure, "inet_connection_sock")) {
    const Field user = btf.member(*connection, "icsk_user_timeout");
    if (all_fit({user})) {
      offsets.user = user->offset;
    }
  }
  return offsets;
}

std::optional<PipeOffsets> pipe_offsets(const bpf::Btf& btf) {
  const auto node = btf.find(bpf::BtfKind::structure, "inode");
  const auto pipe = btf.find(bpf::BtfKind::structure, "pipe_inode_info");
  const auto buffer = btf.find(bpf::BtfKind::structure, "pipe_buffer");
  if (!node || !pipe || !buffer) {
    return std::nullopt;
  }
  const Field mode = btf.member(*node, "i_mode");
  const Field i_pipe = btf.member(*node, "i_pipe");
  const Field head = btf.member(*pipe, "head");
  const Field tail = btf.member(*pipe, "tail");
  const Field most = btf.member(*pipe, "max_usage");
  const Field slots = btf.member(*pipe, "ring_size");
  const Field ring = btf.member(*pipe, "bufs");
  const Field length = btf.member(*buffer, "len");
  const auto size = btf.size(*buffer);
  if (!all_fit({mode, i_pipe, head, tail, most, slots, ring, length}) || !size || !bpf::fits(*size)) {
    return std::nullopt;
  }
  return PipeOffsets{mode->offset,  i_pipe->offset, head->offset,   tail->offset, most->offset,
                     slots->offset, ring->offset,   length->offset, *size};
}

std::vector<bpf_insn> socket_program(const FileOffsets& offsets, const SocketOffsets& socket) {
  Assembler code;
  begin<SocketRecord>(code, offsets);
  code.move(BPF_REG_1, file);
  code.call(bpf::helper_sock_from_file);
  code.exit_if(BPF_JEQ, BPF_REG_0, 0);
  code.load(BPF_DW, BPF_REG_1, BPF_REG_0, near(socket.sock));
  code.exit_if(BPF_JEQ, BPF_REG_1, 0);
  code.load(BPF_DW, BPF_REG_2, BPF_REG_1, near(socket.receive));
  code.store(BPF_DW, at<SocketRecord>(offsetof(SocketRecord, receive)), BPF_REG_2);
  code.load(BPF_DW, BPF_REG_2, BPF_REG_1, near(socket.send));
  code.store(BPF_DW, at<SocketRecord>(offsetof(SocketRecord, send)), BPF_REG_2);
  code.load(BPF_H, BPF_REG_2, BPF_REG_1, near(socket.protocol));
  code.store(BPF_W, at<SocketRecord>(offsetof(SocketRecord, protocol)), BPF_REG_2);
  code.store_constant(BPF_W, at<SocketRecord>(offsetof(SocketRecord, user)), 0);
  if (socket.user) {
    // Of other protocols it is something else that is read there.
    code.move(inode, BPF_REG_1);
    copy_field(code, at<SocketRecord>(offsetof(SocketRecord, user)), 4, inode, *socket.user);
  }
  return bpf::write<SocketRecord>(code, context);
}

std::vector<bpf_insn> pipe_program(const FileOffsets& offsets, const PipeOffsets& pipe) {
  constexpr std::int16_t queued = at<PipeRecord>(offsetof(PipeRecord, queued));
  constexpr std::int16_t capacity = at<PipeRecord>(offsetof(PipeRecord, capacity));
  // Below the record.
  constexpr std::int16_t pointer = at<PipeRecord>(0) - 8;
  constexpr std::int16_t head = pointer - 8;
  constexpr std::int16_t slots = pointer - 16;
  constexpr std::int16_t word = pointer - 24;
  constexpr std::uint8_t structure = BPF_REG_9;  // then its ring
  constexpr std::uint8_t position = BPF_REG_8;   // of the buffer, counted on and on
  constexpr std::uint8_t count = BPF_REG_7;
  Assembler code;
  begin<PipeRecord>(code, offsets);
  code.load(BPF_H, BPF_REG_1, inode, near(pipe.mode));
  code.with_constant(BPF_AND, BPF_REG_1, format_bits);
  code.exit_if(BPF_JNE, BPF_REG_1, is_fifo);
  copy_field(code, pointer, 8, inode, pipe.pipe);
  code.load(BPF_DW, structure, BPF_REG_10, pointer);
  code.exit_if(BPF_JEQ, structure, 0);
  code.store_constant(BPF_DW, queued, 0);
  code.store_constant(BPF_W, at<PipeRecord>(offsetof(PipeRecord, unused)), 0);
  copy_field(code, capacity, 4, structure, pipe.most);
  copy_field(code, head, 4, structure, pipe.head);
  copy_field(code, slots, 4, structure, pipe.slots);
  copy_field(code, word, 4, structure, pipe.tail);
  code.load(BPF_W, position, BPF_REG_10, word);
  copy_field(code, pointer, 8, structure, pipe.ring);
  code.load(BPF_DW, structure, BPF_REG_10, pointer);
  code.set(count, 0);
  const std::size_t loop = code.here();
  code.load(BPF_W, BPF_REG_1, BPF_REG_10, head);
  const std::size_t done = code.jump_if_registers(BPF_JEQ, position, BPF_REG_1);
  code.exit_if(BPF_JGE, count, most_buffers);
  code.load(BPF_W, BPF_REG_1, BPF_REG_10, slots);
  code.with_constant(BPF_SUB, BPF_REG_1, 1);
  code.move(BPF_REG_3, position);
  code.with_register(BPF_AND, BPF_REG_3, BPF_REG_1);
  code.with_constant(BPF_MUL, BPF_REG_3, static_cast<std::int32_t>(pipe.buffer_size));
  code.with_register(BPF_ADD, BPF_REG_3, structure);
  code.with_constant(BPF_ADD, BPF_REG_3, static_cast<std::int32_t>(pipe.length));
  copy(code, word, 4);
  code.load(BPF_W, BPF_REG_1, BPF_REG_10, word);
  code.load(BPF_DW, BPF_REG_2, BPF_REG_10, queued);
  code.with_register(BPF_ADD, BPF_REG_2, BPF_REG_1);
  code.store(BPF_DW, queued, BPF_REG_2);
  code.with_constant(BPF_ADD, count, 1);
  // Positions have 32 bits and wrap.
  code.with_constant(BPF_ADD, position, 1);
  code.with_constant(BPF_LSH, position, 32);
  code.with_constant(BPF_RSH, position, 32);
  code.repeat(loop);
  code.land(done);
  return bpf::write<PipeRecord>(code, context);
}

}  // namespace hangtrace::open_files
