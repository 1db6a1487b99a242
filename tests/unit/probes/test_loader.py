"""Finding and loading the system's bcc without letting anything else of its folder in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pyhangtrace.probes import bcc_loader
from pyhangtrace.probes.bcc_loader import INSTALL, Unavailable, find_bcc, kernel_version, load_bcc

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("6.1.0-18-amd64", 0x060100),
        ("5.15.146.1-microsoft-standard-WSL2", 0x050F92),
        ("4.14.300-generic", 0x040EFF),  # a part above 255 is cut
        ("6.18", 0x061200),
        ("6.9.3+", 0x060903),
        ("6.8-rc1", 0x060800),
    ],
)
def test_kernel_version(release: str, version: int) -> None:
    assert kernel_version(release) == version


def test_absent_bcc_is_a_reason_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bcc_loader, "find_bcc", lambda: None)
    assert load_bcc() == Unavailable(reason="bcc is not installed", fix=INSTALL)
    assert "bcc" not in sys.modules


def test_a_broken_bcc_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "bcc"
    folder.mkdir()
    (folder / "__init__.py").write_text("from bcc.libbcc import lib\n")
    (folder / "libbcc.py").write_text("raise OSError('libbcc.so.0: cannot open shared object file')\n")
    monkeypatch.setattr(bcc_loader, "find_bcc", lambda: folder)
    monkeypatch.setenv("BCC_KERNEL_SOURCE", "")  # restored afterwards
    loaded = load_bcc()
    assert isinstance(loaded, Unavailable)
    assert "libbcc.so.0" in loaded.reason
    assert not [name for name in sys.modules if name.split(".")[0] == "bcc"]
    assert not list(folder.rglob("*.pyc"))


def test_newest_versioned_folder_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("python3.9", "python3.12"):
        package = tmp_path / name / "site-packages" / "bcc"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "libbcc.py").touch()
    # PyPI's package of this name has no libbcc.
    other = tmp_path / "python3.13" / "site-packages" / "bcc"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    monkeypatch.setattr(bcc_loader, "FOLDERS", ())
    monkeypatch.setattr(bcc_loader, "ROOTS", (str(tmp_path),))
    assert find_bcc() == tmp_path / "python3.12" / "site-packages" / "bcc"


PROGRAM = """
import json, sys
sys.path.append(sys.argv[1])
before = list(sys.path)
from pyhangtrace.probes.bcc_loader import load_bcc
bcc = load_bcc()
print(json.dumps({
    "path_unchanged": sys.path == before,
    "name": bcc.__name__,
    "others": sorted(
        name for name, module in sys.modules.items()
        if "dist-packages" in str(getattr(module, "__file__", "")) and name.split(".")[0] != "bcc"
    ),
}))
"""


def test_only_bcc_comes_in() -> None:
    if find_bcc() is None:
        pytest.skip(f"bcc is not installed: {INSTALL}")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c", PROGRAM, str(ROOT)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == {"path_unchanged": True, "name": "bcc", "others": []}
    assert done.stderr == ""


def test_stub_headers_travel_with_the_package() -> None:
    """What libbcc includes from the tree it is pointed at, and the sources."""
    include = bcc_loader.HEADERS / "include"
    for header in ("kconfig", "types", "bpf_common", "version", "log2", "sched", "ptrace"):
        assert (include / "linux" / f"{header}.h").is_file()
    for header in ("bpf", "if_packet", "ptrace", "bpf_perf_event"):
        assert (include / "uapi" / "linux" / f"{header}.h").is_file()
    assert (include / "asm" / "page.h").is_file()
    assert (bcc_loader.HEADERS.parent / "window.bpf.c").is_file()
