#include "registers/task_registers.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unordered_set>

#include "registers/btf.hpp"

namespace hangtrace::registers {

namespace {

/// The bytes of a file that is only read: mapped where that can be done (type information: since Linux 6.16),
/// which saves a copy, else read.
class FileBytes {
 public:
  explicit FileBytes(const std::string& path) {
    const proc::Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!file || fstat(file.get(), &status) != 0) {
      return;
    }
    size_ = static_cast<std::size_t>(std::max<off_t>(status.st_size, 0));
    void* const mapped = size_ > 0 ? mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0) : MAP_FAILED;
    if (mapped != MAP_FAILED) {
      mapped_ = mapped;
      return;
    }
    text_ = proc::read_file(path, size_ + 1);
  }
  ~FileBytes() {
    if (mapped_ != nullptr) {
      munmap(mapped_, size_);
    }
  }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;
  /// False, with errno set, if it cannot be read.
  explicit operator bool() const { return mapped_ != nullptr || text_; }
  std::span<const std::byte> bytes() const {
    if (mapped_ != nullptr) {
      return {static_cast<const std::byte*>(mapped_), size_};
    }
    return std::as_bytes(std::span(*text_));
  }

 private:
  std::size_t size_ = 0;
  void* mapped_ = nullptr;
  std::optional<std::string> text_;
};

constexpr std::size_t most_btf = 256 << 20;
constexpr std::size_t most_bytes = 64 << 20;  // of records: 300,000 threads

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

// Whether thread ids as we see them are those of the first pid namespace (PROC_PID_INIT_INO,
// linux/proc_ns.h).
bool in_first_namespace() {
  return proc::read_link("/proc/self/ns/pid") == "pid:[4026531836]";
}

}  // namespace

// The errno of loading an iterator, 0 if it is loaded.
int TaskRegisters::load_error(const std::vector<bpf_insn>& code, std::uint32_t iterator) {
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
  std::memcpy(attributes.prog_name, "ht_registers", sizeof "ht_registers");
  const long program = bpf(BPF_PROG_LOAD, attributes);
  if (program < 0) {
    return errno;
  }
  program_ = proc::Descriptor(static_cast<int>(program));
  return 0;
}

void TaskRegisters::load() {
  loaded_ = true;
  first_namespace_ = in_first_namespace();
#if defined(__x86_64__)
  if (const int error = load_error({}, 0); error == EPERM || error == EACCES) {
    status_ = status_of(error, "loading a program");  // found out before the type information is read
    return;
  }
  errno = 0;
  const FileBytes information(btf_path_);
  if (!information) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    status_ = missing
                  ? RungStatus{RungState::absent, "the kernel has no type information (" + btf_path_ + ")"}
                  : status_of(errno, btf_path_.c_str());
    return;
  }
  const auto btf = information.bytes().size() <= most_btf ? Btf::parse(information.bytes()) : std::nullopt;
  const auto iterator = btf ? btf->find(BtfKind::function, "bpf_iter_task") : std::nullopt;
  const auto offsets = btf ? task_offsets(*btf) : std::nullopt;
  if (!iterator || !offsets) {
    status_ = {RungState::absent, "the kernel's type information has no task iterator"};
    return;
  }
  if (const int error = load_error(task_program(*offsets), *iterator); error != 0) {
    status_ = status_of(error, "loading the program");
    return;
  }
  status_ = {RungState::used, {}};
#else
  status_ = {RungState::absent, "not written for this machine"};
#endif
}

std::optional<std::vector<TaskRecord>> TaskRegisters::iterate(int pid, int tid) {
  TaskLinkInfo info{static_cast<std::uint32_t>(tid), static_cast<std::uint32_t>(pid), 0};
  bpf_attr attributes{};
  attributes.link_create.prog_fd = static_cast<std::uint32_t>(program_.get());
  attributes.link_create.attach_type = BPF_TRACE_ITER;
  if (pid != 0 || tid != 0) {
    attributes.link_create.iter_info = pointer(&info);
    attributes.link_create.iter_info_len = sizeof info;
  }
  const proc::Descriptor link(static_cast<int>(bpf(BPF_LINK_CREATE, attributes)));
  if (!link) {
    return std::nullopt;
  }
  attributes = {};
  attributes.iter_create.link_fd = static_cast<std::uint32_t>(link.get());
  const proc::Descriptor iterator(static_cast<int>(bpf(BPF_ITER_CREATE, attributes)));
  if (!iterator) {
    return std::nullopt;
  }
  std::vector<std::byte> bytes(64 << 10);
  std::size_t filled = 0;
  for (;;) {
    if (filled == bytes.size()) {
      if (bytes.size() >= most_bytes) {
        break;
      }
      bytes.resize(2 * bytes.size());
    }
    const ssize_t got = ::read(iterator.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
      continue;
    }
    if (got < 0) {
      return std::nullopt;
    }
    if (got == 0) {
      break;
    }
    filled += static_cast<std::size_t>(got);
  }
  std::vector<TaskRecord> records(filled / sizeof(TaskRecord));
  std::memcpy(static_cast<void*>(records.data()), bytes.data(), records.size() * sizeof(TaskRecord));
  return records;
}

std::unordered_map<int, TaskRecord> TaskRegisters::by_process(std::span<const int> pids,
                                                              std::span<const int> tids) {
  std::unordered_map<int, TaskRecord> found;
  const std::unordered_set<int> wanted(tids.begin(), tids.end());
  for (const int pid : pids) {
    auto records = iterate(filters_ ? pid : 0, 0);
    if (!records && filters_ && (errno == E2BIG || errno == EINVAL)) {
      filters_ = false;  // before Linux 6.1: all threads of all processes in one go
      records = iterate(0, 0);
    }
    if (!records) {
      status_ = status_of(errno, "iterating over threads");
      return found;
    }
    for (const TaskRecord& record : *records) {
      if (wanted.contains(static_cast<int>(record.tid))) {
        found.emplace(static_cast<int>(record.tid), record);
      }
    }
    if (!filters_) {
      break;
    }
  }
  return found;
}

// In a pid namespace of our own the kernel translates only what it is asked for.
std::unordered_map<int, TaskRecord> TaskRegisters::by_thread(std::span<const int> tids) {
  std::unordered_map<int, TaskRecord> found;
  for (const int tid : tids) {
    const auto records = iterate(0, tid);
    if (!records && errno == ESRCH) {
      continue;
    }
    if (!records) {
      status_ = status_of(errno, "iterating over threads by id");
      return found;
    }
    if (records->size() == 1) {
      found.emplace(tid, records->front());
    }
  }
  return found;
}

std::unordered_map<int, TaskRecord> TaskRegisters::read(std::span<const int> pids,
                                                        std::span<const int> tids) {
  if (!loaded_) {
    load();
  }
  if (!program_) {
    return {};
  }
  status_ = {RungState::used, {}};
  return first_namespace_ ? by_process(pids, tids) : by_thread(tids);
}

}  // namespace hangtrace::registers
