"""Values of a target's environment and locals stay in the target: they are in no output and in no bundle."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from pyhangtrace.render.registry import FORMATS

SECRET = "s3cr3t-0f-the-t4rget"
PROGRAM = f"""
import os, threading
token = "{SECRET}"
held = threading.Lock()

def holder(password="{SECRET}"):
    with held:
        print("ready", flush=True)
        threading.Event().wait()

threading.Thread(target=holder, daemon=True).start()

def waits(api_key="{SECRET}"):
    os.environ["INSIDE"] = "{SECRET}"
    held.acquire()

waits()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("outputs")
    script = folder / "serve.py"
    script.write_text(PROGRAM)
    files = {entry.name: folder / f"out{entry.suffix}" for entry in FORMATS}
    environment = {"PATH": "/usr/bin:/bin", "API_TOKEN": SECRET, "RANK": "0", "WORLD_SIZE": "1"}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    ) as target:
        try:
            assert target.stdout is not None
            assert target.stdout.readline() == "ready\n"
            outputs = [word for path in files.values() for word in ("-o", str(path))]
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pyhangtrace",
                    "attach",
                    str(target.pid),
                    "--json",
                    "--no-bpf",
                    *outputs,
                ],
                capture_output=True,
                timeout=60,
                check=False,
            )
        finally:
            target.kill()
    assert done.returncode == 0, done.stderr.decode()
    found = {name: path.read_bytes() for name, path in files.items()}
    found["hang"] = gzip.decompress(found["hang"])
    return {**found, "stdout": done.stdout, "stderr": done.stderr}


@pytest.mark.parametrize("name", [*(entry.name for entry in FORMATS), "stdout", "stderr"])
def test_no_output_has_the_secret(written: dict[str, bytes], name: str) -> None:
    assert SECRET.encode() not in written[name]


def test_the_outputs_speak_of_the_program(written: dict[str, bytes]) -> None:
    for name in (entry.name for entry in FORMATS):
        assert b"waits" in written[name], name


def test_written_json_is_what_stdout_shows(written: dict[str, bytes]) -> None:
    assert written["json"] == written["stdout"]


def test_a_rendered_bundle_is_the_same_report(written: dict[str, bytes], tmp_path: Path) -> None:
    bundle = tmp_path / "x.hang"
    bundle.write_bytes(gzip.compress(written["hang"]))
    again = subprocess.run(
        [sys.executable, "-m", "pyhangtrace", "report", str(bundle), "--json"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert again.stdout == written["json"]
