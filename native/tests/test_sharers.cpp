#include <doctest/doctest.h>
#include <sys/sysmacros.h>

#include "capture/sharers.hpp"

using hangtrace::capture::lists_device;

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
