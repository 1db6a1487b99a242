#include "capture/engine.hpp"

#include <algorithm>

#include "capture/known.hpp"
#include "capture/ladder.hpp"
#include "capture/look.hpp"
#include "elf/module_cache.hpp"
#include "unwind/unwinder.hpp"

namespace hangtrace::capture {

namespace {
constexpr std::size_t most_known = 512;  // processes remembered between looks
}

struct Engine::State {
  std::string proc_root;
  elf::ModuleCache modules;
  unwind::UnwindCache tables;
  EvalParts eval_parts{tables.tables()};
  Ladder ladder;
  SourceFinder sources;
  std::map<int, std::shared_ptr<Known>> known;
  std::shared_ptr<proc::DescriptorBudget> budget;
  std::map<int, std::shared_ptr<TaskRecords>> records;

  Sampled sample_process(int pid) {
    if (records.size() > most_known) {
      records.clear();
    }
    const auto kept = records.find(pid);
    Sampled sampled = sample(proc_root, pid, kept == records.end() ? nullptr : kept->second, budget);
    if (sampled.tasks != nullptr && sampled.tasks->may_stay_open()) {
      records[pid] = sampled.records;
    } else {
      records.erase(pid);
    }
    return sampled;
  }

  // Descriptors are for those that are looked at now.
  void make_room(std::span<const int> pids) {
    if (budget->exhausted()) {
      std::erase_if(records, [&](const auto& entry) { return !std::ranges::count(pids, entry.first); });
    }
  }

  // The process's memory, ready to be read; null, with the reason in sampled.process.error, if it must not
  // be.
  std::shared_ptr<Known> open(Sampled& sampled) {
    if (sampled.process.error != Error::none) {
      return nullptr;
    }
    if (known.size() > most_known) {
      known.clear();
    }
    std::shared_ptr<Known>& slot = known[sampled.process.pid];
    if (!slot || !slot->still(sampled)) {
      slot = std::make_shared<Known>(modules, proc_root, sampled);
    }
    sampled.process.error = slot->refresh(sampled.process.threads);
    slot->pages().forget();
    return sampled.process.error == Error::none ? slot : nullptr;
  }

  // Calls read(known) if the process's memory can be read.
  template <class Read>
  void with_known(int pid, Read read) {
    Sampled sampled = sample_process(pid);
    if (const std::shared_ptr<Known> opened = open(sampled)) {
      read(*opened);
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

Engine::Engine(std::string proc_root) : state_(std::make_unique<State>()) {
  state_->proc_root = std::move(proc_root);
  state_->budget = std::make_shared<proc::DescriptorBudget>(proc::DescriptorBudget::available());
}

Engine::~Engine() = default;

std::vector<Process> Engine::capture(std::span<const int> pids, const Options& options) {
  state_->make_room(pids);
  std::vector<Look> looks;
  looks.reserve(pids.size());
  for (const int pid : pids) {
    if (options.on_process) {
      options.on_process(pid);
    }
    looks.push_back(state_->look_at(pid, options));
  }
  // Below another root the ids are those of another pid namespace.
  if (options.stacks && state_->proc_root == "/proc") {
    state_->ladder.climb(looks, state_->tables, options);
  }
  finish(looks, state_->proc_root, state_->eval_parts);
  std::vector<Process> processes;
  processes.reserve(looks.size());
  for (Look& look : looks) {
    processes.push_back(std::move(look.sampled.process));
  }
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

std::optional<python::Value> Engine::python_global(int pid, const std::string& module,
                                                   const std::string& name) {
  std::optional<python::Value> value;
  state_->with_python(pid, [&](python::PythonProcess& python) { value = python.global_value(module, name); });
  return value;
}

SourceAnswer Engine::source_lines(int pid, std::span<const Address> addresses, dwarf::Deadline deadline) {
  SourceAnswer answer{std::vector<dwarf::SourceFrames>(addresses.size()), {"its memory cannot be read"}};
  state_->with_known(
      pid, [&](Known& known) { answer = state_->sources.find(known.modules(), addresses, deadline); });
  return answer;
}

}  // namespace hangtrace::capture
