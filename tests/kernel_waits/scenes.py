"""All scenes: one for each kind of object that the kernel lets a thread wait for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.hangs.facts import Program, Waits
from tests.kernel_waits import staging
from tests.kernel_waits.facts import Expected, Scene

ASLEEP, ANY = Waits.ASLEEP, Waits.ANY
PROGRAMS = "{repository}/tests/kernel_waits/programs"
FILE = "{scratch}/file"


def scene(
    name: str,
    words: tuple[str, ...],
    waits: Expected | dict[str, Expected],
    *,
    others: tuple[str, ...] = (),
    members: dict[str, Waits] | None = None,
    **how: Any,
) -> Scene:
    """A scene of one program; `others` are those who announce themselves beside the waiter, and sleep."""
    program, *arguments = words
    roles = members or dict.fromkeys((*others, "waiter"), ASLEEP)
    head = (f"{PROGRAMS}/{program}",) if program.endswith(".c") else ("{python}", f"{PROGRAMS}/{program}")
    how.setdefault("may_name", tuple(roles))
    return Scene(
        name=name,
        programs=(Program(argv=(*head, *arguments), members=roles),),
        waits=waits if isinstance(waits, dict) else {"waiter": waits},
        **how,
    )


def held(name: str, words: tuple[str, ...], kind: str, /, **what: Any) -> Scene:
    """A wait that `other`, who sleeps for long, is recorded to be able to end."""
    return scene(name, words, Expected(kind=(kind,), holder="other", **what), others=("other",))


def healthy(
    name: str, words: tuple[str, ...], /, *kinds: str, others: tuple[str, ...] = (), **what: Any
) -> Scene:
    """A wait of a service for the world outside."""
    return scene(
        name,
        words,
        Expected(kind=kinds, **what),
        others=others,
        states=("idle", "running", "unknown"),
        may_name=(),
    )


def timed(name: str, words: tuple[str, ...], *kinds: str, left_s: tuple[float, float], **how: Any) -> Scene:
    """A wait that the clock ends."""
    return scene(name, words, Expected(kind=kinds, timed=True, left_s=left_s), may_name=(), **how)


_MINUTES = (400.0, 500.0)

PIPES = (
    held("pipe-read", ("pipes.py", "read"), "pipe", path="pipe:"),
    held("pipe-write", ("pipes.py", "write"), "pipe", path="pipe:", says=("full",)),
    held("asyncio-drain", ("pipes.py", "drain"), "pipe", path="pipe:", says=("takes no more",)),
    held("pipe-tee", ("pipes.py", "tee"), "pipe", path="pipe:"),
    healthy("fifo-open-read", ("pipes.py", "fifo-read", FILE), "pipe", path="/file$", nobody=True),
    healthy("fifo-open-write", ("pipes.py", "fifo-write", FILE), "pipe", path="/file$", nobody=True),
)

# What a child that has ended left behind keeps the pipe open of which the waiter waits for the end.
LEFT_OPEN = (
    scene(
        "output-left-open",
        ("pipes.py", "left-open", "sleeps"),
        Expected(kind=("pipe",), holder="other", says=("child .* has exited",)),
        others=("other",),
        states=("hung",),
        may_name=("other",),
    ),
    scene(
        "output-left-open-to-a-server",
        ("pipes.py", "left-open", "serves"),
        Expected(kind=("pipe",), holder="other", says=("child .* has exited",)),
        others=("other",),
        states=("unknown", "idle"),
        may_name=(),
    ),
    scene(
        "output-left-open-to-a-writer",
        ("pipes.py", "left-open", "writes"),
        Expected(kind=("pipe",), holder="other", says=("child .* has exited",), since=False),
        members={"other": ANY, "waiter": ANY},
        states=("running", "idle", "unknown"),
        may_name=(),
    ),
    scene(
        "output-left-open-of-a-shell",
        ("pipes.py", "left-open-in-shell"),
        Expected(kind=("pipe",), holder="other", says=("left behind",)),
        others=("other",),
        states=("unknown", "idle"),
        may_name=(),
    ),
    scene(
        "lines-of-a-daemon",
        ("pipes.py", "lines", "writes-slowly"),
        Expected(kind=("pipe",), holder="other"),
        others=("other",),
        states=("running", "idle", "slow"),
        may_name=("other",),
    ),
)

SOCKETS = (
    held("unix-stream-read", ("sockets.py", "stream-read"), "socket", path="socket:"),
    held("unix-stream-write", ("sockets.py", "stream-write"), "socket", says=("unread", "full")),
    held("unix-seqpacket-read", ("sockets.py", "seqpacket-read"), "socket"),
    held("unix-dgram-read", ("sockets.py", "dgram-read"), "socket"),
    held("unix-dgram-write", ("sockets.py", "dgram-write"), "socket", says=("full",)),
    held("unix-connect-backlog", ("sockets.py", "unix-backlog", FILE), "socket", path="/file"),
    held("tcp-read", ("sockets.py", "tcp-read"), "socket", name="127.0.0.1:", says=("0 bytes unread",)),
    held(
        "tcp-write",
        ("sockets.py", "tcp-write"),
        "socket",
        name="127.0.0.1:",
        says=("bytes unread", "not taken"),
    ),
    held("tcp-syn-sent", ("sockets.py", "tcp-backlog"), "socket", name="127.0.0.1:", says=("SYN_SENT",)),
    healthy("tcp-accept", ("sockets.py", "tcp-accept"), "poll", "socket", path="127.0.0.1:"),
)

EVENTS = (
    scene(
        "eventfd-read",
        ("events.py", "eventfd"),
        Expected(kind=("io",), name="eventfd", candidates=("other",), nobody=True, says=("counter 0",)),
        others=("other",),
        may_name=(),
    ),
    healthy("signalfd-read", ("events.py", "signalfd"), "io", "poll", name="signal.*10.*15"),
    timed("timerfd-read", ("events.py", "timerfd"), "io", "timer", left_s=(900.0, 1000.0)),
    healthy(
        "timerfd-disarmed", ("events.py", "timerfd-disarmed"), "io", "timer", name="timer", says=("not set",)
    ),
    healthy("timerfd-ticking", ("events.py", "timerfd-ticking"), "io", "timer", timed=True, since=False),
    healthy("inotify-read", ("events.py", "inotify", "{scratch}"), "io", name="inotify"),
    scene(
        "poll",
        ("events.py", "poll"),
        Expected(kind=("poll",), candidates=("one", "two"), says=("pipe:.* pid", "2 descriptors")),
        others=("one", "two"),
    ),
    scene(
        "poll-timed",
        ("events.py", "poll-timed"),
        Expected(kind=("poll",), candidates=("one", "two"), timed=True, left_s=_MINUTES),
        others=("one", "two"),
    ),
    scene(
        "select",
        ("events.py", "select"),
        Expected(kind=("poll",), candidates=("one", "two"), says=("pipe:.* pid",)),
        others=("one", "two"),
    ),
    scene(
        "epoll",
        ("events.py", "epoll"),
        Expected(kind=("poll",), candidates=("one", "two"), says=("pipe:.* pid",)),
        others=("one", "two"),
    ),
    healthy(
        "epoll-eventfd",
        ("events.py", "epoll-eventfd"),
        "poll",
        others=("other",),
        candidates=("other",),
        says=("pipe:.* pid", "eventfd"),
    ),
    held("epoll-of-epoll", ("events.py", "epoll-of-epoll"), "pipe", path="pipe:"),
    held("poll-for-room", ("events.py", "poll-room"), "pipe", path="pipe:", says=("full",)),
    held("select-for-room", ("events.py", "select-room"), "pipe", path="pipe:", says=("full",)),
    held("epoll-for-room", ("events.py", "epoll-room"), "pipe", path="pipe:", says=("full",)),
    held("poll-for-room-in-socket", ("events.py", "poll-room-socket"), "socket", says=("full",)),
    held("pidfd-poll", ("events.py", "pidfd"), "child"),
    healthy(
        "io-uring",
        ("events.py", "io-uring"),
        "io",
        "poll",
        name="io_uring",
        says=("1 completion", "0 .*pending"),
    ),
)

PROCESSES = (
    scene(
        "wait4",
        ("children.py", "wait4"),
        Expected(kind=("child",), holder="other"),
        others=("bystander", "other"),
        may_name=("waiter", "other"),
    ),
    scene(
        "waitid-any",
        ("children.py", "waitid"),
        Expected(kind=("child",), candidates=("one", "two")),
        others=("one", "two"),
    ),
    scene(
        "waitid-pidfd",
        ("children.py", "waitid-pidfd"),
        Expected(kind=("child",), holder="other"),
        others=("bystander", "other"),
        may_name=("waiter", "other"),
    ),
    scene(
        "wait-group",
        ("children.py", "wait-group"),
        Expected(kind=("child",), holder="other", says=("process group",)),
        others=("bystander", "other"),
        may_name=("waiter", "other"),
    ),
    scene(
        "vfork",
        ("vfork.c",),
        Expected(kind=("child",), holder="other", says=("vfork",)),
        others=("waiter", "other"),
    ),
    scene(
        "ptrace-stopped",
        ("children.py", "traced"),
        Expected(kind=("stopped",), holder="tracer", says=("TracerPid",)),
        members={"waiter": Waits.TRACED, "tracer": ASLEEP},
    ),
    scene(
        "sigstop",
        ("children.py", "stopped"),
        {
            "waiter": Expected(kind=("stopped",), nobody=True),
            "parent": Expected(kind=("child",), holder="waiter"),
        },
        members={"waiter": Waits.STOPPED, "parent": ASLEEP},
        attach="parent",
        states=("hung",),
        may_name=("waiter",),
    ),
    scene(
        "freezer",
        ("children.py", "sleeping"),
        Expected(kind=("stopped",), path="hangtrace-test", name="freezer", nobody=True),
        others=("waiter", "parent"),
        around=staging.frozen,
        needs=staging.no_freezer,
        states=("hung", "idle", "unknown"),
        may_name=("waiter",),
    ),
    scene(
        "freezer-unified",
        ("children.py", "sleeping"),
        Expected(kind=("stopped",), path="hangtrace-test", name="freezer", nobody=True),
        others=("waiter", "parent"),
        around=staging.frozen_unified,
        needs=staging.no_unified_freezer,
        states=("hung", "idle", "unknown"),
        may_name=("waiter",),
    ),
    scene(
        "cpu-throttled",
        ("children.py", "spinning"),
        Expected(kind=("throttled", "running"), says=("throttled",), since=False),
        members={"waiter": ANY},
        around=staging.throttled,
        needs=staging.no_quota,
        states=("slow",),
    ),
)

QUEUES = (
    scene(
        "sysv-semop",
        ("queues.py", "semop"),
        Expected(
            kind=("semaphore",), name="semaphore.* 1", candidates=("other",), nobody=True, says=("value 0",)
        ),
        others=("other",),
        may_name=(),
    ),
    scene(
        "sysv-semop-zero",
        ("queues.py", "semop-zero"),
        Expected(
            kind=("semaphore",), name="semaphore.* 1", nobody=True, says=("value 2", "1 waiting", "take from")
        ),
        others=("other",),
        may_name=(),
    ),
    scene(
        "sysv-semtimedop",
        ("queues.py", "semtimedop"),
        Expected(kind=("semaphore",), name="semaphore", candidates=("other",), timed=True, left_s=_MINUTES),
        others=("other",),
        may_name=(),
    ),
    healthy(
        "sysv-msgrcv",
        ("queues.py", "msgrcv"),
        "queue",
        name="message queue",
        others=("other",),
        candidates=("other",),
        nobody=True,
        says=("0 messages",),
    ),
    scene(
        "sysv-msgsnd",
        ("queues.py", "msgsnd"),
        Expected(
            kind=("queue",), name="message queue", candidates=("other",), nobody=True, says=("messages",)
        ),
        others=("other",),
        may_name=(),
    ),
    healthy(
        "mq-receive",
        ("queues.py", "mq-receive", "/hangtrace-kernel-waits"),
        "queue",
        path="/hangtrace-kernel-waits",
        others=("other",),
        candidates=("other",),
        nobody=True,
    ),
    scene(
        "mq-send",
        ("queues.py", "mq-send", "/hangtrace-kernel-waits"),
        Expected(
            kind=("queue",),
            path="/hangtrace-kernel-waits",
            candidates=("other",),
            nobody=True,
            says=("full",),
        ),
        others=("other",),
        may_name=(),
    ),
    scene(
        "posix-named-semaphore",
        ("queues.py", "named-semaphore", "/hangtrace-kernel-waits"),
        Expected(kind=("semaphore",), path="/dev/shm/sem.hangtrace", candidates=("other",), nobody=True),
        leaves=("/dev/shm/sem.hangtrace-kernel-waits",),
        others=("other",),
        may_name=(),
    ),
)


def _lock(
    name: str, words: tuple[str, ...], kind: str, *, needs: Callable[[], str | None] | None = None
) -> Scene:
    expected = Expected(kind=(kind,), path="/file$", holder="other")
    how = {"needs": needs} if needs is not None else {}
    return scene(name, words, expected, others=("other",), **how)


FILES = (
    _lock("flock", ("files.py", "flock", FILE), "file_lock"),
    _lock("fcntl-posix", ("files.py", "posix", FILE), "file_lock"),
    _lock("fcntl-ofd", ("files.py", "ofd", FILE), "file_lock"),
    *(
        scene(
            f"{call}-{what}",
            ("files.py", f"{call}-{what}", FILE),
            Expected(kind=("file_lock",), path="/file$", holder="other"),
            others=("innocent", "other"),
            states=("hung",),
            may_name=("other",),
        )
        for call in ("posix", "ofd")
        for what in ("parts", "reads")
    ),
    scene(
        "ofd-inherited",
        ("files.py", "ofd-inherited", FILE),
        Expected(kind=("file_lock",), path="/file$", candidates=("innocent", "other")),
        others=("innocent", "other"),
        states=("hung",),
        may_name=("innocent", "other"),
    ),
    scene(
        "ofd-upgrade",
        ("files.py", "ofd-upgrade", FILE),
        {
            "waiter": Expected(kind=("file_lock",), path="/file$", holder="other"),
            "other": Expected(kind=("file_lock",), path="/file$", holder="waiter"),
        },
        others=("other",),
        states=("hung",),
        may_name=("waiter", "other"),
    ),
    scene(
        "flock-of-stuck-threads",
        ("files.py", "threads-stuck", FILE),
        Expected(kind=("file_lock",), path="/file$", holder="other"),
        others=("other",),
        states=("hung",),
        may_name=("waiter", "other"),
    ),
    scene(
        "flock-beside-a-thread-that-moves",
        ("files.py", "threads-move", FILE),
        Expected(kind=("file_lock",), path="/file$", holder="other"),
        members={"other": ANY, "waiter": ASLEEP},
        states=("unknown", "running", "idle"),
        may_name=(),
    ),
    scene(
        "flock-of-threads-at-work",
        ("files.py", "threads-work", FILE),
        Expected(kind=("file_lock",), path="/file$", holder="other"),
        members={"other": ANY, "waiter": ASLEEP},
        states=("unknown", "running", "slow", "idle"),
        may_name=("other",),
    ),
    scene(
        "lease-break",
        ("files.py", "lease", FILE),
        Expected(kind=("file_lock",), path="/file$", holder="other", timed=True, left_s=(1.0, 46.0)),
        others=("other",),
        may_name=("other", "waiter"),
        states=("slow", "hung", "idle", "unknown", "running"),
    ),
    scene(
        "lease-break-by-truncate",
        ("files.py", "lease-truncate", FILE),
        Expected(kind=("file_lock",), path="/file$", holder="other", timed=True, left_s=(1.0, 46.0)),
        others=("other",),
        may_name=("other", "waiter"),
        states=("slow", "hung", "idle", "unknown", "running"),
    ),
    scene(
        "soft-lock-file",
        ("files.py", "soft-lock", FILE),
        Expected(kind=("lock_file",), path="/file$", holder="other", since=False, says=("file system",)),
        others=("other",),
        members={"other": ASLEEP, "waiter": ANY},
        needs=staging.no_filelock,
    ),
    scene(
        "folder-lock",
        ("files.py", "folder-lock", FILE),
        Expected(kind=("lock_file",), since=False, nobody=True, says=("FileExistsError",)),
        members={"waiter": ANY},
        states=("unknown",),
        may_name=(),
    ),
    healthy("nap-loop", ("files.py", "nap-loop"), "timer", timed=True, since=False),
    scene(
        "folder-lock-of-a-shell",
        ("files.py", "shell-lock", FILE),
        Expected(kind=("child",), child=True, since=False),
        members={"waiter": ANY},
        states=("unknown",),
        may_name=(),
        limit="a shell that tries mkdir and naps looks like any loop that naps",
    ),
)

PAGES = (
    scene(
        "userfaultfd",
        ("pages.py", "userfaultfd"),
        Expected(kind=("page_fault",), name="userfault", candidates=("other",), says=("userfaultfd",)),
        others=("other",),
    ),
    scene(
        "fuse-read",
        ("pages.py", "fuse", "{scratch}/mount"),
        Expected(
            kind=("io",),
            path="/mount/file$",
            candidates=("other",),
            says=("fuse mounted at .*/mount from pages",),
        ),
        others=("other",),
        needs=staging.no_fuse,
    ),
    scene(
        "fuse-open",
        ("pages.py", "fuse-open", "{scratch}/mount"),
        Expected(
            kind=("io",),
            path="/mount/file$",
            candidates=("other",),
            nobody=True,
            name="request_wait_answer",
            says=("type fuse mounted at .*/mount from pages",),
        ),
        others=("other",),
        needs=staging.no_fuse,
        may_name=(),
    ),
    scene(
        "fuse-page-fault",
        ("pages.py", "fuse-map", "{scratch}/mount"),
        Expected(
            kind=("page_fault",),
            path="/mount/file$",
            candidates=("other",),
            says=("type fuse mounted at .*/mount from pages",),
            nobody=True,
        ),
        others=("other",),
        needs=staging.no_fuse,
        may_name=(),
    ),
    scene(
        "map-lock-held",
        ("pages.py", "map-lock", "{scratch}/mount"),
        Expected(
            kind=("io",),
            holder="keeper",
            holder_by_bpf=True,
            candidates=("keeper",),
            says=("lock of its memory map",),
            nobody=True,
            since=False,
        ),
        others=("other", "reader", "keeper"),
        needs=staging.no_fuse,
        may_name=(),
    ),
)

TIMERS = (
    timed("sleep-relative", ("timers.py", "relative"), "timer", left_s=_MINUTES),
    timed("sleep-absolute", ("timers.py", "absolute"), "timer", left_s=_MINUTES),
    timed("sleep-absolute-realtime", ("timers.py", "absolute-realtime"), "timer", left_s=_MINUTES),
    timed("sleep-ppoll-of-nothing", ("timers.py", "empty-poll"), "timer", left_s=_MINUTES),
    timed("sigtimedwait", ("timers.py", "sigtimedwait"), "poll", left_s=_MINUTES),
    healthy("pause", ("timers.py", "pause"), "poll", name="signal"),
    scene(
        "shell-loop",
        ("timers.py", "shell-loop"),
        # Whom it waits for is no member that announces itself.
        Expected(kind=("child",), child=True),
        states=("idle", "unknown"),
        may_name=(),
    ),
)

#: Like another one in what is read and ruled; all of them take two minutes.
_ALIKE = frozenset(
    [
        "nap-loop",
        "folder-lock-of-a-shell",
        "fifo-open-write",
        "pipe-tee",
        "select-for-room",
        "epoll-for-room",
        "lease-break-by-truncate",
        "unix-seqpacket-read",
        "unix-dgram-read",
        "timerfd-disarmed",
        "timerfd-ticking",
        "poll",
        "select",
        "waitid-any",
        "waitid-pidfd",
        "sysv-semtimedop",
        "mq-receive",
        "sysv-msgrcv",
        "fcntl-posix",
        "flock",
        "sleep-relative",
        "sleep-absolute",
        "sleep-ppoll-of-nothing",
        "pause",
        "inotify-read",
        "soft-lock-file",
        "sigstop",
        "tcp-accept",
        "pipe-read",
        "wait4",
        "shell-loop",
        "folder-lock",
    ]
)

SCENES = tuple(
    replace(one, slow=one.name in _ALIKE)
    for one in (*PIPES, *LEFT_OPEN, *SOCKETS, *EVENTS, *PROCESSES, *QUEUES, *FILES, *PAGES, *TIMERS)
)
