"""Hostile files, a small part of `make fuzz`; and that each of its checks fires."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fuzz import fuzz_hostile
from tests.fuzz.fuzz_hostile import KINDS, SECRET, Place, check, make_place, run
from tests.fuzz.trials import Defect

pytestmark = pytest.mark.all
FEW = 40


def test_a_few_hostile_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(5_000, FEW, tmp_path) == 0, capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    assert run(70_000, 3, tmp_path, kind=kind) == 0, capsys.readouterr().out


def instead_of_a_kind(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    def make(out: Path, rng: random.Random, place: Place) -> Sequence[str]:
        print(line)
        return []

    monkeypatch.setattr(fuzz_hostile, "KINDS", {"trace": (1, make)})


@pytest.mark.parametrize("line", ["Traceback (most recent call last):", f"evidence: {SECRET}"])
def test_what_is_printed_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    place = make_place(tmp_path)
    instead_of_a_kind(monkeypatch, line)
    (tmp_path / "out").mkdir()
    with pytest.raises(Defect, match="is printed"):
        check(1, tmp_path / "out", place)
