// The reader of CPython's frames and objects over images of an interpreter's memory.
#include "python/process.hpp"
#include "tests/fake_python.hpp"
#include "tests/fuzz/harness.hpp"

namespace hangtrace::tests {

namespace {

// Two threads, a lock, an exception table and an imported module: something of everything.
class Image {
 public:
  Image() {
    const auto outer_code = fake.code("outer", 10, {"group", "count"}, 4, std::string("\x80\x41\x02\x03", 4));
    const auto inner_code = fake.code("inner", 50, {"x"}, 2);
    const auto lock = fake.object_of("_thread.lock", {0, 0, 0});
    const auto rlock = fake.object_of("_thread.RLock", {lock, 0x1230, 1});
    const auto outer = fake.frame(outer_code, 3, 0,
                                  {fake.str("world"), fake.integer(-3), fake.list({lock}), lock, rlock, 0});
    const auto inner =
        fake.frame(inner_code, 1, outer, {fake.tuple({rlock}), fake.bytes_object("abc"), lock});
    fake.add_module("torch.version", {{fake.str("__version__"), fake.str("2.3")}});
    fake.thread(0x1230, 75, inner);
    fake.thread(0x1238, 79, outer);
    memory::BufferReader ignored;
    attached = fake.attach(ignored).has_value();
  }
  FakePython fake;
  bool attached = false;
};

Image& image() {
  static Image image;
  return image;
}

}  // namespace

std::vector<Bytes> fuzz_seeds() {
  promise(image().attached, "the made interpreter is not known");
  std::vector<Bytes> seeds{image().fake.bytes()};
  // Other versions read the same memory with other offsets; from 3.13 on with those it tells itself.
  for (const std::uint64_t version :
       {0x030800f0u, 0x030900f0u, 0x030a00f0u, 0x030c00f0u, 0x030d00f0u, 0x030e00f0u, 0x030f00f0u}) {
    Bytes bytes = image().fake.bytes();
    std::memcpy(bytes.data(), &version, 4);
    const memory::Address runtime = image().fake.runtime() - FakePython::kBase;
    std::memcpy(&bytes[runtime], "xdebugpy", 8);
    std::memcpy(&bytes[runtime + 8], &version, 8);
    for (std::size_t field = 3; field < 90; ++field) {
      const std::uint64_t offset = 8 * (field % 20);
      std::memcpy(&bytes[runtime + 8 * field], &offset, 8);
    }
    seeds.push_back(std::move(bytes));
  }
  return seeds;
}

std::vector<std::string> fuzz_files() {
  return {};
}

void fuzz_one(std::span<const std::byte> input) {
  memory::BufferReader memory;
  memory.add(FakePython::kBase, input);
  const CountingReader reader(memory, 256 << 20);
  auto process = image().fake.attach_only(reader);
  if (!process) return;
  const auto state = process->read({{75, 75}, {79, 79}});
  if (!state) {
    promise(!process->problem().empty(), "nothing was read and nobody knows why");
    return;
  }
  const std::vector<std::string> names{"PATH", "RANK"};
  process->environ(names);
  process->argv();
  process->imported(names);
  process->module_global("torch.version", "__version__");
  for (const python::PythonThread& thread : state->threads) {
    const int not_owners[] = {79};
    // The words that a lock object among the locals points to are what threads sleep on.
    const std::vector<memory::Address> slots =
        thread.frames.empty() ? std::vector<memory::Address>{} : thread.frames[0].slots;
    for (const memory::Address slot : std::span(slots).first(std::min<std::size_t>(slots.size(), 8))) {
      const auto futex = memory.read_value<memory::Address>(slot + 16);
      if (futex) process->describe_lock(*state, thread, *futex, not_owners);
    }
    for (std::size_t i = 0; i < std::min<std::size_t>(thread.frames.size(), 8); ++i) {
      process->frame_local(thread, i, "group");
      if (!thread.frames[i].slots.empty()) process->attribute(thread.frames[i].slots[0], "name");
    }
  }
}

}  // namespace hangtrace::tests
