"""Holds the GIL in a C call that never gives it up, with a second thread that wants it."""

import ctypes
import os
import sys
import threading
import time


def hold():
    libc = ctypes.PyDLL(None)  # a call through a PyDLL keeps the GIL
    libc.read(int(sys.argv[1]), ctypes.create_string_buffer(1), 1)


def want():
    while True:
        time.sleep(0.001)


waiter = threading.Thread(target=want, daemon=True, name="waiter")
waiter.start()
os.write(1, b"%d\n" % waiter.native_id)
hold()
