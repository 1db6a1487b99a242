#include <doctest/doctest.h>

#include "capture/merge.hpp"

using namespace hangtrace::capture;

namespace {

std::vector<Frame> natives(const std::vector<std::string>& functions) {
  std::vector<Frame> frames;
  for (const std::string& function : functions) {
    frames.push_back({FrameKind::native, function, "", 0, "libpython.so", 1, FoundBy::cfi});
  }
  return frames;
}

std::vector<PythonFrame> pythons(const std::vector<std::pair<std::string, bool>>& functions) {
  std::vector<PythonFrame> frames;
  for (const auto& [function, entry] : functions) {
    frames.push_back({{FrameKind::python, function, "x.py", 1, "", 0, FoundBy::python}, entry});
  }
  return frames;
}

std::vector<std::string> names(const std::vector<Frame>& frames) {
  std::vector<std::string> result;
  for (const Frame& frame : frames) {
    result.push_back((frame.kind == FrameKind::python ? "py " : "") + frame.function);
  }
  return result;
}

}  // namespace

TEST_CASE("merge: each eval frame stands for the Python frames up to an entry") {
  auto frames = natives(
      {"futex", "_PyEval_EvalFrameDefault", "_PyEval_Vector", "_PyEval_EvalFrameDefault.cold", "main"});
  REQUIRE(merge(frames, pythons({{"inner", false}, {"middle", true}, {"outer", false}, {"module", true}})));
  CHECK(names(frames) == std::vector<std::string>{"futex", "py inner", "py middle", "_PyEval_Vector",
                                                  "py outer", "py module", "main"});
}

TEST_CASE("merge: nothing is touched where the counts differ") {
  const auto native = natives({"futex", "_PyEval_EvalFrameDefault", "main"});
  for (const auto& python : {pythons({{"a", true}, {"b", true}}), pythons({}), pythons({{"a", false}}),
                             pythons({{"a", true}, {"b", false}})}) {
    auto frames = native;
    CHECK_FALSE(merge(frames, python));
    CHECK(names(frames) == names(native));
  }
}

TEST_CASE("merge: no native frames, no merge") {
  std::vector<Frame> none;
  CHECK_FALSE(merge(none, pythons({{"a", true}})));
  CHECK(none.empty());
}

TEST_CASE("merge: the tail-call interpreter, an instruction on top of its loop's frame") {
  auto frames = natives({"read", "_TAIL_CALL_CALL", "_PyEval_EvalFrameDefault", "PyObject_Call",
                         "_TAIL_CALL_CALL_KW", "_PyEval_EvalFrameDefault", "main"});
  REQUIRE(merge(frames, pythons({{"f", false}, {"g", true}, {"h", true}})));
  CHECK(names(frames) == std::vector<std::string>{"read", "py f", "py g", "PyObject_Call", "py h", "main"});
}

TEST_CASE("merge: the tail-call interpreter, if the loop's frame is gone") {
  auto frames = natives({"read", "_TAIL_CALL_CALL", "main"});
  REQUIRE(merge(frames, pythons({{"f", true}})));
  CHECK(names(frames) == std::vector<std::string>{"read", "py f", "main"});
}

TEST_CASE("merge: a trampoline of perf support does not show its Python function a second time") {
  auto frames = natives({"poll", "_PyEval_EvalFrameDefault", "py::inner:x.py", "_PyEval_Vector",
                         "_PyEval_EvalFrameDefault", "py::outer:x.py", "made by others", "main"});
  for (const std::size_t i : {2, 5, 6}) frames[i].module = jit_module;
  auto unmerged = frames;
  REQUIRE(merge(frames, pythons({{"inner", true}, {"outer", true}})));
  CHECK(names(frames) ==
        std::vector<std::string>{"poll", "py inner", "_PyEval_Vector", "py outer", "made by others", "main"});
  CHECK_FALSE(merge(unmerged, pythons({{"inner", true}})));
  CHECK(unmerged.size() == 8);
}
