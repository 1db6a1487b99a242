"""What the loop around a nap of a program in C calls, from its code, and what that of a napping Python thread names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.targets import running, until

PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* Before and after the loop it calls something else. */
static void waits(void) {
  puts("ready");
  fflush(stdout);
#if defined(ASKS)
  while (pthread_mutex_trylock(&mutex) != 0) {
    usleep(100000);
  }
#elif defined(SERVES)
  for (;;) {
    if (pthread_mutex_trylock(&mutex) == 0) {
      pthread_mutex_unlock(&mutex);
    }
    usleep(100000);
  }
#else
  usleep(100000000);
#endif
  pthread_mutex_unlock(&mutex);
}

int main(void) {
#ifdef ASKS
  pthread_mutex_lock(&mutex);
#endif
  waits();
  return 0;
}
"""


def naps(process: Any) -> bool:
    (thread,) = process["threads"]
    # One that has not got there yet may be on its way into the call.
    asleep = thread["state"] == "S" and thread["syscall"] is not None
    return asleep and any("nanosleep" in frame[1] for frame in thread["frames"])


@pytest.mark.parametrize("built", [("-O0",), ("-O2",), ("-O2", "-fno-plt"), ("-O2", "-static")])
@pytest.mark.parametrize(
    ("what", "called"), [("ASKS", {"trylock"}), ("SERVES", {"trylock", "unlock"}), ("NAPS", set())]
)
def test_calls_in_the_loop_around_a_nap(
    built: tuple[str, ...], what: str, called: set[str], c_compiler: str, tmp_path: Path
) -> None:
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(PROGRAM)
    command = [c_compiler, *built, f"-D{what}", "-pthread", source, "-o", program]
    if subprocess.run(command, timeout=60, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"cannot be built with {' '.join(built)}")
    with running(program) as pid:
        process = until(naps, pid)
    (thread,) = process["threads"]
    names = {name.rpartition("_")[2] for name in thread["nap_loop"] if "mutex" in name}
    assert names == called, thread["nap_loop"]


PYTHON = """
import threading, time
lock = threading.Lock()

def nap():
    print("ready", flush=True)
    while True:
        time.sleep(0.1)

def watch():
    nap()
    {call}

watch()
"""


@pytest.mark.parametrize(
    ("call", "word"), [("lock.release()", "release"), ("task.cancel()", "cancel"), ("print()", None)]
)
def test_how_code_of_python_that_naps_could_let_others_go_on(call: str, word: str | None) -> None:
    with running(sys.executable, "-c", PYTHON.replace("{call}", call)) as pid:
        process = until(naps, pid)
    (thread,) = process["threads"]
    assert thread["lets_go"] == word


TASKS = """
import asyncio

async def watch(task):
    print("ready", flush=True)
    await asyncio.Event().wait()
    task.cancel()

async def main():
    await asyncio.create_task(watch(asyncio.current_task()), name="watch")

asyncio.run(main())
"""


def both_wait(process: Any) -> bool:
    (thread,) = process["threads"]
    return thread["state"] == "S" and not any(task["current"] or task["moved"] for task in process["tasks"])


def test_how_code_of_a_task_that_waits_could_let_others_go_on() -> None:
    with running(sys.executable, "-c", TASKS) as pid:
        process = until(both_wait, pid)
    words = {task["name"]: task["lets_go"] for task in process["tasks"]}
    assert (words["watch"], set(words.values())) == ("cancel", {"cancel", None})
