#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_proc.hpp"
#include "proc/status.hpp"
#include "proc/threads.hpp"

using namespace hangtrace::proc;
using hangtrace::tests::FakeProc;

namespace {

const std::string stat_rest =
    " S 70 75 70 0 -1 4194304 2501 0 7 0 31 12 0 0 20 0 48 0 8123456 5368709120 70000 18446744073709551615 1 "
    "1 0 0 0 "
    "0 0 16781312 134235650 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

}  // namespace

TEST_CASE("stat: fields by number") {
  const auto stat = parse_stat("75 (python3)" + stat_rest);
  REQUIRE(stat);
  CHECK(stat->id == 75);
  CHECK(stat->comm == "python3");
  CHECK(stat->state == 'S');
  CHECK(stat->parent == 70);
  CHECK(stat->minor_faults == 2501);
  CHECK(stat->major_faults == 7);
  CHECK(stat->user_ticks == 31);
  CHECK(stat->system_ticks == 12);
  CHECK(stat->start_ticks == 8123456);
  CHECK(stat->cpu == 1);
  CHECK_FALSE(stat->kernel_thread());
}

TEST_CASE("stat: a name may hold anything") {
  for (const std::string name : {"a b", "a) S 1 (b", "((", "))", "", "x\ny", "1 (2) 3"}) {
    CAPTURE(name);
    const auto stat = parse_stat("75 (" + name + ")" + stat_rest);
    REQUIRE(stat);
    CHECK(stat->comm == name);
    CHECK(stat->parent == 70);
    CHECK(stat->cpu == 1);
  }
}

TEST_CASE("stat: a truncated text is no stat") {
  const std::string whole = "75 (python3)" + stat_rest;
  const std::size_t cpu_end = whole.find(" 17 1 ") + 5;
  for (std::size_t size = 0; size < cpu_end - 1; ++size) {
    CAPTURE(size);
    CHECK_FALSE(parse_stat(whole.substr(0, size)));
  }
}

TEST_CASE("syscall: in a call, outside, running, and broken") {
  SUBCASE("in a call") {
    const auto state = parse_syscall("202 0x7f01 0x189 0x2 0x0 0x0 0xffffffff 0x7ffd10 0x7f77\n");
    CHECK(state.activity == Activity::in_syscall);
    CHECK(state.number == 202);
    CHECK(state.arguments == std::array<std::uint64_t, 6>{0x7f01, 0x189, 2, 0, 0, 0xffffffff});
    CHECK(state.stack_pointer == 0x7ffd10);
    CHECK(state.program_counter == 0x7f77);
  }
  SUBCASE("outside of a call") {
    const auto state = parse_syscall("-1 0x7ffd10 0x7f77\n");
    CHECK(state.activity == Activity::outside);
    CHECK(state.number == -1);
    CHECK(state.program_counter == 0x7f77);
  }
  SUBCASE("running") {
    CHECK(parse_syscall("running\n").activity == Activity::running);
  }
  SUBCASE("broken") {
    for (const char* text : {"", "x", "202", "202 0x1", "202 0x1 0x2 0x3 0x4 0x5 0x6 0x7", "-1 0x1", "-"}) {
      CAPTURE(text);
      const auto state = parse_syscall(text);
      CHECK(state.activity == Activity::unknown);
      CHECK(state.number == -1);
    }
  }
}

TEST_CASE("schedstat and kernel stack") {
  CHECK(parse_schedstat("5083402 12018 5\n") == SchedStat{5083402, 12018, 5});
  CHECK_FALSE(parse_schedstat("5083402 12018"));
  CHECK_FALSE(parse_schedstat(""));
  CHECK(parse_kernel_stack("[<0>] futex_do_wait+0x61/0x90\n[<0>] ext4_f [ext4]+0x1/0x2\n\ngarbage\n") ==
        std::vector<std::string>{"futex_do_wait", "ext4_f [ext4]"});
}

TEST_CASE("task directory: threads, vanished threads and missing files") {
  const FakeProc proc;
  proc.write("75/task/75/stat", "75 (main thread)" + stat_rest);
  proc.write("75/task/75/schedstat", "1 2 3\n");
  proc.write("75/task/75/syscall", "running\n");
  proc.write("75/task/75/wchan", "0");
  proc.write("75/task/75/status", "Name:\tx\nNSpid:\t75\t9\t1\n");
  proc.write("75/task/1003/wchan", "futex_do_wait");
  proc.write("75/task/9/stat", "9 (cut");
  const auto tasks = TaskDirectory::open(proc.root(), 75);
  REQUIRE(tasks);
  CHECK(tasks->list() == std::vector<int>{9, 75, 1003});
  CHECK(tasks->list() == std::vector<int>{9, 75, 1003});
  CHECK(tasks->stat(75)->comm == "main thread");
  CHECK(tasks->schedstat(75) == SchedStat{1, 2, 3});
  CHECK(tasks->syscall(75).activity == Activity::running);
  CHECK(tasks->wait_channel(75, 'S') == "");  // and no stack that may be read
  CHECK(tasks->wait_channel(1003, 'S') == "futex_do_wait");
  CHECK(tasks->id_inside(75) == 1);
  CHECK_FALSE(tasks->stat(9));
  CHECK_FALSE(tasks->stat(1003));
  CHECK_FALSE(tasks->schedstat(4242));
  CHECK(tasks->syscall(4242).activity == Activity::unknown);
  CHECK(tasks->kernel_stack(4242).empty());
  CHECK_FALSE(TaskDirectory::open(proc.root(), 76));
}

