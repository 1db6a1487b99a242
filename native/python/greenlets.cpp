#include <algorithm>
#include <array>
#include <unordered_set>

#include "python/gc_objects.hpp"
#include "python/names.hpp"
#include "python/process_state.hpp"

// Suspended greenlets. The package's own structures differ between its versions, yet two things hold: a
// suspended greenlet keeps its innermost frame object (its `gr_frame`), and a fixed distance before that lies
// what describes its piece of the C stack. src/greenlet/TGreenlet.hpp of 2.0 to 3.5: PyGreenlet {head,
// weakreflist, dict, pimpl}, Greenlet {vtable, _self, ..., StackState, _context, _top_frame, ...}; greenlet.h
// of 1.x: PyGreenlet {head, stack_start, stack_stop, stack_copy, stack_saved, stack_prev, parent, run_info,
// top_frame, ...}.
namespace hangtrace::python {
namespace {

constexpr std::chrono::milliseconds kSearch{40};
constexpr std::size_t kMaxFrames = 512;  // of one greenlet
constexpr std::size_t kMaxAllFrames = 1 << 16;
constexpr std::size_t kSearchedWords = 16;  // top_frame is one of the words 7 to 15 in all versions
constexpr int kStackStateBeforeFrame = 6;   // words
constexpr int kOwnedByC = 3;                // see frames.cpp
constexpr int kLastOwner = 4;

struct Saved {  // StackState
  Address start = 0;
  Address stop = 0;
  Address copy = 0;
  std::uint64_t saved = 0;  // bytes from start on that are kept in copy
};

struct Suspended {
  Address greenlet = 0;
  Address top = 0;  // frame object
  Saved stack;
};

class Greenlets {
 public:
  Greenlets(PythonProcess::State& own, const Interpreter& interpreter, PythonState& state)
      : own_(own),
        objects_(own.objects),
        layout_(own.layout()),
        reader_(own.reader),
        interpreter_(interpreter),
        state_(state) {}

  void read() {
    const std::array<std::string_view, 2> modules = {"greenlet._greenlet", "greenlet"};
    const auto found = own_.find_modules(interpreter_, modules);
    const auto module = found[0] ? found[0] : found[1];
    const auto dict = module ? objects_.word(*module, 0) : std::nullopt;
    const auto type = dict ? objects_.find(*dict, "greenlet") : std::nullopt;
    if (!type) return;
    type_ = *type;
    const auto size = reader_.read_value<std::int64_t>(type_ + static_cast<Address>(layout_.type_name) + 8);
    behind_ = size == layout_.after_header(3);
    std::vector<Suspended> suspended;
    for (Address greenlet : search()) {
      if (auto one = look_at(greenlet)) suspended.push_back(*one);
    }
    std::vector<std::vector<Step>> chains;
    std::vector<Address> codes;
    for (const Suspended& one : suspended) {
      chains.push_back(chain(one));
      for (const Step& step : chains.back()) codes.push_back(step.code);
    }
    own_.codes.add(objects_, codes);
    for (std::size_t i = 0; i < suspended.size(); ++i) add(suspended[i], chains[i]);
  }

 private:
  struct Step {
    Address frame = 0;
    Address code = 0;
    std::uint64_t instruction = 0;
  };

  // All greenlets, from the collector's lists or, if those have not changed, as found before.
  std::vector<Address> search() {
    const auto is_greenlet = [this](Address type) {
      return plausible(type) && objects_.type(type) != nullptr && own_.slots.inherits(type, type_);
    };
    const auto ends = gc_list_ends(reader_, layout_, own_.runtime.address, interpreter_);
    PythonProcess::State::KnownGreenlets& known = own_.known_greenlets[interpreter_.address];
    if (known.ends.empty() || known.ends != ends || known.type != type_) {
      FoundObjects found =
          find_gc_objects(reader_, layout_, own_.runtime.address, interpreter_, is_greenlet, kSearch);
      known = {type_, std::move(found.ends), std::move(found.objects), found.complete};
    }
    if (!known.complete) {
      state_.tasks.problem = ends.empty() ? "greenlets cannot be searched in this build of Python"
                                          : "not all objects could be searched for greenlets";
      // What an incomplete search saw may be a small part of all, but each is one.
    }
    return known.greenlets;
  }

  bool is_frame(Address object) { return plausible(object) && objects_.type_name_of(object) == "frame"; }

