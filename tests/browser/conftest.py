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


class Pages(dict[str, Path]):
    """The page of each input, by its name; written when it is first needed."""

    def __init__(self, make: pytest.TempPathFactory) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> Path:
        folder = self._make.mktemp("input")
        write = {"together": self._together, "history": self._history}.get(name, self._usual)
        self[name] = write(name, folder, folder.with_name(f"{folder.name}.html"))
        return self[name]

    def _usual(self, name: str, folder: Path, page: Path) -> Path:
        from parse.report.__main__ import main
        from tests.unit.page_folders import INPUTS, put_sweep, put_warned

        inputs: dict[str, Callable[[Path], object]] = INPUTS | {
            "many warnings": put_warned, "three points": lambda folder: put_sweep(folder, nodes=(1, 2, 4)),
        }  # fmt: skip
        inputs[name](folder)
        assert main([str(folder), "--out", str(page)]) == (1 if name == "empty" else 0)
        return page

    def _together(self, _: str, folder: Path, page: Path) -> Path:
        from parse.report.__main__ import main
        from tests.unit.page_folders import put_together

        traces, logs, documents = put_together(folder)
        published = [argument for document in documents for argument in ("--published", str(document))]
        assert main([str(traces), str(logs), *published, "--out", str(page)]) == 0
        return page

    def _history(self, _: str, folder: Path, page: Path) -> Path:
        from parse import history
        from tests.unit.histories import put_nights

        nights = put_nights(folder, [1.0] * 7 + [0.95] * 5)
        assert history.main([*map(str, nights), "--format", "html", "--out", str(page)]) == 1
        return page


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return Pages(tmp_path_factory)
