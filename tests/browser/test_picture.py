"""The command that makes the README's picture makes one, and it says what the committed one says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.browser import picture
from tests.waiting import LIMIT_S


@pytest.mark.all
@pytest.mark.usefixtures("browser")
def test_the_picture_of_the_readme_is_made_by_its_command(tmp_path: Path) -> None:
    made = tmp_path / "cards.png"
    subprocess.run([sys.executable, "-m", "tests.browser.picture", "--out", str(made)], check=True, timeout=LIMIT_S)
    assert picture.words_in(made) == picture.words_in(picture.CARDS)
    with Image.open(made) as image, Image.open(picture.CARDS) as committed:
        assert image.width == committed.width and abs(image.height - committed.height) < 100  # fonts differ
