"""Pipes, sockets, children and files between processes."""

from __future__ import annotations

from tests.hangs.facts import Case, Facts, Program, Waits, hung

PYTHON = "{python}"
READ, WRITE = Waits.READ, Waits.WRITE
LOCK_FILE = "{scratch}/cache.lock"


def case(
    kind: str,
    summary: str,
    argv: tuple[str, ...],
    members: dict[str, Waits],
    facts: Facts,
    *,
    before: tuple[Program, ...] = (),
    torch: bool = False,
    needs: tuple[str, ...] = (),
    slow: bool = False,
) -> Case:
    program = Program(argv=argv, members=members)
    return Case(
        kind=kind,
        summary=summary,
        programs=(*before, program),
        attach=tuple(members),
        facts=facts,
        torch=torch,
        needs=needs,
        slow=slow,
    )


def talk(what: str) -> tuple[str, ...]:
    return (PYTHON, "{programs}/talk.py", what)


def cycle(*members: str) -> Facts:
    return hung(("ipc.cycle", "ipc.peer_silent", None), "ipc.cycle", parties=members, cycle=True)


def file_lock(how: str, *, slow: bool) -> Case:
    holder = Program(
        argv=(PYTHON, "{programs}/hold_file_lock.py", how, LOCK_FILE), members={"holder": Waits.SLEEP}
    )
    return case(
        f"file-lock-{how}",
        "a process waits for a file lock that a foreign one holds",
        (PYTHON, "{programs}/wait_file_lock.py", how, LOCK_FILE),
        {"waiter": Waits.FILE_LOCK},
        hung(
            ("file_lock.held", None),
            "file_lock.held",
            culprit=("waiter", "holder"),
            may_name=("holder",),
            holder="holder",
        ),
        before=(holder,),
        slow=slow,
    )


CASES = (
    case(
        "read-cycle-pipe",
        "two processes each read from a pipe of the other one",
        ("{programs}/read_cycle.c", "pipe"),
        {"parent": READ, "child": READ},
        cycle("parent", "child"),
    ),
    case(
        "read-cycle-socket",
        "two processes each read from the same socket pair",
        ("{programs}/read_cycle.c", "socket"),
        {"parent": READ, "child": READ},
        cycle("parent", "child"),
    ),
    case(
        "read-cycle-tcp",
        "two processes each read from the same TCP connection",
        talk("tcp"),
        {"parent": READ, "child": READ},
        cycle("parent", "child"),
    ),
    case(
        "write-cycle",
        "a process and its filter both write to full pipes",
        talk("filter"),
        {"parent": WRITE, "filter": WRITE},
        hung(
            ("ipc.cycle", "ipc.pipe_full", None),
            ("ipc.cycle", "ipc.pipe_full"),
            parties=("parent", "filter"),
            cycle=True,
        ),
    ),
    case(
        "full-pipe",
        "a process writes to a full pipe whose reader does not read",
        ("{programs}/full_pipe.c",),
        {"writer": WRITE, "reader": Waits.SLEEP},
        hung(
            ("ipc.pipe_full", None),
            ("ipc.pipe_full", "child.stuck"),
            culprit=("reader", "writer"),
            may_name=("reader", "writer"),
        ),
    ),
    case(
        "no-eof",
        "a process waits for the end of a pipe of which it has the only write end",
        talk("no-eof"),
        {"reader": READ},
        hung(("ipc.no_eof", None), "ipc.no_eof", culprit=("reader",)),
    ),
    case(
        "stopped-child",
        "a process waits for a child that was stopped",
        talk("stopped-child"),
        {"parent": Waits.CHILD, "child": Waits.STOPPED},
        hung(("peer.stopped", "child.stuck", None), "peer.stopped", culprit=("child",)),
    ),
    file_lock("flock", slow=False),
    case(
        "file-lock-of-a-command",
        "the command that `flock FILE COMMAND` runs sleeps with the lock, another such command waits for it",
        (PYTHON, "{programs}/flock_command.py", LOCK_FILE),
        {
            "waiter": Waits.FILE_LOCK,
            "sleeper": Waits.SLEEP,
            "keeper": Waits.CHILD,
            "main": Waits.CHILD,
        },
        hung(("file_lock.held", "child.stuck"), "file_lock.held", culprit=("sleeper",), victims=("waiter",)),
        needs=("flock",),
    ),
    file_lock("fcntl", slow=True),
    case(
        "stale-lock",
        "two builders wait for the lock file of one that is gone",
        (PYTHON, "{programs}/stale_lock.py", "{scratch}/lock"),
        {"parent": Waits.SLEEP, "child": Waits.SLEEP},
        hung(("file_lock.stale", None), "file_lock.stale", parties=("parent", "child")),
        torch=True,
    ),
)
