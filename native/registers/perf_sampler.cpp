#include "registers/perf_sampler.hpp"

#include <linux/perf_event.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <string>

#include "proc/files.hpp"
#include "registers/machine.hpp"
#include "registers/perf_ring.hpp"

namespace hangtrace::registers {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t stack_bytes = 32 << 10;
constexpr std::size_t ring_bytes = 128 << 10;  // three samples and a bit; small enough for RLIMIT_MEMLOCK
constexpr rlim_t spare_descriptors = 64;       // for the rest of the program
constexpr std::size_t register_count = static_cast<std::size_t>(std::popcount(perf_mask()));

std::uint64_t nanoseconds(std::chrono::microseconds time) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(time).count());
}

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// Descriptors left for us.
std::size_t free_descriptors(int next) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return 0;
  }
  const rlim_t used = static_cast<rlim_t>(next) + spare_descriptors;
  return limit.rlim_cur > used ? static_cast<std::size_t>(limit.rlim_cur - used) : 0;
}

class Mapping {
 public:
  Mapping(int descriptor, std::size_t size)
      : size_(size), address_(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)) {}
  ~Mapping() {
    if (*this) {
      munmap(address_, size_);
    }
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  explicit operator bool() const { return address_ != MAP_FAILED; }
  perf_event_mmap_page* page() const { return static_cast<perf_event_mmap_page*>(address_); }
  std::span<const std::byte> ring() const {
    return {static_cast<const std::byte*>(address_) + page_size(), size_ - page_size()};
  }

 private:
  std::size_t size_;
  void* address_;
};

}  // namespace

struct PerfSampler::Event {
  Event(int descriptor_number, std::size_t thread_index)
      : descriptor(descriptor_number),
        mapping(descriptor_number, page_size() + ring_bytes),
        thread(thread_index) {}

  proc::Descriptor descriptor;
  Mapping mapping;  // unmapped before the descriptor is closed
  std::size_t thread;
  std::size_t taken = 0;
  bool done = false;
};

PerfSampler::PerfSampler(SamplerLimits limits) : limits_(limits) {}
PerfSampler::~PerfSampler() = default;

