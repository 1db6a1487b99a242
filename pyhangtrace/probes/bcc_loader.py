"""The distribution's bcc, whatever Python runs us.

bcc is a package of the system (Debian's python3-bpfcc): pure Python over libbcc.so.0. PyPI's `bcc` is another thing.
It is loaded from the distribution's folder under its own name; nothing else of that folder gets into `sys.path`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

HEADERS = Path(__file__).parent / "headers"
INSTALL = "apt install python3-bpfcc   (RHEL, Fedora: dnf install python3-bcc)"
# Debian's and Ubuntu's folder, then the folders of one Python version each that Fedora and RHEL have.
FOLDERS = ("/usr/lib/python3/dist-packages",)
ROOTS = ("/usr/lib", "/usr/lib64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """Why something cannot be had here, and the command or setting that changes it ("" if there is none)."""

    reason: str
    fix: str = ""
    permission: bool = False


def find_bcc() -> Path | None:
    """The folder of the distribution's bcc package, None if it is not installed."""
    candidates = [Path(folder) for folder in FOLDERS]
    for root in ROOTS:
        candidates += sorted(Path(root).glob("python3.*/site-packages"), key=_version, reverse=True)
    for folder in candidates:
        if (folder / "bcc" / "__init__.py").is_file() and (folder / "bcc" / "libbcc.py").is_file():
            return folder / "bcc"
    return None


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.parent.name.removeprefix("python").split(".") if part.isdigit())


def load_bcc() -> ModuleType | Unavailable:
    """bcc as a module, registered as `bcc`, and pointed at our own header tree; or why not.

    Costs about 40 ms and 100 MB (libbcc brings a compiler), so only the child process calls it.
    """
    folder = find_bcc()
    if folder is None:
        return Unavailable(reason="bcc is not installed", fix=INSTALL)
    # libbcc then asks for no kernel headers, neither of the distribution nor of the kernel itself.
    os.environ["BCC_KERNEL_SOURCE"] = str(HEADERS)
    spec = importlib.util.spec_from_file_location(
        "bcc", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        return Unavailable(reason=f"{folder} is not a Python package", fix=INSTALL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["bcc"] = module
    # Another Python than the distribution's would leave its own byte code in a folder that dpkg owns.
    writes_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        with warnings.catch_warnings():
            # bcc has regular expressions in plain strings, which Python 3.12 and newer complain about.
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            spec.loader.exec_module(module)
    except (ImportError, OSError, AttributeError, SyntaxError) as error:
        for name in [name for name in sys.modules if name == "bcc" or name.startswith("bcc.")]:
            del sys.modules[name]
        return Unavailable(reason=f"bcc cannot be loaded: {error}", fix=INSTALL)
    finally:
        sys.dont_write_bytecode = writes_bytecode
    return module


def kernel_version(release: str) -> int:
    """`6.1.0-18-amd64` as the kernel encodes it: 0x060100. Parts above 255 are cut to it."""
    parts = []
    for part in release.split("-")[0].split("+")[0].split(".")[:3]:
        digits = "".join(c for c in part if c.isdigit())
        parts.append(min(int(digits or 0), 255))
    major, minor, patch = [*parts, 0, 0, 0][:3]
    return (major << 16) + (minor << 8) + patch


def compile_program(bcc: ModuleType, source: Path, macros: dict[str, int]) -> Any:
    """Compiles a BPF source file, configured by macros alone; bcc's BPF object, nothing loaded or attached yet.

    Raises: what bcc raises, which is a plain Exception (text on standard error).
    """
    flags = [f"-I{HEADERS / 'include'}", f"-DHANGTRACE_KERNEL_VERSION={kernel_version(os.uname().release)}"]
    flags += [f"-D{name}={value}" for name, value in macros.items()]
    return bcc.BPF(text=source.read_bytes(), cflags=flags)
