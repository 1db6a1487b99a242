#include "python/process.hpp"

#include <algorithm>
#include <array>

#include "python/native_ids.hpp"
#include "python/one_thread.hpp"
#include "python/process_state.hpp"

namespace hangtrace::python {
namespace {

constexpr std::size_t kMaxEnvironmentValue = 1 << 16;  // bytes

// An id as the program was told it, as we see it; 0 if nobody has it.
int translate(const ThreadIds& tids, std::uint64_t id) {
  if (id == 0 || id > (1 << 22)) return 0;
  if (tids.empty()) return static_cast<int>(id);
  auto found = tids.find(static_cast<int>(id));
  return found == tids.end() ? 0 : found->second;
}

// What stands before the first dot, and what behind it.
// Behind a container: "each member of it".
constexpr std::string_view kEach = "[]";

// The first name, and the rest without its dot.
std::pair<std::string_view, std::string_view> split(std::string_view dotted) {
  const std::size_t end = std::min(dotted.find_first_of(".["), dotted.size());
  const bool dot = end < dotted.size() && dotted[end] == '.';
  return {dotted.substr(0, end), dotted.substr(end + (dot ? 1 : 0))};
}

}  // namespace

std::optional<Interpreter> PythonProcess::State::main_interpreter() {
  std::string ignored;
  const auto all = read_interpreters(reader, layout(), runtime.address, ignored);
  if (all.empty()) return std::nullopt;
  auto first = std::find_if(all.begin(), all.end(), [](const Interpreter& one) { return one.id == 0; });
  return first == all.end() ? all.back() : *first;
}

std::vector<std::optional<Address>> PythonProcess::State::find_modules(
    const Interpreter& interpreter, std::span<const std::string_view> names) {
  if (auto found = objects.look_up(interpreter.modules, names)) return *std::move(found);
  const std::vector<Objects::Item> items = objects.dict(interpreter.modules);
  if (known_modules.size() > 64) known_modules.clear();
  KnownModules& known = known_modules[interpreter.modules];
  const Address last_key = items.empty() ? 0 : items.back().first;
  const bool same = known.count == items.size() && known.last_key == last_key;
  known.count = items.size();
  known.last_key = last_key;
  std::vector<std::optional<Address>> result(names.size());
  std::vector<std::string_view> wanted;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto key = known.keys.find(names[i]);
    if (key != known.keys.end() && !key->second && same) continue;  // still not there
    if (key != known.keys.end() && key->second) {
      const auto item = std::find_if(items.begin(), items.end(),
                                     [&](const auto& one) { return one.first == *key->second; });
      if (item != items.end() && objects.text(item->first) == names[i]) {
        result[i] = item->second;
        continue;
      }
    }
    wanted.push_back(names[i]);
    places.push_back(i);
  }
  if (wanted.empty()) return result;
  const auto found = objects.find(interpreter.modules, wanted);
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    result[places[k]] = found[k];
    std::optional<Address>& key = known.keys[std::string(wanted[k])];
    key.reset();
    for (const auto& [name, module] : items) {
      if (found[k] == module) key = name;
    }
  }
  return result;
}

std::optional<Address> PythonProcess::State::module_dict(std::string_view module) {
  auto interpreter = main_interpreter();
  if (!interpreter) return std::nullopt;
  auto found = objects.find(interpreter->modules, module);
  if (!found || objects.type_name_of(*found).empty()) return std::nullopt;
  auto dict = objects.word(*found, 0);  // PyModuleObject.md_dict
  return dict && plausible(*dict) ? dict : std::nullopt;
}

