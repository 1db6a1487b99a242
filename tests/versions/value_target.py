"""A program that stands in `stands`, whose locals are of all kinds; what they are it prints itself, as JSON."""

import collections
import json
import os
import queue
import sys
import threading


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Inline:
    """Its attributes are set one by one: since 3.11 they lie in the object, not in a dict."""

    def __init__(self, inner):
        self.inner = inner
        self.number = 7

    @property
    def computed(self):
        raise AssertionError("nobody may run this")


class Slotted:
    __slots__ = ("empty", "first", "second")

    def __init__(self, first, second):
        self.first = first
        self.second = second


class Below(Slotted):
    __slots__ = ("third",)

    def __init__(self):
        super().__init__("one", 2)
        self.third = Inline(Plain(deep="down"))


class SlotsAndDict(Slotted):
    def __init__(self):
        super().__init__(1.5, None)
        self.extra = "in the dict"


class Number(int):
    pass


def truth(value, depth=0):
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    answer = {"type": type(value).__name__, "address": id(value)}
    if isinstance(value, bytes):
        return dict(answer, length=len(value))
    if isinstance(value, (list, tuple, dict)):
        items = [part for item in value.items() for part in item] if isinstance(value, dict) else list(value)
        shown = [truth(item, depth + 1) for item in items] if depth < 3 and len(value) <= 32 else []
        return dict(answer, length=len(value), items=shown)
    return dict(answer, held=None)


NAMES = [
    "nothing",
    "yes",
    "no",
    "zero",
    "small",
    "large",
    "negative",
    "huge",
    "number",
    "pi",
    "minus_zero",
    "text",
    "empty_text",
    "wide",
    "bytes_",
    "many",
    "listed",
    "tupled",
    "mapped",
    "ordered",
    "nested",
    "long_list",
    "instance",
    "lock",
    "function",
    "plain.name",
    "plain.inner.number",
    "plain.inner.inner",
    "plain.missing",
    "inline.inner",
    "inline.number",
    "inline.computed",
    "inline.missing",
    "slotted.first",
    "slotted.second",
    "slotted.empty",
    "below.first",
    "below.second",
    "below.third",
    "below.third.inner.deep",
    "both.first",
    "both.second",
    "both.extra",
    "converted.later",
    "converted.inner",
    "shared",
    "free",
    "kept",
    "unset",
    "never_heard_of",
]

ALL = {}
KEEP = []


def make(free, kept):
    def stands():
        nothing, yes, no = None, True, False
        zero, small, large, negative = 0, 12, 2**40, -(2**62)
        huge, number = 2**64, Number(5)
        pi, minus_zero = 3.25, -0.0
        text, empty_text, wide = "text", "", "w\u00efde \u4e2d \U0001f40d"
        bytes_, many = b"\0\1\2", b"x" * 5000
        listed, tupled = [1, "two", None, 3.5, b"four"], (True, (2, (3, (4, (5,)))))
        mapped = {"a": 1, 2: [3], (4, 5): {"b": Plain}}
        ordered = collections.OrderedDict([("x", 1), ("y", 2)])
        nested, long_list = [[], {}, ()], list(range(1000))
        instance, lock, function = Plain(), threading.Lock(), truth
        inline = Inline([1, 2])
        plain = Plain(name="named", inner=inline)
        slotted, below, both = Slotted(b"a", {"k": "v"}), Below(), SlotsAndDict()
        converted = Inline("before")
        converted.__dict__["later"] = "through the dict"  # makes a dict of the values in the object
        several = {Plain(name=str(i)) for i in range(40)}
        several.pop()
        fewer = frozenset(Plain(name=str(i)) for i in range(3))
        queued, passed_on = queue.SimpleQueue(), queue.SimpleQueue()
        for i in range(20):
            queued.put(Plain(name=str(i)))
            passed_on.put(Plain(name=str(i)))
            passed_on.get()
        for _ in range(5):
            queued.get()
        by_number = {i: Plain(name=str(i)) for i in range(50)}
        holder = Plain(inner=[Plain(name="in"), Plain(), Plain(name="out")])
        row = collections.deque(range(77))
        shared = "from within"
        unset = 1
        del unset

        def inner():
            return shared, kept

        ALL.update(locals())
        answer = {}
        for name in NAMES:
            value = ALL.get(name.partition(".")[0])
            try:
                for part in name.split(".")[1:]:
                    if part == "computed":
                        raise AttributeError(part)
                    value = getattr(value, part)
            except AttributeError:
                value = None
            answer[name] = truth(value)
        each = {
            "several[].name": [one.name for one in several],
            "fewer[].name": [one.name for one in fewer],
            "queued[].name": [str(i) for i in range(5, 20)],
            "passed_on[].name": [],
            "by_number[].name": [one.name for one in by_number.values()],
            "holder.inner[].name": ["in", "out"],
        }
        KEEP.extend((queued, passed_on, row))
        print(json.dumps({"pid": os.getpid(), "values": answer, "each": each, "row": len(row)}), flush=True)
        sys.stdin.read()
        return inner, free, nothing, yes, no, zero, small, large, negative, huge, number, pi, minus_zero

    return stands


GLOBAL = Plain(kept={"a": Below()})

make(["free"], {"kept": 1})()