  // nullopt: not suspended (it runs, has ended or was never started), or of an unknown layout.
  std::optional<Suspended> look_at(Address greenlet) {
    const auto type = objects_.type_of(greenlet);
    if (!type || !own_.slots.inherits(*type, type_)) return std::nullopt;  // freed since it was found
    const Address own = greenlet + static_cast<Address>(layout_.after_header(0));
    if (!behind_) return find_frame(greenlet, own, true);
    const Address inside = reader_.read_value<Address>(own + 16).value_or(0);
    return plausible(inside) ? find_frame(greenlet, inside, false) : std::nullopt;
  }

  std::optional<Suspended> find_frame(Address greenlet, Address from, bool own_structure) {
    for (std::size_t i = kStackStateBeforeFrame; i < kSearchedWords; ++i) {
      const auto word = reader_.read_value<Address>(from + 8 * i);
      if (!word) return std::nullopt;
      if (!is_frame(*word)) continue;
      Suspended one{greenlet, *word, {}};
      const Address state = own_structure ? from : from + 8 * (i - kStackStateBeforeFrame);
      const auto saved = reader_.read_value<std::array<Address, 4>>(state);
      if (!saved) return std::nullopt;
      one.stack = {(*saved)[0], (*saved)[1], (*saved)[2], (*saved)[3]};
      return one.stack.start < one.stack.stop ? std::optional(one) : std::nullopt;
    }
    return std::nullopt;
  }

  // Where memory of the greenlet's C stack is now: in place, or moved out of the way of another greenlet.
  static Address moved(const Saved& stack, Address address, std::size_t size) {
    const bool away = address >= stack.start && address - stack.start < stack.saved &&
                      stack.saved - (address - stack.start) >= size;
    return away ? stack.copy + (address - stack.start) : address;
  }

  std::vector<Step> chain(const Suspended& one) {
    std::vector<Step> steps;
    const bool inline_frames = layout_.frame_owner >= 0;
    Address frame = one.top;
    if (inline_frames) {  // PyFrameObject {head, f_back, f_frame}
      frame = objects_.word(one.top, 1).value_or(0);
    }
    const auto size = static_cast<std::size_t>(layout_.frame_slots);
    std::vector<std::byte> bytes(size);
    std::unordered_set<Address> seen;
    while (frame != 0 && steps.size() < kMaxFrames && ++frames_ < kMaxAllFrames) {
      if (!plausible(frame) || !seen.insert(frame).second) break;
      if (!reader_.read(moved(one.stack, frame, size), bytes)) break;
      const auto word = [&](int offset) { return load<Address>(bytes, static_cast<std::size_t>(offset)); };
      const Address here = frame;
      frame = word(layout_.frame_previous);
      Step step{here, word(layout_.frame_code), word(layout_.frame_instruction)};
      if (inline_frames) {
        if (layout_.minor >= 13) step.code &= ~Address{3};
        const int owner = load<std::uint8_t>(bytes, static_cast<std::size_t>(layout_.frame_owner));
        if (owner > kLastOwner) break;
        if (layout_.minor >= 12 && owner >= kOwnedByC) continue;
      } else {
        step.instruction = static_cast<std::uint32_t>(step.instruction);
      }
      steps.push_back(step);
    }
    return steps;
  }

  void add(const Suspended& one, const std::vector<Step>& steps) {
    PythonTask task;
    task.kind = TaskKind::greenlet;
    task.address = one.greenlet;
    task.c_stack = one.stack.start;
    task.name = last_part(objects_.type_name_of(one.greenlet));
    // The thread's own first greenlet has all of the stack that others leave.
    if (one.stack.stop == ~Address{0}) task.name = "main greenlet";
    for (const Step& step : steps) {
      const Code* code = own_.codes.find(step.code);
      if (code == nullptr) {
        task.problem = "a frame has no readable code object";
        break;
      }
      task.stack.push_back({code->function, code->file, code->line(layout_, step.code, step.instruction),
                            step.frame, step.code});
    }
    if (!task.stack.empty()) state_.tasks.all.push_back(std::move(task));
  }

  PythonProcess::State& own_;
  Objects& objects_;
  const Layout& layout_;
  const memory::Reader& reader_;
  const Interpreter& interpreter_;
  PythonState& state_;
  Address type_ = 0;
  bool behind_ = false;  // since 2.0 a greenlet is three words, its structure lies behind the last one
  std::size_t frames_ = 0;
};

}  // namespace

void PythonProcess::State::add_greenlets(const Interpreter& interpreter, PythonState& state) {
  Greenlets(*this, interpreter, state).read();
}

}  // namespace hangtrace::python
