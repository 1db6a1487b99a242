#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture/sample.hpp"
#include "elf/module_cache.hpp"
#include "elf/process_modules.hpp"
#include "locks/decode.hpp"
#include "memory/page_reader.hpp"
#include "memory/reader.hpp"
#include "proc/maps.hpp"
#include "python/process.hpp"
#include "unwind/unwinder.hpp"

namespace hangtrace::capture {

/// A thread at one moment: if another reading is the same, it has not run in between.
struct Moment {
  std::optional<Address> stack_pointer;
  std::optional<std::uint64_t> run_ns;
  std::optional<std::uint64_t> slices;
  friend bool operator==(const Moment&, const Moment&) = default;
};

/// The stack of a thread that slept.
struct KeptStack {
  Moment moment;
  unwind::Stack stack;
  StackFrom from = StackFrom::none;
};

/// What stays known of a process between looks: how to read it, what is mapped where, its interpreter.
/// Dropped with the process, or when it calls execve.
class Known {
 public:
  Known(elf::ModuleCache& modules, std::string proc_root, const Sampled& sampled);
  Known(const Known&) = delete;
  Known& operator=(const Known&) = delete;

  bool still(const Sampled& sampled) const {
    return identity_ == sampled.identity && memory_id_ == sampled.memory_id;
  }

  /// Reads the mappings again, unless those of code and those the threads point to are still there.
  /// Error::none, or why they cannot be read.
  Error refresh(const std::vector<Thread>& threads);

  const memory::Reader& reader() const { return *reader_; }
  /// What the interpreter is read through; forget it before each look.
  memory::PageReader& pages() { return *pages_; }
  /// All, or those of code and those that threads point to, of which every thread tells where its stack is.
  const std::vector<proc::Mapping>& mappings() const { return mappings_; }
  /// Of an address that need not be one of code or of what threads point to; nullptr: none, or it cannot be
  /// told.
  const proc::Mapping* mapping_at(Address address);
  /// The look is over: no file stays open for it.
  void rest() { unlisted_.forget(); }
  elf::ProcessModules& modules() { return *modules_; }
  /// The whole stack of this thread as an earlier look unwound it, if the thread has slept since; or nullptr.
  const KeptStack* kept_stack(const Thread& thread) const;
  /// Those that are whole, in place of those kept so far. `stacks`: of each thread one, at the same index.
  void keep_stacks(const std::vector<Thread>& threads, std::vector<unwind::Stack> stacks);
  locks::CLibrary c_library() const { return c_library_; }

  /// The interpreter; nullptr if the program has none. The first time it searches symbols.
  python::PythonProcess* python();
  bool python_looked_for() const { return python_looked_for_; }

 private:
  bool slept_since(const Thread& thread) const;
  bool all_slept(const std::vector<Thread>& threads) const;
  bool list(const std::vector<Thread>& threads);
  Error read_again();
  void mapped(std::vector<proc::Mapping> mappings);

  elf::ModuleCache& cache_;
  std::string proc_root_;
  Identity identity_;
  int memory_id_;
  std::unique_ptr<memory::Reader> reader_;
  std::unique_ptr<memory::PageReader> pages_;
  std::string maps_text_;
  std::vector<proc::Mapping> mappings_;
  bool all_listed_ = false;  // and so it stays
  proc::UnlistedMappings unlisted_;
  std::unordered_map<int, KeptStack> stacks_;  // by thread; their frames point into modules_
  std::unordered_map<int, Moment> seen_;       // threads, when the mappings were last read or checked
  std::unique_ptr<elf::ProcessModules> modules_;
  locks::CLibrary c_library_ = locks::CLibrary::glibc;
  bool python_looked_for_ = false;
  std::optional<python::PythonProcess> python_;
};

/// Thread ids as the program writes them into its memory -> as we see them. They differ in a pid namespace,
/// which is then named (the link ns/pid); empty where they do not.
struct Numbering {
  python::ThreadIds ids;
  std::string pid_namespace;
};

Numbering thread_numbering(const std::string& proc_root, const Sampled& sampled);

}  // namespace hangtrace::capture
