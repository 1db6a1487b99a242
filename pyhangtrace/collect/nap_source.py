"""What the source of a Python program says that a loop around a nap asks for, again and again.

Only the lines that enclose the nap by their indentation, and the innermost loop among them, are looked at.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyhangtrace.model.kinds import PolledThing

_FARTHEST = 200  # lines above the nap, and of a loop
_LONGEST = 20_000  # characters of a loop
# What may enclose the nap of a loop that waits for a file to come or to go.
_LOOKS_FOR_FILE = re.compile(r"except\b.*?\bFileExistsError\b|while\b.*?\b(?:exists|lexists|isfile|isdir)\(")
_WORDS = re.compile(r"FileExistsError|lexists|exists|isfile|isdir")
_IS_ABSENT = re.compile(r"while\s*\(?\s*not\b")
_NAMES = {"FileExistsError": "except FileExistsError"}
_DEFINES = ("def ", "async def ", "class ")
_TRIES = re.compile(r"try_?(lock|acquire)", re.IGNORECASE)
_FILE_LOCKS = frozenset({"flock", "lockf", "fcntl"})
_NOT_NOW = ("LOCK_NB", "F_SETLK", "F_OFD_SETLK")
# Methods without arguments that tell the state of somebody else's work, and whether they say True when it is over.
_STATES = {
    "is_alive": (PolledThing.THREAD, False),
    "isAlive": (PolledThing.THREAD, False),
    "done": (PolledThing.FUTURE, True),
    "ready": (PolledThing.FUTURE, True),
    "locked": (PolledThing.LOCK, False),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """`words` as the source has them, without names of the program's own."""

    thing: PolledThing
    words: str


def around(lines: Sequence[str], line: int) -> Asked | None:
    """What the loop that naps in this line (counted from 1) asks for; None if its source does not say."""
    if not 0 < line <= len(lines):
        return None
    inner = _indent(lines[line - 1])
    own = lines[line - 1].strip()
    loop = line - 1 if _is_loop(own) else None
    if (asked := _looks_for_file(own)) is not None:
        return asked
    for index in range(line - 2, max(-1, line - 2 - _FARTHEST), -1):
        text = lines[index]
        if not text.strip() or text.lstrip().startswith("#") or _indent(text) >= inner:
            continue
        inner = _indent(text)
        head = text.strip()
        if head.startswith(_DEFINES):
            break
        if (asked := _looks_for_file(head)) is not None:
            return asked
        if loop is None and _is_loop(head):
            loop = index
    return _of_loop(_block(lines, loop, line)) if loop is not None else None


def _looks_for_file(head: str) -> Asked | None:
    if _LOOKS_FOR_FILE.match(head) is None:
        return None
    word = _WORDS.search(head)
    name = word[0] if word is not None else ""
    absent = "not " if _IS_ABSENT.match(head) else ""
    return Asked(PolledThing.FILE, _NAMES.get(name, f"while {absent}{name}()"))


def _is_loop(head: str) -> bool:
    return head.startswith(("while ", "while(", "for "))


def _indent(text: str) -> int:
    text = text.expandtabs()
    return len(text) - len(text.lstrip())


def _block(lines: Sequence[str], first: int, line: int) -> str:
    """The lines of a loop that begins at this index, without its `else`."""
    outer = _indent(lines[first])
    last = first + 1
    while last < min(len(lines), first + _FARTHEST):
        text = lines[last]
        # Before the nap, what continues a line in brackets may stand anywhere.
        if last >= line and text.strip() and not text.lstrip().startswith("#") and _indent(text) <= outer:
            break
        last += 1
    return textwrap.dedent("\n".join(text.expandtabs() for text in lines[first:last]))


def _of_loop(source: str) -> Asked | None:
    if len(source) > _LONGEST:
        return None
    try:
        (loop,) = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(loop, (ast.While, ast.For)):
        return None
    results = _results(loop.body)
    head = _asked(loop.test, results, over_if=False) if isinstance(loop, ast.While) else None
    return head or _leaves_when(loop, results)


def _results(body: Sequence[ast.stmt]) -> dict[str, ast.expr]:
    """Names that a loop gives the result of a call, where it does so at one place."""
    found: dict[str, list[ast.expr]] = {}
    for node in _inside(body):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {
        name: values[0]
        for name, values in found.items()
        if len(values) == 1 and isinstance(values[0], (ast.Call, ast.Compare))
    }


