"""Which locals of which well-known wait functions may be read: only those that say what is waited for."""

from __future__ import annotations

# Class and method -> what says on which object the thread waits, or which one it works on, beside `self` itself.
# "x[]" are the members of the container x.
_OBJECTS: dict[tuple[str, str], tuple[str, ...]] = {
    # threading
    ("Condition", "wait"): (),
    ("Condition", "wait_for"): (),
    ("Event", "wait"): (),
    ("Semaphore", "acquire"): (),
    ("BoundedSemaphore", "acquire"): (),
    ("Barrier", "wait"): ("self._parties", "self._count"),
    ("Thread", "join"): ("self._native_id",),
    ("Thread", "_wait_for_tstate_lock"): ("self._native_id",),
    # The outermost frame of each thread: which thread that is, and whether the interpreter waits for it at its end.
    ("Thread", "_bootstrap_inner"): ("self._daemonic",),
    # queue
    ("Queue", "get"): ("self.maxsize", "self.queue"),
    ("Queue", "put"): ("self.maxsize", "self.queue"),
    ("Queue", "join"): ("self.unfinished_tasks",),
    # concurrent.futures: whose result is waited for, and what a worker of a pool of threads works on
    ("Future", "result"): (),
    ("Future", "exception"): (),
    ("_WorkItem", "run"): ("self.future",),
    # vllm.distributed.device_communicators.shm_broadcast: which queue in shared memory, and how far one has come in it
    ("MessageQueue", "acquire_read"): (
        "self.buffer.shared_memory._name",
        "self.current_idx",
        "self._spin_condition.last_read",
        "self._read_spin_timer.last_activity",
    ),
    ("MessageQueue", "wait_until_ready"): ("self.buffer.shared_memory._name",),
    ("MessageQueue", "acquire_write"): ("self.buffer.shared_memory._name", "self.current_idx"),
    # importlib
    ("_ModuleLock", "acquire"): ("self.name",),
    # multiprocessing.pool: which of its tasks
    ("ApplyResult", "wait"): ("self._job",),
    ("ApplyResult", "get"): ("self._job",),
    ("IMapIterator", "next"): ("self._job",),
    ("_ExecutorManagerThread", "run"): (
        "self.pending_work_items",
        "self.pending_work_items[].future",
        "self.processes",
    ),
}

# Their subclasses in the standard library that inherit the method.
_HEIRS = {
    "Semaphore": ("BoundedSemaphore",),
    "Queue": ("LifoQueue", "PriorityQueue", "JoinableQueue"),
    "ApplyResult": ("MapResult",),
    "IMapIterator": ("IMapUnorderedIterator",),
    "Thread": ("Timer", "_MainThread", "_DummyThread", "_ExecutorManagerThread", "_QueueManagementThread"),
}

