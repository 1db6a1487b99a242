"""A thread holds a Python lock while the main thread forks: in the child nobody will ever release it."""

import os
import signal
import threading

import announce

lock = threading.Lock()
held = threading.Event()


def flush_log():
    with lock:
        held.set()
        signal.sigwait([signal.SIGUSR1])


threading.Thread(target=flush_log, name="log-writer", daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    announce.die_with_parent()
    announce.member("child")
    with lock:
        os._exit(0)
announce.member("parent")
os.waitpid(child, 0)
