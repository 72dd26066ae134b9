"""Runs and rows of followed sweeps, made up."""

from __future__ import annotations

import dataclasses
import io

from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.spec import RunSpec
from launch.follow.view import PENDING, RUNNING, Row, StepCount

RUN = RunSpec(
    nodes=1, ranks_per_node=2, gpus_per_node=0, cpus_per_rank=1, backend="torch-ddp", workload="resnet50",
    batch_size=128, precision="fp32", scaling="weak", warmup_steps=5, measured_steps=995, repeat=1, seed=0, site="s",
)  # fmt: skip


class Terminal(io.StringIO):
    """A mock file that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def runs(count: int) -> list[RunSpec]:
    """Repeats of four node counts."""
    return [dataclasses.replace(RUN, nodes=2 ** (at % 4), repeat=at // 4 + 1) for at in range(count)]


def running(run: RunSpec, completed: int = 412, elapsed_s: float = 75.2) -> Row:
    steps = StepCount(completed=completed, planned=1000, median_step_s=0.31)
    return Row(run=run, state=RUNNING, attempt=1, steps=steps, elapsed_s=elapsed_s)


def over(run: RunSpec, outcome: Outcome = Outcome.OK, end_unix_s: int = 200, reason: str = "") -> Row:
    record = ExitRecord(
        run_id=run.run_id, attempt=1, outcome=outcome, exit_status=0, job_id="7", restart_count=0, nodelist="n",
        begin_unix_s=100, end_unix_s=end_unix_s, evidence=(reason,) if reason else (),
    )  # fmt: skip
    speed = 1234.5 if outcome is Outcome.OK else None
    return Row(run=run, state=outcome, record=record, attempt=1, elapsed_s=80.0, speed=speed)


def pending(run: RunSpec, reason: str = "") -> Row:
    return Row(run=run, state=PENDING, reason=reason)


def sweep(count: int, running_from: int, running_to: int) -> list[Row]:
    """A sweep in the midst: runs before `running_from` are over, each seventh failed; those after are pending."""
    rows = []
    for at, run in enumerate(runs(count)):
        if at < running_from:
            outcome = Outcome.OOM if at % 7 == 3 else Outcome.OK
            rows.append(over(run, outcome, 100 + at, f"rank {at}: out of memory" if outcome is Outcome.OOM else ""))
        elif at < running_to:
            rows.append(running(run))
        else:
            rows.append(pending(run, "Priority"))
    return rows
