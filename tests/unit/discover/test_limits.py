"""Time limits that engines are started with."""

from __future__ import annotations

import pytest

from pyhangtrace.discover.command_lines import limits

VARIABLE = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("python -m sglang.launch_server --watchdog-timeout 60 --tp 2", 60),
        ("sglang serve --watchdog-timeout=900.5", 900),
        ("python -m sglang.launch_server --watchdog-timeout 60 --watchdog-timeout 70", 70),
        ("python -m sglang.launch_server --watchdog-timeout", None),
        ("python -m sglang.launch_server --watchdog-timeout never", None),
        ("python -m sglang.launch_server --soft-watchdog-timeout 60", None),
        ("python -m sglang.launch_server --watchdog-timeout 99999999999", None),
    ],
)
def test_an_option_says_a_limit(words: str, found: int | None) -> None:
    wanted = () if found is None else (("--watchdog-timeout", found),)
    assert limits(words.split(), {}) == wanted
    assert limits([words], {}) == wanted  # of a program that gave itself a title


def test_a_variable_does_too() -> None:
    assert limits((), {VARIABLE: "40", "RANK": "1"}) == ((VARIABLE, 40),)
    assert limits((), {VARIABLE: "forty"}) == ()
