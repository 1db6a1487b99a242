"""Source positions and inlined functions, compared with the tools of the toolchain at many addresses."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyhangtrace import _native
from tests.targets import running

HERE = Path(__file__).parent
ASKED = 400
BUDGET_S = 30.0
AGREEMENT = 0.99

Position = tuple[str, int]
Chain = list[tuple[str, Position]]


@dataclass(frozen=True, slots=True)
class Target:
    """A file with code, mapped in a running process, and where the tools find its debug information."""

    pid: int
    file: Path
    debug: Path

    def bias(self) -> int:
        """Address of the file's first mapping; the files here are all linked at 0."""
        return next(
            start
            for start, _, _, offset, _, _, _, path, _ in _native.maps(self.pid)
            if path == str(self.file) and offset == 0
        )

    def some_addresses(self) -> list[int]:
        """In functions, as linked."""
        output = subprocess.run(
            ["nm", "--print-size", "--defined-only", self.debug],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        functions = [
            (int(start, 16), int(size, 16))
            for start, size, kind, *_ in (
                line.split() for line in output.splitlines() if line.count(" ") >= 3
            )
            if kind in "tT" and int(size, 16)
        ]
        rng = random.Random(20240501)
        return sorted(
            {start + rng.randrange(size) for start, size in (rng.choice(functions) for _ in range(ASKED))}
        )

    def ours(self, addresses: Sequence[int]) -> list[Chain]:
        bias = self.bias()
        found, problems = _native.Engine().source_lines(
            self.pid, [bias + address for address in addresses], budget_s=BUDGET_S
        )
        assert problems == []
        return [
            [(function, position(f"{file or '??'}:{line or 0}")) for function, file, line in chain]
            for chain in found
        ]

    def theirs(self, tool: str, addresses: Sequence[int]) -> list[Chain]:
        """`tool` is an addr2line; -a marks where the answer for an address begins."""
        output = subprocess.run(
            [tool, "-a", "-i", "-f", "-e", self.debug, *(hex(address) for address in addresses)],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        # Of binutils, which demangles as the C++ library does.
        output = subprocess.run(
            ["c++filt"], input=output, check=True, capture_output=True, text=True, timeout=60
        ).stdout
        chains: list[Chain] = []
        lines = iter(output.splitlines())
        for line in lines:
            if re.fullmatch(r"0x[0-9a-f]+", line):
                chains.append([])
            else:
                chains[-1].append((line, position(next(lines))))
        return chains


def position(text: str) -> Position:
    file, _, line = re.sub(r" \(discriminator \d+\)$", "", text).rpartition(":")
    return os.path.normpath(file) if file != "??" else file, int(line) if line.isdecimal() else 0


def compare(target: Target, tool: str) -> None:
    """The tool and we say the same of nearly all addresses.

    That is the position in every function at an address, inlined ones first, and the names of the inlined ones; for
    that of the outermost tools prefer the symbol table, as we do for frames. binutils names the outer function and
    its file for some code that is inlined: of it only the lines are compared.
    """
    addresses = target.some_addresses()
    ours = target.ours(addresses)
    theirs = target.theirs(tool, addresses)
    assert len(ours) == len(theirs) == len(addresses) > 20
    known = [(mine, other) for mine, other in zip(ours, theirs, strict=True) if other[-1][1] != ("??", 0)]
    assert len(known) > len(addresses) / 2
    assert any(len(other) > 1 for _, other in known)
    told = lines if "llvm" not in tool else everything
    wrong = [(mine, other) for mine, other in known if told(mine) != told(other)]
    agreement = 1 - len(wrong) / len(known)
    assert agreement >= AGREEMENT, (agreement, wrong[:3])


def lines(chain: Chain) -> list[int]:
    return [line for _, (_, line) in chain]


def everything(chain: Chain) -> tuple[list[Position], list[str]]:
    return [where for _, where in chain], [name for name, _ in chain[:-1]]


BUILDS = {
    "gcc, DWARF 4": ("g++", "-gdwarf-4"),
    "gcc, DWARF 5": ("g++", "-gdwarf-5"),
    "gcc, DWARF 3": ("g++", "-gdwarf-3", "-gstrict-dwarf"),
    "gcc, 64-bit DWARF": ("g++", "-gdwarf-5", "-gdwarf64"),
    "gcc, compressed": ("g++", "-g", "-gz=zlib"),
    "gcc, LTO": ("g++", "-g", "-flto"),
    "gcc, sections": ("g++", "-g", "-ffunction-sections", "-Wl,--gc-sections"),
    "clang, DWARF 4": ("clang++", "-gdwarf-4"),
    "clang, DWARF 5": ("clang++", "-gdwarf-5"),
    "clang, address ranges": ("clang++", "-gdwarf-5", "-gdwarf-aranges", "-ffunction-sections"),
}


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler, *options = BUILDS[request.param]
    for tool in (compiler, "addr2line", "nm", "c++filt"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    binary = tmp_path_factory.mktemp("lines") / "lines_target"
    command = [
        compiler,
        "-std=c++17",
        "-O2",
        "-fPIE",
        "-pie",
        *options,
        HERE / "lines_target.cpp",
        "-o",
        binary,
    ]
    built = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if built.returncode != 0 and "unrecognized" in built.stderr:
        pytest.skip(f"this compiler has no {' '.join(options)}")
    assert built.returncode == 0, built.stderr
    return binary


@pytest.mark.parametrize(
    ("program", "tool"),
    [
        (build, tool)
        for build in BUILDS
        for tool in ("addr2line", "llvm-addr2line")
        # binutils finds its way in what clang writes, and in 64-bit DWARF, only partly.
        if tool == "llvm-addr2line" or (build.startswith("gcc") and "64" not in build)
    ],
    indirect=["program"],
)
def test_own_programs(program: Path, tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    with running(program) as pid:
        target = Target(pid, program, program)
        compare(target, tool)


@pytest.mark.parametrize("program", ["gcc, DWARF 5"], indirect=True)
def test_a_separate_debug_file(program: Path, tmp_path: Path) -> None:
    for tool in ("objcopy", "strip"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    stripped = tmp_path / "stripped"
    shutil.copy2(program, stripped)
    debug = tmp_path / "stripped.debug"
    subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True, timeout=60)
    subprocess.run(["strip", "--strip-all", stripped], check=True, timeout=60)
    with running(stripped) as pid:
        target = Target(pid, stripped, stripped)
        addresses = Target(target.pid, stripped, program).some_addresses()
        assert not any(target.ours(addresses))
    subprocess.run(["objcopy", f"--add-gnu-debuglink={debug}", stripped], check=True, timeout=60)
    with running(stripped) as pid:
        target = Target(pid, stripped, program)
        compare(target, "addr2line")


@pytest.mark.parametrize("program", ["gcc, DWARF 5"], indirect=True)
def test_without_time_there_is_no_answer_and_it_is_said(program: Path) -> None:
    with running(program) as pid:
        target = Target(pid, program, program)
        began = time.monotonic()
        bias = target.bias()
        found, problems = _native.Engine().source_lines(
            target.pid, [bias + address for address in target.some_addresses()], budget_s=0.0
        )
        assert time.monotonic() - began < 5.0
    assert not any(found)
    assert len(problems) == 1
    assert problems[0].endswith("it took too long to read all debug information")


def pythons() -> list[Path]:
    return sorted(Path.home().glob(".pyenv/versions/3.*/lib/libpython3.*.so.1.0"))


@pytest.mark.slow
@pytest.mark.parametrize("library", pythons(), ids=lambda library: library.parts[-3])
def test_pythons(library: Path) -> None:
    tool = shutil.which("llvm-addr2line") or shutil.which("addr2line")
    if tool is None:
        pytest.skip("needs addr2line")
    interpreter = library.parent.parent / "bin" / "python3"
    code = "print('ready', flush=True); input()"
    with running(interpreter, "-c", code) as pid:
        compare(Target(pid, library, library), tool)


def test_nothing_is_known_of_what_is_no_code_and_of_a_process_that_is_gone() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        found, problems = _native.Engine().source_lines(process.pid, [0, 16, 2**64 - 1], budget_s=1.0)
        assert found == [[], [], []]
        assert problems == []
        process.kill()
    found, problems = _native.Engine().source_lines(process.pid, [16], budget_s=1.0)
    assert found == [[]]
    assert problems
