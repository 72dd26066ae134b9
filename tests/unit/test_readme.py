"""The README stays short and leads to every document."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.browser import picture
from tests.unit.page_folders import LATE_RANK

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_it_is_short():
    assert len(README.splitlines()) <= 90


def test_it_shows_the_three_commands_and_the_one_for_all_others_and_the_other_spelling_once():
    for command in (
        "rankwise sweep --nodes 1,2,4",
        "sbatch jobs/2n.sh",
        "rankwise summarize traces/",
        "rankwise --help",
    ):
        assert command in README
    assert README.count("python -m ") == README.count("python -m hpc.sweep") == 1


def test_it_links_every_document():
    linked = set(re.findall(r"\]\((docs/[\w./]+)\)", README))
    assert not {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - linked


def test_it_says_where_it_was_proven_and_where_not_as_the_results_do():
    """Five lines; the test fails where a figure of the results has changed."""
    results = (ROOT / "docs" / "results.md").read_text()
    (machine,) = re.findall(r"All are of \*\*one machine\*\*:\s(a virtual machine .*? no GPU),", results, re.DOTALL)
    conclusions = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \| \[", results, re.MULTILINE))
    (unproven,) = re.findall(r"\*\*N(o figure is of [^*]+)\.\*\*", results)
    lines = [
        f"* **Proven** ([results](docs/results.md)) on one machine: {' '.join(machine.split())}",
        *(f"* {name}: {conclusions[name]}" for name in ("clock", "ledger", "logs of others")),
        f"* **Not proven**: n{unproven}",
    ]
    assert "\n\n" + "\n".join(lines) + "\n\n" in README


def test_the_page_on_how_sure_it_is_has_the_figures_of_the_results():
    """But for three that are sums of the results' columns."""
    sure, results = ((ROOT / "docs" / name).read_text() for name in ("sure.md", "results.md"))
    figures = {*re.findall(r"\b[\d,]+ of [\d,]+\b", sure)} - {"22,770 of 22,770", "38 of 39", "26 of 33"}
    assert len(figures) > 5 and not {figure for figure in figures if figure not in results}


def test_nothing_simulated_is_shown_as_measured():
    """The picture has its stamp in itself, the example of the ledger what it was measured on."""
    assert picture.words_in(picture.CARDS).startswith(picture.STAMP) and "simulated" in picture.STAMP
    assert "![Three cards of a page, of simulated traces: " in README
    (example,) = re.findall(r"An example: (.*?):\n\n```", README, re.DOTALL)
    assert all(part in example for part in ("`delay`", "`mpi`", "one machine of two cores", "oversubscribed"))


def test_make_shows_what_pip_does_on_a_terminal_alone_and_how_to_go_on_after_the_demo():
    def planned(words: str, **env: str) -> str:
        command = ["bash", "-c", words]
        plain = {name: value for name, value in os.environ.items() if name not in ("CI", "MAKEFLAGS", "MAKELEVEL")}
        return subprocess.run(command, cwd=ROOT, env=plain | env, capture_output=True, text=True, check=True).stdout

    make = f"{shutil.which('make')} -n -W setup.py demo"
    assert "pip install --quiet" in planned(make)
    terminal = f"script -qec '{make}' /dev/null"
    assert "pip install" in planned(terminal) and "--quiet" not in planned(terminal)
    assert "pip install --quiet" in planned(terminal, CI="true")
    assert ". .venv/bin/activate; rankwise report traces/" in planned(make).splitlines()[-1]


def test_the_picture_says_what_a_page_of_its_traces_says_now():
    """`python -m tests.browser.picture` writes it anew."""
    shown = [[picture.STAMP], *_cards()]
    assert picture.words_in(picture.CARDS) == " ".join(text for texts in shown for text in texts)
    assert picture.CARDS.stat().st_size < 150_000


def _cards() -> list[list[str]]:
    return [[each.question, each.figure, each.of, *each.sentences, each.link_text] for each in picture.statements()]


def test_who_does_not_see_the_picture_reads_its_conclusions():
    (alternative,) = re.findall(r"!\[([^]]+)\]\(docs/cards\.png\)", README)
    scaling, loss, trust = picture.statements()
    assert f"{scaling.figure} {scaling.of.replace(':', ',')}" in alternative
    assert f"{loss.figure} {loss.of.partition(' (')[0]}, rank {LATE_RANK}" in alternative
    assert f"{trust.figure}, {trust.of.removesuffix(', 1 oom')}" in alternative


def test_the_command_for_a_script_of_one_s_own_is_one():
    """tests/mpi/test_observe_launchers.py runs it."""
    (command,) = re.findall(r"Already have a script\?\s`([^`]+)`", README)
    assert command == "torchrun --nproc-per-node 8 -m rankwise observe -- train.py"


def test_the_result_it_shows_is_that_of_the_ledger_document():
    """One measurement, shown in two places: they must not differ."""
    shown = README.split("An example: ")[1].split("```\n")[1].splitlines()
    document = [line.removeprefix("    ") for line in (ROOT / "docs/ledger.md").read_text().splitlines()]
    assert shown and not [line for line in shown if line not in document]
