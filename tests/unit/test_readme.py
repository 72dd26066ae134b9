"""The README stays short and leads to every document."""

from __future__ import annotations

import re
from pathlib import Path

from tests.browser import picture
from tests.unit.page_folders import LATE_RANK

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_it_is_short():
    assert len(README.splitlines()) < 120


def test_it_shows_the_three_commands_and_the_one_for_all_others():
    for command in (
        "python -m hpc.sweep --nodes 1,2,4",
        "sbatch jobs/2n.sh",
        "python -m parse.summarize traces/",
        "rankwise --help",
    ):
        assert command in README


def test_it_links_every_document():
    linked = set(re.findall(r"\]\((docs/[\w./]+)\)", README))
    assert not {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - linked


def test_the_picture_says_what_a_page_of_its_traces_says_now():
    """`python -m tests.browser.picture` writes it anew."""
    shown = [[each.question, each.figure, each.of, *each.sentences, each.link_text] for each in picture.statements()]
    assert picture.words_in(picture.CARDS) == " ".join(text for texts in shown for text in texts)
    assert picture.CARDS.stat().st_size < 150_000


def test_who_does_not_see_the_picture_reads_its_conclusions():
    (alternative,) = re.findall(r"!\[([^]]+)\]\(docs/cards\.png\)", README)
    scaling, loss, trust = picture.statements()
    assert f"{scaling.figure} {scaling.of.replace(':', ',')}" in alternative
    assert f"{loss.figure} {loss.of.partition(':')[0]}, rank {LATE_RANK}" in alternative
    assert f"{trust.figure}, {trust.sentences[0].removesuffix(', 1 oom.')}" in alternative


def test_the_command_for_a_script_of_one_s_own_is_one():
    """tests/mpi/test_observe_launchers.py runs it."""
    (command,) = re.findall(r"Already have a script\? `([^`]+)`", README)
    assert command == "torchrun --nproc-per-node 8 -m hpc.observe -- train.py"


def test_the_result_it_shows_is_that_of_the_ledger_document():
    """One measurement, shown in two places: they must not differ."""
    shown = README.split("--ledger\n```\n")[1].split("```\n")[1].splitlines()
    document = [line.removeprefix("    ") for line in (ROOT / "docs/ledger.md").read_text().splitlines()]
    assert shown and not [line for line in shown if line not in document]
