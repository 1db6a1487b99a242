"""Looks at processes under a filter that kills who would stop, signal or write to another one.

Arguments: "look" or "signal", and process ids. "look" prints how many threads were seen and how many are complete;
"signal" sends signal 0, to show that the filter is there.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

from pyhangtrace import _native

# <asm/unistd_64.h>
FORBIDDEN = {
    "kill": 62,
    "ptrace": 101,
    "rt_sigqueueinfo": 129,
    "tkill": 200,
    "tgkill": 234,
    "rt_tgsigqueueinfo": 297,
    "process_vm_writev": 311,
    "pidfd_send_signal": 424,
    "process_madvise": 440,
}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
KILL_PROCESS, ALLOW = 0x80000000, 0x7FFF0000
# struct sock_filter: load the number of the call; jump if it is equal; return.
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06


def forbid() -> None:
    numbers = sorted(FORBIDDEN.values())
    program = [(LOAD, 0, 0, 0)]
    program += [(JUMP_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, KILL_PROCESS)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    filters = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filters, 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def main(what: str, pids: list[int]) -> None:
    engine = _native.Engine()
    forbid()
    if what == "signal":
        os.kill(pids[0], 0)
    for _ in range(2):
        seen = engine.capture(pids, python=True)
    threads = [thread for process in seen for thread in process["threads"]]
    print(len(threads), sum(thread["complete"] for thread in threads))


if __name__ == "__main__":
    main(sys.argv[1], [int(word) for word in sys.argv[2:]])
