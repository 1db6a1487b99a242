#include <doctest/doctest.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "alarms/program.hpp"
#include "bpf/btf.hpp"
#include "bpf/programs.hpp"
#include "map_locks/writers.hpp"
#include "open_files/programs.hpp"
#include "proc/files.hpp"
#include "registers/bpf_program.hpp"

using namespace hangtrace;

namespace {

// tests/data/btf is what tools/reduce_btf.py leaves of the type information of Debian's kernels 5.10.262
// (Debian 11), 6.1.176 (12), 6.12.117 (13) and 7.3.4 (backports of 13), and of a 6.18.44 made for virtual
// machines. The offsets were read from the whole type information by a second reader.
struct Expected {
  const char* release;
  std::uint32_t pid, run_ns;              // task_struct
  std::uint32_t on_cpu;                   // bytes of it
  std::uint32_t due, queued;              // signal_struct
  std::uint32_t receive, send, protocol;  // sock
  std::uint32_t head, tail, ring;         // pipe_inode_info
};

std::string content(const std::string& release) {
  const auto text = proc::read_file(std::string(HT_TEST_DATA "/btf/") + release + ".btf", 1 << 20);
  REQUIRE(text);
  return *text;
}

}  // namespace

TEST_CASE("kernel types: every program finds its fields in each kernel that was seen") {
  const std::vector<Expected> all{
      {"5.10", 2232, 200, 4, 168, 200, 608, 408, 540, 80, 84, 152},
      {"6.1", 2416, 200, 4, 176, 208, 592, 400, 516, 80, 84, 152},
      {"6.12", 2432, 224, 4, 168, 200, 272, 512, 574, 80, 84, 152},
      {"6.18", 1264, 232, 4, 176, 208, 272, 512, 532, 80, 84, 160},
      {"7.3", 2872, 248, 1, 192, 208, 272, 520, 540, 72, 76, 208},
  };
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(HT_TEST_DATA "/btf")) {
    files += entry.path().extension() == ".btf" ? 1 : 0;
  }
  CHECK(files == all.size());
  for (const Expected& expected : all) {
    CAPTURE(expected.release);
    const std::string text = content(expected.release);
    const auto btf = bpf::Btf::parse(std::as_bytes(std::span(text)));
    REQUIRE(btf);
    CHECK(btf->find(bpf::BtfKind::function, "bpf_iter_task"));
    CHECK(btf->find(bpf::BtfKind::function, "bpf_iter_task_file"));
    const auto task = registers::task_offsets(*btf);
    const auto alarm = alarms::alarm_offsets(*btf);
    const auto socket = open_files::socket_offsets(*btf);
    const auto pipe = open_files::pipe_offsets(*btf);
    REQUIRE(task);
    REQUIRE(alarm);
    REQUIRE(socket);
    REQUIRE(pipe);
    CHECK(map_locks::lock_offsets(*btf));
    CHECK(open_files::file_offsets(*btf));
    CHECK(task->pid == expected.pid);
    CHECK(task->run_ns == expected.run_ns);
    CHECK(task->on_cpu_width == bpf::width_of(expected.on_cpu));
    CHECK(alarm->due == expected.due);
    CHECK(alarm->state == expected.queued);
    CHECK(socket->receive == expected.receive);
    CHECK(socket->send == expected.send);
    CHECK(socket->protocol == expected.protocol);
    CHECK(socket->user);
    CHECK(pipe->head == expected.head);
    CHECK(pipe->tail == expected.tail);
    CHECK(pipe->ring == expected.ring);
  }
}
