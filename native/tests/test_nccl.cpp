#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "memory/buffer_reader.hpp"
#include "nccl/calls.hpp"
#include "nccl/communicator.hpp"
#include "nccl/find_layout.hpp"
#include "nccl/magic.hpp"
#include "nccl/search.hpp"

namespace {

using namespace hangtrace;
using nccl::Address;
using nccl::Field;

constexpr Address base = 0x7f0000010010;
constexpr Address shared = 0x7f0000200000;
constexpr Address plans = 0x7f0000300000;
constexpr Address tasks = 0x7f0000400000;

// Small, and in another order than in any release.
nccl::Layout make_layout() {
  nccl::Layout layout;
  layout.from = nccl::LayoutFrom::dwarf;
  layout.comm_size = 0x400;
  layout.sub_size = 0x80;
  auto set = [&layout, next = 0u](Field field, unsigned size) mutable {
    next = (next + 7) / 8 * 8;
    layout.set(field, next);
    next += size;
  };
  for (const Field field : {Field::start_magic, Field::shared_resources, Field::magic, Field::comm_hash,
                            Field::op_count, Field::coll_op_count, Field::abort_flag, Field::proxy_state,
                            Field::group_next, Field::callback_queue}) {
    set(field, 16);
  }
  for (const Field field : {Field::rank, Field::n_ranks, Field::cuda_device, Field::init_state,
                            Field::async_result, Field::finalize_called}) {
    set(field, 4);
  }
  set(Field::sequence_numbers, 40);
  layout.set(Field::end_magic, 0x3f8);
  layout.set(Field::shared_owner, 8);
  layout.set(Field::shared_magic, 16);
  layout.set(Field::plan_kernel, 40);
  layout.set(Field::plan_collective_tasks, 64);
  layout.set(Field::task_function, 8);
  layout.set(Field::task_count, 32);
  layout.set(Field::task_dtype, 44);
  layout.set(Field::proxy_progress, 64);
  layout.set(Field::progress_active, 8);
  layout.set(Field::proxy_subs, 0);
  layout.set(Field::proxy_n_subs, 0x200);
  layout.set(Field::proxy_next, 0x208);
  layout.set(Field::sub_peer, 8);
  layout.set(Field::sub_posted, 16);
  return layout;
}

class Target {
 public:
  Target() : layout(make_layout()), bytes_(layout.comm_size) {
    put<std::uint64_t>(Field::start_magic, nccl::magic);
    put<std::uint64_t>(Field::end_magic, nccl::magic);
    put<Address>(Field::shared_resources, shared);
    put<std::uint64_t>(Field::magic, 77);
    put<std::uint64_t>(Field::comm_hash, 0x9d331cbf49b6643c);
    put<std::int32_t>(Field::rank, 1);
    put<std::int32_t>(Field::n_ranks, 3);
    put<std::int32_t>(Field::cuda_device, 1);
    put<Address>(Field::group_next, 1);
    put<std::array<std::uint64_t, 5>>(Field::sequence_numbers, {0, 0, 2, 0, 4});
    memory.add_value<std::array<Address, 3>>(shared, {0, base, 77});
  }

  template <class T>
  void put(Field field, const T& value) {
    std::memcpy(bytes_.data() + *layout.offset(field), &value, sizeof value);
  }
  std::optional<nccl::Communicator> decode() {
    memory.add(base, bytes_);
    return nccl::decode(memory, layout, base, nccl::FoundBy::list);
  }

  nccl::Layout layout;
  memory::BufferReader memory;

