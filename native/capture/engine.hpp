#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "capture/source_lines.hpp"
#include "capture/types.hpp"
#include "torch/flight_recorder.hpp"

namespace hangtrace::capture {

/// A flight recorder of torch.distributed in one of a process' libraries.
struct Recorder {
  std::string library;                                     // its file's name
  torch::Recording recording;                              // Outcome::unreadable without `has_symbol`
  bool has_symbol = true;                                  // false: the library does not say where it is
  std::vector<std::vector<python::CodeLine>> frames = {};  // of each operation, if asked for
};

struct CodeName {
  std::string function;  // empty: unknown
  std::string module;    // path of the file, empty: none
};

/// Looks at groups of processes without stopping them. Keeps modules, symbols, unwinding rows and Python code
/// objects between looks. One thread at a time; a look at several processes starts some of its own, and ends
/// them.
class Engine {
 public:
  explicit Engine(std::string proc_root);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// One process each, in the order given. What a process does is never an exception; what `on_process`
  /// throws passes through.
  std::vector<Process> capture(std::span<const int> pids, const Options& options);

  /// The program's own environment, only the asked names; empty if it is no Python program or cannot be read.
  std::map<std::string, std::string> python_environ(int pid, const std::vector<std::string>& names);
  std::vector<std::string> python_argv(int pid);
  /// Globals of an imported module or, with dots, attributes reached from them; nullopt: it is not there.
  std::vector<std::optional<python::Value>> python_globals(int pid, const std::string& module,
                                                           std::span<const std::string> names,
                                                           python::ValueLimits limits);
  /// Where the first loaded library whose file's name begins with `library` has these symbols (mangled names,
  /// exported or local); nullopt for those it does not define.
  std::vector<std::optional<Address>> symbols(int pid, const std::string& library,
                                              std::span<const std::string> names);

  /// Of each library of torch that is loaded and can have one, in the order of torch::recorder_symbols().
  std::vector<Recorder> recorders(int pid, const torch::Wanted& wanted);

  /// For each address of code the function it is in, as innermost frames of stacks are named, and its file.
  std::vector<CodeName> code_names(int pid, std::span<const Address> addresses);

  /// Source positions and inlined functions at addresses of code, from debug information; the address of a
  /// call is the byte before its return address. Takes long where there is much of it: `deadline` bounds it.
  SourceAnswer source_lines(int pid, std::span<const Address> addresses, dwarf::Deadline deadline);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hangtrace::capture
