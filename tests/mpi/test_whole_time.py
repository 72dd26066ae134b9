"""Where the time of real runs goes: a killed attempt with its restart, and a script whose rollouts recur."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpc.backends import missing_modules
from hpc.model.outcome import Outcome
from hpc.model.spec import SCRIPT
from parse.ledger.finding import RankPauses
from parse.ledger.whole_time import traced, whole_times
from parse.report.summary import read_ledgers, read_summary
from parse.runs.load import load
from parse.runs.result import results
from tests.mpi.attempts import Attempt, Ranks
from tests.mpi.script_runs import SCRIPTS, script_spec
from tests.sweeps import outcomes, sweep_argv, with_checkout
from tests.waiting import LIMIT_S

KILLED = """
import os, signal, time
from pathlib import Path

from tests.mpi.ranks.user_workloads import Line


class KilledOnce(Line):
    def forward(self, batch):
        time.sleep(0.05)
        if self.step == 12 and self.rank == 1 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(batch)
"""
STEPS, STEP_S = 20, 0.05
LATE_S, UPDATES, ROLLOUTS = 0.04, 4, 25
"""As tests/observe_scripts/rollouts.py has them."""


def test_a_killed_attempt_and_its_restart_add_up_to_the_time_of_their_jobs(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KILLED)
    request = ("--cluster", "local", "--gpus-per-node", "0", "--repeats", "1", "--nodes", "2", "--no-baseline",
             "--backend", "mpi", "--workload", "mine.py:KilledOnce", "--steps", str(STEPS),
             "--warmup", "6")  # fmt: skip
    for words in ((), ("retry", "rank_fail")):
        done = subprocess.run(
            sweep_argv(*words, *request), cwd=tmp_path, env=with_checkout(os.environ), capture_output=True, text=True,
            check=False, timeout=LIMIT_S,
        )  # fmt: skip
    assert [*outcomes(tmp_path).values()] == ["rank_fail", "ok"], done.stdout + done.stderr
    judged = results(load([tmp_path / "traces"], kind="traces"))
    faults: list[str] = []
    (whole,) = whole_times(judged, judged, faults)
    (run,) = whole.runs
    assert faults == [] and run.attempts == 2
    assert sum(run.rows.values()) == pytest.approx(run.wall_s, abs=1e-6)
    # Each attempt's time, and what its job took before it.
    first, second = judged[0].runs[0].records
    jobs_s = sum((record.begin_ms + record.duration_ms - record.job_begin_ms) / 1e3 for record in (first, second))
    assert first.job_begin_ms >= 0 and run.wall_s == pytest.approx(jobs_s, abs=0.01)
    assert run.rows["lost steps"] >= 12 * STEP_S and run.rows["steps"] >= STEPS * STEP_S * 0.99
    assert all(run.rows[name] > 0 for name in ("start", "import", "build", "restarts", "failures", "end"))
    assert "not accounted for" not in run.rows
    assert whole.goodput == pytest.approx(run.rows["steps"] / run.wall_s)


@pytest.mark.skipif(bool(missing_modules(SCRIPT)), reason="; ".join(missing_modules(SCRIPT)))
def test_rollouts_before_one_of_four_steps_are_a_phase_with_its_time_and_who_is_slow(
    ranks: Ranks, tmp_path: Path
) -> None:
    made = Attempt(ranks, tmp_path, script_spec(tmp_path, script=SCRIPTS / "rollouts.py", batch_size=16))
    trace = made.trace()
    assert trace.outcome is Outcome.OK and trace.blocks.tolist() == [[10, UPDATES * ROLLOUTS]]
    recurring = [report.extra["script"]["phases"] for report in trace.reports]
    at = [*range(UPDATES, UPDATES * ROLLOUTS, UPDATES)]
    assert [[phase["step"] for phase in its] for its in recurring] == [at, at]
    assert {phase["kind"] for its in recurring for phase in its} == {"rollout"}
    rows = traced(trace, None)
    assert rows is not None and rows["rollout"] >= len(at) * LATE_S * 1e9
    summary, _ = read_summary([made.traces])
    (ledger,) = read_ledgers(summary, summary.results).ledgers or ()
    rollouts = next(each for _, each in ledger.findings_of(RankPauses) if each.ranks == (1,))
    assert rollouts.kinds == ("rollout",) and rollouts.times == sum(step > 10 for step in at)
    assert rollouts.length == pytest.approx(1e3 * LATE_S, rel=0.25) and ledger.speed_with_pauses is None
