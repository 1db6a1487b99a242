// The entry of clang's libFuzzer (-DHT_LIBFUZZER=ON); it needs no other main().
#include "tests/fuzz/harness.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hangtrace::tests::fuzz_one(std::as_bytes(std::span(data, size)));
  return 0;
}
