"""A thread far down in a recursion, and one that is not. It prints its id and how deep they are, then stays."""

import json
import os
import sys
import threading

DEPTH = 20_000


def down(depth):
    if depth > 0:
        return down(depth - 1)
    print(json.dumps({"pid": os.getpid(), "depth": DEPTH}), flush=True)
    threading.Event().wait()


def start():
    down(DEPTH)


sys.setrecursionlimit(2 * DEPTH)
threading.stack_size(256 << 20)
threading.Thread(target=start, name="deep").start()
