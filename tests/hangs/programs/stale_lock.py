"""Two builders wait for the lock file of one that was killed. usage: stale_lock.py PATH"""

import os
import sys

import announce
from torch.utils.file_baton import FileBaton

path = sys.argv[1]
with open(path, "w"):
    pass  # as a builder that was killed left it
child = os.fork()
if child == 0:
    announce.die_with_parent()
baton = FileBaton(path)
assert not baton.try_acquire()
announce.member("child" if child == 0 else "parent")
baton.wait()
