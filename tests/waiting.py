"""Polling in tests."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    ready: Callable[[], object], what: str, describe: Callable[[], str] | None = None, *, limit_s: float = 300
) -> None:
    """Returns once `ready()` is true; `describe()` is added to the message of the AssertionError after `limit_s`.

    The limit is only reached by a test that fails.
    """
    end_s = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < end_s, f"{what}: not after {limit_s:.0f} s{f': {describe()}' if describe else ''}"
        time.sleep(0.05)
