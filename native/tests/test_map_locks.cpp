#include <doctest/doctest.h>
#include <unistd.h>

#include <vector>

#include "bpf/iterator.hpp"
#include "map_locks/writers.hpp"

using namespace hangtrace::map_locks;

TEST_CASE("map locks: the thread whose address the lock has is told, of whichever process it is") {
  const std::vector<LockRecord> records{
      {10, 10, 0xffff888000001000, 0xffff888000002000},  // held by 11
      {10, 11, 0xffff888000002000, 0xffff888000002000},
      {20, 20, 0xffff888000003000, 0xffff888000002004},  // held by 11, too, while nobody may spin
      {30, 30, 0xffff888000004000, 0xffff888000004001},  // held for reading
      {40, 40, 0xffff888000005000, 0},                   // free
      {50, 50, 0xffff888000006000, 0xffff888000009000},  // held by a thread that is not among them
  };
  CHECK(writers(records) == std::map<int, int>{{10, 11}, {20, 11}});
  CHECK(writers({}).empty());
}

TEST_CASE("map locks: the program loads where programs may be loaded, and says nothing of a free lock") {
  hangtrace::proc::Descriptor program;
  if (hangtrace::bpf::refusal() != 0) {
    MESSAGE("no right to load programs");
    return;
  }
  const hangtrace::bpf::TypeInformation information("/sys/kernel/btf/vmlinux");
  if (!information.types()) {
    MESSAGE("no type information");
    return;
  }
  const auto iterator = information.types()->find(hangtrace::bpf::BtfKind::function, "bpf_iter_task");
  const auto offsets = lock_offsets(*information.types());
  REQUIRE(iterator);
  REQUIRE(offsets);
  REQUIRE(hangtrace::bpf::load_iterator(lock_program(*offsets), *iterator, "ht_test", program) == 0);
  const auto records = hangtrace::bpf::records<LockRecord>(program, {});
  REQUIRE(records);
  bool ours = false;
  for (const LockRecord& record : *records) {
    CHECK(record.process > 0);
    CHECK(record.task != 0);
    ours = ours || (record.process == getpid() && record.thread == getpid());
  }
  CHECK((ours || !hangtrace::bpf::in_first_namespace()));
  CHECK_FALSE(read_writers().contains(getpid()));
  CHECK(read_writers("/nowhere").empty());
}