def _leaves_when(loop: ast.While | ast.For, results: Mapping[str, ast.expr]) -> Asked | None:
    """A loop that goes on until something in its body succeeds: `if lock.acquire(False): break`."""
    for node in _inside(loop.body):
        if isinstance(node, ast.If) and _leaves(node.body):
            asked = _asked(node.test, results, over_if=True)
        elif isinstance(node, ast.If) and _leaves(node.orelse):
            asked = _asked(node.test, results, over_if=False)
        elif isinstance(node, ast.Try) and node.handlers and _leaves((*node.body, *node.orelse, *loop.body)):
            asked = next((found for each in node.body if (found := _tries_file_lock(each))), None)
        else:
            continue
        if asked is not None:
            return asked
    return None


def _inside(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a loop, but for those of functions, classes and loops of their own."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _inside(node.body)
            yield from _inside(getattr(node, "orelse", []))
            for handler in getattr(node, "handlers", []):
                yield from _inside(handler.body)


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, (ast.Break, ast.Return)) for node in body)


def _asked(test: ast.expr, results: Mapping[str, ast.expr], *, over_if: bool) -> Asked | None:
    """`over_if`: with which value of the test the waiting is over."""
    if isinstance(test, ast.Name) and test.id in results:
        return _asked(results[test.id], {}, over_if=over_if)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _asked(test.operand, results, over_if=not over_if)
    if isinstance(test, ast.BoolOp):
        found = (_asked(each, results, over_if=over_if) for each in test.values)
        return next((each for each in found if each is not None), None)
    if isinstance(test, ast.NamedExpr):
        return _asked(test.value, results, over_if=over_if)
    if isinstance(test, ast.Compare):
        return _compared(test, results, over_if=over_if)
    if not isinstance(test, ast.Call):
        return None
    name = _name(test.func)
    if name in ("any", "all") and len(test.args) == 1:
        (each,) = test.args
        elt = each.elt if isinstance(each, (ast.GeneratorExp, ast.ListComp)) else None
        return _asked(elt, results, over_if=over_if) if elt is not None else None
    if _tries_lock(test):
        return Asked(PolledThing.LOCK, f"{name}()") if over_if else None
    known = _STATES.get(name) if isinstance(test.func, ast.Attribute) and not test.args else None
    return Asked(known[0], f"{name}()") if known is not None and known[1] is over_if else None


def _compared(test: ast.Compare, results: Mapping[str, ast.expr], *, over_if: bool) -> Asked | None:
    """`poll() is None`, `acquire(False) == False`, `waitpid(pid, WNOHANG)[0] == 0`."""
    if len(test.ops) != 1:
        return None
    left = test.left
    if isinstance(left, (ast.NamedExpr, ast.Subscript)):
        left = left.value
    if isinstance(left, ast.Name):
        left = results.get(left.id, left)
    (right,) = test.comparators
    same = isinstance(test.ops[0], (ast.Is, ast.Eq))
    if not isinstance(left, ast.Call) or not (same or isinstance(test.ops[0], (ast.IsNot, ast.NotEq))):
        return None
    name = _name(left.func)
    if isinstance(right, ast.Constant) and isinstance(right.value, bool):
        return _asked(left, results, over_if=over_if is (same is right.value))
    asks_child = name == "poll" and not left.args and isinstance(right, ast.Constant) and right.value is None
    asks_child = asks_child or (name in ("waitpid", "wait4") and _says(left.args, ("WNOHANG",)))
    return Asked(PolledThing.CHILD, f"{name}()") if asks_child and same is not over_if else None


def _tries_lock(call: ast.Call) -> bool:
    name = _name(call.func)
    if not isinstance(call.func, ast.Attribute):
        return False
    if _TRIES.match(name) is not None:
        return True
    if name not in ("acquire", "acquire_lock"):
        return False
    named = {each.arg: each.value for each in call.keywords}
    first = call.args[0] if call.args else named.get("blocking", named.get("block"))
    return any(isinstance(each, ast.Constant) and not each.value for each in (first, named.get("timeout")))


def _tries_file_lock(node: ast.stmt) -> Asked | None:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and _name(call.func) in _FILE_LOCKS and _says(call.args, _NOT_NOW):
            return Asked(PolledThing.FILE_LOCK, f"{_name(call.func)}()")
    return None


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _says(arguments: Sequence[ast.expr], wanted: Sequence[str]) -> bool:
    """Whether one of these names is among arguments, by itself or in a module, or-ed with others or not."""
    return any(
        _name(each) in wanted
        for argument in arguments
        for each in ast.walk(argument)
        if isinstance(each, ast.expr)
    )
