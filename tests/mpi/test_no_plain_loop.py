"""Scripts whose training is no plain loop: their steps, their samples, and who is late where."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc.backends import missing_modules
from hpc.model.spec import SCRIPT
from parse.ledger.breakdown import step_breakdown
from parse.term_kinds import CAUSES
from tests.mpi.attempts import Attempt, Ranks
from tests.mpi.script_runs import SCRIPTS, script_spec

pytestmark = pytest.mark.skipif(bool(missing_modules(SCRIPT)), reason="; ".join(missing_modules(SCRIPT)))
STEPS = 60


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("grad", "data"),
        ("forward", "compute"),
        ("join", "data"),
        ("read-by-thread", "data"),
        ("evaluated-by-thread", "data"),
    ],
)
def test_the_steps_are_seen_with_their_samples_and_who_is_late(
    ranks: Ranks, tmp_path: Path, kind: str, cause: str
) -> None:
    script = script_spec(tmp_path, kind, str(STEPS), script=SCRIPTS / "no_plain_loop.py", telemetry="off")
    trace = Attempt(ranks, tmp_path, script).trace()
    assert trace.stamps.shape[1] == STEPS and {*trace.samples[:, 1:].ravel().tolist()} == {4}
    for rank in trace.ranks:
        remarks = "; ".join(rank["script"]["remarks"])
        assert not rank["script"]["pauses"] and "optimizer changes" not in remarks
        assert ("another thread reads (60 batches)" in remarks) == (kind == "read-by-thread")
    arrivals = step_breakdown(trace).arrivals
    assert arrivals is not None
    of_ranks = arrivals.parts.mean(axis=0)
    assert CAUSES[int((of_ranks[1] - of_ranks[0]).argmax())] == cause