 private:
  std::vector<std::byte> bytes_;
};

std::vector<std::byte> code(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

// Counts what is read of some memory.
class Counting : public memory::Reader {
 public:
  Counting(const memory::Reader& reader, Address begin, Address end)
      : reader_(reader), begin_(begin), end_(end) {}
  std::vector<bool> read_batch(std::span<const memory::Piece> pieces) const override {
    for (const memory::Piece& piece : pieces) count += piece.from >= begin_ && piece.from < end_ ? 1 : 0;
    return reader_.read_batch(pieces);
  }
  mutable int count = 0;

 private:
  const memory::Reader& reader_;
  Address begin_, end_;
};

class AllPages : public nccl::PresentPages {
 public:
  std::vector<std::pair<Address, Address>> within(Address from, Address to) const override {
    asked.emplace_back(from, to);
    if (absent) return {};
    return {{from, to}};
  }
  bool absent = false;
  mutable std::vector<std::pair<Address, Address>> asked;
};

nccl::Deadline soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(20);
}

proc::Mapping anonymous(Address start, Address end) {
  proc::Mapping mapping;
  mapping.start = start;
  mapping.end = end;
  mapping.readable = mapping.writable = true;
  return mapping;
}

}  // namespace

TEST_CASE("a communicator is what its marks, numbers and resources agree on") {
  Target target;
  auto comm = target.decode();
  REQUIRE(comm);
  CHECK(comm->comm_hash == 0x9d331cbf49b6643c);
  CHECK(comm->rank == 1);
  CHECK(comm->n_ranks == 3);
  CHECK(comm->launched == std::array<std::uint64_t, 5>{0, 0, 2, 0, 4});
  CHECK(comm->in_group == false);
  CHECK(comm->split == false);
  CHECK_FALSE(comm->bus_id);   // not in this layout
  CHECK_FALSE(comm->aborted);  // no flag to read

  SUBCASE("an end without the mark") {
    target.put<std::uint64_t>(Field::end_magic, 0);
  }
  SUBCASE("a rank beyond the last") {
    target.put<std::int32_t>(Field::rank, 3);
  }
  SUBCASE("a negative device") {
    target.put<std::int32_t>(Field::cuda_device, -1);
  }
  SUBCASE("resources of nowhere") {
    target.put<Address>(Field::shared_resources, 0x7f00deadbee8);
  }
  SUBCASE("resources of another one of the same name") {
    target.put<std::uint64_t>(Field::magic, 78);
  }
  SUBCASE("no hash, although its set-up is done") {
    target.put<std::uint64_t>(Field::comm_hash, 0);
  }
  CHECK_FALSE(target.decode());
}

TEST_CASE("until the set-up is done, the hash and the resources may not be there yet") {
  Target target;
  target.put<std::int32_t>(Field::init_state, 7);
  target.put<std::uint64_t>(Field::comm_hash, 0);
  target.put<std::uint64_t>(Field::magic, 78);
  const auto comm = target.decode();
  REQUIRE(comm);
  CHECK(comm->init_state == 7);
}

TEST_CASE("launched plans are read from the oldest to the newest") {
  Target target;
  target.put<Address>(Field::callback_queue, plans);
  for (int i = 0; i < 3; ++i) {
    const Address plan = plans + static_cast<Address>(i) * 0x100;
    const Address task = tasks + static_cast<Address>(i) * 0x100;
    target.memory.add_value<Address>(plan, i < 2 ? plan + 0x100 : 0);
    target.memory.add_value<Address>(plan + 40, 0x7f0000500000);  // kernel
    target.memory.add_value<Address>(plan + 64, task);
    target.memory.add_value<Address>(task, 0);
    target.memory.add_value<std::int32_t>(task + 8, 4);
    target.memory.add_value<std::uint64_t>(task + 32, 100u + static_cast<unsigned>(i));
    target.memory.add_value<std::int32_t>(task + 44, 7);
  }
  auto comm = target.decode();
  REQUIRE(comm);
  REQUIRE(comm->plans.size() == 3);
  REQUIRE(comm->plans[2].tasks.size() == 1);
  CHECK(comm->plans[2].tasks[0].count == 102);

  SUBCASE("a queue without an end") {
    target.memory.add_value<Address>(plans + 0x200, plans);
  }
  SUBCASE("a task that is its own next one") {
    target.memory.add_value<Address>(tasks + 0x200, tasks + 0x200);
  }
  comm = target.decode();
  REQUIRE(comm);
  CHECK(comm->plans.size() == 3);
  CHECK(comm->plans[2].tasks.size() == 1);
}

