"""Programs known by their names."""

from __future__ import annotations

import re

# What a build starts: base names of the executable or the comm (15 characters at most), with the triple of the
# target before and a version behind.
_COMPILER = re.compile(
    r"^((x86_64|aarch64)-linux-gnu-)?"
    r"(nvcc|cicc|ptxas|fatbinary|nvlink|cudafe\+\+|cc1|cc1plus|cc|c\+\+|gcc|g\+\+|clang|clang\+\+|as|ld|ld\.\w+|lld"
    r"|mold|collect2|lto1|lto-wrapper|ninja|ccache|sccache|distcc|hipcc|icpx|rustc|triton-.*)(-?\d+(\.\d+)*)?$"
)


_SHELL = re.compile(r"^-?(ba|da|z|k|mk|fi|c|tc|a|pdk)?sh$")

# People run much else with these, servers too.
_RUNNERS = frozenset({"make", "cmake"})


def is_compiler(name: str) -> bool:
    """Whether a program of this name compiles or links."""
    return _COMPILER.match(name) is not None


def is_shell(name: str) -> bool:
    """Whether a program of this name runs the commands of a script or of a person, one after the other."""
    return _SHELL.match(name) is not None


def builds(name: str) -> bool:
    """Whether a program of this name that a job started is at work on a build."""
    return name in _RUNNERS or is_compiler(name)
