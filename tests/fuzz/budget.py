"""How much is tried: always the same by default, so that a failure is a failure for everybody.

``FUZZ=20`` tries twenty times as much, and something else each time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_TIMES = int(os.environ.get("FUZZ", "0"))

_SLOW_BY_NATURE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def budget(examples: int) -> settings:
    """Settings for a test that tries this many examples."""
    return settings(
        max_examples=examples * max(1, _TIMES),
        deadline=None,
        derandomize=_TIMES == 0,
        database=None,
        suppress_health_check=_SLOW_BY_NATURE,
    )
