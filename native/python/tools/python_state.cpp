// Prints as JSON what the Python reader sees in a running process.
//   ht_python_state PID [--lock TID FUTEX]... [--local TID FRAME NAME]... [--environ NAME]... [--imported
//   NAME]...
//                   [--global MODULE NAME]... [--argv] [--time LOOKS]
// --time prints how long the first look took and the shortest of LOOKS more, in microseconds.
#include <dirent.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "elf/process_modules.hpp"
#include "memory/page_reader.hpp"
#include "memory/process_reader.hpp"
#include "proc/maps.hpp"
#include "python/process.hpp"

namespace {

using namespace hangtrace;

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == '"' || character == '\\') {
      result += '\\';
      result += character;
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      result += escape;
    } else {
      result += character;
    }
  }
  return result + '"';
}

std::string json(const std::optional<python::SimpleValue>& value) {
  if (!value) return R"({"found": false})";
  std::ostringstream out;
  out << R"({"found": true, )";
  std::visit(
      [&](const auto& one) {
        using T = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<T, python::NoneValue>) {
          out << R"("value": null)";
        } else if constexpr (std::is_same_v<T, bool>) {
          out << R"("value": )" << (one ? "true" : "false");
        } else if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, double>) {
          out << R"("value": )" << one;
        } else if constexpr (std::is_same_v<T, std::string>) {
          out << R"("value": )" << quoted(one);
        } else if constexpr (std::is_same_v<T, python::BytesValue>) {
          out << R"("bytes": )" << quoted(one.data);
        } else {
          out << R"("type": )" << quoted(one.type_name) << R"(, "address": )" << one.address;
        }
      },
      *value);
  return out.str() + "}";
}

std::string json(const std::vector<std::string>& texts) {
  std::string result = "[";
  for (const std::string& text : texts) result += (result.size() > 1 ? ", " : "") + quoted(text);
  return result + "]";
}

std::string json(const python::PythonThread& thread) {
  std::ostringstream out;
  out << "{\"tid\": " << thread.native_tid << ", \"ident\": " << thread.ident
      << ", \"name\": " << quoted(thread.name) << ", \"interpreter\": " << thread.interpreter
      << ", \"holds_gil\": " << (thread.holds_gil ? "true" : "false")
      << ", \"problem\": " << quoted(thread.problem) << ", \"frames\": [";
  for (std::size_t i = 0; i < thread.frames.size(); ++i) {
    const python::PythonFrame& frame = thread.frames[i];
    out << (i ? ", " : "") << "{\"function\": " << quoted(frame.function)
        << ", \"file\": " << quoted(frame.file) << ", \"line\": " << frame.line
        << ", \"entry\": " << (frame.entry ? "true" : "false")
        << ", \"generator\": " << (frame.generator ? "true" : "false")
        << ", \"live_stack\": " << frame.live_stack << "}";
  }
  out << "]}";
  return out.str();
}

std::string json(const python::LockFacts& lock) {
  static const char* const kFrom[] = {"nowhere", "rlock_owner", "module_lock", "joined_thread", "with_block"};
  std::ostringstream out;
  out << "{\"object\": " << lock.object << ", \"type\": " << quoted(lock.type_name)
      << ", \"recursive\": " << (lock.recursive ? "true" : "false")
      << ", \"owner_ident\": " << lock.owner_ident << ", \"owner_tid\": " << lock.owner_tid
      << ", \"count\": " << lock.count << ", \"owner_from\": \"" << kFrom[static_cast<int>(lock.owner_from)]
      << "\", \"owner_function\": " << quoted(lock.owner_function) << ", \"owner_line\": " << lock.owner_line
      << ", \"module\": " << quoted(lock.module) << ", \"problem\": " << quoted(lock.problem) << "}";
  return out.str();
}

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

python::ThreadIds thread_ids(int pid) {
  python::ThreadIds ids;
  DIR* folder = opendir(("/proc/" + std::to_string(pid) + "/task").c_str());
  if (folder == nullptr) return ids;
  while (const dirent* entry = readdir(folder)) {
    if (const int tid = std::atoi(entry->d_name); tid > 0) ids.emplace(tid, tid);
  }
  closedir(folder);
  return ids;
}

const python::PythonThread* thread_of(const python::PythonState& state, int tid) {
  for (const python::PythonThread& thread : state.threads) {
    if (thread.native_tid == tid) return &thread;
  }
  return nullptr;
}

