"""Waiting in tests, for what must come about, however long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    ready: Callable[[], object], what: str, told: Callable[[], str] | None = None, *, limit_s: float = 300
) -> None:
    """Returns when `ready` says so; `told` is what to read where it never does.

    Only a test that fails reaches the limit.
    """
    end_s = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < end_s, f"{what}: not after {limit_s:.0f} s{f': {told()}' if told else ''}"
        time.sleep(0.05)