// False if there is no point in trying further threads.
bool PerfSampler::open(int tid, std::size_t thread) {
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = PERF_TYPE_SOFTWARE;
  attributes.config = PERF_COUNT_SW_TASK_CLOCK;
  attributes.sample_period = nanoseconds(limits_.first);
  attributes.sample_type = PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER;
  attributes.sample_regs_user = perf_mask();
  attributes.sample_stack_user = stack_bytes;
  attributes.disabled = 1;
  attributes.exclude_hv = 1;
  attributes.wakeup_events = 1;
  for (;;) {
    // Inside a system call the program's registers are known all the same, if one may look there.
    attributes.exclude_kernel = exclude_kernel_ ? 1 : 0;
    const long opened = ::syscall(SYS_perf_event_open, &attributes, tid, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (opened >= 0) {
      auto event = std::make_unique<Event>(static_cast<int>(opened), thread);
      if (!event->mapping) {
        const int error = errno;
        status_ = error == EPERM ? RungStatus{RungState::limited, "no more memory may be locked for samples"}
                                 : status_of(error, "mapping the memory for samples");
        return false;
      }
      if (ioctl(event->descriptor.get(), PERF_EVENT_IOC_ENABLE, 0) == 0) {
        events_.push_back(std::move(event));
      }
      return true;
    }
    if (errno == ESRCH) {
      return true;  // it has ended
    }
    if ((errno == EACCES || errno == EPERM) && !exclude_kernel_) {
      exclude_kernel_ = true;
      continue;
    }
    if (errno == ENOSYS) {
      status_ = {RungState::absent, "this kernel has no perf events"};
    } else if (errno == EMFILE || errno == ENFILE) {
      status_ = {RungState::limited, "no more files may be open"};
    } else {
      status_ = status_of(errno, "perf_event_open");
    }
    return false;
  }
}

void PerfSampler::begin(std::span<const int> tids) {
  until_ = Clock::now() + limits_.deadline;
  status_ = {RungState::used, {}};
#if defined(__x86_64__)
  const proc::Descriptor lowest(dup(STDIN_FILENO));
  std::size_t most = std::min(limits_.threads, free_descriptors(lowest ? lowest.get() : spare_descriptors));
  std::size_t thread = 0;
  for (; thread < tids.size() && events_.size() < most; ++thread) {
    if (!open(tids[thread], thread)) {
      break;
    }
    if (Clock::now() + limits_.deadline / 2 > until_) {
      ++thread;
      break;  // on a crowded machine others get their turn after each call
    }
  }
  if (thread == tids.size() || status_.state == RungState::refused || status_.state == RungState::absent) {
    return;
  }
  const std::string share =
      std::to_string(events_.size()) + " of " + std::to_string(tids.size()) + " running threads were sampled";
  const bool some = !events_.empty();
  const std::string why = status_.reason.empty() ? std::string() : ": " + status_.reason;
  status_ = {some ? RungState::limited : RungState::failed, share + why};
#else
  static_cast<void>(tids);
  status_ = {RungState::absent, "not written for this machine"};
#endif
}

void PerfSampler::drain(Event& event, const OnSample& on_sample) {
  perf_event_mmap_page* const page = event.mapping.page();
  // The kernel writes the head after the data, and reads the tail before it writes over it.
  const std::uint64_t head = std::atomic_ref(page->data_head).load(std::memory_order_acquire);
  const auto on_record = [&](const PerfSample& sample) {
    unwind::Registers registers;
    if (event.taken < limits_.samples && from_perf(sample.values, registers)) {
      ++event.taken;
      on_sample(event.thread, registers, sample.stack);
    }
  };
  const bool first = event.taken == 0;
  const Drained drained =
      registers::drain(event.mapping.ring(), page->data_tail, head, register_count, on_record);
  std::atomic_ref(page->data_tail).store(drained.tail, std::memory_order_release);
  if (event.taken >= limits_.samples) {
    ioctl(event.descriptor.get(), PERF_EVENT_IOC_DISABLE, 0);
    event.done = true;
  } else if (first && event.taken > 0) {
    std::uint64_t period = nanoseconds(limits_.period);
    ioctl(event.descriptor.get(), PERF_EVENT_IOC_PERIOD, &period);
  }
}

void PerfSampler::finish(const OnSample& on_sample, const std::function<bool(std::size_t)>& still_runs) {
  Clock::time_point next_check = until_ - limits_.deadline + limits_.check;
  std::vector<pollfd> waiting;
  std::vector<Event*> which;
  for (;;) {
    waiting.clear();
    which.clear();
    for (const auto& event : events_) {
      if (!event->done) {
        waiting.push_back({event->descriptor.get(), POLLIN, 0});
        which.push_back(event.get());
      }
    }
    const Clock::time_point now = Clock::now();
    if (waiting.empty() || now >= until_) {
      break;
    }
    if (now >= next_check) {
      next_check = now + limits_.check;
      for (Event* const event : which) {
        event->done = !still_runs(event->thread);
      }
      continue;
    }
    const auto remaining =
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::min(until_, next_check) - now).count();
    const timespec timeout{0, static_cast<long>(std::min<long long>(remaining, 999'999'999))};
    const int ready = ppoll(waiting.data(), waiting.size(), &timeout, nullptr);
    if (ready < 0 && errno != EINTR) {
      break;
    }
    for (std::size_t i = 0; ready > 0 && i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) {
        drain(*which[i], on_sample);
      }
      if ((waiting[i].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
        which[i]->done = true;  // the thread has ended
      }
    }
  }
  for (const auto& event : events_) {
    drain(*event, on_sample);
  }
  events_.clear();
}

}  // namespace hangtrace::registers
