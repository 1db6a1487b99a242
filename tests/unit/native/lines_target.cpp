// Code for the test of source positions: functions inlined over several levels, from templates, lambdas and
// another file, with loops and parts that are seldom run. Prints "ready" and waits until its standard input
// ends.
#include "lines_target.inc"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace {

template <class Number>
inline __attribute__((always_inline)) Number clamped(Number value, Number low, Number high) {
  return value < low ? low : value > high ? high : value;
}

struct Counter {
  std::map<std::string, int> counts;
  inline void count(const std::string& word) { ++counts[word]; }
  int most() const {
    const auto by_count = [](const auto& one, const auto& other) { return one.second < other.second; };
    const auto found = std::max_element(counts.begin(), counts.end(), by_count);
    return found == counts.end() ? 0 : found->second;
  }
};

__attribute__((noinline)) long mixed(std::vector<long>& numbers) {
  std::sort(numbers.begin(), numbers.end(), [](long a, long b) { return weighted(a) < weighted(b); });
  long sum = std::accumulate(numbers.begin(), numbers.end(), 0L,
                             [](long total, long value) { return total + clamped(value, -1000L, 1000L); });
  for (long& number : numbers) {
    if (__builtin_expect(number == -77, 0)) {
      std::puts("seldom");
      number = weighted(sum);
    }
    number = twice(clamped(number, sum, sum * 3));
  }
  return sum;
}

}  // namespace

int main(int count, char** arguments) {
  Counter counter;
  for (int i = 0; i < count; ++i) counter.count(arguments[i]);
  std::vector<long> numbers;
  for (long i = 0; i < 100; ++i) numbers.push_back(i * 37 % 101 + counter.most());
  const long result = mixed(numbers);
  std::puts("ready");
  std::fflush(stdout);
  char byte;
  return static_cast<int>(read(0, &byte, 1) + (result & 1));
}
