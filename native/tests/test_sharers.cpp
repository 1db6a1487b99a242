#include <doctest/doctest.h>
#include <sys/sysmacros.h>

#include <filesystem>
#include <string>
#include <vector>

#include "capture/sharers.hpp"
#include "fake_proc.hpp"

using hangtrace::capture::lists_device;
using hangtrace::capture::Look;
using hangtrace::capture::map_may_be_locked;
using hangtrace::capture::SharersOf;
using hangtrace::locks::SharedKey;
using hangtrace::locks::Sharers;
using hangtrace::tests::FakeProc;

namespace {

constexpr int waiter = 7, container = 50;
const SharedKey key{makedev(0, 24), 4711, 0};
constexpr const char* elsewhere = "7f0000000000-7f0000001000 rw-s 00000000 00:24 99 /dev/shm/other\n";

// A process of another pid namespace, in which the file system of the lock is mounted.
void add_container(const FakeProc& proc, const std::string& maps, char state = 'S',
                   const std::string& channel = "do_nothing") {
  const std::string folder = std::to_string(container) + "/";
  const std::string task = folder + "task/" + std::to_string(container) + "/";
  const std::string id = std::to_string(container);
  proc.write(folder + "status",
             "Name:\tc\nTgid:\t" + id + "\nNSpid:\t" + id + "\t1\nVmSize:\t10 kB\nThreads:\t1\n");
  proc.write(folder + "mountinfo", "25 22 0:24 / /dev/shm rw,nosuid 0:77 - tmpfs tmpfs rw\n");
  proc.write(folder + "maps", maps);
  std::string numbers;
  for (int field = 4; field <= 52; ++field) {
    numbers += " 1";
  }
  proc.write(task + "stat", id + " (c) " + state + numbers + "\n");
  proc.write(task + "wchan", channel);
  proc.write(task + "syscall", "-1 0x0 0x0\n");
  std::filesystem::create_directories(proc.root() + "/" + folder + "ns");
  std::filesystem::create_symlink("pid:[99]", proc.root() + "/" + folder + "ns/pid");
  std::filesystem::create_symlink("mnt:[99]", proc.root() + "/" + folder + "ns/mnt");
}

// As the waiter sees it, whose own pid namespace is ours, the first one.
Sharers sharers_of(const FakeProc& proc) {
  std::vector<Look> looks(1);
  looks[0].sampled.process.pid = waiter;
  proc.write(std::to_string(waiter) + "/mountinfo",
             "25 22 0:24 / /dev/shm rw,nosuid 0:77 - tmpfs tmpfs rw\n");
  std::filesystem::create_directories(proc.root() + "/self/ns");
  std::filesystem::create_symlink("pid:[4026531836]", proc.root() + "/self/ns/pid");
  SharersOf sharers(looks, proc.root());
  return sharers.of(looks[0], key, true);
}

}  // namespace

TEST_CASE("another pid namespace that maps the file of a lock, and one that only could") {
  const FakeProc mapped, seen, unreadable;
  add_container(
      mapped, std::string(elsewhere) + "7f1000000000-7f1000001000 rw-s 00000000 00:24 4711 /dev/shm/lock\n");
  CHECK(sharers_of(mapped) == Sharers::apart);
  add_container(seen, elsewhere);
  CHECK(sharers_of(seen) == Sharers::alike);
  add_container(unreadable, "");
  CHECK(sharers_of(unreadable) == Sharers::apart);
}

TEST_CASE("a private mapping of the file shares no lock, another device may") {
  const FakeProc privately, layered;
  add_container(privately, "7f1000000000-7f1000001000 rw-p 00000000 00:24 4711 /dev/shm/lock\n");
  CHECK(sharers_of(privately) == Sharers::alike);
  add_container(layered, "7f1000000000-7f1000001000 rw-s 00000000 00:33 4711 /lock\n");
  CHECK(sharers_of(layered) == Sharers::apart);
}

TEST_CASE("maps are left alone where somebody waits for their lock") {
  const FakeProc locked, busy;
  add_container(locked, elsewhere, 'D', "rwsem_down_read_slowpath");
  CHECK(map_may_be_locked(locked.root(), container));
  CHECK(sharers_of(locked) == Sharers::apart);
  add_container(busy, elsewhere, 'D', "folio_wait_bit_common");
  CHECK_FALSE(map_may_be_locked(busy.root(), container));
  CHECK(map_may_be_locked(busy.root(), 1));
}

TEST_CASE("file systems that a process sees, by their numbers") {
  constexpr const char* text =
      "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
      "25 22 0:24 / /dev/shm rw,nosuid 0:77 - tmpfs tmpfs rw\n"
      "cut 1";
  CHECK(lists_device(text, makedev(8, 1)));
  CHECK(lists_device(text, makedev(0, 24)));
  CHECK_FALSE(lists_device(text, makedev(0, 2)));
  CHECK_FALSE(lists_device(text, makedev(0, 77)));
  CHECK_FALSE(lists_device("", makedev(8, 1)));
}
