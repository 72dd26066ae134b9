"""parse.ledger.pauses: who is away while a script pauses, and what that costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.model.spec import SCRIPT, UNKNOWN, script_blocks
from hpc.model.timestamps import END
from hpc.model.trace import Trace, TraceError
from parse.ledger.breakdown import step_breakdown
from parse.ledger.finding import RankPauses
from parse.ledger.pauses import RunPauses
from parse.ledger.point import ledgers
from parse.runs.load import load
from parse.runs.result import results
from parse.say.notes import notes
from parse.say.paragraph import sentence
from tests.unit.ledger_traces import run_of, trace_of
from tests.unit.ledgers import whole_text
from tests.unit.traces import put

PAUSED = (20, 40, 60)
STEP_MS = 13.0
"""Of trace_of without noise: data 1, forward 3, backward 6, communication 2, optimizer 1."""


def scripts(
    away: Mapping[int, float],
    facts: Mapping[int, dict[str, Any]],
    paused: tuple[int, ...] = PAUSED,
    waits: Mapping[int, float] | None = None,
    repeat: int = 1,
) -> Trace:
    """80 steps of a script. Before the `paused` steps each rank is away so many ms by its stamps; `facts` has by rank
    what its hooks recorded of each pause, `waits` the ms that ranks without a pause waited meanwhile."""
    run = run_of(measured_steps=74)
    trace = trace_of(run, data=lambda rank, step: away.get(rank, 0.0) if step in paused else 0.0)
    script = [
        {
            "pauses": [{"step": step, **facts[rank]} for step in paused] if rank in facts else [],
            "waits_at_pauses": [{"step": step, "waited_s": ms / 1e3} for step in paused]
            if (ms := (waits or {}).get(rank, 0.0))
            else [],
        }
        for rank in range(run.ranks)
    ]
    changed = dataclasses.replace(
        run, backend=SCRIPT, workload="/here/train.py", batch_size=0, precision=UNKNOWN, repeat=repeat
    )
    return dataclasses.replace(
        trace, run=changed, run_id="", point_id="", blocks=_blocks(run.warmup_steps, run.steps, paused),
        ranks=[{**its, "script": of} for its, of in zip(trace.ranks, script, strict=True)],
    )  # fmt: skip


def _blocks(warmup: int, steps: int, paused: tuple[int, ...]) -> Any:
    return np.array(script_blocks(warmup, steps, paused), np.int64)


def evaluated(ms: float, waited: float = 0.0, kind: str = "evaluation") -> dict[str, Any]:
    return {"kind": kind, "seconds": ms / 1e3, "waited_s": waited / 1e3}


def pauses(trace: Trace) -> RunPauses:
    paused = step_breakdown(trace).paused
    assert paused is not None
    return paused


def only(trace: Trace) -> RankPauses:
    (its,) = pauses(trace).by_ranks
    return its


def test_one_rank_pauses_and_the_others_wait() -> None:
    trace = scripts({0: 60}, {0: evaluated(60)})
    its = only(trace)
    assert (its.ranks, its.kinds, its.times) == ((0,), ("evaluation",), 3)
    assert its.length == pytest.approx(60)
    assert its.costs == pytest.approx(3 * 60 / 74)
    ends = trace.to_global(END).max(axis=0)
    assert its.share == pytest.approx(3 * 60e6 / (ends[79] - ends[5]))
    assert pauses(trace).slowdown == pytest.approx((74 * STEP_MS + 180) / (74 * STEP_MS), rel=1e-3)


def test_what_a_rank_waits_for_the_one_that_pauses_is_no_pause_of_its_own() -> None:
    """All meet in a barrier behind the evaluation of rank 0, which another rank enters in a pause of its own."""
    facts = {0: evaluated(61, 1), 1: evaluated(60, 59.5, "another loader")}
    assert only(scripts({0: 60, 1: 60, 2: 60, 3: 60}, facts, waits={2: 60, 3: 60})).ranks == (0,)


def test_ranks_that_are_away_without_a_record_are_seen_by_their_stamps() -> None:
    """All evaluate, in a way that hooks see on rank 0 alone."""
    its = only(scripts(dict.fromkeys(range(4), 60), {0: evaluated(60)}))
    assert its.ranks == ()
    assert its.length == pytest.approx(60, rel=0.01)


def test_some_ranks_pause_together() -> None:
    its = only(scripts({1: 60, 3: 58}, {1: evaluated(60), 3: evaluated(58)}))
    assert its.ranks == (1, 3)
    assert its.length == pytest.approx(60)


def test_one_rank_does_something_else_beside_what_all_do() -> None:
    facts = {rank: evaluated(60) for rank in range(4)} | {2: evaluated(160, kind="checkpoint and evaluation")}
    all_ranks, its = sorted(pauses(scripts({2: 100}, facts)).by_ranks, key=lambda each: each.ranks)
    assert (all_ranks.ranks, all_ranks.kinds) == ((), ("checkpoint", "evaluation"))
    assert all_ranks.length == pytest.approx(60)
    assert (its.ranks, its.length) == ((2,), pytest.approx(100))


def test_of_ranks_that_all_evaluate_the_longest_is_named_only_beyond_chance() -> None:
    facts = {rank: evaluated(60) for rank in range(4)} | {2: evaluated(75)}
    few = only(scripts({}, facts, paused=(20,)))
    assert few.ranks == ()
    assert few.length == pytest.approx(75)  # all wait for the longest
    many = pauses(scripts({}, facts, paused=(10, 20, 30, 40, 50, 60, 70))).by_ranks
    assert {each.ranks for each in many} == {(), (2,)}


def test_without_pauses_in_the_window_there_is_nothing() -> None:
    assert step_breakdown(scripts({}, {0: evaluated(60)}, paused=(3,))).paused is None


@pytest.mark.parametrize("entry", [{"kind": "evaluation", "seconds": "long"}, {"seconds": -1}, {"seconds": 1e300}])
def test_damaged_facts_are_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match="of a pause of rank 0 is"):
        step_breakdown(scripts({}, {0: entry}))


def test_the_sentence_has_who_what_and_the_speeds_and_no_assurance_without_it(tmp_path: Path) -> None:
    for repeat in (1, 2):
        put(tmp_path, scripts({0: 60}, {0: evaluated(60)}, repeat=repeat))
    (ledger,) = ledgers(results(load([tmp_path])))
    text = sentence(ledger, "2n2g")
    assert (
        "Rank 0 (n0) alone pauses 3 times, 60.0 ms each (evaluation), and others wait. This costs 2.43 ms a step, 16 % "
        "of the training. With the pauses: " in text
    )
    assert "Between pauses no straggler: " in whole_text(ledger)
    assert "No straggler" not in text
    assert any("ms with the unmeasured steps behind them, the longest " in line for line in notes(ledger))
    assert ledger.speed_with_pauses == pytest.approx((ledger.result.median_speed or 0) * 0.842, rel=0.01)
