"""Another job: takes the lock of a file and keeps it. usage: hold_file_lock.py flock|fcntl PATH"""

import fcntl
import os
import sys
import time

import announce

how, path = sys.argv[1:]
fd = os.open(path, os.O_RDWR | os.O_CREAT)
if how == "flock":
    fcntl.flock(fd, fcntl.LOCK_EX)
else:
    fcntl.lockf(fd, fcntl.LOCK_EX)
announce.member("holder")
time.sleep(3600)
