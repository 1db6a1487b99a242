// Compiled with debug information and optimization, for the test of damaged debug information.
namespace {

inline __attribute__((always_inline)) int inner(int value) {
  return value > 3 ? value * 7 : value - 2;
}

template <class Number>
inline __attribute__((always_inline)) Number middle(Number value) {
  Number sum = 0;
  for (Number i = 0; i < value; ++i) sum += inner(static_cast<int>(i + sum));
  return sum;
}

}  // namespace

extern "C" __attribute__((noinline)) long sample_outer(long value) {
  if (__builtin_expect(value < 0, 0)) return middle<int>(static_cast<int>(-value));
  return middle<long>(value) + inner(static_cast<int>(value));
}
