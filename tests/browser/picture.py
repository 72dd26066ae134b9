"""The README's picture of the cards of a page, of simulated traces: `python -m tests.browser.picture`.

The words in the picture stand in the file, too, so that tests compare what it says and no pixels.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from parse.page.figures import Statement
from parse.page.scaling import verdict
from parse.report.__main__ import main as report
from parse.report.summary import read_ledgers, read_summary
from tests.browser.conftest import LIMIT_MS, NAMES
from tests.unit.page_folders import put_sweep

CARDS = Path(__file__).parents[2] / "docs" / "cards.png"
DESCRIPTION = "Description"
"""The text of a PNG file that has the words in the picture."""
WIDTH_PX, COLOURS = 1280, 64
STAMP = "Of simulated traces: nothing here was measured."
"""Stands above the cards in the picture itself, which is shown without the page around it."""
STAMPED = """(cards, text) => {
    const stamp = document.createElement("p");
    stamp.textContent = text;
    stamp.style.cssText = "padding: 4px 8px; border: 2px solid; color: #b00020; font-weight: 700; grid-column: 1 / -1";
    cards.prepend(stamp);
}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; needs playwright and Chromium."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(prog="python -m tests.browser.picture", description=__doc__)
    parser.add_argument("--out", type=Path, default=CARDS, help="default: docs/cards.png")
    out = parser.parse_args(argv).out
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        html = Path(folder) / "page.html"
        put_sweep(Path(folder) / "traces", nodes=(1, 2, 4))
        report([str(Path(folder) / "traces"), "--out", str(html)])
        path = next(filter(None, map(shutil.which, NAMES)))
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=LIMIT_MS)
        page = chromium.new_page(viewport={"width": WIDTH_PX, "height": 900}, color_scheme="light")
        page.goto(html.as_uri())
        cards = page.locator("#verdict")
        cards.evaluate(STAMPED, STAMP)
        shot, text = cards.screenshot(), cards.inner_text()
        chromium.close()
    texts = PngInfo()
    texts.add_itxt(DESCRIPTION, " ".join(text.split()))
    Image.open(BytesIO(shot)).convert("RGB").quantize(COLOURS).save(out, optimize=True, pnginfo=texts)
    print(f"{out}: {out.stat().st_size / 1e3:.0f} kB")
    return 0


def words_in(picture: Path) -> str:
    """The words in a picture that `main` wrote."""
    with Image.open(picture) as image:
        return str(image.info[DESCRIPTION])


def statements() -> list[Statement]:
    """The statements that the picture is of; no browser is needed."""
    with TemporaryDirectory() as folder:
        put_sweep(Path(folder), nodes=(1, 2, 4))
        summary, _ = read_summary([Path(folder)])
        return verdict(read_ledgers(summary, summary.results))


if __name__ == "__main__":
    sys.exit(main())
