"""What threads wait for in torch.distributed, out of their memory: keys of the store, an operation, an address.

Who waits for keys has them on its stack as strings of C++: each store within another one puts its prefix before them
and hands them on, so that one list ends in the other. Such a pair is no leftover of an earlier call; where several
differ, nothing is said. Who waits on a c10d::Work sleeps on its condition, which lies in the object (Work.hpp,
ProcessGroupGloo.hpp): the name, number and gloo::Context of the operation are taken if they all make sense there.
"""

from __future__ import annotations

import ipaddress
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyhangtrace.collect import tensors
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.memory import Read, cpp_string, of_process
from pyhangtrace.collect.named_values import TENSOR_LOCALS
from pyhangtrace.collect.procfs import printable, read_text
from pyhangtrace.collect.resting import at_rest
from pyhangtrace.model.groups import GroupWait, PendingOperation
from pyhangtrace.model.kinds import StoreAnswer
from pyhangtrace.model.threads import ThreadSample

GROUP_WAITS_TASK = "group_waits"

_STORE_CALL = re.compile(r"\bc10d::(TCPStore::(doWait|doGet|wait|get)|(FileStore|HashStore)::(wait|get))\b")
_CONNECTS = re.compile(r"\bc10d::(TCPStore::TCPStore|detail::TCPClient::connect)\b|\btryConnect\b")
_WORK_WAIT = re.compile(r"\bc10d::(\w+::)*(\w*Work)::wait\b")

_STACK_BYTES = 4096
_PAGE_BYTES = 4096  # the smallest there are, at whose end a stack may end
_LONGEST_KEY = 256
_MOST_KEYS = 64
# Who looks into a file again and again is awake, or waits for a CPU, for a moment between two naps.
_NAP_AGAIN_S = 0.002
_READS_S = 0.25  # for all threads of a job whose keys do not come out at once
_READ_S = 0.1  # for one of them
_SURE_READS = 3  # of a thread at rest: more of them say the same
_STRING_BYTES = 32
_STORE_PREFIX = "/"  # of TCPStore and FileStore, before everything

# c10d::Work from its condition on: bool completed_, std::exception_ptr exception_, int rank_, OpType opType_,
# std::function. Then the members of gloo's AsyncWork, of which those around the title are found by it.
_COMPLETED_AT, _EXCEPTION_AT = 48, 56
_WORK_BYTES = 384
_TITLES_AT = range(104, _WORK_BYTES - _STRING_BYTES, 8)
_SEQUENCE, _TIMEOUT, _CONTEXT = -8, -80, -96  # from the title
_TITLE = re.compile(rb"gloo:[a-z_]+")
# gloo::Context: int rank, int size, int base, which nobody sets
_CONTEXT_BYTES = struct.Struct("<iii")
_CONTEXT_BASE = 2
_MOST_OPERATIONS = 1 << 48
_MOST_RANKS = 1 << 16
_LONGEST_MS = 365 * 86_400_000

_LISTEN, _SYN_SENT = "0A", "02"
_LARGEST_TABLE = 1 << 22

SOURCE = "gloo memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One thread: whether it waits for keys, the condition it sleeps on in a Work, the address it tries to reach, and
    where the tensor is that it brings.
    """

    tid: int
    keys: bool = False
    condition: int | None = None
    address: tuple[str, int] | None = None
    tensor: int | None = None


def group_waits_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: the waits per pid of which something is known."""
    until = time.monotonic() + _READS_S
    for pid in pids:
        progress(pid)
        memory = of_process(pid)
        found = []
        for asked in argument[pid]:
            wait = GroupWait(pid=pid, tid=asked.tid)
            if asked.keys:
                path = f"{state.proc_root}/{pid}/task/{asked.tid}/syscall"
                patience = min(until, time.monotonic() + _READ_S)
                wait = with_keys(wait, memory, partial(_stack_pointer, path), until=patience)
            if asked.condition is not None:
                wait = _with_tensor(with_work(wait, memory, asked.condition), memory, asked.tensor)
            if asked.address is not None:
                host, port = asked.address
                wait = _with_answer(wait, host, port, state.proc_root)
            if wait != GroupWait(pid=pid, tid=asked.tid):
                found.append(wait)
        yield pid, tuple(found)


def collect(
    reader: GuardedReader,
    pids: Sequence[int],
    samples: Iterable[ThreadSample],
    addresses: Mapping[int, tuple[str, int]],
    *,
    deadline_s: float,
) -> tuple[GroupWait, ...]:
    """What is known of the waits of these threads. `addresses` are those of the stores, by pid."""
    wanted: dict[int, list[_Asked]] = {}
    members = set(pids)
    for sample in samples:
        if sample.pid not in members:
            continue
        asked = _asked(sample, addresses.get(sample.pid))
        if asked is not None:
            wanted.setdefault(sample.pid, []).append(asked)
    if not wanted:
        return ()
    answers = reader.run(GROUP_WAITS_TASK, list(wanted), wanted, deadline_s=deadline_s).values
    return tuple(wait for pid in sorted(answers) for wait in answers[pid])


