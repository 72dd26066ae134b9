"""The leaves have their files, and docs/structure.md shows them."""

from __future__ import annotations

import pytest

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
