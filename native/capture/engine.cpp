#include "capture/engine.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <set>

#include "capture/known.hpp"
#include "capture/ladder.hpp"
#include "capture/look.hpp"
#include "capture/workers.hpp"
#include "elf/module_cache.hpp"
#include "elf/symbols.hpp"
#include "memory/heap.hpp"
#include "proc/files.hpp"
#include "unwind/naming.hpp"
#include "unwind/unwinder.hpp"

namespace hangtrace::capture {

namespace {
constexpr std::size_t most_known = 512;  // processes remembered between looks
constexpr std::size_t most_workers = 4;

std::size_t workers_for(std::span<const int> pids, const Options& options) {
  // Two threads must not look at one process.
  if (std::set(pids.begin(), pids.end()).size() != pids.size()) {
    return 1;
  }
  return options.workers != 0 ? options.workers : std::min(free_cpus(), most_workers);
}

}  // namespace

struct Engine::State {
  std::string proc_root;
  elf::ModuleCache modules;
  unwind::UnwindCache tables;
  EvalParts eval_parts{tables.tables()};
  Ladder ladder;
  SourceFinder sources;
  std::shared_ptr<proc::DescriptorBudget> budget;
  // The maps are shared by all workers, what they hold of a process is used by the one that looks at it.
  std::mutex mutex;
  std::map<int, std::shared_ptr<Known>> known;
  std::map<int, std::shared_ptr<TaskRecords>> records;

  template <class Kept>
  std::shared_ptr<Kept> recall(std::map<int, std::shared_ptr<Kept>>& kept, int pid) {
    const std::lock_guard lock(mutex);
    const auto found = kept.find(pid);
    return found == kept.end() ? nullptr : found->second;
  }

  // Null: nothing.
  template <class Kept>
  void remember(std::map<int, std::shared_ptr<Kept>>& kept, int pid, std::shared_ptr<Kept> what) {
    const std::lock_guard lock(mutex);
    if (kept.size() > most_known) {
      kept.clear();
    }
    if (what) {
      kept[pid] = std::move(what);
    } else {
      kept.erase(pid);
    }
  }

  Sampled sample_process(int pid) {
    Sampled sampled = sample(proc_root, pid, recall(records, pid), budget);
    const bool keep = sampled.tasks != nullptr && sampled.tasks->may_stay_open();
    remember(records, pid, keep ? sampled.records : nullptr);
    return sampled;
  }

  // A program that looks for days sees many processes end: their descriptors and mappings go with them.
  void forget_ended() {
    const auto ended = [this](const auto& entry) {
      return access((proc_root + "/" + std::to_string(entry.first)).c_str(), F_OK) != 0;
    };
    std::erase_if(records, ended);
    std::erase_if(known, ended);
  }

  // Descriptors are for those that are looked at now.
  void make_room(std::span<const int> pids) {
    if (budget->exhausted()) {
      std::erase_if(records, [&](const auto& entry) { return !std::ranges::count(pids, entry.first); });
    }
  }

  // How many looks at these processes may open, at most about so many.
  std::size_t descriptors_for(std::span<const int> pids) const {
    constexpr std::size_t most_modules = 1024;
    std::size_t count = most_modules;
    for (const int pid : pids) {
      std::error_code error;  // the links of the directory are two more than there are threads
      const auto links = std::filesystem::hard_link_count(proc::process_path(proc_root, pid, "task"), error);
      count += error ? 0 : 2 * static_cast<std::size_t>(links);
    }
    return count;
  }

  // The process's memory, ready to be read; null, with the reason in sampled.process.error, if it must not
  // be.
  std::shared_ptr<Known> open(Sampled& sampled) {
    if (sampled.process.error != Error::none) {
      return nullptr;
    }
    std::shared_ptr<Known> opened = recall(known, sampled.process.pid);
    if (!opened || !opened->still(sampled)) {
      opened = std::make_shared<Known>(modules, proc_root, sampled);
      remember(known, sampled.process.pid, opened);
    }
    sampled.process.error = opened->refresh(sampled.process.threads);
    opened->pages().forget();
    return sampled.process.error == Error::none ? opened : nullptr;
  }