TEST_CASE("of many plans the newest are told, and only their tasks are read") {
  constexpr int many = 500, told = 32;
  Target target;
  target.put<Address>(Field::callback_queue, plans);
  for (int i = 0; i < many; ++i) {
    const Address plan = plans + static_cast<Address>(i) * 0x100;
    const Address task = tasks + static_cast<Address>(i) * 0x100;
    target.memory.add_value<Address>(plan, i + 1 < many ? plan + 0x100 : 0);
    target.memory.add_value<Address>(plan + 40, 0x7f0000500000);
    target.memory.add_value<Address>(plan + 64, task);
    target.memory.add_value<Address>(task, 0);
    target.memory.add_value<std::int32_t>(task + 8, 4);
    target.memory.add_value<std::uint64_t>(task + 32, static_cast<unsigned>(i));
    target.memory.add_value<std::int32_t>(task + 44, 7);
  }
  REQUIRE(target.decode());
  const Counting older(target.memory, tasks, tasks + (many - told) * 0x100);
  const auto comm = nccl::decode(older, target.layout, base, nccl::FoundBy::list);
  REQUIRE(comm);
  REQUIRE(comm->plans.size() == told);
  REQUIRE(comm->plans.back().tasks.size() == 1);
  CHECK(comm->plans.front().tasks.at(0).count == many - told);
  CHECK(comm->plans.back().tasks[0].count == many - 1);
  CHECK(older.count == 0);
}

TEST_CASE("what a rank knows of others is taken only from entries that say whose they are") {
  constexpr Address peers = 0x7f0000800000;
  Target target;
  target.layout.peer_size = 64;
  target.layout.set(Field::peer_info, 0x380);
  target.layout.set(Field::peer_rank, 0);
  target.layout.set(Field::peer_cuda_device, 4);
  target.layout.set(Field::peer_host_hash, 16);
  target.layout.set(Field::peer_pid_hash, 24);
  target.put<Address>(Field::peer_info, peers);
  target.memory.add(peers, std::vector<std::byte>(3 * 64));
  target.memory.add_value<std::int32_t>(peers + 2 * 64, 2);
  target.memory.add_value<std::int32_t>(peers + 2 * 64 + 4, 7);
  target.memory.add_value<std::uint64_t>(peers + 2 * 64 + 16, 0x9d331cbf49b6643c + 5);
  target.memory.add_value<std::uint64_t>(peers + 2 * 64 + 24, 0x9d331cbf49b6643c + 9);
  REQUIRE(target.decode());
  const auto known = nccl::members(target.memory, target.layout, base, {1, 2, 3, -1});
  REQUIRE(known.size() == 1);
  CHECK(known[0].rank == 2);
  CHECK(known[0].cuda_device == 7);
  CHECK(known[0].host_hash == 5);
  CHECK(known[0].pid_hash == 9);
  CHECK_FALSE(known[0].bus_id);

  target.put<std::int32_t>(Field::init_state, 7);
  REQUIRE(target.decode());
  CHECK(nccl::members(target.memory, target.layout, base, {2}).empty());
}

TEST_CASE("transfers are as many as the operation says, and no more than can be") {
  constexpr Address proxy = 0x7f0000600000;
  constexpr Address operation = 0x7f0000700000;
  Target target;
  target.put<Address>(Field::proxy_state, proxy);
  target.memory.add(proxy, std::vector<std::byte>(0x100));
  target.memory.add_value<Address>(proxy + 64 + 8, operation);
  target.memory.add(operation, std::vector<std::byte>(0x300));
  target.memory.add_value<std::int32_t>(operation + 0x200, 2);
  target.memory.add_value<std::int32_t>(operation + 0x80 + 8, 5);
  target.memory.add_value<std::uint64_t>(operation + 0x80 + 16, 4);
  target.memory.add_value<Address>(operation + 0x208, operation);  // a circle
  auto comm = target.decode();
  REQUIRE(comm);
  REQUIRE(comm->transfers.size() == 2);
  CHECK(comm->transfers[1].peer == 5);
  CHECK(comm->transfers[1].posted == 4);

  target.memory.add_value<std::int32_t>(operation + 0x200, 1 << 30);
  comm = target.decode();
  REQUIRE(comm);
  CHECK(comm->transfers.empty());
}

