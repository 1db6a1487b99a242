"""The host's own files, from made-up trees."""

from __future__ import annotations

import os
from pathlib import Path

from pyhangtrace.collect import kernel
from pyhangtrace.model.host import OomKill
from pyhangtrace.model.processes import ProcessFacts
from tests.unit.collect.helpers import write

KILLED = (
    b"6,1,500000000,-;Memory cgroup out of memory: Killed process 77 (py(thon) total-vm:1kB, anon-rss:1kB\n"
    b" SUBSYSTEM=x\n"
)
RECORDS = [
    b"6,0,100000000,-;Out of memory: Killed process 5 (old) total-vm:1kB\n",
    KILLED,
    b"4,2,600000000,-;NVRM: Xid (PCI:0000:81:00): 79, pid=1234, GPU has fallen off the bus.\n",
    b"6,3,700000000,-;nothing of interest\n",
    b"garbage",
]


def test_kernel_log() -> None:
    kills: list[kernel.OomKill] = []
    xids: list[str] = []
    for record in RECORDS:
        kernel.note(record, 1000.0, 600.0, kills, xids)
    assert [(kill.pid, kill.comm, kill.age_s) for kill in kills] == [(77, "py(thon", 500.0)]
    assert xids == ["NVRM: Xid (PCI:0000:81:00): 79, pid=1234, GPU has fallen off the bus."]


def test_no_kernel_log(tmp_path: Path) -> None:
    assert kernel.read_log(str(tmp_path / "kmsg"), uptime_s=1.0, since_s_ago=None) == (
        (),
        (),
        "No such file or directory",
    )


def test_an_empty_pipe_as_kernel_log_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")
    writer = os.open(tmp_path / "kmsg", os.O_RDWR)
    try:
        assert kernel.read_log(str(tmp_path / "kmsg"), uptime_s=1.0, since_s_ago=None) == ((), (), None)
    finally:
        os.close(writer)


def test_host(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "uptime": "1000.00 1.0\n",
            "meminfo": "MemTotal:  1000 kB\nMemAvailable:  900 kB\nMapped:  10 kB\nHugePages_Total: 0\n",
            "vmstat": "nr_free 3\noom_kill 4\n",
            "pressure/memory": "some avg10=1.50 avg60=0 avg300=0 total=1\nfull avg10=0.25 avg60=0 total=1\n",
        },
    )
    host, problem = kernel.collect(
        since_s_ago=None, proc_root=str(tmp_path), shm=str(tmp_path), log=str(tmp_path / "none")
    )
    assert problem == "No such file or directory"
    assert (host.memory_total, host.memory_available, host.memory_mapped) == (1024000, 921600, 10240)
    assert (host.memory_shmem, host.oom_kills, host.uptime_s) == (None, 4, 1000.0)
    assert host.pressure is not None
    assert (host.pressure.memory_some, host.pressure.memory_full, host.pressure.io_some) == (1.5, 0.25, None)
    assert host.shm_size is not None
    assert kernel.read_pressure(str(tmp_path / "none")) is None


def test_cgroup_v2_takes_the_nearest_limit(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a/memory.max": "1000000\n",
            "a/memory.current": "900000\n",
            "a/memory.events": "low 0\noom 2\noom_kill 1\n",
            "a/memory.stat": "anon 5\nfile 6\n",
            "a/cpu.stat": "usage_usec 1\nnr_throttled 7\nthrottled_usec 2500000\n",
            "a/cgroup.events": "populated 1\nfrozen 0\n",
            "a/b/memory.max": "max\n",
            "a/b/c/memory.max": "max\n",
            "a/b/d/memory.max": "5\n",
        },
    )
    facts = kernel.cgroup(["/a/b/c", "/a/b/d", None], root=str(tmp_path))
    assert facts is not None
    assert (facts.version, facts.path, facts.limit, facts.usage, facts.oom_kills) == (
        2,
        "/a",
        1000000,
        900000,
        1,
    )
    assert (facts.anon, facts.cache, facts.nr_throttled, facts.throttled_s) == (5, 6, 7, 2.5)
    assert facts.frozen is False


def test_cgroup_v1_without_limit(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/x/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/x/memory.usage_in_bytes": "12\n",
            "memory/x/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            "memory/x/memory.stat": "cache 1\ntotal_cache 2\ntotal_rss 3\n",
            "freezer/x/freezer.state": "FROZEN\n",
        },
    )
    facts = kernel.cgroup(["/x", "/x"], root=str(tmp_path))
    assert facts is not None
    assert (facts.version, facts.path, facts.limit, facts.usage, facts.oom_kills) == (1, "/x", None, 12, 3)
    assert (facts.cache, facts.anon, facts.frozen) == (2, 3, True)


def test_who_has_ended_is_in_no_group_that_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/x/memory.limit_in_bytes": "1000000\n",
        },
    )
    living = ProcessFacts(pid=1, state="S", cgroup="/x")
    zombie = ProcessFacts(pid=2, state="Z", cgroup="/")
    facts = kernel.cgroup_of([living, zombie], root=str(tmp_path))
    assert facts is not None
    assert facts.path == "/x"


OOM_RECORDS = (
    b"6,447,15323813456,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    b"oom_memcg=/job,task_memcg=/job/rank0,task=python, 3,pid=10832,uid=0\n",
    b"3,448,15323813470,-;Memory cgroup out of memory: Killed process 10832 (python, 3) total-vm:70268kB\n",
    b"6,449,15323813480,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,"
    b"global_oom,task_memcg=/,task=java,pid=7,uid=0\n",
    b"3,450,15323813490,-;Out of memory: Killed process 7 (java) total-vm:70268kB\n",
    b"3,451,15323813490,-;Out of memory: Kill process 8 (old) score 9 or sacrifice child\n",
    b"3,452,15323813490,-;Killed process 8 (old) total-vm:1kB, oom_score_adj 0\n",
)


def test_whose_limit_it_was() -> None:
    kills: list[OomKill] = []
    for record in OOM_RECORDS:
        kernel.note(record, 15400.0, None, kills, [])
    assert [(kill.pid, kill.comm, kill.constraint, kill.limit_of, kill.cgroup) for kill in kills] == [
        (10832, "python, 3", "CONSTRAINT_MEMCG", "/job", "/job/rank0"),
        (7, "java", "CONSTRAINT_NONE", None, "/"),
        (8, "old", None, None, None),
    ]
    assert kills[0].age_s == 76.2
    assert "total-vm" in kills[0].text


def test_no_cgroup(tmp_path: Path) -> None:
    assert kernel.cgroup([None], root=str(tmp_path)) is None
    assert kernel.cgroup(["/x"], root=str(tmp_path / "none")) is None
