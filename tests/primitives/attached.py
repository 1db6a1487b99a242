"""A primitive that hangs, looked at; and what the report says of it, compared with what the program knows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from tests.hangs.attach import look
from tests.hangs.facts import Case, Facts, Program
from tests.hangs.processes import Member, running
from tests.primitives.outcome import Notes


@dataclass(frozen=True, slots=True)
class Attached:
    """The report of the first member, and who the members are."""

    report: Mapping[str, Any]
    members: Mapping[str, Member]

    def wait_of(self, role: str) -> dict[str, Any] | None:
        """What a member waits for."""
        tid = self.members[role].tid
        return next((one for one in self.report["waits"] if one["tid"] == tid), None)

    def check_address(self, found: str | None) -> str | None:
        """What is wrong with the address of an object: the program announces its own objects as members."""
        announced = {role.partition(" ")[2] for role in self.members if role.startswith("object ")}
        return f"{found} is not {announced}" if found not in announced else None

    def check_cycle(self, roles: Sequence[str], *, proof: str) -> str | None:
        """What is wrong with the cycle, which is to be of these members."""
        verdict = self.report["verdict"]
        waits = {one["id"]: one for one in self.report["waits"]}
        found = {(waits[one]["pid"], waits[one]["tid"]) for one in verdict["cycle"]}
        wanted = {(self.members[role].pid, self.members[role].tid) for role in roles}
        if proof == "none":
            return f"claims {verdict['cycle']}" if found else None
        if found != wanted:
            return f"{sorted(found)} is not {sorted(wanted)}; {verdict['state']}: {verdict['summary']}"
        return None if verdict["confidence"] == proof else f"{verdict['confidence']}, not {proof}"

    def check_named(self, notes: Notes, *, culprits: Set[str], parties: Set[str]) -> None:
        """Notes whoever is named and is neither."""
        roles = {
            (one.pid, one.tid): role for role, one in self.members.items() if not role.startswith("object ")
        }
        for one in self.report["verdict"]["culprits"]:
            role = roles.get((one["pid"], one["tid"] or one["pid"]), "bystander")
            if role not in (culprits if one["part"] == "culprit" else parties):
                notes.accused(f"{role} as {one['part']}: {self.report['verdict']['summary']}")


def attach(kind: str, program: Program, *options: str) -> Attached:
    """Starts a program, waits until its members hang, and looks at the first. Raises NotReached."""
    first = next(iter(program.members))
    case = Case(kind=kind, summary="", programs=(program,), attach=(first,), facts=Facts(state=frozenset()))
    with running(case) as stage:
        done = look(stage.members[first].pid, *options)
        if done.returncode not in (0, 3):
            raise RuntimeError(f"{kind}: {done.stderr.decode(errors='replace')[-1000:]}")
        return Attached(json.loads(done.stdout), dict(stage.members))
