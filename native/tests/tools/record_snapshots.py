"""Record the snapshots of native/tests/data/unwind/: registers, stack, code and unwind tables of one moment.

    python native/tests/tools/record_snapshots.py OUT_DIRECTORY [NAME...]

needs gcc, gdb, readelf and, for the files that begin with aarch64, aarch64-linux-gnu-gcc, qemu-aarch64 and
gdb-multiarch. The tests need none of them: they read the files. The frames expected are those gdb finds.

Format, one item a line, numbers in hexadecimal:
    machine NAME
    register DWARF_NUMBER VALUE
    module NAME BIAS
    mapping START END PERMISSIONS MODULE      MODULE is `-` for memory without file
    bytes MODULE VA HEX                       what the file holds
    function MODULE BEGIN_VA FDE_VA           an entry of the search table
    memory ADDRESS HEX                        what the process holds
    zeros ADDRESS SIZE
    frame PC                                  innermost first
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

try:
    import gdb  # type: ignore[import-not-found]
except ImportError:
    gdb = None

SOURCE = Path(__file__).with_name("snapshot_shapes.c") if gdb is None else None
PAGE = 0x1000
BYTES_A_LINE = 32
LARGEST_FUNCTION = 0x200
DWARF_NAMES = {
    "x86_64": [
        "rax",
        "rdx",
        "rcx",
        "rbx",
        "rsi",
        "rdi",
        "rbp",
        "rsp",
        *(f"r{n}" for n in range(8, 16)),
        "rip",
    ],
    "aarch64": [f"x{number}" for number in range(31)] + ["sp", "pc"],
}


@dataclass(frozen=True)
class Shape:
    """A snapshot: how the program is built, which chain it enters, and where it is stopped."""

    name: str
    machine: str
    argument: str
    options: tuple[str, ...] = ("-static",)
    stop: str = "stop_here"  # or: plt, vdso
    returns: int = 0  # so many functions are left before the snapshot is taken
    clang: bool = False  # compiled by clang, which on aarch64 tells the CFA by the frame pointer
    cpu: str = "cortex-a57"  # without pointer authentication: gdb needs qemu >= 8 to see through it


CLANG = ("-static", "-fno-omit-frame-pointer", "-Wno-unknown-attributes")
SHAPES = (
    Shape("x86_64_plain", "x86_64", "plain"),
    Shape("x86_64_frame_pointer", "x86_64", "plain", ("-static", "-fno-omit-frame-pointer")),
    Shape("x86_64_alloca", "x86_64", "alloca"),
    Shape("x86_64_aligned", "x86_64", "aligned"),
    Shape("x86_64_aligned_alloca", "x86_64", "aligned_alloca"),
    Shape("x86_64_in_alloca", "x86_64", "alloca", returns=2),
    Shape("x86_64_signal", "x86_64", "signal"),
    Shape("x86_64_thread", "x86_64", "thread"),
    Shape("x86_64_stub", "x86_64", "stub", ("-no-pie", "-Wl,-z,lazy", "-fcf-protection=none"), "plt"),
    Shape("x86_64_vdso", "x86_64", "clock", ("-no-pie",), "vdso"),
    Shape("aarch64_plain", "aarch64", "plain"),
    Shape("aarch64_no_frame_pointer", "aarch64", "plain", ("-static", "-fomit-frame-pointer")),
    Shape("aarch64_alloca", "aarch64", "alloca"),
    Shape("aarch64_aligned", "aarch64", "aligned"),
    Shape("aarch64_aligned_alloca", "aarch64", "aligned_alloca"),
    Shape("aarch64_in_plain", "aarch64", "plain", returns=1),
    Shape("aarch64_in_alloca", "aarch64", "alloca", returns=2),
    Shape("aarch64_in_clang_frame", "aarch64", "plain", CLANG, returns=1, clang=True),
    Shape("aarch64_signal", "aarch64", "signal"),
    Shape("aarch64_thread", "aarch64", "thread"),
    Shape("aarch64_signed", "aarch64", "alloca", ("-static", "-mbranch-protection=standard"), cpu="max"),
)


def inside_gdb() -> None:
    """The part that gdb runs: writes what it sees as JSON to $SNAPSHOT."""
    machine = os.environ["SNAPSHOT_MACHINE"]
    stop = os.environ["SNAPSHOT_STOP"]
    for command in ("pagination off", "confirm off", "backtrace past-main on", "backtrace past-entry on"):
        gdb.execute(f"set {command}")
    if stop == "stop_here":
        gdb.execute("break *stop_here")
        gdb.execute("continue" if machine == "aarch64" else "run")
    elif stop == "plt":
        gdb.execute(f"break *{os.environ['SNAPSHOT_STUB']}")
        gdb.execute("run")
        gdb.execute("stepi")  # behind the push the CFA is another one, and only the PC tells
    else:
        gdb.execute("break main")
        gdb.execute("run")
        gdb.execute("break *__vdso_clock_gettime" if vdso_has_name() else "break *clock_gettime")
        gdb.execute("continue")
        for _ in range(5):
            gdb.execute("stepi")
    for _ in range(int(os.environ["SNAPSHOT_RETURNS"])):
        gdb.execute("finish")
    inferior = gdb.selected_inferior()
    frame = gdb.newest_frame()
    registers = [int(frame.read_register(name)) & 2**64 - 1 for name in DWARF_NAMES[machine]]
    sp = registers[DWARF_NAMES[machine].index("rsp" if machine == "x86_64" else "sp")]
    pcs, top = [], sp
    while frame is not None:
        pcs.append(frame.pc())
        top = max(top, int(frame.read_register("sp")) & 2**64 - 1)
        frame = frame.older()
    pid = inferior.pid
    maps = Path(f"/proc/{pid}/maps").read_text() if machine == "x86_64" else ""
    vdso = re.search(r"([0-9a-f]+)-([0-9a-f]+) .*\[vdso\]", maps)
    if vdso:
        begin, end = (int(text, 16) for text in vdso.groups())
        Path(os.environ["SNAPSHOT"]).with_suffix(".vdso").write_bytes(
            bytes(inferior.read_memory(begin, end - begin))
        )
    size = int(os.environ.get("SNAPSHOT_SIZE", "0"))
    if size:  # the frames that gdb sees here are of no use, see Shape.cpu
        pcs, top = [], (sp & -16) + size - 128
    code = {pc & -PAGE: bytes(inferior.read_memory(pc & -PAGE, PAGE)).hex() for pc in pcs} if not maps else {}
    Path(os.environ["SNAPSHOT"]).write_text(
        json.dumps(
            {
                "registers": registers,
                "frames": pcs,
                "stack": [sp & -16, bytes(inferior.read_memory(sp & -16, top + 128 - (sp & -16))).hex()],
                "maps": maps,
                "code": code,
            }
        )
    )
    gdb.execute("kill")


def vdso_has_name() -> bool:
    """Whether gdb knows the vdso's symbols."""
    try:
        gdb.parse_and_eval("&__vdso_clock_gettime")
    except gdb.error:
        return False
    return True


