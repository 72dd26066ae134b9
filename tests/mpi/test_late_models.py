"""Scripts whose models reduce several times in a step, or are updated otherwise than once: each reduction is seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpc.backends import missing_modules
from hpc.model.spec import SCRIPT, SCRIPT_STEPS
from hpc.model.timestamps import ABSENT, FORWARD_END, GRADS_READY
from parse.ledger.breakdown import step_breakdown
from parse.term_kinds import BORDERS, CAUSES
from tests.mpi.attempts import Attempt, Ranks
from tests.mpi.script_runs import SCRIPTS, script_spec

pytestmark = pytest.mark.skipif(bool(missing_modules(SCRIPT)), reason="; ".join(missing_modules(SCRIPT)))


@pytest.mark.parametrize(
    ("kind", "meetings"),
    [
        ("models", []),
        pytest.param("backwards", [1], marks=pytest.mark.all),
        pytest.param("again", [], marks=pytest.mark.all),
        ("unused", []),
        ("hook", []),
        ("skipped", [0, 1]),
        pytest.param("turns", [1], marks=pytest.mark.all),
        pytest.param("closures", [2], marks=pytest.mark.all),
        pytest.param("in-backward", None, marks=pytest.mark.all),
    ],
)
def test_each_reduction_is_a_meeting_and_who_has_its_batch_late_is_seen(
    ranks: Ranks, tmp_path: Path, kind: str, meetings: list[int] | None
) -> None:
    """`meetings` are how many reductions a step has before the one of its time stamps; None: calls by hand."""
    steps = {"warmup_steps": 20, "measured_steps": SCRIPT_STEPS - 20}  # torch's record must go beyond DDP's first ones
    script = script_spec(tmp_path, kind, "50", script=SCRIPTS / "late_models.py", telemetry="off", **steps)
    trace = Attempt(ranks, tmp_path, script).trace()
    assert (trace.meetings is None) == (meetings == [])
    if meetings:
        assert {*trace.meeting_names} == {"all-reduce of gradients"}
        first, stop = trace.blocks[0]
        present = np.asarray(trace.meetings)[:, first:stop, :, 0] != ABSENT
        assert {*present.sum(axis=2).ravel().tolist()} == {*meetings}
    lacking = [text for rank in trace.ranks for text in rank["script"]["remarks"] if text.startswith("not known")]
    assert not lacking or kind == "in-backward"
    if kind == "unused":  # its slow backward is its own in each step that has it
        steps_ms = (trace.stamps[1, :, GRADS_READY] - trace.stamps[1, :, FORWARD_END])[19:-1] / 1e6
        assert (steps_ms[::3] > 20).all() and np.median(steps_ms) < 10
    breakdown = step_breakdown(trace)
    assert breakdown.borders == {*BORDERS} and not breakdown.unseen_ways
    assert breakdown.arrivals is not None
    of_ranks = breakdown.arrivals.parts.mean(axis=0)
    later = of_ranks[1] - of_ranks[0]
    assert CAUSES[int(later.argmax())] == "data"
