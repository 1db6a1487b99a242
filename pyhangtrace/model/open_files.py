"""What processes have open or lock: descriptors, sockets, files with locks, and System V's objects."""

from __future__ import annotations

from dataclasses import dataclass

from pyhangtrace.model.kinds import FdKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that has something open; `mode` is "r", "w" or "rw" as opened."""

    pid: int
    fd: int | None = None
    mode: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketFacts:
    """A socket as the kernel's tables describe it.

    `family`: unix, tcp, tcp6, udp, netlink, …; `type`: stream, seqpacket, dgram, …; `state` in the kernel's words
    (LISTEN, ESTABLISHED, SYN_SENT, …). `peer_inode` joins both ends on this host; of a socket that is not connected
    yet it is the listener it asks. `rx_queue`/`tx_queue` in bytes, `peer_rx_queue` what lies unread at the other end.
    """

    family: str
    state: str = ""
    local: str = ""
    remote: str = ""
    peer_inode: int | None = None
    rx_queue: int | None = None
    tx_queue: int | None = None
    peer_rx_queue: int | None = None
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketTimeouts:
    """Seconds after which a call on a socket gives up (SO_RCVTIMEO, SO_SNDTIMEO); `None`: never. `user_s`: after which
    TCP gives up a connection whose other end takes nothing (TCP_USER_TIMEOUT); `None`: the system's, some 15 minutes.
    """

    receive_s: float | None
    send_s: float | None
    user_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FdFacts:
    """One descriptor of one process that matters (a thread blocks on it, or a lock or wait leads to it).

    `others` are all other holders of the same pipe, socket, message queue or event counter (also this process'
    other descriptors), `peers` the holders of the other end of a socket, or the servers of a FUSE file system.
    `watches` are the descriptors in an epoll set, `watches_out` those of them that are in it for room to write,
    `watches_room` for that alone. `queued` is the number of unread bytes in a socket or message queue. Of a pipe, as
    of a socket's `timeouts`, only a BPF program can tell; so is `capacity`, the bytes that a pipe takes. `info` are the
    numbers that the kernel shows of the object (fdinfo), `mount` is where its file system is mounted, and from what
    ("/data from nas:/data").
    """

    pid: int
    fd: int
    kind: FdKind
    target: str
    inode: int | None = None
    device: int | None = None
    mode: str = ""
    nonblocking: bool = False
    others: tuple[Holder, ...] = ()
    peers: tuple[Holder, ...] = ()
    socket: SocketFacts | None = None
    watches: tuple[int, ...] = ()
    watches_out: tuple[int, ...] = ()
    watches_room: tuple[int, ...] = ()
    queued: int | None = None
    capacity: int | None = None
    timeouts: SocketTimeouts | None = None
    fs_type: str | None = None
    mount: str | None = None
    info: tuple[tuple[str, int], ...] = ()
    holders_complete: bool = True  # every process on the host could be searched for the other holders


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequest:
    """A lock of a file that is asked for: `access` is "read" or "write", the bytes go from `start` to `end`, both
    included; `None`: to the end of the file, however long it gets. `pid` is -1 for OFD locks, 0 for one of another PID
    namespace.
    """

    access: str
    start: int = 0
    end: int | None = None
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLock:
    """One line of the kernel's lock table. `waiters` are pids queued behind it, `requests` what these ask for; `path`
    if a holder's fd names it. The bytes as in a request.
    """

    kind: str  # flock, posix, ofd, lease
    access: str  # read, write
    pid: int  # -1 for OFD locks, which belong to an open file, not to a process
    device: int
    inode: int
    waiters: tuple[int, ...] = ()
    openers: tuple[int, ...] = ()  # processes that have this inode open
    path: str | None = None
    # Descriptors that carry the lock (fdinfo): who really holds a flock whose taker has died or passed it on.
    holders: tuple[Holder, ...] = ()
    start: int = 0
    end: int | None = None
    requests: tuple[LockRequest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFile:
    """A file whose mere existence is a lock, polled by path. Ages in seconds at the time of the look."""

    path: str
    exists: bool
    pid: int | None = None  # whose view of the file system the path was resolved in
    inode: int | None = None
    age_s: float | None = None
    openers: tuple[int, ...] = ()
    openers_complete: bool = True  # every process on the host could be searched for openers
    older_than_job: bool | None = None  # older than every process of the job
    fs_type: str | None = None
    owner_pid: int | None = None  # pid written in the file, if it holds nothing but a number
    owner_alive: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSegment:
    """A segment of POSIX shared memory that a thread waits to be written to, or read: `users` have it open."""

    name: str  # as shm_open(3) takes it: "/psm_322cad5b"
    users: tuple[int, ...] = ()
    complete: bool = True  # every process on the host could be searched


@dataclass(frozen=True, slots=True, kw_only=True)
class IpcFacts:
    """A semaphore or message queue of System V that a thread waits for. Pids are 0 if they cannot be seen from here.

    `kind`: sem, msg. `id` and `key` as ipcs shows them, in the IPC namespace of `pid`. Of a semaphore: its
    `number` in the set, its `value`, how many wait for it to grow (`waiting`), and who changed it last (`last_pid`). Of
    a queue: `messages` and `queued` bytes in it, who sent and who received last. Neither records an owner.
    """

    pid: int
    kind: str
    id: int
    key: int = 0
    number: int | None = None
    value: int | None = None
    waiting: int | None = None
    last_pid: int | None = None
    messages: int | None = None
    queued: int | None = None
    last_sender: int | None = None
    last_receiver: int | None = None
