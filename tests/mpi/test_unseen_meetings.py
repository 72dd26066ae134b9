"""Trainings whose ranks also meet where no hook sees it: that nobody is late is never assured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.truth.unseen_run import Training, ledger_of

pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("named memory", "shared memory (/dev/shm/"),
        pytest.param("graph", "a step of compiled graphs or C++ (by torch's own record)", marks=pytest.mark.all),
        pytest.param("polled store", "a store of torch.distributed", marks=pytest.mark.all),
        pytest.param("anonymous memory", "shared memory (/dev/zero)", marks=pytest.mark.all),
        pytest.param("mpi", "mpi4py", marks=pytest.mark.all),
    ],
)
def test_where_ranks_also_meet_is_said_and_nobody_is_assured_to_be_on_time(tmp_path: Path, way: str, text: str) -> None:
    verdict = ledger_of(Training(way=way, late=1, burns=False), tmp_path)["verdict"]
    assert verdict["kind"] != "none"
    if verdict.get("because") != "in some steps":  # of busy cores
        assert text in _reason(verdict)


@pytest.mark.all
def test_sleep_that_no_hook_explains_takes_the_assurance_away(tmp_path: Path) -> None:
    verdict = ledger_of(Training(way="socket", late=1, burns=True), tmp_path)["verdict"]
    assert verdict["kind"] != "none"
    if verdict["kind"] == "cannot tell" and verdict["because"] != "in some steps":
        assert "sleeps" in _reason(verdict)


@pytest.mark.all
def test_a_training_that_meets_nowhere_else_says_so(tmp_path: Path) -> None:
    assert "also meet" not in _reason(ledger_of(Training(way="none", late=1, burns=False), tmp_path)["verdict"])


def _reason(verdict: Mapping[str, Any]) -> str:
    """Why it is not known who is waited for, or of a straggler where ranks also meet."""
    return str(verdict.get("because") or verdict.get("unseen", ""))