TEST_CASE("random memory is decoded to an end") {
  std::mt19937_64 random(1);
  for (int turn = 0; turn < 2000; ++turn) {
    Target target;
    std::vector<std::byte> noise(0x1000);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random() & (turn % 2 ? 0xff : 0x03));
    for (const Address at : {plans, tasks}) target.memory.add(at, noise);
    for (const Field field : {Field::callback_queue, Field::proxy_state, Field::abort_flag}) {
      target.put<Address>(field, (random() % 2 ? plans : tasks) + random() % 0x200 * 8);
    }
    // Pointers within the noise lead back into it.
    for (Address at = 0; at < 0x1000; at += 24) {
      target.memory.add_value<Address>(plans + at / 8 * 8, tasks + random() % 0x200 * 8);
      target.memory.add_value<Address>(tasks + at / 8 * 8, plans + random() % 0x200 * 8);
    }
    const auto comm = target.decode();
    REQUIRE(comm);
    CHECK(comm->plans.size() <= 32);
    CHECK(comm->transfers.size() <= 256);
  }
}

TEST_CASE("memory is searched for the magic number, where it is present") {
  Target target;
  REQUIRE(target.decode());
  const Address start = base / 4096 * 4096;
  target.memory.add(start, std::vector<std::byte>(base - start));
  target.memory.add(base + 0x400, std::vector<std::byte>(0x1000 - 0x410));
  const std::vector<proc::Mapping> mappings = {anonymous(start, start + 0x1000)};
  AllPages pages;
  auto result = nccl::search(target.memory, mappings, pages, target.layout, soon());
  CHECK(result.complete);
  REQUIRE(result.found.size() == 1);
  CHECK(result.found[0].address == base);
  CHECK(result.found[0].found_by == nccl::FoundBy::magic);

  SUBCASE("not in pages that nobody has touched") {
    pages.absent = true;
  }
  SUBCASE("not in files") {
    const_cast<proc::Mapping&>(mappings[0]).path = "/lib/x.so";
  }
  SUBCASE("not in shared memory") {
    const_cast<proc::Mapping&>(mappings[0]).shared = true;
  }
  result = nccl::search(target.memory, mappings, pages, target.layout, soon());
  CHECK(result.found.empty());
}

TEST_CASE("a search that has no time left says so") {
  Target target;
  REQUIRE(target.decode());
  const AllPages pages;
  const auto result = nccl::search(target.memory, {anonymous(base - 0x10, base + 0xff0)}, pages,
                                   target.layout, std::chrono::steady_clock::now());
  CHECK_FALSE(result.complete);
  CHECK(result.found.empty());
}

TEST_CASE("without a library, a communicator is known by the numbers around its rank") {
  constexpr Address start = 0x7f0000800000;
  struct {
    std::uint64_t hash = 0x9d331cbf49b6643c;
    std::int32_t rank = 1, ranks = 4, device = 1, nvml = 1, capability = 90, least = 90, most = 90,
                 padding = 0;
    std::uint64_t bus = 0x2000;
  } run;
  memory::BufferReader memory;
  memory.add(start, std::vector<std::byte>(0x1000));
  memory.add_value(start + 0x500, run);
  const AllPages pages;
  const nccl::Layout layout = nccl::layout_of_fingerprint(true);
  const std::vector<proc::Mapping> mappings = {anonymous(start, start + 0x1000)};
  auto result = nccl::search(memory, mappings, pages, layout, soon());
  REQUIRE(result.found.size() == 1);
  CHECK(result.found[0].rank == 1);
  CHECK(result.found[0].bus_id == 0x2000u);
  CHECK_FALSE(result.found[0].init_state);

  run.rank = 4;
  memory.add_value(start + 0x500, run);
  CHECK(nccl::search(memory, mappings, pages, layout, soon()).found.empty());
}

