"""Members that hold a Python object or want one; for CPython 3.8 and newer.

usage: python FOLDER MODE PRIMITIVE
  held    "holder" holds object 0 and sleeps, "waiter" wants it
  ringN   N members, each holds its own object and wants the one of the next
  alone   the primitive brings its own stage, and announces its members itself

The main thread has no part in it, unless the primitive says so.
"""

import importlib
import sys

import stage

if __name__ == "__main__":
    for name in ("threads", "pools", "knots", "ends", "shared", "loops", "healthy"):
        importlib.import_module(name)
    mode, name = sys.argv[1:]
    primitive = stage.PRIMITIVES[name]
    if mode == "alone":
        primitive()
    elif mode == "held":
        stage.held(primitive)
    else:
        stage.ring(primitive, int(mode[len("ring") :]))