def joined(before: Iterable[GroupWait], now: Iterable[GroupWait]) -> tuple[GroupWait, ...]:
    """What was read later, and of threads of which nothing could be, what was before: one that looks again and again
    into a file is on its way now and then.
    """
    waits = {(wait.pid, wait.tid): wait for wait in (*before, *now)}
    return tuple(waits[key] for key in sorted(waits))


def wants_keys(samples: Iterable[ThreadSample]) -> set[tuple[int, int]]:
    """Threads (pid, tid) that are seen to wait for keys of a store. One that is met awake may show none of that."""
    asked = ((sample.pid, sample.tid, _asked(sample, None)) for sample in samples)
    return {(pid, tid) for pid, tid, each in asked if each is not None and each.keys}


def _asked(sample: ThreadSample, address: tuple[str, int] | None) -> _Asked | None:
    names = [frame.function for frame in sample.frames]
    connects = any(map(_CONNECTS.search, names))
    keys = not connects and any(map(_STORE_CALL.search, names))
    lock = sample.lock
    on_work = lock is not None and lock.kind == "condition" and any(map(_WORK_WAIT.search, names))
    if not connects and not keys and not on_work:
        return None
    return _Asked(
        tid=sample.tid,
        keys=keys,
        condition=lock.address if on_work and lock is not None else None,
        address=_own_address(sample) or address if connects else None,
        tensor=_tensor(sample) if on_work else None,
    )


def _tensor(sample: ThreadSample) -> int | None:
    """The tensor that the innermost function of torch.distributed was given."""
    for value in sample.named_values:
        if TENSOR_LOCALS.get(value.function) == value.name and value.address is not None:
            return value.address
    return None


def _own_address(sample: ThreadSample) -> tuple[str, int] | None:
    """What torch's rendezvous was told, by the locals of the function that makes the store."""
    values = {
        value.name: value.value for value in sample.named_values if value.function == "_create_c10d_store"
    }
    host, port = values.get("hostname"), values.get("port")
    return (host, port) if isinstance(host, str) and isinstance(port, int) else None


# -- keys --------------------------------------------------------------------------------------------------------------


def with_keys(
    wait: GroupWait, memory: Read, stack_pointer: Callable[[], int | None], *, until: float
) -> GroupWait:
    """With the keys that a thread waits for. `stack_pointer` says where its stack ends, None while it is awake.

    It is read while the thread sleeps, and told once it sleeps there again: one that naps between its looks may be in
    another nap by then, of the same call, which has put its keys where they were.
    """
    sure = 0
    while sure < _SURE_READS:
        pointer = at_rest(stack_pointer, until, again_s=_NAP_AGAIN_S)
        content = _top_of_stack(memory, pointer) if pointer is not None else None
        if pointer is None or content is None:
            return wait
        found = keys_on_stack(memory, content, pointer)
        if at_rest(stack_pointer, until, again_s=_NAP_AGAIN_S) != pointer:
            if time.monotonic() >= until:
                return wait
            time.sleep(_NAP_AGAIN_S)
            continue
        sure += 1
        if found is not None:
            return replace(
                wait,
                keys=tuple(map(printable, found[0])),
                full_keys=tuple(printable(key.removeprefix(_STORE_PREFIX)) for key in found[1]),
            )
    return wait


def _top_of_stack(memory: Read, pointer: int) -> bytes | None:
    """The innermost frames; of a stack that has less than that, where few functions of C are around, all of it."""
    return memory(pointer, _STACK_BYTES) or memory(pointer, _PAGE_BYTES - pointer % _PAGE_BYTES)


def _stack_pointer(path: str) -> int | None:
    words = (read_text(path) or "").split()
    return int(words[7], 16) if len(words) >= 9 and words[0].isdecimal() else None


def keys_on_stack(memory: Read, content: bytes, begin: int) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """(the keys as they were asked for, as the innermost store has them) of who waits for keys; None if not known."""
    lists: set[tuple[str, ...]] = set()
    singles: set[tuple[str, ...]] = set()
    for at in range(0, len(content) - _STRING_BYTES + 1, 8):
        text = _key(memory, content, at, begin)
        if text is not None:
            singles.add((text,))
        keys = _vector(memory, content, at)
        if keys is not None:
            lists.add(keys)
    # A vector of keys has strings of its own beside it: of two ways to see it, the whole.
    several = any(len(keys) > 1 for keys in lists)
    return _asked_and_full(lists) or (None if several else _asked_and_full(singles | lists))


