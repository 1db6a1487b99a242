"""A shell's way to do one thing at a time: `flock FILE COMMAND`, twice. The first command sleeps.

usage: flock_command.py FILE
"""

import subprocess
import sys
import time
from pathlib import Path

import announce

path = sys.argv[1]


def below(pid):
    """The one child of a process, once it is there."""
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        time.sleep(0.01)
    return int(found[0])


first = subprocess.Popen(["flock", path, "sleep", "3600"], preexec_fn=announce.die_with_parent)
sleeper = below(first.pid)
second = subprocess.Popen(["flock", path, "true"], preexec_fn=announce.die_with_parent)
announce.member("keeper", first.pid)
announce.member("sleeper", sleeper)
announce.member("waiter", second.pid)
announce.member("main")
second.wait()