std::unordered_map<std::uint64_t, std::string> PythonProcess::State::thread_names(
    const Interpreter& interpreter) {
  std::unordered_map<std::uint64_t, std::string> names;
  const auto module = find_modules(interpreter, std::array<std::string_view, 1>{"threading"}).front();
  auto dict = module ? objects.word(*module, 0) : std::nullopt;
  auto active = dict ? objects.find(*dict, "_active") : std::nullopt;  // dict of ident -> Thread
  if (!active) return names;
  std::vector<Address> keys;
  std::vector<Address> texts;
  const std::vector<Objects::Item> items = objects.dict(*active);
  std::vector<Address> threads;
  for (const Objects::Item& item : items) threads.push_back(item.second);
  objects.touch(threads);
  for (const auto& [key, thread] : items) {
    auto name = objects.attribute(thread, "_name");
    if (!name) continue;
    // Whoever comes into another interpreter by a call has only a stand-in there, or is its "MainThread".
    if (interpreter.id != 0) {
      const std::string type = objects.type_name_of(thread);
      if (type == "_MainThread" || type == "_DummyThread") continue;
    }
    keys.push_back(key);
    texts.push_back(*name);
  }
  const auto idents = objects.integers(keys);
  const auto values = objects.texts(texts);
  for (std::size_t i = 0; i < idents.size(); ++i) {
    if (idents[i] && values[i]) names.emplace(static_cast<std::uint64_t>(*idents[i]), *values[i]);
  }
  return names;
}

void PythonProcess::State::add_threads(const Interpreter& interpreter, const ThreadIds& tids,
                                       PythonState& state) {
  const std::vector<ThreadState> threads = read_threads(reader, layout(), interpreter, state.problem);
  std::vector<FrameChain> chains = read_frames(objects, codes, threads);
  const auto names = thread_names(interpreter);
  std::vector<std::uint64_t> idents;
  for (const ThreadState& thread : threads) idents.push_back(thread.ident);
  // glibc's own note is right after a fork too, where 3.11 keeps the parent's native_thread_id.
  const std::vector<int> from_pthread = tids_of_pthreads(reader, idents);
  const std::size_t first = state.threads.size();
  for (std::size_t i = 0; i < threads.size(); ++i) {
    PythonThread thread;
    thread.ident = threads[i].ident;
    thread.interpreter = interpreter.id;
    thread.native_tid = translate(tids, static_cast<std::uint64_t>(from_pthread[i]));
    if (thread.native_tid == 0) thread.native_tid = translate(tids, threads[i].native_id);
    if (auto name = names.find(thread.ident); name != names.end()) thread.name = name->second;
    thread.problem = std::move(chains[i].problem);
    thread.left_out = chains[i].left_out;
    thread.on_c_stack = chains[i].on_c_stack;
    for (Frame& frame : chains[i].frames) {
      const Code* code = codes.find(frame.code);
      if (code == nullptr) continue;
      thread.frames.push_back({code->function, code->file, frame.line, frame.address, frame.code, frame.entry,
                               frame.generator, std::move(frame.slots), frame.first_stack_slot,
                               frame.live_stack});
    }
    state.threads.push_back(std::move(thread));
  }
  add_gil(interpreter, threads, first, state);
  add_asyncio_tasks(interpreter, threads, first, state);
  add_greenlets(interpreter, state);
}

void PythonProcess::State::add_gil(const Interpreter& interpreter, const std::vector<ThreadState>& threads,
                                   std::size_t first, PythonState& state) {
  if (interpreter.gil == 0) return;
  if (state.free_threaded) {  // off, unless -X gil=1 or an extension module asked for it
    auto enabled = reader.read_value<std::int32_t>(interpreter.gil + layout().gil_enabled);
    if (!enabled || *enabled == 0) return;
  }
  auto locked = reader.read_value<std::int32_t>(interpreter.gil + layout().gil_locked);
  auto holder = reader.read_value<Address>(interpreter.gil + layout().gil_holder);
  if (!locked || !holder || *locked < -1 || *locked > 1) return;
  auto gil = std::find_if(state.gils.begin(), state.gils.end(),
                          [&](const Gil& one) { return one.address == interpreter.gil; });
  if (gil == state.gils.end()) {
    state.gils.push_back(
        {interpreter.gil, static_cast<std::size_t>(layout().gil_size), *locked == 1, 0, interpreter.id});
    gil = std::prev(state.gils.end());
  }
  if (!gil->locked) return;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    if (threads[i].address != *holder) continue;
    gil->holder_tid = state.threads[first + i].native_tid;
    state.threads[first + i].holds_gil = true;
  }
}

