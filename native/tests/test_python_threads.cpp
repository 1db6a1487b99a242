#include <doctest/doctest.h>

#include "fake_python.hpp"
#include "python/native_ids.hpp"
#include "python/one_thread.hpp"
#include "python/threads.hpp"

using namespace hangtrace;
using memory::Address;
using tests::FakePython;

namespace {

python::PythonThread part(int tid, std::int64_t interpreter, Address on_c_stack,
                          const std::vector<std::string>& functions) {
  python::PythonThread thread;
  thread.native_tid = tid;
  thread.interpreter = interpreter;
  thread.on_c_stack = on_c_stack;
  for (const std::string& function : functions) {
    python::PythonFrame frame;
    frame.function = function;
    thread.frames.push_back(frame);
  }
  return thread;
}

std::vector<std::string> functions(const python::PythonThread& thread) {
  std::vector<std::string> result;
  for (const auto& frame : thread.frames) result.push_back(frame.function);
  return result;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a thread in two interpreters is one, the one deeper on the stack first") {
  std::vector<python::PythonThread> threads = {part(7, 2, 0x7000, {"inner"}), part(8, 2, 0x5000, {"other"}),
                                               part(7, 0, 0x8000, {"f", "outer"})};
  threads[2].name = "worker";
  threads[0].holds_gil = true;
  python::unite_threads(threads);
  REQUIRE(threads.size() == 2);
  CHECK(functions(threads[0]) == Names{"inner", "f", "outer"});
  CHECK(threads[0].interpreter == 2);
  CHECK(threads[0].name == "worker");
  CHECK(threads[0].holds_gil);
  CHECK(threads[0].problem == "");
  CHECK(functions(threads[1]) == Names{"other"});
}

TEST_CASE("a thread state without frames says nothing") {
  std::vector<python::PythonThread> threads = {part(7, 2, 0, {}), part(7, 0, 0x8000, {"f"}),
                                               part(9, 0, 0, {}), part(9, 1, 0, {})};
  python::unite_threads(threads);
  REQUIRE(threads.size() == 2);
  CHECK(functions(threads[0]) == Names{"f"});
  CHECK(threads[0].interpreter == 0);
  CHECK(threads[1].native_tid == 9);
}

TEST_CASE("without marks only the main interpreter is known to be the outer one") {
  std::vector<python::PythonThread> two = {part(7, 0, 0, {"outer"}), part(7, 1, 0, {"inner"})};
  python::unite_threads(two);
  REQUIRE(two.size() == 1);
  CHECK(functions(two[0]) == Names{"inner", "outer"});
  std::vector<python::PythonThread> unknown = {part(7, 1, 0, {"a"}), part(7, 2, 0, {"b"})};
  python::unite_threads(unknown);
  REQUIRE(unknown.size() == 1);
  CHECK(unknown[0].frames.empty());
  CHECK(unknown[0].problem != "");
}

TEST_CASE("threads without a tid stay apart") {
  std::vector<python::PythonThread> threads = {part(0, 0, 0x10, {"a"}), part(0, 1, 0x20, {"b"}),
                                               part(5, 0, 0, {"c"}), part(5, 1, 0, {})};
  python::unite_threads(threads);
  REQUIRE(threads.size() == 3);
  CHECK(functions(threads[0]) == Names{"a"});
  CHECK(functions(threads[1]) == Names{"b"});
}

namespace {

// A frame of a free-threaded 3.14 that runs the copy of its code with the number `copy`.
struct Copies {
  FakePython fake{*python::known_layout(14, true)};
  Address code = fake.code("f", 10, {"x"}, 2);
  Address copy = fake.space(64);
  Address array = fake.space(64);

  python::Frame frame(std::int32_t index, Address instruction, std::vector<Address> slots = {0, 0, 0}) {
    fake.set(array, 3);  // size, then the entries
    fake.set(array + 8, code + static_cast<Address>(fake.layout.code_adaptive));
    fake.set(array + 16, 0);
    fake.set(array + 24, copy);
    fake.set(code + static_cast<Address>(fake.layout.code_tlbc), array);
    const Address at = fake.frame(code, 0, 0, slots);
    fake.set(at + static_cast<Address>(fake.layout.frame_code), code | 1);  // a deferred reference
    fake.set(at + static_cast<Address>(fake.layout.frame_instruction), instruction);
    fake.set32(at + static_cast<Address>(fake.layout.frame_tlbc_index), static_cast<std::uint32_t>(index));
    memory::BufferReader reader;
    reader.add(FakePython::kBase, fake.bytes());
    python::Objects objects(reader, fake.layout);
    python::CodeCache codes;
    const auto chains = python::read_frames(objects, codes, {{.address = 0, .frame = at}});
    REQUIRE(chains.size() == 1);
    CHECK(chains[0].problem == "");
    REQUIRE(chains[0].frames.size() == 1);
    return chains[0].frames[0];
  }
};

}  // namespace

TEST_CASE("a line in a thread's own copy of the code") {
  Copies copies;
  const Address own = copies.code + static_cast<Address>(copies.fake.layout.code_adaptive);
  CHECK(copies.frame(0, own + 8).line == 14);
  CHECK(copies.frame(2, copies.copy + 6).line == 13);
  CHECK(copies.frame(2, own + 6).line == 0);             // not in that copy
  CHECK(copies.frame(1, copies.copy + 6).line == 0);     // there is no such copy
  CHECK(copies.frame(3, copies.copy + 6).line == 0);     // behind the end of the array
  CHECK(copies.frame(-5, copies.copy + 6).line == 0);    // no index at all
  CHECK(copies.frame(2, copies.copy + 2000).line == 0);  // behind the end of the code
}

TEST_CASE("tagged references") {
  Copies copies;
  const Address own = copies.code + static_cast<Address>(copies.fake.layout.code_adaptive);
  const auto slots = copies.frame(0, own, {0x1001, 0x2000, 5 << 2 | 3}).slots;
  CHECK(slots == std::vector<Address>{0x1000, 0x2000, 0});  // the last one is an int, not an object
}

TEST_CASE("thread ids from glibc on aarch64, where the struct does not point to itself") {
  FakePython fake;
  const Address list = fake.space(32);
  const Address pthread = fake.space(1024);
  const Address stranger = fake.space(1024);  // nobody points back to it
  fake.set(list, pthread + 192);
  fake.set(list + 8, pthread + 192);
  for (const Address at : {pthread, stranger}) {
    fake.set(at + 192, list);
    fake.set(at + 200, list);
    fake.set32(at + 208, 91);
  }
  memory::BufferReader reader;
  reader.add(FakePython::kBase, fake.bytes());
  const std::vector<std::uint64_t> idents = {pthread, stranger, 0, 0x1230};
  CHECK(python::tids_of_pthreads(reader, idents, python::kPthreadAarch64) == std::vector<int>{91, 0, 0, 0});
  CHECK(python::tids_of_pthreads(reader, idents, python::kPthreadX86) == std::vector<int>{0, 0, 0, 0});
}
