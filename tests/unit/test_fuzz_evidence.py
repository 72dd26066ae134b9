"""Damaged sweeps, a small part of `make fuzz`; and that each of its checks fires."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.fuzz_evidence import run

pytestmark = pytest.mark.all

FEW = 40


def test_a_few_damaged_sweeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(5_000, FEW, tmp_path) == 0, capsys.readouterr().out
