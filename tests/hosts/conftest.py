"""Four hosts made of this machine, with names, networks and clocks of their own."""

from __future__ import annotations

import pytest

from benchmarks.network import refused


@pytest.fixture(scope="session", autouse=True)
def hosts_can_be_made() -> None:
    """Skips, with the reason, where they cannot."""
    if reason := refused():
        pytest.skip(reason)
