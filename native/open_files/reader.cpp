#include "open_files/reader.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "bpf/iterator.hpp"

namespace hangtrace::open_files {

namespace {

using registers::RungState;
using registers::status_of;

constexpr std::size_t piece =
    16 << 10;                    // small: reading ends soon after the last descriptor that is asked for
constexpr int receive_s = 1000;  // of our own socket
constexpr int send_s = 3000;
constexpr unsigned user_ms = 12345;
constexpr std::int64_t fewest_ticks = 10;  // a second
constexpr std::int64_t most_ticks = 100000;

std::uint64_t inode_of(const proc::Descriptor& file) {
  struct stat status {};
  return fstat(file.get(), &status) == 0 ? status.st_ino : 0;
}

// The record of a file of ours.
template <class Record>
std::optional<Record> of(const std::vector<Record>& records, const proc::Descriptor& file) {
  for (const Record& record : records) {
    if (static_cast<int>(record.head.fd) == file.get() && record.head.inode == inode_of(file)) {
      return record;
    }
  }
  return std::nullopt;
}

bool set_timeout(const proc::Descriptor& file, int option, int seconds) {
  const timeval length{seconds, 0};
  return setsockopt(file.get(), SOL_SOCKET, option, &length, sizeof length) == 0;
}

}  // namespace

void Reader::load() {
  loaded_ = true;
  if (const int error = bpf::refusal(); error != 0) {
    status_ = status_of(error, "loading a program");
    return;
  }
  const bpf::TypeInformation information(btf_path_);
  if (const int error = information.error(); error != 0) {
    status_ = registers::status_of_types(error, btf_path_);
    return;
  }
  if (!information.types()) {
    status_ = {RungState::absent, "the kernel's type information cannot be understood"};
    return;
  }
  if (!loads(*information.types())) {
    return;
  }
  status_ = {RungState::used, {}};
  if (!understands_sockets()) {
    sockets_ = proc::Descriptor();
    if (status_.state == RungState::used) {
      status_ = {RungState::absent, "sockets of this kernel are not as its type information says"};
    }
  }
  users_known_ = sockets_ && understands_users();
  if (pipes_ && !understands_pipes()) {
    pipes_ = proc::Descriptor();
  }
}

bool Reader::loads(const bpf::Btf& types) {
  const auto iterator = types.find(bpf::BtfKind::function, "bpf_iter_task_file");
  const auto files = file_offsets(types);
  const auto sockets = socket_offsets(types);
  const auto pipes = pipe_offsets(types);
  if (!iterator || !files || !sockets) {
    status_ = registers::status_of_missing(iterator.has_value(), "sockets");
    return false;
  }
  if (const int error =
          bpf::load_iterator(socket_program(*files, *sockets), *iterator, "ht_sockets", sockets_);
      error != 0) {
    status_ = registers::status_of_load(error);
    return false;
  }
  if (pipes) {
    bpf::load_iterator(pipe_program(*files, *pipes), *iterator, "ht_pipes", pipes_);
  }
  return true;
}

// The unit of the kernel's times (CONFIG_HZ) shows nowhere, but in a socket whose time is known.
bool Reader::understands_sockets() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    status_ = status_of(errno, "socketpair");
    return false;
  }
  const proc::Descriptor timed(ends[0]);
  const proc::Descriptor untimed(ends[1]);
  if (!set_timeout(timed, SO_RCVTIMEO, receive_s) || !set_timeout(timed, SO_SNDTIMEO, send_s)) {
    status_ = status_of(errno, "setsockopt");
    return false;
  }
  const auto found = records<SocketRecord>(sockets_, {{getpid(), {timed.get(), untimed.get()}}});
  const auto with = of(found, timed);
  const auto without = of(found, untimed);
  if (!with || !without || without->receive != no_timeout || without->send != no_timeout) {
    return false;
  }
  ticks_per_s_ = with->receive / receive_s;
  return ticks_per_s_ >= fewest_ticks && ticks_per_s_ <= most_ticks &&
         with->receive == ticks_per_s_ * receive_s && with->send == ticks_per_s_ * send_s;
}