def _asked_and_full(lists: set[tuple[str, ...]]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    within = {
        full: [asked for asked in lists if _extends(full, asked)]
        for full in lists
        if all(key.startswith(_STORE_PREFIX) for key in full)
    }
    known = [full for full, asked in within.items() if asked]
    if len(known) != 1:
        return None
    return min(within[known[0]], key=lambda asked: len(asked[0])), known[0]


def _extends(full: tuple[str, ...], asked: tuple[str, ...]) -> bool:
    """Whether one is the other with one and the same prefix before each key."""
    if len(full) != len(asked):
        return False
    prefixes = {long[: len(long) - len(short)] for long, short in zip(full, asked, strict=True)}
    prefix = prefixes.pop()
    return (
        not prefixes
        and prefix.endswith(_STORE_PREFIX)
        and all(long == prefix + short for long, short in zip(full, asked, strict=True))
    )


def _key(memory: Read, content: bytes, at: int, begin: int) -> str | None:
    raw = cpp_string(memory, content, at, begin, longest=_LONGEST_KEY)
    if not raw:
        return None
    text = raw.decode("ascii", "replace")
    return text if text.isascii() and text.isprintable() else None


def _vector(memory: Read, content: bytes, at: int) -> tuple[str, ...] | None:
    """A std::vector<std::string> of a few keys."""
    begin, end, capacity = struct.unpack_from("<QQQ", content, at)
    size = end - begin
    if begin % 8 or not 0 < size <= _MOST_KEYS * _STRING_BYTES or size % _STRING_BYTES or not end <= capacity:
        return None
    strings = memory(begin, size)
    if strings is None:
        return None
    keys = [_key(memory, strings, each, begin) for each in range(0, size, _STRING_BYTES)]
    return tuple(key for key in keys if key is not None) if all(keys) else None


# -- work --------------------------------------------------------------------------------------------------------------


def with_work(wait: GroupWait, memory: Read, condition: int) -> GroupWait:
    """With the operation of gloo whose object has the condition on which the thread sleeps."""
    content = memory(condition, _WORK_BYTES)
    if content is None or content[_COMPLETED_AT] or any(content[_EXCEPTION_AT : _EXCEPTION_AT + 8]):
        return wait
    for at in _TITLES_AT:
        title = cpp_string(memory, content, at, condition, longest=64)
        if title is None or not _TITLE.fullmatch(title):
            continue
        (sequence,) = struct.unpack_from("<Q", content, at + _SEQUENCE)
        (timeout_ms,) = struct.unpack_from("<q", content, at + _TIMEOUT)
        (context,) = struct.unpack_from("<Q", content, at + _CONTEXT)
        place = memory(context, _CONTEXT_BYTES.size) if context % 8 == 0 else None
        rank, size, base = _CONTEXT_BYTES.unpack(place) if place is not None else (0, 0, 0)
        if not 0 <= rank < size < _MOST_RANKS or base != _CONTEXT_BASE:
            return wait
        if not 0 < timeout_ms < _LONGEST_MS or not 0 < sequence < _MOST_OPERATIONS:
            return wait
        backend, _, op = title.decode("ascii").partition(":")
        work = PendingOperation(op=op, backend=backend, sequence=sequence, source=SOURCE)
        return replace(wait, condition=condition, work=work, rank=rank, size=size)
    return wait


def _with_tensor(wait: GroupWait, memory: Read, address: int | None) -> GroupWait:
    """With the shape of what the thread brings, if it is in an operation that it was given just now."""
    tensor = tensors.read(memory, address) if address is not None and wait.work is not None else None
    if tensor is None or wait.work is None:
        return wait
    return replace(wait, work=replace(wait.work, inputs=(tensor.shape,), dtype=tensor.dtype))


# -- addresses ---------------------------------------------------------------------------------------------------------


def _with_answer(wait: GroupWait, host: str, port: int, proc_root: str) -> GroupWait:
    tables = [read_text(f"{proc_root}/{wait.pid}/net/{name}", _LARGEST_TABLE) for name in ("tcp", "tcp6")]
    shown = f"[{host}]" if ":" in host else host
    return replace(
        wait,
        address=printable(f"{shown}:{port}"),
        answer=answer(host, port, tables[0], tables[1]),
    )


def answer(host: str, port: int, tcp: str | None, tcp6: str | None) -> StoreAnswer | None:
    """Why nobody answers at an address, by the tables of connections of who tries to reach it; None: it is not seen.

    Of an address that is this machine's for sure, the loopback's, who listens is in the tables.
    """
    if tcp is None or tcp6 is None:
        return None
    rows = [row.split() for table in (tcp, tcp6) for row in table.splitlines()[1:]]
    states: dict[str, set[tuple[str, int]]] = {}
    for row in rows:
        if len(row) < 4 or row[3] not in (_LISTEN, _SYN_SENT):
            continue
        end, _, number = row[1 if row[3] == _LISTEN else 2].partition(":")
        states.setdefault(row[3], set()).add((end, int(number, 16)))
    trying = {text for text, number in states.get(_SYN_SENT, ()) if number == port}
    address = _address(host)
    if address is None:
        return None
    if _in_table(address) & trying:
        return StoreAnswer.NO_ANSWER
    listening = any(number == port for _, number in states.get(_LISTEN, ()))
    return StoreAnswer.NOBODY_LISTENS if address.is_loopback and not listening else None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return None


def _in_table(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> set[str]:
    """How the kernel prints it: words of 32 bits in the order of the machine's bytes."""
    packed = [address.packed]
    if isinstance(address, ipaddress.IPv4Address):
        packed.append(b"\0" * 10 + b"\xff\xff" + address.packed)
    return {"".join(f"{word:08X}" for word in struct.unpack(f"={len(each) // 4}I", each)) for each in packed}
