"""Scripts whose training is no plain loop: their steps, their samples, and who is late where."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc.backends import missing_modules
from hpc.model.spec import SCRIPT
from parse.graph.step_graph import step_calls
from parse.ledger.breakdown import step_breakdown
from parse.ledger.terms import point_terms
from parse.term_kinds import CAUSES
from tests.mpi.attempts import Attempt, Ranks
from tests.mpi.script_runs import SCRIPTS, WARMUP, script_spec

pytestmark = pytest.mark.skipif(bool(missing_modules(SCRIPT)), reason="; ".join(missing_modules(SCRIPT)))
STEPS, ENDLESS = 60, 1_000_000


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


@pytest.mark.parametrize("late", [pytest.param(1, marks=pytest.mark.all), 3])
def test_ranks_that_generate_are_in_the_steps_of_those_that_learn_and_each_has_a_peer(
    ranks: Ranks, tmp_path: Path, late: int
) -> None:
    script = script_spec(
        tmp_path, str(late), str(ENDLESS), script=SCRIPTS / "roles.py", telemetry="off", ranks_per_node=4,
        measured_steps=STEPS - WARMUP,
    )  # fmt: skip
    attempt = Attempt(ranks, tmp_path, script)
    trace = attempt.trace()
    assert trace.stamps.shape[:2] == (4, STEPS)
    assert "ranks 2-3: it updates nothing: its steps end with the last call that it shares with rank 0" in (
        attempt.done.stderr
    )
    first, second, *generators = step_calls(trace).roles.tolist()
    assert first == second not in generators and generators[0] == generators[1]
    breakdown = step_breakdown(trace)
    assert breakdown.arrivals is not None
    of_ranks = breakdown.arrivals.parts.mean(axis=0)
    assert int(of_ranks[:, CAUSES.index("compute")].argmax()) == late
    terms = point_terms([breakdown], [], 1.0)
    learners, generators = (dict(zip(terms.names, role.terms, strict=True)) for role in terms.roles)
    assert [role.ranks for role in terms.roles] == [(0, 1), (2, 3)]
    slow, other = (generators, learners) if late > 1 else (learners, generators)
    assert slow["compute"] > other["compute"] and slow["wait"] < other["wait"]
