#include <doctest/doctest.h>

#include <vector>

#include "memory/buffer_reader.hpp"
#include "python/async_layout.hpp"
#include "python/coroutines.hpp"

using namespace hangtrace::python;
using hangtrace::memory::BufferReader;

namespace {

constexpr Address kData = 0x7f0000100000;
constexpr std::int64_t kTaskSize = 168;

// .AsyncioDebug of CPython 3.14.10 (Debian, x86-64), as its memory shows it.
const std::vector<std::uint64_t> kDebug = {168,    136,   96,  108, 109, 128, 152,
                                           225864, 10880, 936, 864, 872, 880};

BufferReader data_with(const std::vector<std::uint64_t>& words, std::size_t at) {
  std::vector<std::uint64_t> page(512);
  std::copy(words.begin(), words.end(), page.begin() + static_cast<std::ptrdiff_t>(at));
  BufferReader reader;
  reader.add(kData, std::as_bytes(std::span(page)));
  return reader;
}

}  // namespace

TEST_CASE("async layouts of all versions with tables are there") {
  for (int minor = 8; minor <= 15; ++minor) {
    const auto layout = async_layout(*known_layout(minor));
    REQUIRE(layout);
    CHECK(layout->task_name == layout->task_coroutine + 8);
    CHECK(layout->task_waiter == layout->task_coroutine - 8);
    CHECK((layout->generator_state >= 0) == (minor >= 11));
    CHECK((layout->task_node >= 0) == (minor >= 14));
  }
  CHECK_FALSE(async_layout(Layout{.minor = 99}));
  Layout free_threaded = *known_layout(14);
  free_threaded.object_size = 32;
  CHECK(async_layout(free_threaded)->task_size == kTaskSize + 16);
}

TEST_CASE("what _asyncio tells of itself is found near its other data") {
  const auto known = *async_layout(*known_layout(14));
  for (std::size_t at : {0, 17, 499}) {
    AsyncLayout layout;
    REQUIRE(apply_asyncio_debug(data_with(kDebug, at), kData + 0x800, kTaskSize, layout));
    CHECK(layout.task_waiter == known.task_waiter);
    CHECK(layout.task_coroutine == known.task_coroutine);
    CHECK(layout.task_name == known.task_name);
    CHECK(layout.task_node == known.task_node);
    CHECK(layout.future_state == known.future_state);
    CHECK(layout.interpreter_tasks == known.interpreter_tasks);
    CHECK(layout.thread_loop == known.thread_loop);
    CHECK(layout.thread_task == known.thread_task);
    CHECK(layout.thread_tasks == known.thread_tasks);
  }
}

TEST_CASE("nothing is taken for it that does not fit") {
  AsyncLayout layout;
  for (std::size_t i = 0; i < kDebug.size(); ++i) {
    if (i == 7 || i == 9) continue;  // larger sizes fit as well
    auto words = kDebug;
    words[i] = 0xffffffffffffffff;
    CHECK_FALSE(apply_asyncio_debug(data_with(words, 8), kData, kTaskSize, layout));
  }
  CHECK_FALSE(apply_asyncio_debug(data_with(kDebug, 8), kData, 160, layout));
  CHECK_FALSE(apply_asyncio_debug(BufferReader(), kData, kTaskSize, layout));
  auto twice = kDebug;
  twice.insert(twice.end(), kDebug.begin(), kDebug.end());
  CHECK_FALSE(apply_asyncio_debug(data_with(twice, 8), kData, kTaskSize, layout));
  CHECK(layout.task_size == -1);
}

TEST_CASE("a coroutine that cannot be read ends its chain") {
  const BufferReader nothing;
  for (int minor = 8; minor <= 15; ++minor) {
    const Layout& layout = *known_layout(minor);
    Objects objects(nothing, layout);
    const auto chains = follow_awaits(objects, *async_layout(layout), {0, 8, 0x7f0000100000, ~Address{0}});
    REQUIRE(chains.size() == 4);
    for (const AwaitChain& chain : chains) {
      CHECK(chain.end == ChainEnd::unreadable);
      CHECK(chain.frames.empty());
      CHECK_FALSE(chain.problem.empty());
    }
  }
}