TEST_CASE("the call in progress is the innermost description on the stack that fits") {
  constexpr Address stack = 0x7ffd00001ff0;
  constexpr Address text = 0x7f0000900000;
  Target target;
  const auto comm = target.decode();
  REQUIRE(comm);
  struct {
    std::int32_t function = 6, padding = 0;
    std::uint64_t name = text, send = 0, receive = 0x1000, count = 777;
    std::int32_t dtype = 6, op = 0, root = 2, padding_2 = 0;
    std::uint64_t comm = base, stream = 0x55;
  } info;
  target.memory.add(stack, std::vector<std::byte>(0x1010));
  target.memory.add_value(stack + 0x100, info);
  target.memory.add(text, std::vector<std::byte>(64));
  target.memory.add(text, std::as_bytes(std::span("Send")));
  const auto in_library = [](Address address) { return address == text; };
  auto call = nccl::call_on_stack(target.memory, 42, stack, {*comm}, in_library);
  REQUIRE(call);
  CHECK(call->name == "Send");
  CHECK(call->count == 777);
  CHECK(call->root == 2);
  CHECK(call->tid == 42);

  SUBCASE("of another communicator") {
    info.comm = base + 8;
  }
  SUBCASE("with a name that is not the library's") {
    info.name = text + 1;
  }
  SUBCASE("with a type that does not exist") {
    info.dtype = 99;
  }
  target.memory.add_value(stack + 0x100, info);
  CHECK_FALSE(nccl::call_on_stack(target.memory, 42, stack, {*comm}, in_library));
}

TEST_CASE("the offset of a member is the displacement of the one load of its getter") {
  const auto by_rbx = code({0x8b, 0x83, 0xb8, 0x44, 0x10, 0x00, 0x89, 0x45, 0x00, 0xc3});  // mov eax,[rbx+…]
  const auto by_r12 = code({0x41, 0x8b, 0x84, 0x24, 0xb8, 0x44, 0x10, 0x00, 0x89, 0x45, 0xc3});  // …,[r12+…]
  CHECK(nccl::load_displacement(by_rbx, true) == 0x1044b8u);
  CHECK(nccl::load_displacement(by_r12, true) == 0x1044b8u);

  const auto of_stack = code({0x8b, 0x84, 0x24, 0xb8, 0x44, 0x10, 0x00, 0x90, 0xc3});
  const auto of_pointer = code({0x48, 0x8b, 0x83, 0xb8, 0x44, 0x10, 0x00, 0x90, 0xc3});
  const auto into_frame = code({0x8b, 0x85, 0x38, 0xff, 0xff, 0xff, 0x90, 0x90, 0xc3});
  for (const auto& other : {of_stack, of_pointer, into_frame, code({0x8b}), code({})}) {
    CHECK_FALSE(nccl::load_displacement(other, true));
  }

  auto two = by_rbx;
  two.insert(two.end(), {std::byte{0x8b}, std::byte{0x83}, std::byte{0x00}, std::byte{0x02}, std::byte{0},
                         std::byte{0}, std::byte{0x90}});
  CHECK_FALSE(nccl::load_displacement(two, true));
  CHECK(nccl::load_displacement(two, false) == 0x1044b8u);
}

TEST_CASE("every field stands at its own place of the table of names") {
  for (std::size_t i = 0; i < nccl::field_count; ++i) {
    CHECK(static_cast<std::size_t>(nccl::fields[i].field) == i);
  }
}
