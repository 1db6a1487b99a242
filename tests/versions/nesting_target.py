"""Threads that stand still with Python code under C code under Python code, in many ways.

Prints one line of JSON: for each thread its id and what the interpreter says of its frames, innermost first, once all
have come to rest. Then it waits until its standard input closes. With the argument "traced" all threads run under
sys.settrace and sys.setprofile functions.
"""

import ctypes
import functools
import importlib.abc
import importlib.util
import json
import os
import re
import sys
import threading

READY = threading.Semaphore(0)
BLOCK_END, HELD_END = os.pipe()
KEEP = []


def block(*_):
    READY.release()
    os.read(BLOCK_END, 1)
    return 0


def python_key(value):
    return block(value)


class Compared:
    def __lt__(self, other):
        block()
        return True


def by_sorted_key():
    sorted([1, 2], key=python_key)


def by_comparison():
    sorted([Compared(), Compared()])


def by_map():
    list(map(python_key, [1]))


def by_reduce():
    functools.reduce(lambda one, other: block(one, other), [1, 2])


def by_regular_expression():
    re.sub("a", lambda found: str(block(found)), "a")


def by_ctypes():
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    callback = kind(lambda one, other: block())
    array = (ctypes.c_int * 2)(2, 1)
    qsort = ctypes.CDLL(None).qsort
    qsort.restype = None
    qsort(array, ctypes.c_size_t(2), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int)), callback)


def generator():
    yield 1
    block()
    yield 2


def by_generator_in_c():
    sum(generator())


def by_nested_generators():
    def outer():
        yield from generator()

    return max(sorted(outer()))


def by_comprehension():
    return [python_key(x) for x in (y for y in generator())]


class Finalized:
    def __del__(self):
        block()


def by_finalizer():
    value = Finalized()
    del value


class Meta(type):
    def __new__(cls, name, bases, members):
        block()
        return super().__new__(cls, name, bases, members)


def by_class_body():
    class Body:
        block()
        KEEP.append(1)

    return Body


def by_metaclass():
    class Made(metaclass=Meta):
        pass

    return Made


def by_attribute():
    class Lazy:
        @property
        def value(self):
            return block()

        def __getattr__(self, name):
            return self.value

    return getattr(Lazy(), "absent")  # noqa: B009


def by_operators():
    class Operand:
        def __add__(self, other):
            return block()

        def __call__(self):
            return self + self

        def __enter__(self):
            return self()

        def __exit__(self, *_):
            pass

    with Operand():
        pass


def by_exec():
    code = compile("def made():\n    block()\n\nmade()\n", "<string>", "exec")
    exec(code, {"block": block})


def by_eval():
    eval("[block() for _ in (1,)]", {"block": block})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name == "blocking_module":
            return importlib.util.spec_from_loader(name, self)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec("def f():\n    block()\nf()", {"block": block})


def by_import():
    import blocking_module

    return blocking_module


def by_recursion(depth=300):
    if depth:
        return by_recursion(depth - 1)
    return sorted([1], key=python_key)


def by_recursion_through_c(depth=40):
    if depth:
        return list(map(by_recursion_through_c, [depth - 1]))
    return block()


async def awaited():
    block()


async def awaiting():
    await awaited()


def by_coroutine():
    awaiting().send(None)


def by_partial():
    functools.partial(functools.partial(block, 1), 2)()


def by_descriptor():
    class Descriptor:
        def __set_name__(self, owner, name):
            block()

    class Owner:
        field = Descriptor()

    return Owner


def by_json():
    json.dumps({"a": {1, 2}}, default=python_key)


def qualname(code):
    return getattr(code, "co_qualname", code.co_name)


def stack(frame):
    frames = []
    while frame is not None:
        frames.append([qualname(frame.f_code), frame.f_code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return frames


def trace(*_):
    return trace


def main():
    sys.meta_path.insert(0, Finder())
    if "traced" in sys.argv:
        threading.settrace(trace)
        threading.setprofile(trace)
    threads = []
    roles = [role for name, role in sorted(globals().items()) if name.startswith("by_")]
    for role in roles:
        thread = threading.Thread(target=role, name=role.__name__, daemon=True)
        thread.start()
        threads.append(thread)
        READY.acquire()
    frames = sys._current_frames()
    said = {thread.native_id: [thread.name, stack(frames[thread.ident])] for thread in threads}
    print(json.dumps(said), flush=True)
    sys.stdin.read()


main()