// Milliseconds since Linux 4.19.
bool Reader::understands_users() {
  const proc::Descriptor timed(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (timed.get() < 0 ||
      setsockopt(timed.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof user_ms) != 0) {
    return false;
  }
  const auto found = of(records<SocketRecord>(sockets_, {{getpid(), {timed.get()}}}), timed);
  return found && found->protocol == IPPROTO_TCP && found->user == user_ms;
}

bool Reader::understands_pipes() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    return false;
  }
  const proc::Descriptor from(ends[0]);
  const proc::Descriptor to(ends[1]);
  const std::vector<char> bytes(static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + 3);
  const ssize_t written = write(to.get(), bytes.data(), bytes.size());
  const int capacity = fcntl(to.get(), F_GETPIPE_SZ);
  const auto found = of(records<PipeRecord>(pipes_, {{getpid(), {from.get()}}}), from);
  return found && written > 0 && capacity > 0 && found->queued == static_cast<std::uint64_t>(written) &&
         static_cast<std::int64_t>(found->capacity) * sysconf(_SC_PAGESIZE) == capacity;
}

template <class Record>
bool Reader::iterate(const proc::Descriptor& program, int pid, const Wanted& wanted,
                     std::vector<Record>& found) {
  std::vector<std::byte> rest;
  return bpf::run_iterator(program, {.pid = pid}, piece, [&](std::span<const std::byte> bytes) {
    rest.insert(rest.end(), bytes.begin(), bytes.end());
    std::size_t at = 0;
    bool more = true;
    for (; rest.size() - at >= sizeof(Record); at += sizeof(Record)) {
      Record record;
      std::memcpy(static_cast<void*>(&record), rest.data() + at, sizeof record);
      // Threads that have a table of their own are not those of /proc/PID/fd.
      if (record.head.process != record.head.thread) {
        continue;
      }
      // With a filter the process is the one asked for, whatever its id in another namespace.
      const auto of_process = wanted.find(pid != 0 ? pid : static_cast<int>(record.head.process));
      if (of_process == wanted.end()) {
        continue;
      }
      const auto& [asked, fds] = *of_process;
      const int fd = static_cast<int>(record.head.fd);
      if (std::ranges::find(fds, fd) != fds.end()) {
        record.head.process = static_cast<std::uint32_t>(asked);
        found.push_back(record);
      }
      more = more && (pid == 0 || fd < std::ranges::max(fds));
    }
    rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(at));
    return more;
  });
}

template <class Record>
std::vector<Record> Reader::records(const proc::Descriptor& program, const Wanted& wanted) {
  std::vector<Record> found;
  for (const auto& [pid, fds] : wanted) {
    if (fds.empty()) {
      continue;
    }
    bool done = filters_ && iterate(program, pid, wanted, found);
    if (!done && filters_ && errno == ESRCH) {
      continue;
    }
    if (!done && filters_ && (errno == E2BIG || errno == EINVAL)) {
      filters_ = false;  // before Linux 6.1: all files of all processes in one go
    }
    if (!filters_ && !bpf::in_first_namespace()) {
      status_ = {RungState::absent, "in a pid namespace the kernel can only be asked since Linux 6.1"};
      return {};
    }
    done = done || (!filters_ && iterate(program, 0, wanted, found));
    if (!done) {
      status_ = status_of(errno, "iterating over open files");
      return found;
    }
    if (!filters_) {
      break;
    }
  }
  return found;
}

States Reader::read(const Wanted& wanted) {
  if (!loaded_) {
    load();
  }
  States states;
  const auto seconds = [this](std::int64_t ticks) {
    return ticks == no_timeout
               ? std::nullopt
               : std::optional(static_cast<double>(ticks) / static_cast<double>(ticks_per_s_));
  };
  const auto user = [this](const SocketRecord& record) {
    const bool has = users_known_ && record.protocol == IPPROTO_TCP && record.user != 0;
    return has ? std::optional(record.user / 1000.0) : std::nullopt;
  };
  if (sockets_) {
    status_ = {RungState::used, {}};
    for (const SocketRecord& record : records<SocketRecord>(sockets_, wanted)) {
      states.sockets.push_back({static_cast<int>(record.head.process), static_cast<int>(record.head.fd),
                                record.head.inode, seconds(record.receive), seconds(record.send),
                                user(record)});
    }
  }
  if (pipes_) {
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    for (const PipeRecord& record : records<PipeRecord>(pipes_, wanted)) {
      states.pipes.push_back({static_cast<int>(record.head.process), static_cast<int>(record.head.fd),
                              record.head.inode, record.queued, record.capacity * page});
    }
  }
  return states;
}

}  // namespace hangtrace::open_files
