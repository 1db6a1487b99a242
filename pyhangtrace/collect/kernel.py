"""The host: memory, pressure, OOM kills, driver faults, and the cgroup that limits the job."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterable

from pyhangtrace.collect.processes import read_uptime
from pyhangtrace.collect.procfs import PROC, fields, kilobytes, printable, read_text
from pyhangtrace.model.host import CgroupFacts, HostFacts, OomKill, PressureFacts
from pyhangtrace.model.processes import ProcessFacts

_KILLED = re.compile(r"[Kk]illed process (\d+) \((.*?)\)")
# mm/oom_kill.c (dump_oom_victim): "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,
# oom_memcg=/job,task_memcg=/job/rank3,task=python3,pid=77,uid=0" (Linux 4.19), before the line that names the victim.
_CONSTRAINT = re.compile(r"oom-kill:constraint=(\w+).*,task=(.*),pid=(\d+),uid=\d+$")
_LIMIT_OF = re.compile(r",oom_memcg=([^,]*)")
_TASK_GROUP = re.compile(r",task_memcg=([^,]*)")
_OOM = re.compile(r"(Out of memory|Memory cgroup out of memory|oom)", re.IGNORECASE)
_XID = re.compile(r"NVRM: Xid .*")
_MAX_RECORDS = 50_000
_LOG_BUDGET_S = 0.1
_NO_LIMIT = 1 << 60  # cgroup v1 writes the largest multiple of a page for "none"


def collect(
    *,
    since_s_ago: float | None,
    proc_root: str = PROC,
    shm: str = "/dev/shm",
    log: str = "/dev/kmsg",
) -> tuple[HostFacts, str | None]:
    """The machine, and why its kernel log could not be read (`None` if it could).

    `since_s_ago`: how old the job is; OOM kills and driver faults before it do not concern it.
    """
    uptime_s = read_uptime(proc_root)
    memory = {key: kilobytes(value) for key, value in fields(read_text(f"{proc_root}/meminfo") or "")}
    kills, xids, problem = read_log(log, uptime_s=uptime_s, since_s_ago=since_s_ago)
    size, free = _space(shm)
    return (
        HostFacts(
            name=platform.node(),
            kernel=platform.release(),
            machine=platform.machine(),
            cpus=os.cpu_count() or 0,
            page_size=os.sysconf("SC_PAGE_SIZE"),
            ticks_per_s=os.sysconf("SC_CLK_TCK"),
            uptime_s=uptime_s,
            memory_total=memory.get("MemTotal"),
            memory_available=memory.get("MemAvailable"),
            memory_mapped=memory.get("Mapped"),
            memory_shmem=memory.get("Shmem"),
            memory_cached=memory.get("Cached"),
            swap_total=memory.get("SwapTotal"),
            swap_free=memory.get("SwapFree"),
            shm_size=size,
            shm_free=free,
            pressure=read_pressure(proc_root),
            oom_kills=_counter(read_text(f"{proc_root}/vmstat"), "oom_kill"),
            oom_log=kills,
            xids=xids,
        ),
        problem,
    )


def _space(path: str) -> tuple[int | None, int | None]:
    try:
        about = os.statvfs(path)
    except OSError:
        return None, None
    return about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize


def read_pressure(proc_root: str = PROC) -> PressureFacts | None:
    """Pressure stall information, `None` where the kernel has none."""
    found: dict[str, float] = {}
    for resource in ("memory", "io", "cpu"):
        text = read_text(f"{proc_root}/pressure/{resource}")
        for line in (text or "").splitlines():
            share = re.match(r"(some|full) avg10=([\d.]+)", line)
            if share:
                found[f"{resource}_{share[1]}"] = float(share[2])
    if not found:
        return None
    return PressureFacts(
        memory_some=found.get("memory_some"),
        memory_full=found.get("memory_full"),
        io_some=found.get("io_some"),
        io_full=found.get("io_full"),
        cpu_some=found.get("cpu_some"),
    )


def read_log(
    path: str, *, uptime_s: float | None, since_s_ago: float | None
) -> tuple[tuple[OomKill, ...], tuple[str, ...], str | None]:
    """(OOM kills, driver faults, why the log could not be read). Never waits for new records."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return (), (), error.strerror
    kills: list[OomKill] = []
    xids: list[str] = []
    until = time.monotonic() + _LOG_BUDGET_S
    try:
        for number in range(_MAX_RECORDS):
            try:
                record = os.read(descriptor, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten while we read: the next read goes on behind the gap
                continue
            if not record:
                break
            if number % 256 == 0 and time.monotonic() > until:
                return tuple(kills), tuple(xids), "the kernel log is too long to be read in time"
            note(record, uptime_s, since_s_ago, kills, xids)
    except OSError as error:
        return tuple(kills), tuple(xids), error.strerror
    finally:
        os.close(descriptor)
    return tuple(kills), tuple(xids), None


def note(
    record: bytes, uptime_s: float | None, since_s_ago: float | None, kills: list[OomKill], xids: list[str]
) -> None:
    """Adds what one record says: `priority,sequence,microseconds,flags;text`, then indented key=value lines."""
    head, _, rest = record.partition(b";")
    text = rest.partition(b"\n")[0].decode(errors="replace")
    killed = _KILLED.search(text)
    fault = _XID.search(text)
    constraint = _CONSTRAINT.search(text)
    if killed is None and fault is None and constraint is None:
        return
    age_s = None
    stamp = head.split(b",")
    if uptime_s is not None and len(stamp) > 2 and stamp[2].isdigit():
        age_s = max(0.0, round(uptime_s - int(stamp[2]) / 1e6, 1))
    if since_s_ago is not None and age_s is not None and age_s > since_s_ago + 1.0:
        return
    if constraint is not None:
        limit, group = _LIMIT_OF.search(text), _TASK_GROUP.search(text)
        kills.append(
            OomKill(
                pid=int(constraint[3]),
                comm=printable(constraint[2]),
                text=printable(text),
                age_s=age_s,
                constraint=constraint[1],
                limit_of=printable(limit[1]) if limit is not None else None,
                cgroup=printable(group[1]) if group is not None else None,
            )
        )
    elif killed is not None and _OOM.search(text):
        pid = int(killed[1])
        # The line before it says whose limit it was; this one how large the process had become.
        announced = kills.pop() if kills and kills[-1].pid == pid and kills[-1].constraint else None
        kills.append(
            OomKill(
                pid=pid,
                comm=printable(killed[2]),
                text=printable(text),
                age_s=age_s,
                constraint=announced.constraint if announced is not None else None,
                limit_of=announced.limit_of if announced is not None else None,
                cgroup=announced.cgroup if announced is not None else None,
            )
        )
    if fault is not None:
        xids.append(printable(fault[0]))


def _counter(text: str | None, name: str) -> int | None:
    for line in (text or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return None


def cgroup_of(members: Iterable[ProcessFacts], *, root: str = "/sys/fs/cgroup") -> CgroupFacts | None:
    """The group that limits the memory of these processes. Who has ended is in the root group of version 1 by now."""
    return cgroup((facts.cgroup for facts in members if facts.state not in ("Z", "X")), root=root)


def cgroup(paths: Iterable[str | None], *, root: str = "/sys/fs/cgroup") -> CgroupFacts | None:
    """The nearest group with a memory limit above the members' common path; without one, the common group itself."""
    known = [path for path in paths if path]
    if not known:
        return None
    common = os.path.commonpath(known) if all(path.startswith("/") for path in known) else "/"
    version, base = (1, f"{root}/memory") if os.path.isdir(f"{root}/memory") else (2, root)
    if not os.path.isdir(base):
        return None
    first: CgroupFacts | None = None
    path = common
    while True:
        folder = base + (path if path != "/" else "")
        if os.path.isdir(folder):
            here = _cgroup_v1(root, folder, path) if version == 1 else _cgroup_v2(folder, path)
            if here.limit is not None:
                return here
            first = first or here
        if path == "/":
            return first
        path = os.path.dirname(path)


def _cgroup_v2(folder: str, path: str) -> CgroupFacts:
    about = read_text(f"{folder}/memory.stat")
    cpu = read_text(f"{folder}/cpu.stat")
    throttled = _counter(cpu, "throttled_usec")
    frozen = _counter(read_text(f"{folder}/cgroup.events"), "frozen")
    return CgroupFacts(
        version=2,
        path=path,
        limit=_limit(read_text(f"{folder}/memory.max")),
        usage=_limit(read_text(f"{folder}/memory.current")),
        oom_kills=_counter(read_text(f"{folder}/memory.events"), "oom_kill"),
        cache=_counter(about, "file"),
        anon=_counter(about, "anon"),
        nr_throttled=_counter(cpu, "nr_throttled"),
        throttled_s=throttled / 1e6 if throttled is not None else None,
        frozen=frozen == 1 if frozen is not None else None,
    )


def _cgroup_v1(root: str, folder: str, path: str) -> CgroupFacts:
    about = read_text(f"{folder}/memory.stat")
    cpu = read_text(f"{root}/cpu{path if path != '/' else ''}/cpu.stat")
    throttled = _counter(cpu, "throttled_time")
    state = read_text(f"{root}/freezer{path if path != '/' else ''}/freezer.state")
    return CgroupFacts(
        version=1,
        path=path,
        limit=_limit(read_text(f"{folder}/memory.limit_in_bytes")),
        usage=_limit(read_text(f"{folder}/memory.usage_in_bytes")),
        oom_kills=_counter(read_text(f"{folder}/memory.oom_control"), "oom_kill"),
        cache=_counter(about, "total_cache"),
        anon=_counter(about, "total_rss"),
        nr_throttled=_counter(cpu, "nr_throttled"),
        throttled_s=throttled / 1e9 if throttled is not None else None,
        frozen=state.strip() == "FROZEN" if state is not None else None,
    )


def _limit(text: str | None) -> int | None:
    word = (text or "").strip()
    if not word.isdecimal() or int(word) >= _NO_LIMIT:
        return None
    return int(word)
