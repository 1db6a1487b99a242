#include "python/one_thread.hpp"

#include <algorithm>
#include <iterator>
#include <unordered_map>

namespace hangtrace::python {
namespace {

// Innermost first; false if the order is not known. Where no chain tells where on the C stack it was entered
// (up to 3.9), of the main interpreter and one other the main one is the outer: nothing runs code in it from
// another interpreter while it has frames.
bool sort_inwards(std::vector<PythonThread*>& parts) {
  if (std::ranges::all_of(parts, [](const PythonThread* one) { return one->on_c_stack != 0; })) {
    std::ranges::sort(parts, {}, &PythonThread::on_c_stack);
    const auto same = std::ranges::adjacent_find(parts, {}, &PythonThread::on_c_stack);
    return same == parts.end();
  }
  if (parts.size() != 2 || std::ranges::any_of(parts, [](const auto* one) { return one->on_c_stack != 0; })) {
    return false;
  }
  if (parts[0]->interpreter == 0) std::swap(parts[0], parts[1]);
  return parts[1]->interpreter == 0;
}

// The parts, of which one at least has frames, as one.
PythonThread united(std::vector<PythonThread*> parts) {
  const bool holds_gil = std::ranges::any_of(parts, &PythonThread::holds_gil);
  std::string name;
  for (const PythonThread* part : parts) {
    if (name.empty()) name = part->name;
  }
  std::string problem;
  std::size_t left_out = 0;
  for (const PythonThread* part : parts) {
    if (problem.empty()) problem = part->problem;
    left_out += part->left_out;
  }
  std::erase_if(parts, [](const PythonThread* one) { return one->frames.empty(); });
  const bool ordered = parts.size() == 1 || sort_inwards(parts);
  PythonThread result = std::move(*parts.front());
  if (!ordered) {
    result.frames.clear();
    if (problem.empty()) problem = "it has frames in several interpreters, in an order that nothing tells";
  } else {
    for (std::size_t i = 1; i < parts.size(); ++i) {
      std::ranges::move(parts[i]->frames, std::back_inserter(result.frames));
    }
  }
  if (result.name.empty()) result.name = std::move(name);
  result.left_out = left_out;
  result.holds_gil = holds_gil;
  result.problem = std::move(problem);
  return result;
}

}  // namespace

void unite_threads(std::vector<PythonThread>& threads) {
  std::unordered_map<int, std::vector<PythonThread*>> by_tid;
  bool twice = false;
  for (PythonThread& thread : threads) {
    if (thread.native_tid == 0) continue;
    std::vector<PythonThread*>& parts = by_tid[thread.native_tid];
    parts.push_back(&thread);
    twice = twice || parts.size() > 1;
  }
  if (!twice) return;
  std::vector<PythonThread> result;
  for (PythonThread& thread : threads) {
    if (thread.native_tid == 0) {
      result.push_back(std::move(thread));
      continue;
    }
    std::vector<PythonThread*>& parts = by_tid[thread.native_tid];
    if (parts.empty()) continue;  // came with an earlier one
    const bool any_frames = std::ranges::any_of(parts, [](const auto* one) { return !one->frames.empty(); });
    if (parts.size() == 1 || !any_frames) {
      result.push_back(std::move(*parts.front()));
    } else {
      result.push_back(united(parts));
    }
    parts.clear();
  }
  threads = std::move(result);
}

}  // namespace hangtrace::python