  // Calls read(known) if the process's memory can be read.
  template <class Read>
  void with_known(int pid, Read read) {
    Sampled sampled = sample_process(pid);
    if (const std::shared_ptr<Known> opened = open(sampled)) {
      read(*opened);
      opened->rest();
    }
    if (sampled.tasks != nullptr) {
      mark_moved(sampled);  // the next look need not read again what did not move
    }
  }

  // Calls read(python) if it also runs Python.
  template <class Read>
  void with_python(int pid, Read read) {
    with_known(pid, [&](Known& known) {
      if (python::PythonProcess* const python = known.python()) {
        read(*python);
      }
    });
  }

  static void leave(Process& process) {
    if (process.error == Error::none) {
      process.error = Error::no_time;
    }
    for (Thread& thread : process.threads) {
      thread.stack_problem = no_time_left;
    }
  }

  Look look_at(int pid, const Options& options) {
    Look look;
    look.sampled = sample_process(pid);
    if (options.stacks && !options.out_of_time()) {
      look.known = open(look.sampled);
    } else if (options.stacks) {
      leave(look.sampled.process);
    }
    if (look.known) {
      take(look, options, proc_root);
      if (look.known) {
        unwind_threads(look, tables, options);
      }
    } else if (look.sampled.tasks) {
      mark_moved(look.sampled);
    }
    return look;
  }
};

Engine::Engine(std::string proc_root) {
  memory::prepare_heap();
  state_ = std::make_unique<State>();
  state_->proc_root = std::move(proc_root);
  state_->budget = std::make_shared<proc::DescriptorBudget>(proc::DescriptorBudget::available());
}

Engine::~Engine() = default;

std::vector<Process> Engine::capture(std::span<const int> pids, const Options& options) {
  const GivesWay politely;
  state_->make_room(pids);
  const std::size_t workers = workers_for(pids, options);
  if (workers > 1) {
    expect_descriptors(state_->descriptors_for(pids));
  }
  std::vector<Look> looks(pids.size());
  const auto announce = [&](std::size_t i) {
    if (options.on_process) {
      options.on_process(pids[i]);
    }
  };
  share_out(pids.size(), workers, announce,
            [&](std::size_t i) { looks[i] = state_->look_at(pids[i], options); });
  // Below another root the ids are those of another pid namespace.
  if (options.stacks && state_->proc_root == "/proc") {
    state_->ladder.climb(looks, state_->tables, options);
  }
  finish(looks, state_->proc_root, state_->eval_parts, state_->tables.tables(), workers);
  std::vector<Process> processes;
  processes.reserve(looks.size());
  for (Look& look : looks) {
    if (look.known) {
      look.known->keep_stacks(look.sampled.process.threads, std::move(look.unwound));
      look.known->rest();
    }
    processes.push_back(std::move(look.sampled.process));
  }
  state_->forget_ended();
  return processes;
}

std::map<std::string, std::string> Engine::python_environ(int pid, const std::vector<std::string>& names) {
  std::map<std::string, std::string> values;
  state_->with_python(pid, [&](python::PythonProcess& python) { values = python.environ(names); });
  return values;
}

std::vector<std::string> Engine::python_argv(int pid) {
  std::vector<std::string> arguments;
  state_->with_python(pid, [&](python::PythonProcess& python) { arguments = python.argv(); });
  return arguments;
}

std::vector<std::optional<python::Value>> Engine::python_globals(int pid, const std::string& module,
                                                                 std::span<const std::string> names,
                                                                 python::ValueLimits limits) {
  std::vector<std::optional<python::Value>> values(names.size());
  state_->with_python(
      pid, [&](python::PythonProcess& python) { values = python.global_values(module, names, limits); });
  return values;
}

namespace {

// Of the first library whose file's name begins so; nullopt: none is loaded, or its file cannot be opened.
std::optional<std::vector<std::optional<Address>>> symbols_in(Known& known, std::string_view library,
                                                              std::span<const std::string_view> names) {
  for (const proc::Mapping& mapping : known.mappings()) {
    const std::string_view path = mapping.path;
    if (!mapping.executable || !path.substr(path.rfind('/') + 1).starts_with(library)) {
      continue;
    }
    const auto location = known.modules().locate(mapping.start);
    if (!location || location->module == nullptr) {
      continue;
    }
    std::vector<std::optional<Address>> addresses = elf::find_symbols(*location->module, names);
    for (auto& address : addresses) {
      if (address) {
        *address += location->bias;
      }
    }
    return addresses;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::optional<Address>> Engine::symbols(int pid, const std::string& library,
                                                    std::span<const std::string> names) {
  std::vector<std::optional<Address>> addresses(names.size());
  const std::vector<std::string_view> wanted(names.begin(), names.end());
  state_->with_known(pid, [&](Known& known) {
    if (auto found = symbols_in(known, library, wanted)) {
      addresses = std::move(*found);
    }
  });
  return addresses;
}

namespace {

// The libraries that may have a recorder, and where its pointer is.
std::vector<std::pair<std::string, std::optional<Address>>> recorder_places(Known& known) {
  std::vector<std::pair<std::string, std::optional<Address>>> places;
  std::string_view done;
  for (const torch::RecorderSymbol& first : torch::recorder_symbols()) {
    if (first.library == done) {
      continue;
    }
    done = first.library;
    std::vector<std::string_view> names;
    for (const torch::RecorderSymbol& each : torch::recorder_symbols()) {
      if (each.library == done) {
        names.push_back(each.symbol);
      }
    }
    const auto found = symbols_in(known, done, names);
    if (!found) {
      continue;
    }
    const auto place = std::ranges::find_if(*found, [](const auto& each) { return each.has_value(); });
    places.emplace_back(done, place == found->end() ? std::nullopt : *place);
  }
  return places;
}

}  // namespace

std::vector<Recorder> Engine::recorders(int pid, const torch::Wanted& wanted) {
  std::vector<Recorder> result;
  state_->with_known(pid, [&](Known& known) {
    for (auto& [library, place] : recorder_places(known)) {
      Recorder& recorder = result.emplace_back();
      recorder.library = std::move(library);
      recorder.has_symbol = place.has_value();
      if (place) {
        recorder.recording = torch::read_recorder(known.reader(), *place, wanted);
      }
      python::PythonProcess* const python = wanted.frames ? known.python() : nullptr;
      if (python == nullptr) {
        continue;
      }
      std::vector<std::vector<python::CodePlace>> frames;
      for (const torch::RecordedOperation& operation : recorder.recording.operations) {
        frames.push_back(operation.frames);
      }
      recorder.frames = python->code_lines(frames);
    }
  });
  return result;
}

std::vector<CodeName> Engine::code_names(int pid, std::span<const Address> addresses) {
  std::vector<CodeName> result(addresses.size());
  state_->with_known(pid, [&](Known& known) {
    std::vector<unwind::Stack> stacks;
    for (const Address address : addresses) {
      const auto location = known.modules().locate_code(address);
      elf::Module* const module = location ? location->module : nullptr;
      const Address bias = module != nullptr ? location->bias : 0;
      const Address va = module != nullptr ? location->va : address;
      stacks.push_back({{{address, 0, module, bias, va, unwind::FoundBy::leaf, false}}, {}, {}});
    }
    const unwind::NamingJob job{&known.modules(), stacks};
    const auto names = unwind::name_stacks(std::span(&job, 1)).front();
    for (std::size_t i = 0; i < stacks.size(); ++i) {
      const elf::Module* const module = stacks[i].frames.front().module;
      result[i] = {names[i].front().function, module != nullptr ? module->path() : std::string()};
    }
  });
  return result;
}

SourceAnswer Engine::source_lines(int pid, std::span<const Address> addresses, dwarf::Deadline deadline) {
  SourceAnswer answer{std::vector<dwarf::SourceFrames>(addresses.size()), {"its memory cannot be read"}};
  state_->with_known(
      pid, [&](Known& known) { answer = state_->sources.find(known.modules(), addresses, deadline); });
  return answer;
}

}  // namespace hangtrace::capture
