"""The unwinding rules that the native evaluator finds, against those of readelf, over real libraries."""

from __future__ import annotations

import glob
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "build/native/native/tests/unwind_rows"
MOST_FDES = 60_000  # of one file: libtorch_cpu has half a million
X86 = ["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{n}" for n in range(8, 16)), "rip"]
NUMBERS = {name: number for number, name in enumerate(X86)}
NUMBERS |= {f"x{number}": number for number in range(31)} | {"sp": 31}


def _beside(module: str, pattern: str) -> list[str]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return []
    return sorted(glob.glob(str(Path(spec.origin).parent / pattern)))


def _libraries() -> list[str]:
    found = [
        *glob.glob("/lib/x86_64-linux-gnu/libc.so.6"),
        *glob.glob("/usr/lib/x86_64-linux-gnu/libstdc++.so.6"),
        *glob.glob("/usr/lib/x86_64-linux-gnu/libgomp.so.1"),
        *glob.glob("/usr/lib/x86_64-linux-gnu/libcrypto.so.3"),
        *glob.glob("/usr/aarch64-linux-gnu/lib/libc.so.6"),
        *glob.glob("/usr/aarch64-linux-gnu/lib/libstdc++.so.6"),
        *glob.glob(f"{sys.base_prefix}/lib/libpython3.*.so.1.0"),
        *_beside("numpy", "../numpy.libs/*openblas*.so"),
        *_beside("torch", "lib/libtorch_cpu.so"),
    ]
    return [path for path in found if Path(path).stat().st_size > 0]


def _rule(text: str) -> str | None:
    if text in ("u", "s"):
        return None
    return text.replace("=", "r")


def _cfa(text: str) -> str:
    match = re.fullmatch(r"(\w+)([+-]\d+)", text)
    return f"r{NUMBERS[match[1]]}{match[2]}" if match else text


class Oracle:
    """Rows as readelf prints them: (begin, end, rules) with rules as unwind_rows prints them."""

    def __init__(self, path: str) -> None:
        self.fdes = 0
        self._path = path

    def rows(self) -> Iterator[tuple[int, int, str]]:
        command = ["readelf", "-W", "--debug-dump=frames-interp", self._path]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as readelf:
            assert readelf.stdout is not None
            yield from self._parse(readelf.stdout)
            readelf.kill()

    def _parse(self, lines: Iterator[str]) -> Iterator[tuple[int, int, str]]:
        cies: dict[str, str] = {}
        cie, range_, rows, columns, ra = "", (0, 0), [], [], 16
        return_columns: dict[str, int] = {}
        parent = ""

        def finished() -> Iterator[tuple[int, int, str]]:
            begin, end = range_
            if begin >= end:
                return
            if begin == 0:
                return  # what the linker dropped
            steps = rows or [(begin, cies.get(parent, ""))]
            for index, (at, rules) in enumerate(steps):
                following = steps[index + 1][0] if index + 1 < len(steps) else end
                if at < following and at < end:
                    yield at, min(following, end), rules

        for line in lines:
            head = re.match(r"[0-9a-f]{8,16} [0-9a-f]{8,16} [0-9a-f]{8,16} (CIE|FDE) (.*)", line)
            if head or line.startswith("Contents of the .debug_frame"):
                yield from finished()
                range_, rows = (0, 0), []
                if not head:
                    return
            if head and head[1] == "CIE":
                cie = line.split()[0]
                return_columns[cie] = int(head[2].rsplit("ra=", 1)[1])
                ra = return_columns[cie]
            elif head:
                if self.fdes == MOST_FDES:
                    return
                self.fdes += 1
                found = re.search(r"cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)", line)
                assert found, line
                cie, parent = "", found[1]
                range_ = int(found[2], 16), int(found[3], 16)
                ra = return_columns[parent]
            elif line.startswith("   LOC"):
                columns = line.split()[2:]
            elif re.match(r"[0-9a-f]{16} ", line):
                at, cfa, *values = re.sub(r"r(\d+) \(\w+\)", r"=\1", line).split()  # in another register
                numbered = sorted(
                    (ra if column == "ra" else NUMBERS[column], rule)
                    for column, value in zip(columns, values, strict=True)
                    if (column == "ra" or column in NUMBERS) and (rule := _rule(value)) is not None
                )
                text = " ".join([_cfa(cfa), *(f"{number}:{rule}" for number, rule in numbered)])
                if cie:
                    cies[cie] = text
                else:
                    rows.append((int(at, 16), text))
        yield from finished()


@pytest.mark.slow
@pytest.mark.parametrize("path", _libraries(), ids=lambda path: "-".join(Path(path).parts[-3::2]))
def test_rules_at_every_address_are_those_of_readelf(path: str) -> None:
    if not TOOL.exists():
        pytest.skip("the C++ tests are not built")
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    oracle = Oracle(path)
    asked: list[int] = []
    wanted: list[str] = []
    for begin, end, rules in oracle.rows():
        for address in {begin, end - 1}:
            asked.append(address)
            wanted.append(rules)
    answer = subprocess.run(
        [TOOL, path],
        input="\n".join(f"{address:x}" for address in asked),
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    got = answer.stdout.splitlines()
    assert len(got) == len(wanted)
    wrong = [
        f"{address:#x}: {found!r}, readelf says {expected!r}"
        for address, found, expected in zip(asked, got, wanted, strict=True)
        if found != expected
    ]
    assert not wrong, f"{len(wrong)} of {len(asked)}: {wrong[:5]}"
    assert oracle.fdes > 0
    sys.stdout.write(f"{Path(path).name}: {oracle.fdes} entries, {len(asked)} addresses equal\n")
