#include "registers/task_registers.hpp"

#include <cerrno>
#include <unordered_set>

#include "bpf/iterator.hpp"

namespace hangtrace::registers {

void TaskRegisters::load() {
  loaded_ = true;
  first_namespace_ = bpf::in_first_namespace();
#if defined(__x86_64__)
  if (const int error = bpf::refusal(); error != 0) {
    status_ = status_of(error, "loading a program");
    return;
  }
  const bpf::TypeInformation information(btf_path_);
  if (const int error = information.error(); error != 0) {
    status_ = status_of_types(error, btf_path_);
    return;
  }
  const auto& types = information.types();
  const auto iterator = types ? types->find(bpf::BtfKind::function, "bpf_iter_task") : std::nullopt;
  const auto offsets = types ? task_offsets(*types) : std::nullopt;
  if (!iterator || !offsets) {
    status_ = status_of_missing(iterator.has_value(), "registers");
    return;
  }
  const auto code = task_program(*offsets);
  if (const int error = bpf::load_iterator(code, *iterator, "ht_registers", program_); error != 0) {
    status_ = status_of_load(error);
    return;
  }
  status_ = {RungState::used, {}};
#else
  status_ = {RungState::absent, "not written for this machine"};
#endif
}

std::unordered_map<int, TaskRecord> TaskRegisters::by_process(std::span<const int> pids,
                                                              std::span<const int> tids) {
  std::unordered_map<int, TaskRecord> found;
  const std::unordered_set<int> wanted(tids.begin(), tids.end());
  for (const int pid : pids) {
    auto records = bpf::records<TaskRecord>(program_, {.pid = filters_ ? pid : 0});
    if (!records && filters_ && (errno == E2BIG || errno == EINVAL)) {
      filters_ = false;  // before Linux 6.1: all threads of all processes in one go
      records = bpf::records<TaskRecord>(program_, {});
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
    const auto records = bpf::records<TaskRecord>(program_, {.tid = tid});
    if (!records && errno == ESRCH) {
      continue;
    }
    if (!records && (errno == E2BIG || errno == EINVAL)) {
      status_ = {RungState::absent, "in a pid namespace the kernel can only be asked since Linux 6.1"};
      return found;
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
