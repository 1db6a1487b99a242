"""Values that frames of a process hold, by name: indexed once, and only where somebody asks.

Else a hundred threads that each wait for a future of their own would each look at all threads of their process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyhangtrace.analyze.calls import short
from pyhangtrace.model.threads import NamedValue, ThreadSample

_Key = tuple[int, int]
_Named = tuple[_Key, NamedValue]


@dataclass(frozen=True, slots=True)
class NamedValues:
    """Of the newest sample of each thread, in the order of `threads`."""

    threads: Mapping[int, Sequence[_Key]]
    newest: Mapping[_Key, ThreadSample]
    _by_name: dict[int, dict[str, list[_Named]]] = field(default_factory=dict, repr=False)
    _working: dict[int, dict[int, tuple[_Key, ...]]] = field(default_factory=dict, repr=False)

    def of(self, pid: int, name: str) -> Sequence[_Named]:
        """Values of this name in a process, each with its thread."""
        known = self._by_name.get(pid)
        if known is None:
            known = self._by_name[pid] = {}
            for key in self.threads.get(pid, ()):
                for value in self.newest[key].named_values:
                    known.setdefault(value.name, []).append((key, value))
        return known.get(name, ())

    def working_on(self, pid: int, address: int) -> tuple[_Key, ...]:
        """Threads of a pool that work on the future at this address."""
        known = self._working.get(pid)
        if known is None:
            known = self._working[pid] = {}
            for key, value in self.of(pid, "future"):
                if value.address is not None and short(value.function) == "run":
                    known[value.address] = (*known.get(value.address, ()), key)
        return known.get(address, ())