# Functions of torch.distributed.distributed_c10d of which the group is of interest, and what each member brings.
_COLLECTIVES = (
    *("all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_coalesced", "all_gather_object"),
    *("all_gather_into_tensor", "all_gather_single", "_all_gather_base", "barrier", "all_to_all"),
    *("all_to_all_single", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"),
    *("_reduce_scatter_base", "broadcast_object_list", "gather_object", "scatter_object_list"),
)

# The local of these functions that is the tensor which each member brings to an operation.
TENSOR_LOCALS = {
    **dict.fromkeys(
        ("all_reduce", "broadcast", "reduce", "gather", "all_gather", "send", "recv", "isend", "irecv"),
        "tensor",
    ),
    **dict.fromkeys(("all_gather_into_tensor", "_all_gather_base"), "input_tensor"),
    **dict.fromkeys(("reduce_scatter_tensor", "_reduce_scatter_base", "all_to_all_single"), "input"),
}

# Methods of the coordinators of groups of vLLM (0.6 to 0.32) and SGLang (0.4 to 0.5), distributed/parallel_state.py.
_COORDINATED = (
    *("all_reduce", "_all_reduce_out_place", "_all_reduce_in_place", "all_gather", "_all_gather_out_place"),
    *("_all_gather_into_tensor", "all_gather_into_tensor", "reduce_scatter", "_reduce_scatter_out_place"),
    *("gather", "broadcast", "barrier"),
)

# Qualified name of the Python function -> its locals; "self.x" is an attribute in the instance dictionary of `self`.
# Before CPython 3.11 a code object knows only its plain name, which is why some stand here twice.
_NAMED: dict[str, tuple[str, ...]] = {
    # torch.utils.file_baton: a file whose existence is the lock
    "FileBaton.wait": ("self.lock_file_path",),
    # filelock (BaseFileLock.acquire and its asyncio sibling)
    "BaseFileLock.acquire": ("lock_filename",),
    "LockAcquisition._poll_until_acquired": ("lock_filename",),
    "_poll_until_acquired": ("lock_filename",),
    "SoftFileLock._acquire": ("self._lock_file",),
    # concurrent.futures: what is waited for, what waits in a pool of threads, what a process works on
    "wait": ("fs[]", "not_done[]", "return_when"),
    "as_completed": ("pending[]",),
    "_worker": ("work_queue", "work_queue[].future"),
    "_process_worker": ("call_item.work_id",),
    "_queue_management_worker": ("pending_work_items", "pending_work_items[].future", "processes"),
    # multiprocessing.pool: what a process works on
    "worker": ("job",),
    # multiprocessing.managers: which client a thread of the server answers
    "serve_client": ("conn._handle",),
    "Server.serve_client": ("conn._handle",),
    # subprocess, multiprocessing: the child that is waited for
    "Popen.wait": ("self.pid",),
    "Popen._wait": ("self.pid",),
    "Popen.communicate": ("self.pid",),
    "Popen._communicate": ("self.pid",),
    "Popen.poll": ("self.pid",),
    # torch.distributed: the peer of a point-to-point call, the root of a rooted collective, the group of each
    "recv": ("src", "group_src", "group", "tag"),
    "send": ("dst", "group_dst", "group", "tag"),
    "irecv": ("src", "group_src", "group", "tag"),
    "isend": ("dst", "group_dst", "group", "tag"),
    "broadcast": ("src", "group_src", "group"),
    "reduce": ("dst", "group_dst", "group"),
    "gather": ("dst", "group_dst", "group"),
    "scatter": ("src", "group_src", "group"),
    "monitored_barrier": ("group_to_use", "group"),
    # The store that is tried to be reached, and how many have come to a barrier of its own
    "_create_c10d_store": ("hostname", "port"),
    "_store_based_barrier": ("worker_count", "world_size"),
    # Members of a group that is made; none are all
    "_new_process_group_helper": ("global_ranks_in_group[]",),
    "_verify_param_shape_across_processes": ("process_group",),
    "_sync_module_states": ("process_group",),
    "_sync_params_and_buffers": ("process_group",),
    **dict.fromkeys(_COLLECTIVES, ("group",)),
    **{f"GroupCoordinator.{method}": ("self.device_group",) for method in _COORDINATED},
    # torch.utils.data: which worker this is
    "_worker_loop": ("worker_id",),
}


def _wanted() -> dict[str, tuple[str, ...]]:
    wanted = dict(_NAMED)
    for function, local in TENSOR_LOCALS.items():
        wanted[function] = (*wanted.get(function, ()), local)
    for (kind, method), names in _OBJECTS.items():
        for function in (f"{kind}.{method}", method):
            known = wanted.get(function, ())
            added = ("self", *names)
            # "self" first: it says whose the others are.
            wanted[function] = tuple(dict.fromkeys((*(n for n in added if n == "self"), *known, *added)))
    return wanted


NAMED_LOCALS: dict[str, tuple[str, ...]] = _wanted()

# Types of `self` with which a function known by its plain name is the one that is meant.
TYPES: dict[str, frozenset[str]] = {
    method: frozenset(
        name for kind, other in _OBJECTS if other == method for name in (kind, *_HEIRS.get(kind, ()))
    )
    for _, method in _OBJECTS
}

# The segment that a queue in shared memory lies in, as it stands in the evidence.
SEGMENT_VALUE = "buffer.shared_memory._name"

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
