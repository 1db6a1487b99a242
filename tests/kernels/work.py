"""Runs in the guest: hangs and memory scenes under its kernel, one line of JSON each into $OUT/results.

Looks are made by children of this process, which has the tool's modules already: importing them anew for each would be
most of the work of an emulated processor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tests.hangs.attach
import tests.kernel_waits.trial
from tests.hangs.attach import try_case
from tests.hangs.cases import CASES
from tests.hangs.facts import Case, healthy, lacking
from tests.hangs.processes import NotReached, running
from tests.kernel_waits.scenes import SCENES
from tests.kernel_waits.trial import attempt

OUT = Path(os.environ.get("OUT", "."))
BCC = Path("/usr/lib/python3/dist-packages/bcc")
LOOK_LIMIT_S = 120.0


def look(pid: int, *options: str) -> subprocess.CompletedProcess[bytes]:
    """As `tests.hangs.attach.look`, without a new interpreter."""
    return tool("attach", str(pid), "--json", *options)


def tool(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """One run of the tool's command line, in a child."""
    texts = [os.memfd_create(name) for name in ("output", "errors")]
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(texts[0], 1)
            os.dup2(texts[1], 2)
            sys.argv = ["hangtrace", *arguments]
            from pyhangtrace.cli.main import main

            code = main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001  # whatever it is, nothing of the parent is to run here
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + LOOK_LIMIT_S
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise subprocess.TimeoutExpired("hangtrace", LOOK_LIMIT_S)
        time.sleep(0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
    output, errors = (_content(text) for text in texts)
    return subprocess.CompletedProcess(arguments, os.waitstatus_to_exitcode(status), output, errors)


def _content(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def tell(part: str, name: str, outcome: str, **more: Any) -> None:
    """One result, at once."""
    with (OUT / "results").open("a") as file:
        file.write(json.dumps({"part": part, "name": name, "outcome": outcome, **more}) + "\n")


@contextmanager
def without_bcc() -> Iterator[None]:
    """The compiler of the probes takes minutes here, so most looks do without."""
    if not BCC.is_dir():
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "none", str(BCC)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(BCC)], check=True)


def told(part: str, name: str, trial: Callable[[], tuple[str, dict[str, Any]]]) -> None:
    """Runs one trial; what it raises is an outcome, too."""
    began = time.monotonic()
    try:
        outcome, more = trial()
    except NotReached as problem:
        outcome, more = "not reached", {"reasons": [str(problem)]}
    except Exception as problem:  # noqa: BLE001  # the next rows are to run, too
        outcome, more = "failed", {"reasons": [repr(problem), traceback.format_exc()[-1500:]]}
    tell(part, name, outcome, took_s=round(time.monotonic() - began, 2), **more)


def _seen(report: dict[str, Any] | None) -> dict[str, Any]:
    if report is None:
        return {}
    return {
        "summary": report["verdict"]["summary"],
        "state": report["verdict"]["state"],
        "waits": report["waits"],
        "coverage": report["coverage"],
        "cost": report.get("cost"),
    }


def hang(case: Case, turn: int) -> tuple[str, dict[str, Any]]:
    """A row of tests/hangs."""
    if missing := lacking(case):
        return "skipped", {"reasons": [f"needs {missing}"]}
    result = try_case(case, turn=turn)
    more = {"reasons": list(result.judgement.reasons), "wall_s": result.wall_s, "cpu_s": result.cpu_s}
    return result.judgement.outcome.value, {**more, **_seen(result.report)}


def scene(name: str) -> tuple[str, dict[str, Any]]:
    """A row of tests/kernel_waits."""
    (one,) = (each for each in SCENES if each.name == name)
    if why := one.needs():
        return "skipped", {"reasons": [why]}
    trial = attempt(one)
    reasons = [f"{defect.column}: {defect.text}" for defect in trial.defects]
    outcome = "right" if not reasons else "known limit" if one.limit is not None else "wrong"
    return outcome, {"reasons": reasons, **_seen(trial.report)}


def whole(name: str) -> tuple[str, dict[str, Any]]:
    """A look with everything that is there, and a recording of two seconds."""
    (case,) = (each for each in CASES if each.kind == name)
    plain = Case(kind=name, summary="", programs=case.programs, attach=case.attach, facts=healthy())
    with running(plain) as stage:
        pid = stage.members[case.attach[0]].pid
        done = look(pid, "-d", "20")
        report = json.loads(done.stdout)
        recorded = tool("record", str(pid), "-d", "2", "--json")
        memory = tool("memory", str(pid), "--json")
    more: dict[str, Any] = {"attach": report["coverage"], "verdict": report["verdict"]["summary"]}
    for what, ran in (("record", recorded), ("memory", memory)):
        try:
            more[what] = json.loads(ran.stdout)
        except ValueError:
            more[what] = {"code": ran.returncode, "error": ran.stderr.decode(errors="replace")[-800:]}
    return "seen", more


def doctor() -> tuple[str, dict[str, Any]]:
    done = tool("doctor")
    return f"code {done.returncode}", {"text": done.stdout.decode(errors="replace")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hangs", nargs="*", default=[])
    parser.add_argument("--scenes", nargs="*", default=[])
    parser.add_argument("--whole", nargs="*", default=[])
    parser.add_argument("--pytest", nargs="*", default=[])
    options = parser.parse_args()
    import pyhangtrace.cli.attach
    import pyhangtrace.engine  # noqa: F401  # the children have them then

    tests.hangs.attach.look = look
    tests.kernel_waits.trial.look = look
    tell("kernel", os.uname().release, "booted", version=os.uname().version)
    with without_bcc():
        rows(options.scenes, options.hangs)
    told("doctor", "doctor", doctor)
    for name in options.whole:
        told("whole", name, lambda name=name: whole(name))
    if options.pytest:
        with without_bcc():
            told("pytest", "pytest", lambda: pytests(options.pytest))


def rows(scenes: Sequence[str], hangs: Sequence[str]) -> None:
    for name in scenes:
        told("kernel_waits", name, lambda name=name: scene(name))
    for number, case in enumerate(CASES):
        if case.kind in hangs:
            told("hangs", case.kind, lambda case=case, number=number: hang(case, number))


def pytests(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-rA",
        "--tb=short",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"code {done.returncode}", {"text": done.stdout[-20000:], "errors": done.stderr[-3000:]}


if __name__ == "__main__":
    main()
