"""Where names of native frames come from: debug files, deleted and replaced files, containers, memory files, JITs."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace import _native
from tests.targets import running, until, waits_in_read

HERE = Path(__file__).parent
NOBODY = 65534


def need(*tools: str) -> None:
    """Skips where a tool of the toolchain is missing."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, timeout=60)


class Built:
    """The program and its library, stripped, with the symbols of the library set aside."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = directory / "symbol_target"
        self.library = directory / "libwork.so"
        self.debug = directory / "libwork.so.symbols"
        source = HERE / "symbol_target.c"
        run("cc", "-O2", source, "-o", self.program, "-ldl")
        run("cc", "-O2", "-shared", "-fPIC", "-DLIBRARY", "-Wl,--build-id", source, "-o", self.library)
        run("objcopy", "--only-keep-debug", self.library, self.debug)
        run("strip", "--strip-all", self.library)

    def build_id(self) -> str:
        notes = subprocess.run(
            ["readelf", "-n", self.library], check=True, capture_output=True, text=True, timeout=60
        ).stdout
        return notes.partition("Build ID: ")[2].split()[0]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Built:
    need("cc", "objcopy", "strip", "readelf")
    return Built(tmp_path_factory.mktemp("symbols"))


@pytest.fixture
def built(original: Built, tmp_path: Path) -> Built:
    """A copy to do anything with."""
    copy = Built.__new__(Built)
    copy.directory = tmp_path
    for name in ("program", "library", "debug"):
        path = getattr(original, name)
        setattr(copy, name, tmp_path / path.name)
        shutil.copy2(path, tmp_path / path.name)
    return copy


def settled(pid: int, *, python: bool = False) -> dict[str, Any]:
    """The main thread, once it waits in read."""
    thread: dict[str, Any] = until(waits_in_read, pid, python=python)["threads"][0]
    return thread


def functions(pid: int) -> list[str]:
    return [frame[1] for frame in settled(pid)["frames"]]


def test_a_stripped_library_shows_what_it_exports_and_nothing_made_up(built: Built) -> None:
    with running(built.program, built.library) as pid:
        names = functions(pid)
    assert "exported_wait" in names
    assert names[names.index("exported_wait") - 1] == ""


def test_names_from_a_debug_file_beside_the_library(built: Built) -> None:
    run("objcopy", f"--add-gnu-debuglink={built.debug}", built.library)
    with running(built.program, built.library) as pid:
        names = functions(pid)
        assert names[names.index("exported_wait") - 1] == "local_wait"
        # Of another build: worthless.
        (built.directory / "other.c").write_text("int other(void) { return 1; }")
        run("cc", "-shared", "-fPIC", "-Wl,--build-id", built.directory / "other.c", "-o", built.debug)
        names = functions(pid)
        assert names[names.index("exported_wait") - 1] == ""


@pytest.mark.root
def test_a_container_with_debug_files_behind_an_absolute_link(built: Built) -> None:
    """A root directory of its own, in which /usr/lib/debug is a link to an absolute path."""
    root = built.directory / "root"
    for directory in ("lib", "lib64", "usr/lib", "srv/debug/.build-id", "tmp"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    libraries = subprocess.run(
        ["ldd", built.program], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    for word in libraries.split():
        if word.startswith("/"):
            target = root / word.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(word, target)
    shutil.copy2(built.program, root / "symbol_target")
    shutil.copy2(built.library, root / "lib/libwork.so")
    build_id = built.build_id()
    debug = root / "srv/debug/.build-id" / build_id[:2] / f"{build_id[2:]}.debug"
    debug.parent.mkdir()
    shutil.copy2(built.debug, debug)
    (root / "usr/lib/debug").symlink_to("/srv/debug")
    with running("/symbol_target", "/lib/libwork.so", preexec_fn=lambda: os.chroot(root)) as pid:
        names = functions(pid)
    assert names[names.index("exported_wait") - 1] == "local_wait"


def test_a_deleted_library(built: Built) -> None:
    with running(built.program, built.library) as pid:
        built.library.unlink()
        thread = settled(pid)
    names = [frame[1] for frame in thread["frames"]]
    assert "exported_wait" in names
    assert {frame[4] for frame in thread["frames"] if frame[1] == "exported_wait"} == {str(built.library)}


def test_a_replaced_library_is_not_read_for_the_old_one(built: Built) -> None:
    """A new build under the same name, with another function at the place where the thread waits."""
    with running(built.program, built.library) as pid:
        replace_by_another(built)
        names = functions(pid)
    assert "wrong" not in names
    assert "exported_wait" in names


def replace_by_another(built: Built) -> None:
    wrong = built.directory / "wrong.c"
    wrong.write_text('void wrong(void) { __asm__(".skip 8192"); }')
    new = built.directory / "new.so"
    run("cc", "-shared", "-fPIC", "-Wl,--build-id", wrong, "-o", new)
    new.rename(built.library)


@pytest.mark.root
def test_without_the_right_to_map_files(built: Built) -> None:
    """What a user without privileges sees of his own process: the path is taken, once memory agrees with it."""
    with reachable(built), running(built.program, built.library, user=NOBODY, group=NOBODY) as pid:
        settled(pid)
        names = unprivileged(lambda: functions(pid))
        assert "exported_wait" in names
        replace_by_another(built)
        # map_files, which names the old file for good, is out of reach: only memory is left of it.
        names = unprivileged(lambda: functions(pid))
        assert "wrong" not in names
        assert "main" in names
        assert "exported_wait" in names  # by the tables of the dynamic linker


@pytest.mark.root
def test_a_library_that_may_not_be_read(built: Built) -> None:
    """It was mapped before its rights were taken away."""
    with reachable(built), running(built.program, built.library, user=NOBODY, group=NOBODY) as pid:
        settled(pid)
        built.library.chmod(0)
        assert "exported_wait" in unprivileged(lambda: functions(pid))


def test_a_library_linked_at_a_high_address(built: Built) -> None:
    """As by prelink: the difference to where it is mapped is huge, and negative."""
    run(
        *("cc", "-O2", "-shared", "-fPIC", "-DLIBRARY", "-Wl,-Ttext-segment=0x7ffff0000000"),
        *(HERE / "symbol_target.c", "-o", built.library),
    )
    with running(built.program, built.library) as pid:
        names = functions(pid)
    assert names[names.index("exported_wait") - 1] == "local_wait"
    assert "main" in names


@contextlib.contextmanager
def reachable(built: Built) -> Iterator[None]:
    """Moves the files to where every user can go."""
    directory = Path(tempfile.mkdtemp(prefix="symbols-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        built.directory = directory
        for name in ("program", "library"):
            setattr(built, name, Path(shutil.copy2(getattr(built, name), directory)))
        yield
    finally:
        shutil.rmtree(directory)


def unprivileged(look: Callable[[], list[str]]) -> list[str]:
    """The result of a function, run in a child without any capability."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups(())
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(write, json.dumps(look()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return list(json.loads(text))


def test_a_library_in_a_memory_file(built: Built) -> None:
    program = (
        "import ctypes, os, shutil, sys\n"
        "memory = os.memfd_create('work')\n"
        "os.write(memory, open(sys.argv[1], 'rb').read())\n"
        "library = ctypes.CDLL(f'/proc/self/fd/{memory}')\n"
        "os.close(memory)\n"
        "print('ready', flush=True)\n"
        "library.exported_wait(0)\n"
    )
    with running(sys.executable, "-c", program, built.library) as pid:
        names = functions(pid)
    assert "exported_wait" in names


@pytest.mark.root
def test_an_overlay_file_system(built: Built) -> None:
    """Its files have another device number in maps than in stat."""
    need("unshare", "mount")
    lower, upper, work, merged = (built.directory / name for name in ("lower", "upper", "work", "merged"))
    for directory in (lower, upper, work, merged):
        directory.mkdir()
    shutil.copy2(built.library, lower / "libwork.so")
    script = (
        "mount -t tmpfs none upper && mkdir upper/u upper/w && "
        "mount -t overlay overlay -o lowerdir=lower,upperdir=upper/u,workdir=upper/w merged || "
        "{ echo refused; exit; }; exec ./symbol_target merged/libwork.so"
    )
    command = ["unshare", "--mount", "sh", "-c", script]
    with subprocess.Popen(
        command, cwd=built.directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if said == "refused\n":
                pytest.skip("overlay cannot be mounted here")
            assert said == "ready\n"
            assert "exported_wait" in functions(process.pid)
        finally:
            process.kill()


JIT_PROGRAM = """
import ctypes, mmap, os, sys
# push rbp; mov rbp, rsp; mov rax, rdi; xor edi, edi; mov rsi, rsp; xor edx, edx; inc edx; call rax; pop rbp; ret
code = bytes.fromhex("55 4889e5 4883ec10 4889f8 31ff 4889e6 31d2 ffc2 ffd0 c9 c3")
protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
area = mmap.mmap(-1, 4096, flags=mmap.MAP_{SHARING} | mmap.MAP_ANONYMOUS, prot=protection)
area.write(code)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
with open(f"/tmp/perf-{os.getpid()}.map", "w") as names:
    names.write(f"{start:x} {len(code):x} made at run time\\n")
try:
    read = ctypes.cast(ctypes.CDLL(None).read, ctypes.c_void_p).value
    print("ready", flush=True)
    ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(start)(read)
finally:
    os.unlink(f"/tmp/perf-{os.getpid()}.map")
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the code is x86-64's")
@pytest.mark.parametrize("sharing", ["PRIVATE", "SHARED"])
@pytest.mark.parametrize("namespace", [False, True], ids=["", "in a pid namespace"])
def test_code_made_at_run_time_is_named_by_its_perf_map(sharing: str, namespace: bool) -> None:
    command: list[str | Path] = [sys.executable, "-c", JIT_PROGRAM.replace("{SHARING}", sharing)]
    if namespace:
        need("unshare")
        if os.geteuid() != 0:
            pytest.skip("needs root to make a pid namespace")
        command = ["unshare", "--pid", "--fork", "--kill-child", *command]
    with running(*command) as pid:
        if namespace:
            [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            pid = int(child)
        frames = settled(pid)["frames"]
        own = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "NSpid" in line]
        os.unlink(f"/tmp/perf-{own[0].split()[-1]}.map")
    made = [frame for frame in frames if frame[1] == "made at run time"]
    assert [frame[4] for frame in made] == ["[jit]"], frames


PERF_PROGRAM = """
import sys
def inner():
    sys.stdin.read()
def outer():
    inner()
print("ready", flush=True)
outer()
"""


def pythons_with_perf() -> list[str]:
    found: dict[str, None] = {sys.executable: None}
    for version in ("3.12", "3.13", "3.14"):
        for path in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")):
            found[str(path)] = None
        if path_found := shutil.which(f"python{version}"):
            found[path_found] = None
    return list(found)


@pytest.mark.parametrize("python", pythons_with_perf())
def test_python_with_perf_support_shows_each_function_once(python: str) -> None:
    """python -X perf calls every Python function through a trampoline with a name of its own."""
    probe = (
        "import sys; "
        "print(sys.version_info >= (3, 12) and hasattr(sys, 'activate_stack_trampoline'), "
        "sys.flags.dev_mode)"
    )
    answer = subprocess.run(
        [python, "-X", "perf", "-c", probe], capture_output=True, text=True, timeout=60, check=False
    )
    if not answer.stdout.startswith("True"):
        pytest.skip("this Python has no perf support")
    with running(python, "-X", "perf", "-c", PERF_PROGRAM) as pid:
        try:
            assert Path(f"/tmp/perf-{pid}.map").exists()
            thread = settled(pid, python=True)
            unmerged = settled(pid)["frames"]
        finally:
            os.unlink(f"/tmp/perf-{pid}.map")
    assert thread["complete"], thread["stack_problem"]
    assert thread["unmerged_python"] == []
    labels = [frame[1] for frame in thread["frames"]]
    ours = ["inner", "outer", "<module>"]
    assert [label for label in labels if label in ours] == ours, labels
    assert not [label for label in labels if label.startswith("py::")]
    # Without Python's own frames the trampolines are what shows its functions.
    trampolines = [frame for frame in unmerged if frame[1].startswith("py::")]
    assert [frame[1].split(":")[2] for frame in trampolines] == ours
    assert {frame[4] for frame in trampolines} == {"[jit]"}


def test_code_is_named_as_innermost_frames_are(built: Built) -> None:
    engine = _native.Engine()
    with running(built.program, built.library) as pid:
        thread = settled(pid)
        native = [frame for frame in thread["frames"] if frame[0] == "native"]
        names = engine.code_names(pid, [native[0][5], 0, 2**64 - 1])
    assert names == [(native[0][1], native[0][4]), (None, None), (None, None)]
    assert engine.code_names(2**22 + 1, [0x1000]) == [(None, None)]
