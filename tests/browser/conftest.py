"""A real Chromium for the page; skipped where there is none, which CI may not do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LIMIT_MS = 1_800_000
"""For whatever a page is waited for; only reached by a test that fails."""
NAMES = ("chromium", "chromium-browser", "google-chrome")


def missing() -> str:
    """What is not here, and how it comes; empty where everything is."""
    if find_spec("playwright") is None or find_spec("axe_playwright_python") is None:
        return "no playwright or no axe here: pip install -e '.[test]'"
    if not any(map(shutil.which, NAMES)):
        return "no Chromium here: apt-get install chromium (make test does where apt may be used)"
    return ""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    if reason := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, NAMES)))
    # Chromium's own sandbox takes rights that root and containers have not; what is opened here is our own file.
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=LIMIT_MS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of each input, by its name."""
    from parse import history
    from parse.report.__main__ import main
    from tests.unit.histories import put_nights
    from tests.unit.page_folders import INPUTS, put_together, put_warned

    written = {}
    inputs: dict[str, Callable[[Path], object]] = INPUTS | {"many warnings": put_warned}
    for name, put in inputs.items():
        folder = tmp_path_factory.mktemp("input")
        put(folder)
        written[name] = folder.with_name(f"{name}.html")
        assert main([str(folder), "--out", str(written[name])]) == (1 if name == "empty" else 0)
    traces, logs, documents = put_together(tmp_path_factory.mktemp("together"))
    written["together"] = traces.parent.with_name("together.html")
    published = [argument for document in documents for argument in ("--published", str(document))]
    assert main([str(traces), str(logs), *published, "--out", str(written["together"])]) == 0
    nights = put_nights(tmp_path_factory.mktemp("nightly"), [1.0] * 7 + [0.95] * 5)
    written["history"] = nights[0].parent.with_name("history.html")
    assert history.main([*map(str, nights), "--format", "html", "--out", str(written["history"])]) == 1
    return written