PythonProcess::PythonProcess(std::unique_ptr<State> state) : state_(std::move(state)) {}
PythonProcess::PythonProcess(PythonProcess&&) noexcept = default;
PythonProcess& PythonProcess::operator=(PythonProcess&&) noexcept = default;
PythonProcess::~PythonProcess() = default;

std::optional<PythonProcess> PythonProcess::attach(const memory::Reader& reader,
                                                   std::span<const proc::Mapping> mappings,
                                                   const SymbolFinder& find) {
  auto runtime = find_runtime(reader, mappings, find);
  if (!runtime) return std::nullopt;
  return PythonProcess(std::make_unique<State>(reader, std::move(*runtime)));
}

const std::string& PythonProcess::version() const {
  return state_->runtime.version;
}
Address PythonProcess::runtime() const {
  return state_->runtime.address;
}
const std::string& PythonProcess::problem() const {
  return state_->problem;
}

std::optional<PythonState> PythonProcess::read(const ThreadIds& tids) {
  State& own = *state_;
  own.problem.clear();
  if (!own.runtime.layout) {
    own.problem = own.runtime.problem;
    return std::nullopt;
  }
  own.start_look();
  PythonState state;
  state.version = own.runtime.version;
  state.layout_from = own.runtime.layout_from;
  state.free_threaded = own.layout().free_threaded;
  const auto interpreters = read_interpreters(own.reader, own.layout(), own.runtime.address, state.problem);
  if (interpreters.empty()) {
    own.problem = state.problem.empty() ? "no interpreter: Python starts or has ended" : state.problem;
    return std::nullopt;
  }
  for (const Interpreter& interpreter : interpreters) own.add_threads(interpreter, tids, state);
  unite_threads(state.threads);
  if (state.gils.empty() && !state.free_threaded && state.problem.empty()) {
    state.problem = "the GIL is not readable";
  }
  return state;
}

std::optional<SimpleValue> PythonProcess::attribute(Address object, std::string_view name) {
  if (!state_->runtime.layout) return std::nullopt;
  auto found = state_->objects.attribute(object, name);
  if (!found) return std::nullopt;
  return state_->objects.value(*found);
}

std::optional<SimpleValue> PythonProcess::module_global(std::string_view module, std::string_view name) {
  if (!state_->runtime.layout) return std::nullopt;
  state_->objects.start_look();
  auto dict = state_->module_dict(module);
  auto found = dict ? state_->objects.find(*dict, name) : std::nullopt;
  if (!found) return std::nullopt;
  return state_->objects.value(*found);
}

void PythonProcess::State::start_look() {
  objects.start_look();
  slots.start_look();
  codes.start_look();
  slot_names.clear();
  go_words.clear();
}

const std::vector<std::string>& PythonProcess::State::names_of_slots(Address address) {
  auto [known, fresh] = slot_names.try_emplace(address);
  const Code* code = codes.find(address);
  if (!fresh || code == nullptr) return known->second;
  std::vector<Address> names;
  for (Address tuple : code->name_tuples) {
    const auto part = objects.tuple(tuple);
    names.insert(names.end(), part.begin(), part.end());
  }
  if (names.size() != code->named_slots) return known->second;
  for (auto& text : objects.texts(names)) known->second.push_back(text.value_or(""));
  return known->second;
}

std::optional<Address> PythonProcess::State::content(Address slot) {
  if (!plausible(slot)) return std::nullopt;
  if (objects.type_name_of(slot) != "cell") return slot;
  auto inside = objects.word(slot, 0);
  return inside && *inside != 0 ? inside : std::nullopt;
}

std::optional<Address> PythonProcess::State::local_of(Address frame, Address code, std::string_view name) {
  const std::vector<std::string>& names = names_of_slots(code);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] != name) continue;
    const Address place = frame + static_cast<Address>(layout().frame_slots) + 8 * i;
    const Address value = reader.read_value<Address>(place).value_or(0);
    if (auto found = content(layout().minor >= 13 ? untagged(value) : value)) return found;
  }
  return std::nullopt;
}

