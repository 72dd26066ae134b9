"""The README stays short and leads to every document."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_it_is_short():
    assert len(README.splitlines()) < 120


def test_it_links_every_document():
    linked = set(re.findall(r"\]\((docs/[\w./]+)\)", README))
    assert not {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - linked


def test_the_result_it_shows_is_that_of_the_ledger_document():
    """One measurement, shown in two places: they must not differ."""
    shown = README.split("--ledger\n```\n")[1].split("```\n")[1].splitlines()
    document = [line.removeprefix("    ") for line in (ROOT / "docs/ledger.md").read_text().splitlines()]
    assert shown and not [line for line in shown if line not in document]
