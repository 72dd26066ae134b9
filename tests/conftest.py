"""What all tests share: golden files, compared as text and rewritten by one option."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
import submitit.core.logger  # noqa: F401 - before absl: its configuration of logging closes the streams of handlers
from hypothesis import HealthCheck, settings

from tests.cases import GOLDEN, Outcomes, text_of

# A deadline would be a timing assertion in disguise, and so would be how long it takes to draw what is tried.
settings.register_profile("rankwise", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rankwise")

# A shell starts what it puts into the background with SIGINT ignored, nohup with SIGHUP: children would inherit that.
for each in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(each) is signal.SIG_IGN:
        signal.signal(each, signal.default_int_handler if each is signal.SIGINT else signal.SIG_DFL)

# A terminal's size, which pytest-xdist hands on: pages are as wide as where there is none.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="write golden files anew; review the diff")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("name.txt", text)`: the text must equal tests/golden/name.txt to the letter."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--rewrite-golden"):
            path.write_text(text)
        assert text == path.read_text(), f"{path} differs; if that is right: make golden, and review the diff"

    return check


@pytest.fixture
def cases(golden: Callable[[str, str], None]) -> Callable[[str, Outcomes], None]:
    """`cases("name.txt", outcomes)`: what comes of each case of tests/golden/name.txt is what stands below it."""

    def check(name: str, outcomes: Outcomes) -> None:
        golden(name, text_of(name, outcomes))

    return check
