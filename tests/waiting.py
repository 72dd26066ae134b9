"""Polling in tests."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 3600.0
"""Only a test that fails waits so long, on a machine ten times slower than usual, too."""


def until(ready: Callable[[], object], what: str, describe: Callable[[], str] | None = None) -> None:
    """Returns once `ready()` is true; `describe()` is added to the message of the AssertionError after LIMIT_S."""
    end_s = time.monotonic() + LIMIT_S
    while not ready():
        assert time.monotonic() < end_s, f"{what}: not after {LIMIT_S:.0f} s{f': {describe()}' if describe else ''}"
        time.sleep(0.05)
