// Compiled with debug information of several versions, to be damaged by fuzz_dwarf.
namespace seed {

struct Point {
  int x;
  int y;
};

static inline int square(int value) {
  return value * value;
}

inline int length(const Point& point) {
  return square(point.x) + square(point.y);
}

template <class T>
T sum(const T* values, int count) {
  T result{};
  for (int i = 0; i < count; ++i) result += values[i];
  return result;
}

}  // namespace seed

extern "C" int seed_main(int count) {
  const seed::Point point{count, count + 1};
  int values[8] = {1, 2, 3, seed::length(point)};
  double more[4] = {1, 2};
  return seed::sum(values, count & 7) + static_cast<int>(seed::sum(more, count & 3));
}
