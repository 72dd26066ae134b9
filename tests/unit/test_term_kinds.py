"""The table of terms: what follows from its rows, and that nothing else in `parse` names a term."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hpc.model.timestamps import STAMPS
from parse.term_kinds import (
    ARRIVES,
    BORDERS,
    CAUSES,
    COMMUNICATION,
    COMPUTE,
    DATA,
    GRADIENTS_OF_ALL,
    TERM_KINDS,
    TERMS,
    WAIT,
    causes_between,
    device_phases,
    is_known,
    phrase,
)

PARSE = Path(__file__).resolve().parents[2] / "parse"
OTHER_THINGS = {
    ("ledger/host_bound.py", "compute"), ("ledger/host_bound.py", "data"), ("ledger/figures.py", "compute"),
    ("ledger/figures.py", "optimizer"), ("graph/peers.py", "communication"), ("ledger/graph_text.py", "wait"),
}  # fmt: skip
"""Phases of a device (hpc.model.timestamps.DEVICE_PHASES), an attribute, a verb."""


def test_each_term_ends_at_a_border_of_its_own_in_the_order_of_a_step() -> None:
    stamps = [kind.stamp for kind in TERM_KINDS if kind.ends_at != GRADIENTS_OF_ALL]
    assert stamps == sorted({*stamps}) and WAIT.ends_at == GRADIENTS_OF_ALL
    assert TERM_KINDS[-1].ends_at == STAMPS[-1] and len({*TERMS}) == len(TERM_KINDS) == len(BORDERS) + 1


@pytest.mark.parametrize(
    ("lost", "causes"),
    [
        ((), CAUSES),
        ((DATA,), ("release", "optimizer", "", "data+compute")),
        ((COMMUNICATION,), ("", "release+optimizer", "data", "compute")),
        ((COMPUTE, WAIT), CAUSES),  # then ranks are compared where a step begins
    ],
)
def test_a_cause_whose_end_is_not_known_is_one_with_the_next(lost: tuple[str, ...], causes: tuple[str, ...]) -> None:
    names = causes_between({*BORDERS} - {kind.ends_at for kind in TERM_KINDS if kind in lost})
    assert names == causes
    assert all(phrase(name) is not ARRIVES and device_phases(name) for name in names if name)


def test_the_end_of_a_term_is_known_where_no_other_follows_in_its_name() -> None:
    names = ("data+compute", "wait", "communication+optimizer")
    assert [kind.name for kind in TERM_KINDS if is_known(kind, names)] == ["compute", "wait", "optimizer"]


def test_what_is_no_cause_has_no_phase_and_says_when_a_rank_arrives() -> None:
    assert device_phases("gravity") == () and phrase("gravity") is ARRIVES and device_phases("data+gravity") == ()


def named_in(source: str) -> set[str]:
    """The terms and causes that are string constants of this source."""
    return {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)
            and isinstance(node.value, str)} & {*TERMS, *CAUSES}  # fmt: skip


def test_nothing_else_names_a_term() -> None:
    folders = ("ledger", "graph", "report", "page", "trace_events", "arrivals", "extrapolation")
    files = [file for folder in folders for file in sorted((PARSE / folder).rglob("*.py"))]
    named = {(str(file.relative_to(PARSE)), name) for file in files for name in named_in(file.read_text())}
    assert len(files) > 60
    assert sorted(named - OTHER_THINGS) == []
    assert named_in("a = 'data' if b else 'reduction'") == {"data"}
