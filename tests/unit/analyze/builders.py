"""Evidence made by hand: small pieces with the defaults of a healthy sleeping process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replace
from typing import Any

from pyhangtrace.model.evidence import Evidence, JobFacts, Look
from pyhangtrace.model.host import HostFacts
from pyhangtrace.model.kinds import FdKind, FrameKind, Role
from pyhangtrace.model.open_files import FdFacts, FileLock, Holder, LockFile, SocketFacts
from pyhangtrace.model.processes import ProcessFacts, RankClaim
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import LockFacts, NamedValue, ThreadSample

C10D = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
THREADING = "/usr/lib/python3.11/threading.py"
SYNCHRONIZE = "/usr/lib/python3.11/multiprocessing/synchronize.py"

# x86-64
READ, WRITE, POLL, FUTEX, WAIT4, FLOCK, FCNTL = 0, 1, 7, 202, 61, 73, 72
SLEEP, EPOLL, ACCEPT, RECV = 230, 232, 43, 45
SELECT = 23


def py(function: str, file: str = "/job/train.py", line: int = 1) -> Frame:
    return Frame(kind=FrameKind.PYTHON, function=function, file=file, line=line)


def native(function: str, module: str = "libtorch_cpu.so") -> Frame:
    return Frame(kind=FrameKind.NATIVE, function=function, module=module)


def sleeper(pid: int, tid: int | None = None, **changes: Any) -> ThreadSample:
    """A thread asleep for ten seconds that has not run since."""
    defaults: dict[str, Any] = {
        "pid": pid,
        "tid": pid if tid is None else tid,
        "comm": "python3",
        "name": "MainThread" if tid is None else f"thread-{tid}",
        "state": "S",
        "syscall": FUTEX,
        "args": (0x7F00, 0x189, 0, 0, 0, 0),
        "run_ns": 1000,
        "slices": 10,
        "asleep_for_s": 10.0,
        "stack_complete": True,
        "frames": (py("main"),),
    }
    return ThreadSample(**{**defaults, **changes})


def in_collective(pid: int, op: str = "all_reduce", *, line: int = 7, **changes: Any) -> ThreadSample:
    frames = (
        native("c10d::Work::wait(std::chrono::duration<long>)"),
        py(op, C10D, 3252),
        py("wrapper", "/usr/lib/python3/site-packages/torch/distributed/c10d_logger.py", 83),
        py("step", line=line),
        py("main", line=40),
    )
    lock = LockFacts(kind="condition", address=0x5000 + pid, uaddr=0x5028 + pid, op=9, value=0)
    return sleeper(pid, **{"frames": frames, "lock": lock, **changes})


def in_barrier(pid: int, key: tuple[int, int, int] = (1, 77, 64), **changes: Any) -> ThreadSample:
    """A barrier of multiprocessing."""
    frames = (
        py("Condition.wait", SYNCHRONIZE, 261),
        py("Condition.wait_for", SYNCHRONIZE, 303),
        py("Barrier._wait", THREADING, 709),
        py("Barrier.wait", THREADING, 690),
        py("step"),
    )
    lock = LockFacts(kind="semaphore", address=0x9000, uaddr=0x9000, op=9, value=0, shared_key=key)
    return sleeper(pid, **{"frames": frames, "lock": lock, **changes})


def on_python_lock(
    pid: int, tid: int | None = None, *, owner: int | None = None, **changes: Any
) -> ThreadSample:
    lock = LockFacts(
        kind="python_lock",
        address=0x6000,
        uaddr=0x6000,
        op=9,
        value=0,
        owner_tid=owner,
        owner_from="bound __exit__ in a with block" if owner else None,
        python_lock_address=0x6100,
    )
    frames = (native("PyThread_acquire_lock_timed", "libpython3.11.so"), py("write_cache"))
    return sleeper(pid, tid, lock=lock, frames=changes.pop("frames", frames), **changes)


def on_mutex(
    pid: int, tid: int | None = None, *, owner: int | None, address: int = 0x8000, **changes: Any
) -> ThreadSample:
    lock = LockFacts(
        kind="mutex_normal",
        address=address,
        uaddr=address,
        op=0,
        value=2,
        owner_tid=owner,
        owner_from="pthread_mutex_t.__owner",
        owner_exact=True,
        shared_key=changes.pop("shared_key", None),
    )
    frames = (native("___pthread_mutex_lock", "libc.so.6"), py("flush"))
    return sleeper(pid, tid, lock=lock, frames=frames, args=(address, 0x80, 2, 0, 0, 0), **changes)


def on_gil(pid: int, tid: int | None = None, *, problem: str | None = None, **changes: Any) -> ThreadSample:
    lock = LockFacts(kind="gil", address=0xA000, uaddr=0xA010, op=9, value=0, timeout=True, problem=problem)
    frames = (native("take_gil", "libpython3.11.so"), py("callback"))
    return sleeper(pid, tid, lock=lock, frames=frames, asleep_for_s=0.001, **changes)


def asleep(
    pid: int, tid: int | None = None, *, seconds: float, left: float | None = None, **changes: Any
) -> ThreadSample:
    """In time.sleep()."""
    return sleeper(
        pid,
        tid,
        syscall=SLEEP,
        timeout_s=seconds,
        remaining_s=seconds / 2 if left is None else left,
        frames=(native("time_sleep", "libpython3.11.so"), py("pause")),
        **changes,
    )


def on_fd(pid: int, tid: int | None = None, *, fd: int, syscall: int = READ, **changes: Any) -> ThreadSample:
    return sleeper(pid, tid, syscall=syscall, args=(fd, 0, 1, 0, 0, 0), io_fds=(fd,), **changes)


def running(pid: int, tid: int | None = None, **changes: Any) -> ThreadSample:
    return sleeper(pid, tid, state="R", running=True, syscall=None, args=(), asleep_for_s=0.0, **changes)


def stopped(pid: int, **changes: Any) -> ThreadSample:
    return sleeper(pid, state="T", frames=(py("step"),), **changes)


def stopped_thread(pid: int, tid: int) -> ThreadSample:
    return sleeper(pid, tid, state="T", frames=(py("helper"),))


def pipe(pid: int, fd: int, inode: int, *others: Holder, mode: str = "r") -> FdFacts:
    return FdFacts(
        pid=pid, fd=fd, kind=FdKind.PIPE, target=f"pipe:[{inode}]", inode=inode, mode=mode, others=others
    )


def connection(pid: int, fd: int, inode: int, *peers: Holder, state: str = "ESTABLISHED") -> FdFacts:
    return FdFacts(
        pid=pid,
        fd=fd,
        kind=FdKind.SOCKET,
        target=f"socket:[{inode}]",
        inode=inode,
        mode="rw",
        peers=peers,
        socket=SocketFacts(family="unix", state=state),
    )


#: What the environment says of where the ranks meet: on this host.
STORE = (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500"))


def rank(pid: int, number: int, world: int = 4, *, ppid: int = 50, **changes: Any) -> ProcessFacts:
    claim = RankClaim(source="environ RANK", rank=number, local_rank=number, world_size=world)
    defaults: dict[str, Any] = {
        "pid": pid,
        "ppid": ppid,
        "role": Role.RANK,
        "comm": "python3",
        "title": "python train.py",
        "exe": "/usr/bin/python3.11",
        "state": "S",
        "claims": (claim,),
        "identity": STORE,
    }
    return ProcessFacts(**{**defaults, **changes})


def process(pid: int, *, ppid: int = 50, role: Role = Role.OTHER, **changes: Any) -> ProcessFacts:
    defaults: dict[str, Any] = {
        "comm": "python3",
        "title": f"program-{pid}",
        "exe": f"/usr/bin/{pid}",
        "state": "S",
    }
    return ProcessFacts(pid=pid, ppid=ppid, role=role, **{**defaults, **changes})


def look(
    *threads: ThreadSample,
    at: float = 0.0,
    fds: Sequence[FdFacts] = (),
    file_locks: Sequence[FileLock] = (),
    lock_files: Sequence[LockFile] = (),
) -> Look:
    return Look(
        at_s=at, threads=threads, fds=tuple(fds), file_locks=tuple(file_locks), lock_files=tuple(lock_files)
    )


def twice(*threads: ThreadSample, window: float = 0.1, **parts: Any) -> tuple[Look, Look]:
    """Two looks at threads of which none ran in between, but for those on the CPU."""
    later = tuple(
        replace(thread, run_ns=(thread.run_ns or 0) + int(window * 1e9), slices=(thread.slices or 0) + 5)
        if thread.state == "R"
        else thread
        for thread in threads
    )
    return look(*threads, **parts), look(*later, at=window, **parts)


def moved(thread: ThreadSample, by_ns: int = 1_000_000) -> ThreadSample:
    """The same thread after it ran a little and came back."""
    return replace(thread, run_ns=(thread.run_ns or 0) + by_ns, slices=(thread.slices or 0) + 3)


def evidence(processes: Sequence[ProcessFacts], looks: Sequence[Look], **changes: Any) -> Evidence:
    members = tuple(process.pid for process in processes if process.role is not Role.OUTSIDER)
    defaults: dict[str, Any] = {
        "tool_version": "0",
        "taken_at": "2026-01-01T00:00:00Z",
        "attached_to": members[:1],
        "host": HostFacts(name="host", machine="x86_64", memory_total=64 << 30, memory_available=40 << 30),
        "job": JobFacts(root_pid=members[0] if members else 0, members=members, found_by="test"),
    }
    return Evidence(processes=tuple(processes), looks=tuple(looks), **{**defaults, **changes})


def local(function: str, name: str, value: str | int | None) -> NamedValue:
    return NamedValue(function=function, name=name, value=value)


def ranks(count: int) -> list[ProcessFacts]:
    """Ranks 0.. with pids 100.."""
    return [rank(100 + number, number, count) for number in range(count)]


def missing_rank(
    late: Any, *more: Any, count: int = 4, number: int = 3, extra: Any = (), **parts: Any
) -> Evidence:
    """Everybody in all_reduce but one rank, which is in `late`."""
    others = [in_collective(100 + rank) for rank in range(count) if rank != number]
    return evidence([*ranks(count), *extra], twice(*others, late, *more, **parts))
