#include "capture/known.hpp"

#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "memory/file_reader.hpp"
#include "memory/process_reader.hpp"
#include "proc/files.hpp"
#include "proc/status.hpp"

namespace hangtrace::capture {

namespace {

#ifndef SYS_futex_waitv
constexpr long SYS_futex_waitv = 449;  // Linux 5.16, the same on all machines
#endif

constexpr Address lowest_word = 4096;               // below are descriptors
constexpr std::size_t usual_maps_bytes = 64 << 10;  // of a worker with its libraries

// Below another root the ids are those of another pid namespace, in which system calls by id would reach a
// stranger.
std::unique_ptr<memory::Reader> make_reader(const std::string& proc_root, int tid) {
  if (proc_root == "/proc") {
    return std::make_unique<memory::ProcessReader>(tid);
  }
  return std::make_unique<memory::FileReader>(proc_root, tid);
}

// The C library that a program is linked with: by the name of its file, or by what only that one defines.
locks::CLibrary c_library_of(const std::vector<proc::Mapping>& mappings, elf::ProcessModules& modules) {
  const proc::Mapping* program = nullptr;
  for (const proc::Mapping& mapping : mappings) {
    const std::string_view path = mapping.path;
    const std::string_view file = path.substr(path.rfind('/') + 1);
    if (file.starts_with("libc.so.6") || file.starts_with("libc-2.")) {
      return locks::CLibrary::glibc;
    }
    if (file.starts_with("ld-musl-") || (file == "libc.so" && path.find("musl") != path.npos)) {
      return locks::CLibrary::musl;
    }
    if (program == nullptr && !path.empty()) {
      program = &mapping;
    }
  }
  if (program != nullptr && modules.find_symbol(*program, "__libc_setup_tls")) {
    return locks::CLibrary::glibc;
  }
  const bool musl = program != nullptr && modules.find_symbol(*program, "__init_libc");
  return musl ? locks::CLibrary::musl : locks::CLibrary::unknown;
}

Moment moment_of(const Thread& thread) {
  return {thread.stack_pointer, thread.run_ns, thread.slices};
}

// Where times are not kept, they do not say whether a thread has run.
bool has_times(const Thread& thread) {
  return thread.run_ns.value_or(0) != 0;
}

}  // namespace

Known::Known(elf::ModuleCache& modules, std::string proc_root, const Sampled& sampled)
    : cache_(modules),
      proc_root_(std::move(proc_root)),
      identity_(sampled.identity),
      memory_id_(sampled.memory_id),
      reader_(make_reader(proc_root_, memory_id_)),
      pages_(std::make_unique<memory::PageReader>(*reader_)),
      unlisted_(proc_root_, memory_id_) {}

// The stack of a thread stays where it is while it sleeps.
bool Known::slept_since(const Thread& thread) const {
  const auto seen = seen_.find(thread.tid);
  return has_times(thread) && seen != seen_.end() && seen->second == moment_of(thread);
}

// Then the mappings are the same, too: only a thread of the process changes them.
bool Known::all_slept(const std::vector<Thread>& threads) const {
  return threads.size() == seen_.size() && std::ranges::all_of(threads, [this](const Thread& thread) {
           return thread.stack_pointer && slept_since(thread);
         });
}

// Finds what is looked up in the mappings during a look: code, stacks, and words that threads wait for. True
// if that is listed now, without reading the text of maps.
bool Known::list(const std::vector<Thread>& threads) {
  if (modules_ && all_slept(threads)) {
    return true;
  }
  std::vector<Address> addresses;  // of those that have run since
  std::vector<Address> all;
  addresses.reserve(2 * threads.size());
  all.reserve(2 * threads.size());
  bool tell = true;
  for (const Thread& thread : threads) {
    if (thread.syscall == SYS_futex_waitv) {
      return false;  // its words are not among its arguments
    }
    tell = tell && thread.stack_pointer;
    if (thread.stack_pointer) {
      all.push_back(*thread.stack_pointer);
      if (!slept_since(thread)) {
        addresses.push_back(*thread.stack_pointer);
      }
    }
    if (thread.syscall.value_or(-1) >= 0 && thread.arguments[0] >= lowest_word) {
      all.push_back(thread.arguments[0]);
      addresses.push_back(thread.arguments[0]);
    }
  }
  if (!modules_ && !tell) {
    return false;
  }
  const auto query = proc::MapsQuery::open(proc_root_, memory_id_);
  if (!query) {
    return false;
  }
  std::ranges::sort(addresses);
  if (modules_ && (tell || all_listed_) && proc::still_mapped(*query, mappings_, addresses)) {
    return true;
  }
  if (all_listed_ || !tell) {
    return false;
  }
  std::ranges::sort(all);
  auto now = proc::query_code(*query, all);
  if (now) {
    mapped(*std::move(now));
  }
  return now.has_value();
}

Error Known::refresh(const std::vector<Thread>& threads) {
  unlisted_.forget();
  const Error error = list(threads) ? Error::none : read_again();
  seen_.clear();
  if (error == Error::none) {
    for (const Thread& thread : threads) {
      seen_.emplace(thread.tid, moment_of(thread));
    }
  }
  return error;
}

Error Known::read_again() {
  errno = 0;
  std::optional<std::string> text = proc::read_file(proc::process_path(proc_root_, memory_id_, "maps"),
                                                    std::max(maps_text_.size() + 4096, usual_maps_bytes));
  if (!text) {
    return error_of(errno);
  }
  if (text->empty()) {
    return Error::gone;  // its memory went while it ends
  }
  if (modules_ && *text == maps_text_) {
    return Error::none;
  }
  all_listed_ = true;
  maps_text_ = std::move(*text);
  mapped(proc::parse_maps(maps_text_));
  return Error::none;
}

void Known::mapped(std::vector<proc::Mapping> mappings) {
  stacks_.clear();
  modules_.reset();
  mappings_ = std::move(mappings);
  modules_ = std::make_unique<elf::ProcessModules>(cache_, proc_root_, memory_id_, mappings_, *reader_,
                                                   all_listed_ ? nullptr : &unlisted_);
  c_library_ = c_library_of(mappings_, *modules_);
  if (!python_) {
    python_looked_for_ = false;  // an interpreter may be loaded later, by a program that embeds one
  }
}

const KeptStack* Known::kept_stack(const Thread& thread) const {
  const auto kept = stacks_.find(thread.tid);
  const bool same = kept != stacks_.end() && !thread.running && kept->second.moment == moment_of(thread);
  return same ? &kept->second : nullptr;
}

void Known::keep_stacks(const std::vector<Thread>& threads, std::vector<unwind::Stack> stacks) {
  stacks_.clear();
  for (std::size_t i = 0; i < std::min(threads.size(), stacks.size()); ++i) {
    const Thread& thread = threads[i];
    if (thread.stack_pointer && !thread.moved && !thread.running && has_times(thread) &&
        stacks[i].complete()) {
      stacks_.emplace(thread.tid, KeptStack{moment_of(thread), std::move(stacks[i]), thread.stack_from});
    }
  }
}

const proc::Mapping* Known::mapping_at(Address address) {
  const proc::Mapping* const listed = proc::find_mapping(mappings_, address);
  return listed != nullptr || all_listed_ ? listed : unlisted_.at(address);
}

python::PythonProcess* Known::python() {
  if (!python_looked_for_) {
    python_looked_for_ = true;
    python_ = python::PythonProcess::attach(*pages_, mappings_,
                                            [this](const proc::Mapping& mapping, const char* symbol) {
                                              return modules_->find_symbol(mapping, symbol);
                                            });
  }
  return python_ ? &*python_ : nullptr;
}

Numbering thread_numbering(const std::string& proc_root, const Sampled& sampled) {
  Numbering numbering;
  std::optional<bool>& kept = sampled.records->inside;
  if (!kept) {
    const auto status = proc::read_status(proc_root, sampled.process.pid);
    kept = status ? std::optional(status->ids_by_namespace.size() > 1) : std::nullopt;
  }
  const bool inside = kept.value_or(false);
  if (inside) {
    numbering.pid_namespace =
        proc::read_link(proc::process_path(proc_root, sampled.memory_id, "ns/pid")).value_or("?");
  }
  for (const Thread& thread : sampled.process.threads) {
    const auto id = inside ? sampled.tasks->id_inside(thread.tid) : std::optional(thread.tid);
    if (id) {
      numbering.ids.emplace(*id, thread.tid);
    }
  }
  return numbering;
}

}  // namespace hangtrace::capture
