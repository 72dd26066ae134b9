"""Names are the field's words (docs/adr/0015): none of those that were retired comes back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("hpc", "parse", "launch", "tools", "benchmarks", "tests")
RETIRED = {
    "found", "said", "told", "asked", "one", "own", "kept", "left", "there", "past", "most", "word", "why", "again",
    "alone", "settled", "unsettled", "standing", "closing", "remains", "leftovers", "stretch", "twin", "probe",
    "culprit", "lateness", "rings", "cure", "is_echo", "sayer", "in_words", "heard", "families", "sieve", "merger",
    "strays", "shortfall", "NotNow", "Silence", "TooShort", "How", "Guards", "Promises", "Room", "Own", "Saying",
    "Tally", "Aim", "Draft", "Terms", "Broken", "Sight", "Memory", "Wish", "Marks", "Turns", "Left",
}  # fmt: skip
GEOMETRY = {
    ("hpc/workloads/image_reader.py", "left"),
    ("hpc/workloads/image_batches.py", "left"),
    ("hpc/workloads/tensorflow_models.py", "left"), ("benchmarks/helper.py", "left"),
    ("benchmarks/plain_clock.py", "left"), ("tests/unit/test_images.py", "left"),
}  # fmt: skip
"""The left edge of a box, the left factor of a product, the left neighbour on an axis."""


def names_given(source: str) -> Iterator[str]:
    """The names that this source gives to variables, parameters, attributes, functions and classes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_retired_word_is_a_name(folder: str) -> None:
    given = {
        (str(path.relative_to(ROOT)), name.removeprefix("_"))
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in names_given(path.read_text())
    }
    assert sorted((file, name) for file, name in given - GEOMETRY if name in RETIRED) == []


def test_every_kind_of_name_is_looked_at() -> None:
    source = (
        "class Sight:\n    def told(self, asked):\n        self.kept = [one for one in asked]\nif (why := 1): pass\n"
    )
    assert {*names_given(source)} & RETIRED == {"Sight", "told", "asked", "kept", "one", "why"}


def test_what_is_allowed_is_there() -> None:
    assert all(name in {*names_given((ROOT / file).read_text())} for file, name in GEOMETRY)
