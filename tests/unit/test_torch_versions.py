"""Which torch the hooks were tried with; what is said of others, and of a release that cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc.observe.remarks import TRIED, untried
from tests.unit.observed_events import Script

ROOT = Path(__file__).resolve().parents[2]


def test_all_tests_run_with_one_of_them() -> None:
    pinned = next(
        line.removeprefix("torch==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "torch==" in line
    )
    assert pinned.rpartition(".")[0] in TRIED


@pytest.mark.parametrize("version", ["2.3.1", "9.9.0+cu999", "3.0.0a0+git12", "a fork"])
def test_another_torch_is_a_remark(version: str) -> None:
    script = Script(torch=version)
    for _ in range(3):
        script.step()
    text = f"hooks were tried with torch {', '.join(TRIED)}; this is {version}: "
    assert [remark.startswith(text) for remark in script.observed().remarks].count(True) == 1


@pytest.mark.parametrize("version", [f"{TRIED[0]}.0", f"{TRIED[-1]}.3+cpu", "2.10.1"])
def test_one_of_them_or_between_them_is_none(version: str) -> None:
    assert untried(version) == ""
