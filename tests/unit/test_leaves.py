"""The leaves have their files, and docs/structure.md shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hpc.system import leaves as table
from launch.sweep.cli import main as sweep
from parse.report.__main__ import main as report
from parse.summarize import main as summarize
from tests.leaves import PACKAGES, ROOT, leaves

LEAVES = leaves()


@pytest.mark.parametrize("leaf", [pytest.param(each, id=each.name) for each in LEAVES])
def test_all_files_of_a_leaf_exist(leaf):
    assert all((ROOT / path).exists() for path in leaf.paths)
    assert all([*ROOT.glob(pattern)] for pattern in leaf.tests)
    door = leaf.door if leaf.door.endswith(".toml") else leaf.door.replace(".", "/") + ".py"
    assert ROOT / door in leaf.files()
    assert leaf.door.startswith(PACKAGES)


def test_no_file_belongs_to_two_leaves_and_each_stands_on_leaves():
    files = [file for leaf in LEAVES for file in leaf.files()]
    assert len(files) == len({*files})
    assert {name for leaf in LEAVES for name in leaf.stands_on} <= {leaf.name for leaf in LEAVES}


def test_structure_md_has_each_leaf_with_its_door():
    text = (ROOT / "docs" / "structure.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    shown = [
        (cells[0], cells[2].strip("`")) for cells in rows if len(cells) == 3 and cells[1].replace(",", "").isdigit()
    ]
    assert shown == [(leaf.name, leaf.door) for leaf in LEAVES], "python -m tests.leaves writes the table"


@pytest.mark.parametrize(
    ("main", "arguments", "leaf"),
    [
        (report, ["{}", "--format", "latex"], "section of a paper"),
        (summarize, ["{}", "--airank"], "airank"),
        (sweep, ["accept", "--reference", "none.toml"], "accept"),
        (sweep, ["find-max", "batch-size", "--backend", "mpi", "--nodes", "1", "--dry-run"], "find-max"),
        (sweep, ["--recipe", "ngc-pytorch-resnet50", "--dry-run"], "recipes"),
    ],
)
def test_what_needs_a_leaf_that_is_off_is_refused_in_a_line(
    main: Callable[[Sequence[str]], int], arguments: list[str], leaf: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.delitem(table.DOORS, leaf)
    with pytest.raises(SystemExit) as ended:
        main([argument.format(tmp_path) for argument in arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{leaf}: not part of this installation (hpc/system/leaves.py)\n"
