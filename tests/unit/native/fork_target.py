"""A forked child with a thread of its own; prints the ids of both."""

import os
import sys
import threading

child = os.fork()
if child == 0:
    thread = threading.Thread(target=threading.Event().wait, daemon=True, name="of-child")
    thread.start()
    print(os.getpid(), thread.native_id, flush=True)
    sys.stdin.read()
else:
    os.waitpid(child, 0)
