"""Which locals of which well-known wait functions may be read: only those that say what is waited for."""

from __future__ import annotations

# Qualified name of the Python function -> its locals; "self.x" is an attribute in the instance dictionary of `self`.
# Before CPython 3.11 a code object knows only its plain name, which is why some stand here twice.
NAMED_LOCALS: dict[str, tuple[str, ...]] = {
    # torch.utils.file_baton: a file whose existence is the lock
    "FileBaton.wait": ("self.lock_file_path",),
    # filelock (BaseFileLock.acquire and its asyncio sibling)
    "BaseFileLock.acquire": ("lock_filename",),
    "LockAcquisition._poll_until_acquired": ("lock_filename",),
    "_poll_until_acquired": ("lock_filename",),
    "SoftFileLock._acquire": ("self._lock_file",),
    # threading: the thread that is joined
    "Thread.join": ("self._native_id",),
    "Thread._wait_for_tstate_lock": ("self._native_id",),
    # subprocess, multiprocessing: the child that is waited for
    "Popen.wait": ("self.pid",),
    "Popen._wait": ("self.pid",),
    "Popen.communicate": ("self.pid",),
    "Popen._communicate": ("self.pid",),
    "Popen.poll": ("self.pid",),
    # torch.distributed: the peer of a point-to-point call, the root of a rooted collective
    "recv": ("src", "group_src"),
    "send": ("dst", "group_dst"),
    "irecv": ("src", "group_src"),
    "isend": ("dst", "group_dst"),
    "broadcast": ("src", "group_src"),
    "reduce": ("dst", "group_dst"),
    "gather": ("dst", "group_dst"),
    "scatter": ("src", "group_src"),
    # torch.utils.data: which worker this is
    "_worker_loop": ("worker_id",),
    # threading and multiprocessing barriers: how many have to come
    "Barrier.wait": ("self._parties", "self._count"),
}

# Those whose value is the path of a file that is a lock by existing; names as in the evidence, without "self.".
LOCK_FILE_VALUES = frozenset(
    {
        ("FileBaton.wait", "lock_file_path"),
        ("BaseFileLock.acquire", "lock_filename"),
        ("LockAcquisition._poll_until_acquired", "lock_filename"),
        ("_poll_until_acquired", "lock_filename"),
        ("SoftFileLock._acquire", "_lock_file"),
    }
)