std::optional<Address> PythonProcess::State::local_object(const PythonThread& thread, std::size_t index,
                                                          std::string_view name) {
  if (index >= thread.frames.size()) return std::nullopt;
  const PythonFrame& frame = thread.frames[index];
  const std::vector<std::string>& names = names_of_slots(frame.code);
  for (std::size_t i = 0; i < names.size() && i < frame.slots.size(); ++i) {
    if (names[i] != name) continue;
    if (auto found = content(frame.slots[i])) return found;
  }
  return std::nullopt;
}

// co_names comes before co_exceptiontable since 3.11, and before co_varnames up to then
// (Include/cpython/code.h).
bool PythonProcess::State::may_call(Address code, std::span<const std::string_view> wanted) {
  const auto names = names_in(code);
  return !names || std::ranges::any_of(*names, [&](const std::string& name) {
    return std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  });
}

std::optional<std::vector<std::string>> PythonProcess::State::names_in(Address code) {
  const int after = layout().minor >= 11 ? layout().code_exceptions : layout().code_names;
  if (after < 8 || !plausible(code)) return std::nullopt;
  const auto names = reader.read_value<Address>(code + static_cast<Address>(after - 8));
  if (!names || objects.type_name_of(*names) != "tuple") return std::nullopt;
  std::vector<std::string> found;
  for (auto& name : objects.texts(objects.tuple(*names))) {
    if (!name) return std::nullopt;
    found.push_back(std::move(*name));
  }
  return found;
}

// PyFunctionObject: func_code after func_name and func_qualname, before 3.10 right after the header.
Address PythonProcess::State::code_of_function(Address function) const {
  const auto at = layout().minor >= 10 ? function + static_cast<Address>(layout().function_name) + 16
                                       : function + static_cast<Address>(layout().after_header(0));
  return reader.read_value<Address>(at).value_or(0);
}

const std::string& PythonProcess::State::go_word(Address code) {
  static constexpr std::array<std::string_view, 3> kWords = {"release", "release_lock", "cancel"};
  auto [known, fresh] = go_words.try_emplace(code);
  if (!fresh) return known->second;
  for (const std::string_view& word : kWords) {
    if (may_call(code, std::span(&word, 1))) {
      known->second = word;
      break;
    }
  }
  return known->second;
}

template <typename Frames>
std::string PythonProcess::State::first_go_word(const Frames& frames) {
  static constexpr std::size_t kSearched = 6;
  if (!runtime.layout) return {};
  std::size_t searched = 0;
  for (const auto& frame : frames) {
    if (is_standard_library(frame.file)) continue;
    if (++searched > kSearched) break;
    if (const std::string& word = go_word(frame.code); !word.empty()) return word;
  }
  return {};
}

std::string PythonProcess::lets_go(const PythonThread& thread) {
  return state_->first_go_word(thread.frames);
}

std::string PythonProcess::lets_go(const PythonTask& task) {
  return state_->first_go_word(task.stack);
}

// The standard library gives back no lock of the program's, but for Condition.wait().
bool PythonProcess::State::is_standard_library(std::string_view file) const {
  const std::string folder = "/python3." + std::to_string(layout().minor);
  const auto at = file.find(folder);
  if (at == std::string_view::npos || file.find("-packages/") != std::string_view::npos) return false;
  const auto rest = file.substr(at + folder.size());
  return rest.starts_with('/') || rest.starts_with("t/");
}

std::optional<SimpleValue> PythonProcess::frame_local(const PythonThread& thread, std::size_t index,
                                                      std::string_view name) {
  if (!state_->runtime.layout) return std::nullopt;
  auto object = state_->local_object(thread, index, name);
  if (!object) return std::nullopt;
  return state_->objects.value(*object);
}

std::optional<Value> PythonProcess::State::value_from(std::optional<Address> object, std::string_view rest,
                                                      ValueLimits limits) {
  if (!object) return std::nullopt;
  ValueReader values(objects, slots, limits);
  if (const std::size_t each = rest.find(kEach); each != std::string_view::npos) {
    const auto container = values.follow(*object, rest.substr(0, each));
    std::string_view inner = rest.substr(each + kEach.size());
    inner.remove_prefix(std::min<std::size_t>(inner.starts_with('.') ? 1 : 0, inner.size()));
    return container ? std::optional(values.each(*container, inner)) : std::nullopt;
  }
  const auto end = values.follow(*object, rest);
  return end ? std::optional(values.read(*end)) : std::nullopt;
}

