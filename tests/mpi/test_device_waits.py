"""A script on a simulated accelerator whose host is behind: what its trace and its ledger say of that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc.backends import missing_modules
from hpc.model.spec import SCRIPT
from hpc.model.timestamps import ABSENT, DEVICE_PHASES
from parse.ledger.point import ledgers
from parse.runs.load import load
from parse.runs.result import results
from parse.say.paragraph import text_of
from tests.mpi.attempts import Attempt, Ranks
from tests.mpi.script_runs import SCRIPTS, WARMUP, script_spec

pytestmark = pytest.mark.skipif(bool(missing_modules(SCRIPT)), reason="; ".join(missing_modules(SCRIPT)))


@pytest.mark.all
def test_what_a_device_waits_for_its_host_is_in_the_trace_and_in_the_ledger(ranks: Ranks, tmp_path: Path) -> None:
    """Rank 1 sleeps 25 ms in each step behind a wait for its device, whose step takes 14 ms of itself."""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"steps": 50, "windows": [["item", 1, 25]]}))
    words = ("--parallel", "ddp", "--ahead", "2", "--plan", str(plan), "--truth", str(tmp_path / "truth"))
    run = script_spec(tmp_path, *words, script=SCRIPTS / "on_device.py", telemetry="off")
    attempt = Attempt(ranks, tmp_path, run)
    trace = attempt.trace()
    assert trace.host_bound_ns is not None and list(trace.host_bound_phases) == [*DEVICE_PHASES]
    measured = trace.host_bound_ns[:, WARMUP:]
    assert (measured != ABSENT).all()
    (ledger,) = ledgers(results(load([attempt.traces])))
    assert ledger.host_bound is not None
    pace = ledger.host_bound.ranks[1]
    assert pace is not None and pace.syncs == 1 and pace.most_behind > 10
    assert any(
        "GPU of rank 1" in text and "its host is behind" in text
        for text in [*text_of(ledger).paragraph, *text_of(ledger).further]
    )
