#include "python/threads.hpp"

#include <algorithm>
#include <unordered_set>

namespace hangtrace::python {
namespace {

constexpr std::size_t kMaxInterpreters = 256;
constexpr std::size_t kMaxThreads = 16384;

Address field(std::span<const std::byte> body, int offset) {
  return offset < 0 ? 0 : load<Address>(body, static_cast<std::size_t>(offset));
}

std::span<std::byte> word(Address& into) {
  return std::as_writable_bytes(std::span(&into, 1));
}

}  // namespace

std::vector<Interpreter> read_interpreters(const memory::Reader& reader, const Layout& layout,
                                           Address runtime, std::string& problem) {
  std::vector<Interpreter> result;
  std::unordered_set<Address> seen;
  Address next = reader.read_value<Address>(runtime + layout.runtime_interpreters).value_or(0);
  while (next != 0) {
    if (!plausible(next) || !seen.insert(next).second || result.size() >= kMaxInterpreters) {
      problem = "the list of interpreters is damaged";
      break;
    }
    Interpreter interpreter{.address = next};
    Address id = 0;
    Batch batch(reader);
    batch.add(next + layout.interpreter_id, word(id));
    batch.add(next + layout.interpreter_threads, word(interpreter.first_thread));
    batch.add(next + layout.interpreter_modules, word(interpreter.modules));
    batch.add(next + layout.interpreter_sysdict, word(interpreter.sysdict));
    if (layout.interpreter_gil >= 0) batch.add(next + layout.interpreter_gil, word(interpreter.gil));
    batch.add(next + layout.interpreter_next, word(next));
    const std::vector<bool> done = batch.read();
    if (!std::all_of(done.begin(), done.end(), [](bool one) { return one; })) {
      problem = "an interpreter is not readable";
      break;
    }
    interpreter.id = static_cast<std::int64_t>(id);
    if (layout.interpreter_gil < 0) interpreter.gil = runtime + layout.runtime_gil;
    if (!plausible(interpreter.gil)) interpreter.gil = 0;
    result.push_back(interpreter);
  }
  return result;
}

std::vector<ThreadState> read_threads(const memory::Reader& reader, const Layout& layout,
                                      const Interpreter& interpreter, std::string& problem) {
  int end = 0;
  for (int offset :
       {layout.thread_next, layout.thread_interpreter, layout.thread_ident, layout.thread_native_id,
        layout.thread_chunk, layout.thread_frame, layout.thread_cframe, layout.thread_stack_mark}) {
    end = std::max(end, offset + 8);
  }
  // Include/cpython/pystate.h: datastack_top follows datastack_chunk.
  const int chunk_top = layout.thread_chunk < 0 ? -1 : layout.thread_chunk + 8;
  end = std::max(end, chunk_top + 8);
  std::vector<std::byte> body(static_cast<std::size_t>(end));
  std::vector<ThreadState> result;
  std::vector<Address> cframes;
  std::unordered_set<Address> seen;
  for (Address next = interpreter.first_thread; next != 0;) {
    if (!plausible(next) || !seen.insert(next).second || result.size() >= kMaxThreads ||
        !reader.read(next, body) || field(body, layout.thread_interpreter) != interpreter.address) {
      problem = "the list of threads changed or is damaged";
      break;
    }
    ThreadState thread;
    thread.address = next;
    thread.ident = field(body, layout.thread_ident);
    thread.native_id = field(body, layout.thread_native_id);
    thread.frame = field(body, layout.thread_frame);
    thread.chunk = field(body, layout.thread_chunk);
    thread.chunk_top = field(body, chunk_top);
    thread.stack_mark = field(body, layout.thread_stack_mark);
    cframes.push_back(field(body, layout.thread_cframe));
    result.push_back(thread);
    next = field(body, layout.thread_next);
  }
  if (layout.thread_cframe >= 0) {
    Batch batch(reader);
    for (std::size_t i = 0; i < result.size(); ++i) {
      const Address at = plausible(cframes[i]) ? cframes[i] + layout.cframe_frame : 0;
      batch.add(at, word(result[i].frame));
    }
    batch.read();
  }
  return result;
}

}  // namespace hangtrace::python
