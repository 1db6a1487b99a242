"""A job of one process that waits for the lock of a file. usage: wait_file_lock.py flock|fcntl PATH"""

import fcntl
import os
import sys

import announce

how, path = sys.argv[1:]
fd = os.open(path, os.O_RDWR | os.O_CREAT)
announce.member("waiter")
if how == "flock":
    fcntl.flock(fd, fcntl.LOCK_EX)
else:
    fcntl.lockf(fd, fcntl.LOCK_EX)