std::optional<Value> PythonProcess::local_value(const PythonThread& thread, std::size_t index,
                                                std::string_view dotted) {
  if (!state_->runtime.layout) return std::nullopt;
  const auto [first, rest] = split(dotted);
  return state_->value_from(state_->local_object(thread, index, first), rest);
}

std::optional<Value> PythonProcess::task_value(const TaskFrame& frame, std::string_view dotted) {
  if (!state_->runtime.layout) return std::nullopt;
  const auto [first, rest] = split(dotted);
  return state_->value_from(state_->local_of(frame.frame, frame.code, first), rest);
}

std::vector<std::optional<Value>> PythonProcess::global_values(std::string_view module,
                                                               std::span<const std::string> names,
                                                               ValueLimits limits) {
  std::vector<std::optional<Value>> values(names.size());
  if (!state_->runtime.layout) return values;
  state_->start_look();
  const auto dict = state_->module_dict(module);
  if (!dict) return values;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto [first, rest] = split(names[i]);
    values[i] = state_->value_from(state_->objects.find(*dict, first), rest, limits);
  }
  return values;
}

std::vector<std::vector<CodeLine>> PythonProcess::code_lines(std::span<const std::vector<CodePlace>> places) {
  std::vector<std::vector<CodeLine>> result(places.size());
  State& own = *state_;
  if (!own.runtime.layout) return result;
  own.start_look();
  std::vector<Address> codes;
  for (const auto& stack : places) {
    for (const CodePlace& place : stack) codes.push_back(place.code);
  }
  own.codes.add(own.objects, codes);
  for (std::size_t i = 0; i < places.size(); ++i) {
    for (const CodePlace& place : places[i]) {
      CodeLine& line = result[i].emplace_back();
      const Code* const code = own.codes.find(place.code);
      if (code == nullptr) continue;
      // Since 3.11 tables count in units of two bytes.
      const int unit = own.layout().minor >= 11 ? 2 : 1;
      line = {code->function, code->file, code->line(own.layout(), std::int64_t{place.instruction / unit})};
    }
  }
  return result;
}

std::map<std::string, std::string> PythonProcess::environ(std::span<const std::string> names) {
  std::map<std::string, std::string> result;
  State& own = *state_;
  if (!own.runtime.layout) return result;
  own.objects.start_look();
  auto dict = own.module_dict("os");
  auto environ = dict ? own.objects.find(*dict, "environ") : std::nullopt;
  auto data = environ ? own.objects.attribute(*environ, "_data") : std::nullopt;  // dict of bytes -> bytes
  if (!data) return result;
  for (const auto& [key, value] : own.objects.dict(*data)) {
    auto name = own.objects.bytes(key);
    if (!name || std::find(names.begin(), names.end(), *name) == names.end()) continue;
    if (auto text = own.objects.bytes(value, kMaxEnvironmentValue)) result.emplace(*name, *text);
  }
  return result;
}

std::vector<std::string> PythonProcess::argv() {
  State& own = *state_;
  std::vector<std::string> result;
  auto interpreter = own.runtime.layout ? own.main_interpreter() : std::nullopt;
  auto list = interpreter ? own.objects.find(interpreter->sysdict, "argv") : std::nullopt;
  if (!list) return result;
  const std::vector<Address> items = own.objects.list(*list);
  for (auto& text : own.objects.texts(items)) {
    if (!text) return {};
    result.push_back(*text);
  }
  return result;
}

std::vector<std::string> PythonProcess::imported(std::span<const std::string> module_names) {
  State& own = *state_;
  std::vector<std::string> result;
  auto interpreter = own.runtime.layout ? own.main_interpreter() : std::nullopt;
  if (!interpreter) return result;
  const std::vector<std::string_view> wanted(module_names.begin(), module_names.end());
  const auto found = own.objects.find(interpreter->modules, wanted);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i]) result.push_back(module_names[i]);
  }
  return result;
}

}  // namespace hangtrace::python
