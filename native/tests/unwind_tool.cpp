// Prints the native stacks of all blocked threads of processes, to compare with other unwinders:
//   unwind_tool [--no-repair] [--repeat N] PID...
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "elf/process_modules.hpp"
#include "memory/process_reader.hpp"
#include "proc/files.hpp"
#include "proc/maps.hpp"
#include "unwind/naming.hpp"
#include "unwind/unwinder.hpp"

namespace {

using namespace hangtrace;

constexpr std::size_t stack_bytes = 32 << 10;

struct Thread {
  int tid;
  memory::Address sp;
  memory::Address pc;
  std::vector<std::byte> stack;
};

struct Process {
  int pid;
  std::vector<proc::Mapping> mappings;
  std::unique_ptr<memory::ProcessReader> reader;
  std::unique_ptr<elf::ProcessModules> modules;
  std::vector<Thread> threads;
  std::vector<unwind::Stack> stacks;
};

// The last two words of /proc/PID/task/TID/syscall: stack pointer and PC.
bool read_registers(int pid, Thread& thread) {
  const auto text =
      proc::read_file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(thread.tid) + "/syscall");
  if (!text) return false;
  unsigned long long sp = 0;
  unsigned long long pc = 0;
  const std::size_t last = text->rfind("0x");
  const std::size_t before = last == std::string::npos || last == 0 ? last : text->rfind("0x", last - 1);
  if (before == std::string::npos || std::sscanf(text->c_str() + before, "%llx %llx", &sp, &pc) != 2)
    return false;
  thread.sp = sp;
  thread.pc = pc;
  return true;
}

void capture(Process& process) {
  process.threads.clear();
  process.stacks.clear();
  const auto mappings = proc::read_maps("/proc", process.pid);
  process.mappings = mappings.value_or(std::vector<proc::Mapping>{});
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(process.pid) + "/task", error)) {
    Thread thread{std::atoi(entry.path().filename().c_str()), 0, 0, {}};
    if (!read_registers(process.pid, thread)) continue;
    const proc::Mapping* mapping = proc::find_mapping(process.mappings, thread.sp);
    if (mapping == nullptr) continue;
    thread.stack.resize(std::min<std::size_t>(stack_bytes, mapping->end - thread.sp));
    if (!process.reader->read(thread.sp, thread.stack)) thread.stack.clear();
    process.threads.push_back(std::move(thread));
  }
  std::ranges::sort(process.threads, {}, &Thread::tid);
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

const char* found_by_name(unwind::FoundBy found_by) {
  switch (found_by) {
    case unwind::FoundBy::leaf:
      return "leaf";
    case unwind::FoundBy::cfi:
      return "cfi";
    case unwind::FoundBy::prologue:
      return "prologue";
    case unwind::FoundBy::scan:
      return "scan";
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  unwind::Options options;
  int repeat = 1;
  std::deque<Process> processes;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--no-repair") == 0) {
      options.repair = false;
    } else if (std::strcmp(argv[i], "--repeat") == 0 && i + 1 < argc) {
      repeat = std::atoi(argv[++i]);
    } else {
      Process& process = processes.emplace_back();
      process.pid = std::atoi(argv[i]);
      process.reader = std::make_unique<memory::ProcessReader>(process.pid);
    }
  }
  if (processes.empty()) {
    std::fprintf(stderr, "usage: unwind_tool [--no-repair] [--repeat N] PID...\n");
    return 2;
  }

  elf::ModuleCache module_cache;
  unwind::UnwindCache unwind_cache;
  std::vector<std::vector<std::vector<unwind::FrameName>>> names;
  for (int round = 0; round < repeat; ++round) {
    for (Process& process : processes) capture(process);
    const auto start = std::chrono::steady_clock::now();
    std::size_t threads = 0, complete = 0, frames = 0, repaired = 0;
    for (Process& process : processes) {
      process.modules = std::make_unique<elf::ProcessModules>(module_cache, "/proc", process.pid,
                                                              process.mappings, *process.reader);
      const unwind::Unwinder unwinder(*process.modules, unwind_cache, options);
      for (const Thread& thread : process.threads) {
        process.stacks.push_back(
            unwinder.unwind(unwind::Registers::from_pc_sp(thread.pc, thread.sp), {thread.sp, thread.stack}));
        const unwind::Stack& stack = process.stacks.back();
        ++threads;
        complete += stack.complete() ? 1 : 0;
        frames += stack.frames.size();
        repaired +=
            static_cast<std::size_t>(std::ranges::count_if(stack.frames, [](const unwind::Frame& frame) {
              return frame.found_by == unwind::FoundBy::prologue || frame.found_by == unwind::FoundBy::scan;
            }));
      }
    }
    const double unwound = milliseconds_since(start);
    std::vector<unwind::NamingJob> jobs;
    for (const Process& process : processes) jobs.push_back({process.modules.get(), process.stacks});
    names = unwind::name_stacks(jobs);
    std::fprintf(
        stderr, "threads %zu complete %zu frames %zu repaired %zu modules %zu unwind %.2f ms names %.2f ms\n",
        threads, complete, frames, repaired, module_cache.size(), unwound,
        milliseconds_since(start) - unwound);
  }

  for (std::size_t p = 0; p < processes.size(); ++p) {
    const Process& process = processes[p];
    for (std::size_t t = 0; t < process.threads.size(); ++t) {
      const unwind::Stack& stack = process.stacks[t];
      std::printf("TID %d %s\n", process.threads[t].tid,
                  stack.complete() ? "complete" : describe(stack.end).c_str());
      for (std::size_t f = 0; f < stack.frames.size(); ++f) {
        const unwind::Frame& frame = stack.frames[f];
        const unwind::FrameName& name = names[p][t][f];
        std::printf("#%-3zu 0x%016llx %-8s %s%s+0x%llx (%s)\n", f, static_cast<unsigned long long>(frame.pc),
                    found_by_name(frame.found_by), name.by_call_site ? "~" : "",
                    name.function.empty() ? "??" : name.function.c_str(),
                    static_cast<unsigned long long>(name.offset),
                    frame.module == nullptr ? "?" : frame.module->path().c_str());
      }
    }
    for (const std::string& problem : process.modules->problems())
      std::fprintf(stderr, "%s\n", problem.c_str());
  }
  return 0;
}
