"""Who may import whom: a folder that needs more than its row of the table holds code of another one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "pyhangtrace"

ALL = frozenset(
    {
        "model",
        "discover",
        "collect",
        "probes",
        "analyze",
        "importers",
        "render",
        "findings",
        "engine",
        "recorder",
        "weighing",
        "members",
        "interrupts",
        "sampler",
    }
    | {"live", "watch", "cluster", "demo", "cli", "_native"}
)
# What is made of the engine and its likes.
ABOVE = frozenset({"cli", "live", "watch", "cluster", "demo"})
# Row: a folder or module of the package; its columns: what of ours it may import besides itself.
TABLE: dict[str, frozenset[str]] = {
    "model": frozenset(),
    "discover": frozenset({"model", "_native"}),
    "collect": frozenset({"model", "_native", "probes"}),
    "probes": frozenset({"model"}),
    "analyze": frozenset({"model"}),
    "importers": frozenset({"model"}),
    "render": frozenset({"model"}),
    "findings": frozenset({"model", "discover", "collect"}),
    "members": frozenset({"model", "discover", "collect", "findings"}),
    "interrupts": frozenset(),
    "engine": ALL - ABOVE - {"recorder", "weighing", "members", "interrupts", "sampler"},
    "recorder": ALL - ABOVE - {"engine", "weighing", "members", "sampler"},
    "weighing": ALL - ABOVE - {"engine", "recorder", "render", "members", "interrupts", "sampler"},
    "watch": frozenset({"model", "analyze", "render", "engine", "members"}),
    "sampler": frozenset({"model", "collect", "members"}),
    "live": frozenset({"model", "render", "engine", "sampler"}),
    "cluster": frozenset({"model", "engine"}),
    "demo": frozenset(),
    "cli": ALL,
    "__main__": frozenset({"cli"}),
    "__init__": frozenset(),
    "_native": frozenset(),
}

# Analysis gives the same answer for the same evidence: it reads no clock, no host, no file, no chance.
IMPURE = frozenset(
    {"asyncio", "datetime", "glob", "io", "locale", "logging", "multiprocessing", "os", "pathlib", "platform"}
    | {"random", "select", "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time"}
    | {"uuid"}
)
IMPURE_CALLS = frozenset({"open", "input", "print", "exec", "eval", "__import__"})


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported, at any depth; `from a import b` gives `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, node.func.id


def violations(root: Path) -> list[str]:
    """Everything in the package under `root` that its row does not allow, as `file:line: sentence`."""
    found = []
    for file in sorted([*(root / PACKAGE).rglob("*.py"), *(root / PACKAGE).rglob("*.pyi")]):
        inside = file.relative_to(root / PACKAGE)
        part = inside.parts[0].removesuffix(".pyi").removesuffix(".py")
        if part not in TABLE:
            found.append(f"{inside}:1: {part} has no row in the import table")
            continue
        tree = ast.parse(file.read_text(), str(file))
        for line, name in imports(tree):
            complaint = import_complaint(part, name)
            if complaint:
                found.append(f"{inside}:{line}: {complaint}")
        for line, name in calls(tree):
            if name == "print" and part != "cli":
                found.append(f"{inside}:{line}: only cli prints")
            elif part == "analyze" and name in IMPURE_CALLS:
                found.append(f"{inside}:{line}: analyze is pure and calls {name}")
    return found


def import_complaint(part: str, name: str) -> str | None:
    """What is wrong with `part` importing `name`, None if nothing is."""
    if name.startswith("."):
        return f"relative import {name}: write the whole name"
    top, *rest = name.split(".")
    if top == PACKAGE:
        target = rest[0] if rest else "__init__"
        if target in (part, "__version__"):
            return None
        return None if target in TABLE[part] else f"{part} imports {target}"
    if top == "bcc" and part != "probes":
        return f"{part} imports bcc: only probes does"
    if top == "textual" and part != "live":
        return f"{part} imports textual: only live does"
    if top in ("click", "rich") and part in ("model", "analyze", "discover", "collect", "probes"):
        return f"{part} imports {top}: it has nothing to show"
    if top in IMPURE and part == "analyze":
        return f"analyze is pure and imports {top}"
    return None


def pybind_violations(root: Path) -> list[str]:
    """Native files outside bindings/ that know of Python's C API or of pybind11."""
    known = re.compile(r'^\s*#\s*include\s*[<"](pybind11/|Python\.h)', re.MULTILINE)
    return [
        str(file.relative_to(root))
        for file in sorted((root / "native").rglob("*.[ch]pp"))
        if known.search(file.read_text()) and file.relative_to(root / "native").parts[0] != "bindings"
    ]


def test_package_keeps_to_the_table() -> None:
    assert violations(ROOT) == []


def test_only_bindings_know_python() -> None:
    assert list((ROOT / "native").rglob("*.cpp")), "no native sources found: the test would prove nothing"
    assert pybind_violations(ROOT) == []


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("model/report.py", "import pyhangtrace.collect.threads", "model imports collect"),
        ("model/report.py", "from pyhangtrace import _native", "model imports _native"),
        ("collect/memory.py", "def f():\n    import bcc", "collect imports bcc: only probes does"),
        ("collect/memory.py", "from pyhangtrace.analyze.waits import x", "collect imports analyze"),
        ("analyze/waits.py", "from time import monotonic", "analyze is pure and imports time"),
        ("analyze/waits.py", "import os.path", "analyze is pure and imports os"),
        ("analyze/waits.py", "open('x')", "analyze is pure and calls open"),
        ("analyze/waits.py", "from .graph import x", "relative import .graph.x: write the whole name"),
        ("render/text.py", "print(1)", "only cli prints"),
        ("engine.py", "from pyhangtrace.cli import main", "engine imports cli"),
        ("cli/main.py", "import textual", "cli imports textual: only live does"),
        ("extras/x.py", "", "extras has no row in the import table"),
    ],
)
def test_a_breach_is_seen(tmp_path: Path, file: str, source: str, complaint: str) -> None:
    path = tmp_path / PACKAGE / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert [found.split(": ", 1)[1] for found in violations(tmp_path)] == [complaint]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("model/report.py", "from pyhangtrace.model.kinds import State\nimport msgspec"),
        (
            "collect/memory.py",
            "import os\nfrom pyhangtrace import _native\nfrom pyhangtrace.probes import loader",
        ),
        ("analyze/waits.py", "from pyhangtrace.model import evidence\nimport re"),
        ("render/html.py", "from pyhangtrace import __version__"),
        ("probes/loader.py", "import bcc"),
        ("cli/main.py", "from pyhangtrace import engine\nprint(1)"),
    ],
)
def test_what_the_table_allows_passes(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / PACKAGE / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert violations(tmp_path) == []


def test_a_breach_in_native_is_seen(tmp_path: Path) -> None:
    for folder in ("bindings", "proc"):
        (tmp_path / "native" / folder).mkdir(parents=True)
        (tmp_path / "native" / folder / "x.cpp").write_text("#include <pybind11/pybind11.h>\n")
    assert pybind_violations(tmp_path) == ["native/proc/x.cpp"]
