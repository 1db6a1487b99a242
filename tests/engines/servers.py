"""Start a server of an engine on this machine's CPUs, wait until it says that it is ready, and end all of it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.engines import venvs
from tests.hangs.processes import NotReached

HERE = Path(__file__).parent
#: Seconds until a server must serve: it imports a gigabyte, on two cores that it may share.
START_DEADLINE_S = 420.0
POLL_S = 0.2
#: Ends with us, as the servers' own children do with them.
_DIE_WITH_US = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
_PLUGIN = "hangtrace_hangs"
_ENTRY_POINTS = f"""\
[vllm.general_plugins]
{_PLUGIN} = {_PLUGIN}:vllm

[sglang.srt.plugins]
{_PLUGIN} = {_PLUGIN}:sglang
"""


def make_model(engine: str, folder: Path, *, vocabulary: int | None = None) -> None:
    """Writes a small model of random weights. Raises NotReached."""
    words = [str(vocabulary)] if vocabulary else []
    command = [str(venvs.python(engine)), str(HERE / "programs" / "make_model.py"), str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=_quiet())
    if done.returncode != 0:
        raise NotReached(f"no model: {done.stderr[-1000:]}")


def start(
    engine: str,
    *,
    model: Path,
    port: int,
    ranks: int,
    scratch: Path,
    log: int,
    env: Mapping[str, str],
    options: tuple[str, ...] = (),
) -> subprocess.Popen[bytes]:
    """Starts the server, with our plug-in in it; `log` is where all of it writes."""
    plugin = scratch / "plugin"
    metadata = plugin / f"{_PLUGIN}-0.1.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_PLUGIN}\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)
    # By itself: beside it lie modules that are called like parts of the engines.
    (plugin / "announce.py").unlink(missing_ok=True)
    (plugin / "announce.py").symlink_to(HERE.parent / "hangs" / "programs" / "announce.py")
    folders = (plugin, HERE / "plugin")
    environment = {**_quiet(), "PYTHONPATH": os.pathsep.join(map(str, folders)), **env}
    command, more = {"vllm": _vllm, "sglang": _sglang}[engine](ranks)
    words = (*command, str(model), "--host", "127.0.0.1", "--port", str(port), *options)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _DIE_WITH_US, *words],
        env={**environment, **more},
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def _vllm(ranks: int) -> tuple[tuple[str, ...], dict[str, str]]:
    binary = str(venvs.python("vllm").with_name("vllm"))
    words = ("--tensor-parallel-size", str(ranks), "--dtype", "bfloat16", "--max-model-len", "256",
             "--max-num-seqs", "4")  # fmt: skip
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(_cores(ranks)),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    return (binary, "serve", *words, "--model"), environment


def _sglang(ranks: int) -> tuple[tuple[str, ...], dict[str, str]]:
    python = str(venvs.python("sglang"))
    words = ("--device", "cpu", "--tp", str(ranks), "--dtype", "bfloat16", "--context-length", "256",
             "--attention-backend", "torch_native", "--disable-radix-cache", "--mem-fraction-static", "0.1",
             "--max-total-tokens", "2048", "--disable-overlap-schedule", "--skip-server-warmup")  # fmt: skip
    environment = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_CPU_OMP_THREADS_BIND": "|".join(_cores(ranks))}
    return (python, "-m", "sglang.launch_server", *words, "--model-path"), environment


def _cores(ranks: int) -> list[str]:
    cores = sorted(os.sched_getaffinity(0))
    return [str(cores[rank % len(cores)]) for rank in range(ranks)]


def _quiet() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def await_serving(server: subprocess.Popen[bytes], port: int, *, deadline: float) -> None:
    """Waits until the server answers that it is well. Raises NotReached."""
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (OSError, http.client.HTTPException):
            pass  # not yet
        if server.poll() is not None:
            raise NotReached(f"the server ended with {server.returncode}")
        if time.monotonic() > deadline:
            raise NotReached("the server does not serve in time")
        time.sleep(POLL_S)


def ask(port: int, model: Path, *, timeout: float, tokens: int = 8) -> str:
    """The server's answer to a prompt. Raises OSError."""
    body = {"model": str(model), "prompt": "the quick brown", "max_tokens": tokens, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def ask_in_vain(port: int, model: Path, *, timeout: float) -> threading.Thread:
    """Sends a prompt of which no answer is awaited, as a client that stays for `timeout` seconds."""

    def send() -> None:
        try:
            ask(port, model, timeout=timeout)
        except (OSError, http.client.HTTPException, urllib.error.URLError):
            pass  # as it should be

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def flood(port: int, *, timeout: float) -> None:
    """Requests, each of which the server writes a line about, until one is not answered in time. Raises NotReached."""
    for _ in range(20_000):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=timeout) as answer:
                answer.read()
        except OSError:
            return
    raise NotReached("the server still answers")
