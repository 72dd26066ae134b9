"""Steps of which the begin and end alone are known: ranks are compared where they begin."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hpc.model.timestamps import ABSENT, FORWARD_END, GRADS_READY, REDUCED
from parse.ledger.breakdown import step_breakdown
from parse.ledger.verdict import CANNOT_TELL, Because, Merged
from parse.ledger.verdicts import point_verdicts
from tests.unit.ledger_traces import Change, on, run_of, trace_of
from tests.unit.ledgers import LATE, two_nodes, whole_text


@pytest.mark.parametrize(
    ("delays", "ranks", "cause"),
    [
        ({"data": on(2, ms=20.0)}, (2,), "data"),
        ({"optimizer": on(2, ms=20.0)}, (2,), "release+optimizer"),
        ({"backward": on(2, ms=20.0)}, (), Because.INSIDE),
        ({}, (), Because.INSIDE),
    ],
)
def test_where_the_begin_of_steps_alone_is_known_ranks_are_compared_there(
    delays: dict[str, Change], ranks: tuple[int, ...], cause: str
) -> None:
    changes: dict[str, Any] = {"noise": 0.1, "backend": {"compared_at_begin": True}, **delays}
    trace = trace_of(run_of(), **changes)
    trace.stamps[..., [FORWARD_END, GRADS_READY, REDUCED]] = ABSENT
    result = point_verdicts([step_breakdown(trace)]).verdict
    assert result.ranks == ranks
    assert cause == (
        max(result.cause, key=lambda name: result.cause[name]) if ranks else getattr(result, "because", None)
    )


SCRIPT_RUN = {"backend": "script", "workload": "train.py", "precision": "unknown"}


@pytest.mark.parametrize(
    ("run", "backend"),
    [
        ({"timing": "step"}, {}),
        ({}, {"meets_before_gradients": ["batch norm"]}),
        (
            SCRIPT_RUN,
            {"meets_before_gradients": ["1 gather a step"]},
        ),
        (SCRIPT_RUN, {"lacking": slice(10, 40)}),
    ],
)
def test_whoever_has_its_batch_late_is_named_where_ranks_cannot_be_compared_at_the_reduction(
    run: dict[str, Any], backend: dict[str, Any]
) -> None:
    trace = trace_of(run_of(**run), noise=0.1, backend=backend, data=on(2, ms=20.0))
    trace.stamps[1, backend.get("lacking", slice(0)), GRADS_READY] = ABSENT
    result = point_verdicts([step_breakdown(trace)]).verdict
    assert step_breakdown(trace).at_begin
    assert (result.ranks, max(result.cause, key=lambda name: result.cause[name])) == ((2,), "data")


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        ({"reduction": "off"}, Merged(not_reduced=True)),
        (
            SCRIPT_RUN,
            Merged(missing=(("grads_ready", 160, 160),)),
        ),
    ],
)
def test_ranks_that_are_not_known_to_meet_are_not_compared(run: dict[str, Any], reason: Merged) -> None:
    trace = trace_of(run_of(**run), noise=0.1, data=on(2, ms=20.0))
    if "backend" in run:
        trace.stamps[..., GRADS_READY] = ABSENT
    result = point_verdicts([step_breakdown(trace)]).verdict
    assert (result.kind, result.because) == (CANNOT_TELL, reason)


@pytest.mark.parametrize(("cause", "leaves_late"), [("data", False), ("release+optimizer", True)])
def test_what_is_inside_of_a_step_of_which_the_begin_alone_is_known_comes_on_top(cause: str, leaves_late: bool) -> None:
    ledger = two_nodes(verdict=dataclasses.replace(LATE, cause={cause: 30.0}))
    data, compute, *_ = ledger.terms
    merged = dataclasses.replace(compute, name="compute+wait+communication+optimizer")
    text = whole_text(dataclasses.replace(ledger, terms=(data, merged)))
    assert "Inside a step nothing is seen: what a rank takes longer there comes on top." in text
    begins = "on top. A rank that leaves the last meeting of a step late, as on busy cores, begins the next one late."
    assert (begins in text) is ("last meeting" in text) is leaves_late
    assert "comes on top" not in whole_text(ledger)