int run(const std::vector<std::string>& arguments) {
  const int pid = std::atoi(arguments.at(0).c_str());
  const memory::ProcessReader memory(pid);
  memory::PageReader reader(memory);
  const auto mappings = proc::read_maps("/proc", pid);
  if (!mappings) return 2;
  elf::ModuleCache cache;
  elf::ProcessModules modules(cache, "/proc", pid, *mappings, reader);
  auto process = python::PythonProcess::attach(
      reader, *mappings,
      [&](const proc::Mapping& mapping, const char* symbol) { return modules.find_symbol(mapping, symbol); });
  if (!process) {
    std::cout << "{\"problem\": \"no Python runtime\"}\n";
    return 3;
  }
  const python::ThreadIds ids = thread_ids(pid);
  reader.begin();
  const auto start = std::chrono::steady_clock::now();
  const auto state = process->read(ids);
  const double first_us = microseconds_since(start);
  std::cout << "{\"version\": " << quoted(process->version());
  if (!state) {
    std::cout << ", \"problem\": " << quoted(process->problem()) << "}\n";
    return 4;
  }
  std::cout << ", \"layout_from\": " << quoted(state->layout_from)
            << ", \"problem\": " << quoted(state->problem)
            << ", \"free_threaded\": " << (state->free_threaded ? "true" : "false") << ", \"gils\": [";
  for (std::size_t i = 0; i < state->gils.size(); ++i) {
    const python::Gil& gil = state->gils[i];
    std::cout << (i ? ", " : "") << "{\"address\": " << gil.address << ", \"size\": " << gil.size
              << ", \"locked\": " << (gil.locked ? "true" : "false") << ", \"holder_tid\": " << gil.holder_tid
              << "}";
  }
  std::cout << "], \"threads\": [";
  for (std::size_t i = 0; i < state->threads.size(); ++i)
    std::cout << (i ? ",\n" : "") << json(state->threads[i]);
  std::cout << "]";
  std::vector<std::string> locks, locals, globals, environ_names, module_names;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& option = arguments[i];
    auto next = [&] { return arguments.at(++i); };
    if (option == "--lock") {
      const int tid = std::atoi(next().c_str());
      const memory::Address futex = std::strtoull(next().c_str(), nullptr, 0);
      const python::PythonThread* thread = thread_of(*state, tid);
      locks.push_back(thread ? json(process->describe_lock(*state, *thread, futex, {})) : "null");
    } else if (option == "--local") {
      const python::PythonThread* thread = thread_of(*state, std::atoi(next().c_str()));
      const std::size_t index = std::strtoull(next().c_str(), nullptr, 0);
      const std::string name = next();
      locals.push_back(thread ? json(process->frame_local(*thread, index, name)) : "null");
    } else if (option == "--global") {
      const std::string module = next();
      const std::string name = next();
      globals.push_back(json(process->module_global(module, name)));
    } else if (option == "--environ") {
      environ_names.push_back(next());
    } else if (option == "--imported") {
      module_names.push_back(next());
    } else if (option == "--argv") {
      std::cout << ", \"argv\": " << json(process->argv());
    } else if (option == "--time") {
      const int looks = std::atoi(next().c_str());
      double least = first_us;
      for (int look = 0; look < looks; ++look) {
        reader.forget();
        reader.begin();
        const auto begin = std::chrono::steady_clock::now();
        process->read(ids);
        least = std::min(least, microseconds_since(begin));
      }
      std::cout << ", \"first_us\": " << first_us << ", \"look_us\": " << least;
    } else {
      return 64;
    }
  }
  auto print = [](const char* name, const std::vector<std::string>& items) {
    std::cout << ", \"" << name << "\": [";
    for (std::size_t i = 0; i < items.size(); ++i) std::cout << (i ? ", " : "") << items[i];
    std::cout << "]";
  };
  print("locks", locks);
  print("locals", locals);
  print("globals", globals);
  std::cout << ", \"environ\": {";
  bool first = true;
  for (const auto& [name, value] : process->environ(environ_names)) {
    std::cout << (first ? "" : ", ") << quoted(name) << ": " << quoted(value);
    first = false;
  }
  std::cout << "}, \"imported\": " << json(process->imported(module_names)) << "}\n";
  return 0;
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
  if (arguments.empty()) return 64;
  return run(arguments);
}
