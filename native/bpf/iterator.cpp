#include "bpf/iterator.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace hangtrace::bpf {

namespace {

constexpr std::size_t most_btf = 256 << 20;

// The part of union bpf_iter_link_info that is about tasks, since Linux 6.1.
struct TaskLinkInfo {
  std::uint32_t tid;
  std::uint32_t pid;
  std::uint32_t pid_fd;
};

long bpf(int command, bpf_attr& attributes) {
  return ::syscall(SYS_bpf, command, &attributes, sizeof attributes);
}

template <class T>
std::uint64_t pointer(const T* object) {
  return reinterpret_cast<std::uint64_t>(object);
}

proc::Descriptor link_to(const proc::Descriptor& program, Whose whose) {
  const TaskLinkInfo info{static_cast<std::uint32_t>(whose.tid), static_cast<std::uint32_t>(whose.pid), 0};
  bpf_attr attributes{};
  attributes.link_create.prog_fd = static_cast<std::uint32_t>(program.get());
  attributes.link_create.attach_type = BPF_TRACE_ITER;
  if (whose.pid != 0 || whose.tid != 0) {
    attributes.link_create.iter_info = pointer(&info);
    attributes.link_create.iter_info_len = sizeof info;
  }
  return proc::Descriptor(static_cast<int>(bpf(BPF_LINK_CREATE, attributes)));
}

// Before Linux 6.1 only the first four bytes of TaskLinkInfo are looked at, and made nothing of: asked for
// one thread, the kernel tells of all without a word. Asked for a process, it finds bytes that it does not
// know.
bool knows_threads(const proc::Descriptor& program) {
  static const bool known = link_to(program, {.pid = getpid()}) || (errno != E2BIG && errno != EINVAL);
  return known;
}

}  // namespace

TypeInformation::TypeInformation(const std::string& path) {
  const proc::Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0) {
    error_ = errno;
    return;
  }
  size_ = static_cast<std::size_t>(std::max<off_t>(status.st_size, 0));
  if (size_ > most_btf) {
    return;
  }
  void* const mapped = size_ > 0 ? mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0) : MAP_FAILED;
  if (mapped != MAP_FAILED) {
    mapped_ = mapped;
  } else {
    text_ = proc::read_file(path, size_ + 1);
    if (!text_) {
      error_ = errno;
      return;
    }
  }
  types_ = Btf::parse(bytes());
}

TypeInformation::~TypeInformation() {
  if (mapped_ != nullptr) {
    munmap(mapped_, size_);
  }
}

std::span<const std::byte> TypeInformation::bytes() const {
  if (mapped_ != nullptr) {
    return {static_cast<const std::byte*>(mapped_), size_};
  }
  return std::as_bytes(std::span(*text_));
}

int refusal() {
  proc::Descriptor none;
  const int error = load_iterator({}, 0, "ht_none", none);
  return error == EPERM || error == EACCES ? error : 0;
}

int load_iterator(std::span<const bpf_insn> code, std::uint32_t iterator, const char* name,
                  proc::Descriptor& into) {
  // The helpers are for programs under a licence that goes with the kernel's; these instructions are under
  // both.
  constexpr char licence[] = "Dual BSD/GPL";
  bpf_attr attributes{};
  attributes.prog_type = BPF_PROG_TYPE_TRACING;
  attributes.expected_attach_type = BPF_TRACE_ITER;
  attributes.attach_btf_id = iterator;
  attributes.insns = pointer(code.data());
  attributes.insn_cnt = static_cast<std::uint32_t>(code.size());
  attributes.license = pointer(licence);
  std::strncpy(attributes.prog_name, name, sizeof attributes.prog_name - 1);
  const long program = bpf(BPF_PROG_LOAD, attributes);
  if (program < 0) {
    return errno;
  }
  into = proc::Descriptor(static_cast<int>(program));
  return 0;
}

bool run_iterator(const proc::Descriptor& program, Whose whose, std::size_t piece,
                  const std::function<bool(std::span<const std::byte>)>& take) {
  if (whose.tid != 0 && !knows_threads(program)) {
    errno = E2BIG;
    return false;
  }
  const proc::Descriptor link = link_to(program, whose);
  if (!link) {
    return false;
  }
  bpf_attr attributes{};
  attributes.iter_create.link_fd = static_cast<std::uint32_t>(link.get());
  const proc::Descriptor iterator(static_cast<int>(bpf(BPF_ITER_CREATE, attributes)));
  if (!iterator) {
    return false;
  }
  std::vector<std::byte> bytes(piece);
  for (;;) {
    const ssize_t got = ::read(iterator.get(), bytes.data(), bytes.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
      continue;
    }
    if (got <= 0) {
      return got == 0;
    }
    if (!take(std::span(bytes).first(static_cast<std::size_t>(got)))) {
      return true;
    }
  }
}

bool in_first_namespace() {
  return proc::read_link("/proc/self/ns/pid") == "pid:[4026531836]";  // PROC_PID_INIT_INO, linux/proc_ns.h
}

}  // namespace hangtrace::bpf
