"""Whether a straggler's host or its device is slow: what decides, and what the ledger says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hpc.model.timestamps import DEVICE_PHASES
from parse.ledger.finding import Pacer, Paces
from parse.ledger.point import ledgers
from parse.ledger.readings import Spans, paces_of, spans_of
from parse.ledger.verdict import PERSISTENT, TRANSIENT, Straggler, Verdict
from parse.report.export import as_json
from parse.report.summary import read_summary
from parse.runs.load import load
from parse.runs.result import results
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.ledgers import LATE, two_nodes, whole_text
from tests.unit.traces import put


def spans(**changes: float) -> Spans:
    """Of a rank: `ms`, `idle_ms`, `host_ms`, `ahead_ms` of its compute; its other phases have none of it."""
    values = {"ms": 0.0, "idle_ms": 0.5, "host_ms": 2.0, "ahead_ms": 30.0, **changes}
    return {
        name: {phase: value if phase == "compute" else 0.0 for phase in DEVICE_PHASES} for name, value in values.items()
    }


def late(**changes: Any) -> Verdict:
    return Straggler(**{"kind": PERSISTENT, "ranks": (1,), "cause": {"compute": 8.0, "data": 1.0}, **changes})


@pytest.mark.parametrize(
    ("its", "usual", "pacer"),
    [
        pytest.param({"idle_ms": 10, "ahead_ms": 2}, {}, Pacer.HOST, id="Python between kernels"),
        pytest.param({"ms": 6}, {}, Pacer.HOST, id="the device is there as soon as the host is"),
        pytest.param({"idle_ms": 0}, {}, Pacer.DEVICE, id="it never waits"),
        pytest.param({"idle_ms": 3}, {}, Pacer.DEVICE, id="it hardly waits"),
        pytest.param({"idle_ms": 10, "ahead_ms": 2}, {"idle_ms": 9, "ahead_ms": 2}, Pacer.DEVICE, id="all wait"),
        pytest.param({"idle_ms": 10, "ahead_ms": 20}, {}, Pacer.UNKNOWN, id="a full queue"),
    ],
)
def test_the_host_is_slow_where_its_device_can_have_waited_for_half_of_the_delay(
    its: dict[str, float], usual: dict[str, float], pacer: Pacer
) -> None:
    paces = paces_of(late(), [(spans(**usual), spans(**its), spans(**usual))], (1,))
    assert paces is not None and paces.pacer is pacer


def test_who_is_slow_is_said_of_persistent_stragglers_that_differ_from_others() -> None:
    run = (spans(), spans(idle_ms=9, ahead_ms=0), spans(idle_ms=9, ahead_ms=0))
    with_others, of_both = paces_of(late(), [run], (1,)), paces_of(late(), [run], (1, 2))
    assert with_others is not None and with_others.usual_idle == pytest.approx((0.5 + 9) / 2)  # rank 2 is as slow
    assert of_both is not None and of_both.usual_idle == 0.5
    assert paces_of(late(), [run], (0, 1, 2)) is None
    assert paces_of(late(), [run, ()], (1,)) is None
    assert paces_of(late(kind=TRANSIENT, steps=(3,)), [run], (1,)) is None
    assert paces_of(late(cause={}), [run], (1,)) is None


@pytest.mark.parametrize(
    ("pacer", "text"),
    [
        (
            Pacer.HOST,
            "Its host is slow: Python and launches take 40.0 ms there, and its device waits up to 28.4 ms (others "
            "0.5).",
        ),
        (Pacer.DEVICE, "Its device is slow: there it waits for its host 28.4 ms at most (others 0.5)."),
        (
            Pacer.UNKNOWN,
            "Its host or its device is slow: Python and launches take 40.0 ms there, and its device waits up to "
            "28.4 ms (others 0.5), unless a full queue holds the host back.",
        ),
    ],
)
def test_the_sentence_says_whose_time_it_is(pacer: Pacer, text: str) -> None:
    paces = Paces(pacer=pacer, idle=28.4, usual_idle=0.5, host=40.0)
    assert text in whole_text(two_nodes(verdict=LATE, evidence=(paces,)))


def test_a_ledger_of_traces_says_it(tmp_path: Path) -> None:
    trace = trace_of(run_of(), forward=on(3, ms=8))
    reports = [spans(), spans(), spans(), spans(idle_ms=9, ahead_ms=0)]
    ranks = [{**rank, "script": {"host_bound": its}} for rank, its in zip(trace.ranks, reports, strict=True)]
    put(tmp_path, dataclasses.replace(trace, ranks=ranks))
    (ledger,) = ledgers(results(load([tmp_path])))
    assert ledger.verdict.ranks == (3,)
    assert ledger.findings[0].evidence[-1] == Paces(pacer=Pacer.HOST, idle=9, usual_idle=0.5, host=2)
    summary, _ = read_summary([tmp_path])
    summary = dataclasses.replace(summary, ledgers=(ledger,))
    (its,) = json.loads(as_json(summary))["ledgers"]
    assert its["findings"][0]["evidence"][-1] == {"pacer": "host", "idle": 9, "usual_idle": 0.5, "host": 2}


@pytest.mark.parametrize("its", [None, [], {}, {"ms": 3}, spans(ms=-1), {**spans(), "idle_ms": {"compute": 1.0}}])
def test_where_a_rank_has_no_record_nothing_is_said(its: object) -> None:
    trace = trace_of(run_of())
    reports = [spans(), spans(), spans()]
    for last, expected in ((its, 0), (spans(), 4)):
        ranks = [
            {**rank, "script": {"host_bound": its}} for rank, its in zip(trace.ranks, [*reports, last], strict=True)
        ]
        assert len(spans_of(dataclasses.replace(trace, ranks=ranks))) == expected