class Elf:
    """As much of an ELF file as is recorded of it."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        (offset,) = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        headers = [struct.unpack_from("<IIQQQQQQ", self.data, offset + size * i) for i in range(count)]
        self.segments = [header for header in headers if header[0] == 1]
        self.entries: list[tuple[int, int, int, int, int]] = []  # begin, end, fde va, fde size, cie va
        self.sizes: dict[int, int] = {}
        sections = subprocess.run(["readelf", "-SW", path], capture_output=True, text=True, check=True).stdout
        found = re.search(r"\.eh_frame +PROGBITS +([0-9a-f]+)", sections)
        # It fails where separate debug information is missing, after printing all the same.
        frames = subprocess.run(
            ["readelf", "-W", "--debug-dump=frames", path], capture_output=True, text=True, check=False
        ).stdout
        base = int(found.group(1), 16) if found else 0
        frames = frames.split("Contents of the .debug_frame")[0]
        for line in frames.splitlines():
            match = re.match(r"([0-9a-f]{8}) ([0-9a-f]+) [0-9a-f]+ (CIE|FDE)(.*)", line)
            if not match:
                continue
            position, length = base + int(match.group(1), 16), int(match.group(2), 16)
            self.sizes[position] = length + 4
            if match.group(3) == "FDE":
                cie, begin, end = re.findall(r"(?:cie=|pc=|\.\.)([0-9a-f]+)", match.group(4))
                self.entries.append((int(begin, 16), int(end, 16), position, length + 4, base + int(cie, 16)))

    def read(self, va: int, size: int) -> bytes:
        for _, _, offset, start, _, file_size, _, _ in self.segments:
            if start <= va < start + file_size:
                return self.data[offset + va - start : offset + min(va - start + size, file_size)]
        return b""

    def holds(self, va: int) -> bool:
        return any(
            flags & 1 and start <= va < start + size for _, flags, _, start, _, size, _, _ in self.segments
        )


class Writer:
    """Collects the lines of a snapshot."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.seen: set[str] = set()

    def add(self, line: str) -> None:
        if line not in self.seen:
            self.seen.add(line)
            self.lines.append(line)

    def data(self, prefix: str, address: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            piece = data[at : at + BYTES_A_LINE]
            if prefix == "memory" and not any(piece):
                end = at
                while end < len(data) and not any(data[end : end + BYTES_A_LINE]):
                    end += BYTES_A_LINE
                end = min(end, len(data))
                self.add(f"zeros {address + at:#x} {end - at:#x}")
                at = end
                continue
            self.add(f"{prefix} {address + at:#x} {piece.hex()}")
            at += BYTES_A_LINE

    def function(self, name: str, elf: Elf, pc: int, *, exact: bool) -> None:
        """The code around a PC, with the entry of the unwind table that covers it."""
        va = pc if exact else pc - 1
        entry = next((entry for entry in elf.entries if entry[0] <= va < entry[1]), None)
        begin, end = (entry[0], entry[1]) if entry else (pc - 32, pc + 32)
        if end - begin > LARGEST_FUNCTION:
            begin, end = max(begin, pc - 64), min(end, pc + 32)
        self.data(f"bytes {name}", begin, elf.read(begin, end - begin))
        if entry:
            self.add(f"function {name} {entry[0]:#x} {entry[2]:#x}")
            self.data(f"bytes {name}", entry[2], elf.read(entry[2], entry[3]))
            self.data(f"bytes {name}", entry[4], elf.read(entry[4], elf.sizes[entry[4]]))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run(shape: Shape, program: Path, output: Path, cpu: str, stack_size: int = 0) -> dict[str, object]:
    """Run the program to where it stops; return what gdb saw, of the stack so many bytes (0: all)."""
    environment = dict(
        os.environ, SNAPSHOT=str(output), SNAPSHOT_MACHINE=shape.machine, SNAPSHOT_STOP=shape.stop, LC_ALL="C"
    )
    environment |= {"SNAPSHOT_SIZE": str(stack_size), "SNAPSHOT_RETURNS": str(shape.returns)}
    if shape.stop == "plt":
        sections = subprocess.run(
            ["readelf", "-SW", program], capture_output=True, text=True, check=True
        ).stdout
        plt = re.search(r" \.plt +PROGBITS +([0-9a-f]+) [0-9a-f]+ ([0-9a-f]+)", sections)
        assert plt, "no .plt"
        # The last one, rand: behind its jump to itself, which leads to the push the first time.
        environment["SNAPSHOT_STUB"] = hex(int(plt.group(1), 16) + int(plt.group(2), 16) - 16 + 6)
    if shape.machine == "x86_64":
        command = ["gdb", "-nx", "-batch", "-x", __file__, "--args", str(program), shape.argument]
        # Under a debugger a fault must reach the handler.
        command[3:3] = ["-ex", "handle SIGILL nostop noprint pass"]
        subprocess.run(command, env=environment, check=True, timeout=60, stdout=subprocess.DEVNULL)
    else:
        port = free_port()
        qemu = subprocess.Popen(
            ["qemu-aarch64", "-cpu", cpu, "-g", str(port), str(program), shape.argument],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            command = ["gdb-multiarch", "-nx", "-batch", "-ex", "handle SIGILL nostop noprint pass"]
            command += ["-ex", f"target remote localhost:{port}", "-x", __file__, str(program)]
            subprocess.run(command, env=environment, check=True, timeout=60, stdout=subprocess.DEVNULL)
        finally:
            qemu.kill()
            qemu.wait()
    return json.loads(output.read_text())  # type: ignore[no-any-return]


def record(shape: Shape, directory: Path) -> None:
    compiler = ["aarch64-linux-gnu-gcc" if shape.machine == "aarch64" else "gcc"]
    if shape.clang:
        compiler = ["clang", f"--target={shape.machine}-linux-gnu"]
    assert SOURCE is not None
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        program = scratch / "program"
        subprocess.run([*compiler, "-O2", "-pthread", *shape.options, SOURCE, "-o", program], check=True)
        seen = run(shape, program, scratch / "plain.json", Shape.cpu)
        frames = seen["frames"]
        if shape.cpu != Shape.cpu:
            size = len(seen["stack"][1]) // 2  # type: ignore[index]
            seen = run(shape, program, scratch / "seen.json", shape.cpu, size)
        version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout
        writer = Writer()
        writer.add(
            f"# snapshot_shapes.c, {shape.argument}: {version.splitlines()[0]} -O2 {' '.join(shape.options)}"
        )
        writer.add(f"machine {shape.machine}")
        for number, value in enumerate(seen["registers"]):  # type: ignore[arg-type]
            writer.add(f"register {number:#x} {value:#x}")
        write_modules(shape, writer, seen, frames, program, scratch)  # type: ignore[arg-type]
        address, text = seen["stack"]  # type: ignore[misc]
        writer.data("memory", address, bytes.fromhex(text))
        end = address + len(bytes.fromhex(text))
        end = (end + PAGE - 1) & -PAGE
        # qemu puts the trampoline of signal handlers right above the stack.
        above = [pc & -PAGE for pc in frames if pc > address]  # type: ignore[attr-defined]
        writer.add(f"mapping {address & -PAGE:#x} {min([end, *above]):#x} rw- -")
        for pc in frames:  # type: ignore[attr-defined]
            writer.lines.append(f"frame {pc:#x}")
        (directory / f"{shape.name}.txt").write_text("\n".join(writer.lines) + "\n")


def write_modules(
    shape: Shape, writer: Writer, seen: dict[str, object], frames: list[int], program: Path, scratch: Path
) -> None:
    """The files in which the frames lie: mappings, code, unwind tables."""
    files = {"program": (program, Elf(program), 0)}
    if shape.machine == "x86_64":
        files = {}
        for line in str(seen["maps"]).splitlines():
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) ([rwx-]+)\S* ([0-9a-f]+) \S+ \d+ +(\S.*)", line)
            if not match or "x" not in match.group(3):
                continue
            start, offset = int(match.group(1), 16), int(match.group(4), 16)
            end, path = int(match.group(2), 16), match.group(5)
            if not any(start <= pc < end for pc in frames):
                continue
            name = Path(path).name.strip("[]")
            file = (scratch / "plain.vdso") if path == "[vdso]" else Path(path)
            elf = Elf(file)
            segment = next(s for s in elf.segments if s[1] & 1 and s[2] & -PAGE <= offset < s[2] + s[5])
            files[name] = (file, elf, start - offset + segment[2] - segment[3])
            writer.add(f"module {name} {files[name][2]:#x}")
            writer.add(f"mapping {start:#x} {end:#x} r-x {name}")
    else:
        writer.add("module program 0x0")
        for _, flags, _, va, _, _, size, _ in files["program"][1].segments:
            if flags & 1:
                writer.add(f"mapping {va & -PAGE:#x} {(va + size + PAGE - 1) & -PAGE:#x} r-x program")
    signal = False
    for position, pc in enumerate(frames):
        found = next((item for item in files.items() if item[1][1].holds(pc - item[1][2])), None)
        if found is None:
            page = pc & -PAGE
            writer.add(f"mapping {page:#x} {page + PAGE:#x} r-x -")
            writer.data("memory", page, bytes.fromhex(seen["code"][str(page)]))  # type: ignore[index]
            signal = True
            continue
        name, (_, elf, bias) = found
        writer.function(name, elf, pc - bias, exact=position == 0 or signal)
        signal = elf.read(pc - bias, 9) == bytes.fromhex("48c7c00f0000000f05")


def main() -> None:
    directory = Path(sys.argv[1])
    for shape in SHAPES:
        if len(sys.argv) == 2 or shape.name in sys.argv[2:]:
            sys.stdout.write(shape.name + "\n")
            record(shape, directory)


if gdb is not None:
    inside_gdb()
elif __name__ == "__main__":
    main()
