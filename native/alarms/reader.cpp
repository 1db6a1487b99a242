#include "alarms/reader.hpp"

#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>

#include "bpf/iterator.hpp"

namespace hangtrace::alarms {

namespace {

using registers::RungState;
using registers::status_of;

constexpr int own_alarm_s = 100000;  // long enough never to come
constexpr double blur_s = 60;

double seconds_until(std::int64_t due_ns) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t now_ns = static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  return std::max(0.0, static_cast<double>(due_ns - now_ns) / 1e9);
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
  const auto& types = information.types();
  const auto iterator = types ? types->find(bpf::BtfKind::function, "bpf_iter_task") : std::nullopt;
  const auto offsets = types ? alarm_offsets(*types) : std::nullopt;
  if (!iterator || !offsets) {
    status_ = registers::status_of_missing(iterator.has_value(), "alarms");
    return;
  }
  if (const int error = bpf::load_iterator(alarm_program(*offsets), *iterator, "ht_alarms", program_);
      error != 0) {
    status_ = registers::status_of_load(error);
    return;
  }
  status_ = {RungState::used, {}};
  if (!understands()) {
    program_ = proc::Descriptor();
    status_ = {RungState::absent, "alarms of this kernel are not as its type information says"};
  }
}

bool Reader::understands() {
  itimerval before{};
  const itimerval own{{0, 0}, {own_alarm_s, 0}};
  if (setitimer(ITIMER_REAL, &own, &before) != 0) {
    return false;
  }
  const std::array<int, 1> ourselves{getpid()};
  const auto with = ask(ourselves);
  setitimer(ITIMER_REAL, &before, nullptr);
  const bool was_set = before.it_value.tv_sec != 0 || before.it_value.tv_usec != 0;
  const auto without = ask(ourselves);
  if (!with || !with->contains(ourselves[0]) || !without) {
    return false;
  }
  const double left = with->at(ourselves[0]);
  return left <= own_alarm_s && left > own_alarm_s - blur_s && without->contains(ourselves[0]) == was_set;
}

std::optional<std::unordered_map<int, double>> Reader::ask(std::span<const int> pids) {
  std::unordered_map<int, double> found;
  for (const int pid : pids) {
    // One thread tells for all of its process, and in a pid namespace of our own only ids that are asked for
    // count.
    auto records = bpf::records<AlarmRecord>(program_, {.tid = pid});
    if (!records && errno == ESRCH) {
      continue;
    }
    if (!records && (errno == E2BIG || errno == EINVAL) && bpf::in_first_namespace()) {
      records = bpf::records<AlarmRecord>(program_, {});  // before Linux 6.1: all threads of all processes
      if (records) {
        std::erase_if(*records,
                      [pid](const AlarmRecord& record) { return static_cast<int>(record.thread) != pid; });
      }
    }
    if (!records) {
      return std::nullopt;
    }
    if (records->size() == 1 && records->front().set != 0) {
      found.emplace(pid, seconds_until(records->front().due_ns));
    }
  }
  return found;
}

std::unordered_map<int, double> Reader::read(std::span<const int> pids) {
  if (!loaded_) {
    load();
  }
  if (!program_) {
    return {};
  }
  status_ = {RungState::used, {}};
  auto found = ask(pids);
  if (!found) {
    status_ = status_of(errno, "iterating over threads");
    return {};
  }
  return *found;
}

}  // namespace hangtrace::alarms
