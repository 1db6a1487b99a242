"""Greenlets that wait for each other in a thread of their own; printed before it sleeps: how they stand."""

import json
import os
import sys
import threading

import greenlet


def deep(depth, hub):
    if depth:
        return deep(depth - 1, hub)
    # Through C code as well: its frames lie on the C stack that greenlets share.
    return sorted([2, 1], key=lambda _: hub.switch())


def shallow(hub):
    hub.switch()


class Worker(greenlet.greenlet):
    pass


def frames(frame):
    found = []
    while frame is not None:
        code = frame.f_code
        found.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return found


def run():
    main = greenlet.getcurrent()
    workers = [greenlet.greenlet(deep) for _ in range(3)] + [Worker(shallow)]
    for number, worker in enumerate(workers[:3]):
        worker.switch(number * 4, main)
    workers[3].switch(main)
    never_started = greenlet.greenlet(shallow)
    ended = greenlet.greenlet(len)
    ended.switch("x")

    def hub():
        alive = [*workers, main]
        answer = {
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "greenlets": {str(id(one)): frames(one.gr_frame) for one in alive},
            "not": [id(one) for one in (never_started, ended, greenlet.getcurrent())],
        }
        print(json.dumps(answer), flush=True)
        sys.stdin.read()

    greenlet.greenlet(hub).switch()


thread = threading.Thread(target=run)
thread.start()
thread.join()