TEST_CASE("task directory: where the kernel names no wait channel, it is what the stack begins with") {
  const FakeProc proc;
  proc.write("75/task/75/stat", "75 (x)" + stat_rest);
  proc.write("75/task/75/wchan", "0");
  proc.write("75/task/75/stack", "[<0>] fuse_wait [fuse]+0x1/0x2\n[<0>] do_syscall_64+0x33/0x40\n");
  const auto tasks = TaskDirectory::open(proc.root(), 75);
  REQUIRE(tasks);
  const char state = tasks->stat(75)->state;
  REQUIRE(state == 'S');
  CHECK(tasks->wait_channel(75, 'S') == "fuse_wait");
  CHECK(tasks->wait_channel(75, 'D') == "");  // it has gone on meanwhile
  CHECK(tasks->wait_channel(75, 'R') == "");
}

TEST_CASE("task directory: ourselves") {
  const auto tasks = TaskDirectory::open("/proc", getpid());
  REQUIRE(tasks);
  CHECK(tasks->list() == std::vector<int>{gettid()});
  CHECK(tasks->stat(gettid())->state == 'R');
  CHECK(tasks->schedstat(gettid()));
}

TEST_CASE("task directory: files stay open as far as the budget goes, and never show another thread") {
  const FakeProc proc;
  for (const char* tid : {"75", "76"}) {
    proc.write(std::string("75/task/") + tid + "/schedstat", "1 2 3\n");
    proc.write(std::string("75/task/") + tid + "/syscall", "running\n");
  }
  const auto budget = std::make_shared<DescriptorBudget>(3);
  {
    const auto tasks = TaskDirectory::open(proc.root(), 75, budget);
    REQUIRE(tasks);
    CHECK(tasks->may_stay_open());
    for (const int tid : {75, 76, 75, 76}) {
      CHECK(tasks->schedstat(tid) == SchedStat{1, 2, 3});
      CHECK(tasks->syscall(tid).activity == Activity::running);
    }
    CHECK(budget->exhausted());
    proc.write("75/task/75/schedstat", "4 5 6\n");
    proc.write("75/task/76/schedstat", "7 8 9\n");
    CHECK(tasks->schedstat(75) == SchedStat{4, 5, 6});
    CHECK(tasks->schedstat(76) == SchedStat{7, 8, 9});

    const std::vector<int> left{76};
    tasks->keep_only(left);
    CHECK_FALSE(budget->exhausted());
    CHECK(tasks->schedstat(76) == SchedStat{7, 8, 9});

    const auto other = TaskDirectory::open(proc.root(), 75, std::make_shared<DescriptorBudget>(0));
    REQUIRE(other);
    CHECK_FALSE(other->may_stay_open());
    CHECK(other->schedstat(76) == SchedStat{7, 8, 9});
  }
  CHECK(budget->take());
  CHECK(budget->take());
  CHECK(budget->take());
  CHECK_FALSE(budget->take());
}

TEST_CASE("a kept file of a thread that ended is not taken for one of its successor") {
  const auto budget = std::make_shared<DescriptorBudget>(8);
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    close(ready[1]);
    _exit(read(ready[0], &byte, 1) == 0 ? 0 : 1);
  }
  const auto tasks = TaskDirectory::open("/proc", child, budget);
  REQUIRE(tasks);
  CHECK(tasks->schedstat(child));
  close(ready[1]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK_FALSE(tasks->schedstat(child));
  CHECK(tasks->syscall(child).activity == Activity::unknown);
  CHECK(tasks->list().empty());
  close(ready[0]);
}

TEST_CASE("status: what is printed and what is not") {
  const Status status = parse_status(
      "Name:\tpt\\nmain \\\\x\nUmask:\t0022\nState:\tD (disk sleep)\nTgid:\t75\nPPid:\t70\nTracerPid:\t3\n"
      "Uid:\t1000\t0\t0\t0\nNSpid:\t75\t4\nKthread:\t0\nVmPeak:\t  100 kB\nVmRSS:\t    12 kB\nRssAnon:\t 4 "
      "kB\n"
      "VmPTE:\t2 kB\nHugetlbPages:\t 8 "
      "kB\nThreads:\t48\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6\n");
  CHECK(status.name == "pt\nmain \\x");
  CHECK(status.state == 'D');
  CHECK(status.process == 75);
  CHECK(status.parent == 70);
  CHECK(status.tracer == 3);
  CHECK(status.user == 1000u);
  CHECK(status.ids_by_namespace == std::vector<int>{75, 4});
  CHECK(status.kernel_thread == false);
  CHECK(status.vm_peak == 102400u);
  CHECK(status.vm_rss == 12288u);
  CHECK(status.rss_anon == 4096u);
  CHECK(status.vm_page_tables == 2048u);
  CHECK(status.hugetlb == 8192u);
  CHECK(status.threads == 48u);
  CHECK(status.voluntary_switches == 5u);
  CHECK(status.involuntary_switches == 6u);
  CHECK_FALSE(status.vm_swap);
  CHECK_FALSE(status.rss_file);
}
