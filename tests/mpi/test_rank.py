"""`python -m hpc.rank` from end to end on real ranks: what it leaves when all goes well, and when it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.backends import missing_modules
from hpc.model.outcome import Outcome, RankNote
from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, FORWARD_END, GRADS_READY, REDUCED
from hpc.model.verdict import cause
from hpc.recovery.collect import collect
from hpc.recovery.recover import main as recover
from parse.runs.attempt import measure
from tests.mpi.attempts import HERE, STEPS, WARMUP, Attempt, Ranks, spec
from tests.mpi.conftest import further
from tests.waiting import LIMIT_S

NUMPY, TORCH = HERE / "user_workloads.py", HERE / "user_torch.py"


@pytest.fixture
def attempt(ranks: Ranks, tmp_path: Path) -> Callable[..., Attempt]:
    return lambda run, *words, **how: Attempt(ranks, tmp_path, run, *words, **how)


def failed(attempt: Callable[..., Attempt], run: RunSpec, *words: str, **how: Any) -> tuple[Attempt, RankNote]:
    """The attempt, which must have failed, and the note that names the cause."""
    made = attempt(run, *words, check=False, **how)
    assert made.done.returncode != 0
    note = cause(made.notes())
    assert note is not None, made.done.stderr
    return made, note


@pytest.mark.parametrize(
    ("backend", "workload"), [("mpi", "delay"), ("torch-ddp", "examples/my_training.py:MyTraining")]
)
def test_a_run_leaves_a_trace(attempt: Callable[..., Attempt], backend: str, workload: str) -> None:
    made = attempt(spec(backend=backend, workload=workload, env={"NCCL_DEBUG": "WARN"}), env={"NCCL_DEBUG": "WARN"})
    trace = made.trace()
    assert (trace.run, trace.outcome, trace.attempt, trace.recovered) == (made.run, Outcome.OK, 1, False)
    assert trace.stamps.shape == (2, STEPS, 6)
    assert (np.diff(trace.stamps, axis=2) >= 0).all()
    # Steps tile the time axis but for the one pause, five steps before the window.
    pause = WARMUP - 5
    gaps = trace.stamps[:, 1:, BEGIN] - trace.stamps[:, :-1, END]
    assert (np.delete(gaps, pause - 1, axis=1) == 0).all()
    assert (gaps[:, pause - 1] > 0).all()
    assert trace.blocks.tolist() == [[WARMUP, STEPS]]
    assert trace.samples.tolist() == [[4] * STEPS] * 2
    assert trace.steps_completed.tolist() == [STEPS, STEPS]
    assert np.isfinite(trace.losses).all()
    assert workload == "delay" or (trace.losses[:, -1] < trace.losses[:, 0]).all()
    assert trace.evidence == ""
    assert trace.clock_local_ns.shape == (2, 3)
    assert (trace.clock_local_ns[:, 1] > trace.stamps[:, pause - 1, END]).all()
    assert (trace.clock_local_ns[:, 1] < trace.stamps[:, pause, BEGIN]).all()
    assert [rank["rank"] for rank in trace.ranks] == [0, 1]
    assert trace.environment["software"]["numpy"] == np.__version__
    assert trace.environment["variables"]["NCCL_DEBUG"] == "WARN"
    assert trace.environment["variables"]["OMP_NUM_THREADS"] == "1"
    assert "NCCL_DEBUG=WARN" in trace.script
    assert "hush" not in trace.script
    assert made.left_nothing_but_its_trace()


def test_a_run_in_blocks_synchronises_its_clocks_between_them(attempt: Callable[..., Attempt]) -> None:
    made = attempt(spec(block_steps=2))
    trace = made.trace()
    assert trace.blocks.tolist() == made.run.blocks == [[6, 8], [13, 15], [20, 22]]
    assert trace.samples.tolist() == [[4] * 22] * 2
    assert trace.clock_local_ns.shape == (2, 5)
    pauses = [1, 8, 15]  # the step before which the clocks are synchronised, five before each block
    gaps = trace.stamps[:, 1:, BEGIN] - trace.stamps[:, :-1, END]
    assert (np.delete(gaps, [pause - 1 for pause in pauses], axis=1) == 0).all()
    for point, pause in enumerate(pauses, start=1):
        assert (trace.clock_local_ns[:, point] > trace.stamps[:, pause - 1, END]).all()
        assert (trace.clock_local_ns[:, point] < trace.stamps[:, pause, BEGIN]).all()
    measured = measure(trace)
    assert len(measured.step_s) == 6
    assert len(measured.pauses_s) == 2
    assert min(measured.pauses_s) > 0


@pytest.mark.parametrize("backend", ["mpi", *further("torch-ddp", "torch-horovod")])
def test_the_stamps_hold_the_sleeps_that_were_injected(attempt: Callable[..., Attempt], backend: str) -> None:
    if missing := missing_modules(backend):
        pytest.skip("; ".join(missing))
    options = {"data_ms": "4@rank=1", "compute_ms": "2+3@rank=rotate", "transfer_ms": "5@every=2", "update_ms": "1"}
    trace = attempt(spec(backend=backend, options=options)).trace()
    assert list(trace.injected_phases) == ["data", "compute", "transfer", "update"]
    assert trace.injected_ns is not None
    slept_ms = trace.injected_ns / 1e6
    assert (slept_ms[1, :, 0] >= 4).all()
    assert (slept_ms[:, :, 1] >= 2).all()
    assert all(slept_ms[step % 2, step, 1] >= 5 for step in range(STEPS))
    assert (slept_ms[:, ::2, 2] >= 5).all()
    assert (slept_ms[:, :, 3] >= 1).all()
    spans = {0: (BEGIN, BATCH_READY), 1: (BATCH_READY, GRADS_READY), 2: (GRADS_READY, REDUCED), 3: (REDUCED, END)}
    for phase, (begin, end) in spans.items():
        lasted = trace.stamps[:, :, end] - trace.stamps[:, :, begin]
        assert (lasted >= trace.injected_ns[:, :, phase]).all()
    # Half of compute lies before the loss, half before the gradients.
    assert (trace.stamps[:, :, GRADS_READY] - trace.stamps[:, :, FORWARD_END] >= 1e6).all()


@pytest.mark.parametrize("backend", ["torch-ddp", *further("torch-horovod", "paddle-fleet")])
def test_the_meetings_of_a_sharded_head_lie_inside_its_steps(attempt: Callable[..., Attempt], backend: str) -> None:
    if missing := missing_modules(backend):
        pytest.skip("; ".join(missing))
    small = {"options": {"classes": "101", "image_size": "16"}, "warmup_steps": 5, "measured_steps": 1}
    trace = attempt(spec(backend=backend, workload="arcface", **small)).trace()
    assert list(trace.meeting_names) == ["features", "labels", "maximum", "sums", "gradients"]
    assert trace.meetings is not None
    stamps = trace.meetings[..., [0, 2]]  # all are waited for at once
    assert (stamps != ABSENT).all() and (trace.meetings[..., 1] == ABSENT).all()
    in_order = stamps.reshape(2, 6, 10)
    assert (np.diff(in_order, axis=2) >= 0).all()
    assert (trace.stamps[:, :, BATCH_READY] <= in_order[:, :, 0]).all()
    assert (in_order[:, :, 7] <= trace.stamps[:, :, FORWARD_END]).all()
    assert (trace.stamps[:, :, FORWARD_END] <= in_order[:, :, 8]).all()
    assert (in_order[:, :, 9] <= trace.stamps[:, :, REDUCED]).all()
    # Nobody leaves a gathering, or a reduction, before the last has come; both ranks read one clock here.
    assert (stamps[..., 1].min(axis=0) >= stamps[..., 0].max(axis=0)).all()


def test_a_workload_that_raises_leaves_how_far_each_rank_came(
    attempt: Callable[..., Attempt], capsys: pytest.CaptureFixture[str]
) -> None:
    made, note = failed(attempt, spec(workload=f"{NUMPY}:RaisesAtStep7"))
    assert made.done.returncode == 1
    assert (note.rank, note.outcome, note.step, note.exception) == (1, Outcome.RANK_FAIL, 6, "RuntimeError")
    assert "my loss exploded" in note.message
    assert "raise RuntimeError" in made.done.stderr

    assert collect(made.traces, made.stem) == 2
    assert recover([str(made.traces), "--stem", made.stem]) == 0
    assert "rank 1" in capsys.readouterr().out
    trace = made.trace()
    assert (trace.outcome, trace.recovered, trace.run) == (Outcome.RANK_FAIL, True, made.run)
    assert trace.steps_completed.tolist() == [7, 7]
    assert (trace.stamps[:, :7] != ABSENT).all()
    assert (trace.stamps[:, 7:] == ABSENT).all()
    assert (np.diff(trace.stamps[:, :7], axis=2) >= 0).all()
    assert trace.samples[:, :8].tolist() == [[4] * 7 + [0]] * 2
    assert trace.clock_local_ns.shape == (2, 2)
    assert "my loss exploded" in trace.evidence
    assert not list(made.traces.glob("*.partial"))


def test_no_step_no_trace(attempt: Callable[..., Attempt], capsys: pytest.CaptureFixture[str]) -> None:
    made, note = failed(attempt, spec(workload=f"{NUMPY}:RaisesAtStep0"))
    assert (note.outcome, note.step) == (Outcome.RANK_FAIL, -1)
    assert collect(made.traces, made.stem) == 2
    assert recover([str(made.traces)]) == 0
    assert "no rank completed a step" in capsys.readouterr().out
    assert not list(made.traces.glob("*.h5"))


@pytest.mark.parametrize(
    ("planned", "outcome", "status", "says"),
    [
        ({"workload": f"{NUMPY}:RaisesInItsFactory"}, "launch_fail", 5, "my data is not here"),
        ({"workload": f"{NUMPY}:RunsOutOfMemory"}, "oom", 4, "no room"),
        ({"workload": f"{NUMPY}:CallsExit"}, "rank_fail", 1, "0"),
        pytest.param(
            {"backend": "torch-ddp", "workload": f"{TORCH}:LacksLossAndSamples"}, "launch_fail", 5, "loss, samples",
            marks=pytest.mark.all,
        ),
        ({"backend": "torch-ddp", "workload": f"{TORCH}:AsksForTooMuch"}, "oom", 4, "allocate"),
        ({"precision": "bf16"}, "invalid", 3, "backend mpi: precision bf16 was requested; on CPUs"),
        ({"backend": "torch-tp", "workload": "gpt"}, "invalid", 3, "backend torch-tp is gone: measure a script"),
        ({"options": {"data_ms": "1@rank=2"}}, "invalid", 3, "none of the 2 ranks"),
        ({"env": {"NCCL_DEBUG": "INFO"}}, "invalid", 3, "NCCL_DEBUG should be 'INFO' and is 'not set'"),
        ({"nodes": 2, "ranks_per_node": 1}, "invalid", 3, "2 nodes with 1 ranks each requested; 1 with 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_ends_with_a_note_that_says_why(
    attempt: Callable[..., Attempt], planned: dict[str, Any], outcome: str, status: int, says: str
) -> None:
    made, note = failed(attempt, spec(**planned), env={"CUDA_VISIBLE_DEVICES": ""})
    assert (note.outcome, made.done.returncode) == (outcome, status)
    assert says in note.message
    assert not list(made.traces.glob("*.h5"))
    collect(made.traces, made.stem)


def test_nodes_are_simulated_where_that_is_requested(attempt: Callable[..., Attempt]) -> None:
    trace = attempt(spec(nodes=2, ranks_per_node=1), "--simulate-nodes").trace()
    assert [(rank["node_rank"], rank["nodes_simulated"]) for rank in trace.ranks] == [(0, True), (1, True)]


def test_a_loss_that_is_not_finite_is_an_alarm(attempt: Callable[..., Attempt]) -> None:
    trace = attempt(spec(workload=f"{NUMPY}:LosesItsLoss")).trace()
    assert trace.outcome is Outcome.OK
    assert trace.evidence == "the loss is not finite on 1 of 2 ranks, first in step 7"


def test_a_module_changed_that_the_file_imports_is_named(attempt: Callable[..., Attempt], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from hpc.workloads.delay import DelayWorkload\nimport helper\n")
    helper = tmp_path / "helper.py"
    helper.write_text("x = 1\n")
    planned = spec(workload=f"{tmp_path}/mine.py:DelayWorkload")
    helper.write_text("x = 2\n")
    later_s = helper.stat().st_mtime + 3600
    os.utime(helper, (later_s, later_s))
    _, note = failed(attempt, planned)
    assert note.outcome is Outcome.INVALID
    assert "is not the file that was planned" in note.message
    assert "(written since the run was planned: helper.py)" in note.message


def planned(folder: Path) -> Attempt:
    """An attempt of two ranks that nobody has started."""

    def start(*_: object, **how: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0)

    return Attempt(start, folder, spec())


def single(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`python -m hpc.rank` as one process that nothing has launched."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PMI", "SLURM_"))}
    return subprocess.run(
        [sys.executable, "-m", "hpc.rank", *argv], env={**clean, **env}, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("env", "fix"), [({}, "srun or mpiexec"), ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1"}, "pmix or pmi2")]
)
def test_singletons_end_at_once_and_name_the_cure(tmp_path: Path, env: dict[str, str], fix: str) -> None:
    made = planned(tmp_path)
    done = single(*made.argv, **env)
    assert done.returncode == 3
    (note,) = made.notes()
    assert note.outcome is Outcome.INVALID
    assert "2 ranks requested, MPI sees 1" in note.message
    assert fix in note.message


def test_no_mpi_is_a_failed_launch_with_the_cure(tmp_path: Path) -> None:
    made = planned(tmp_path)
    done = single(*made.argv, MPI4PY_LIBMPI="/nowhere/libmpi.so", SLURM_PROCID="1")
    assert done.returncode == 5
    (note,) = made.notes()
    assert (note.rank, note.outcome) == (1, Outcome.LAUNCH_FAIL)
    assert "apt-get install openmpi-bin" in note.message


def test_a_description_changed_by_hand_is_refused(tmp_path: Path) -> None:
    made = planned(tmp_path)
    description = Path(made.argv[0])
    description.write_text(description.read_text().replace('"seed": 0', '"seed": 1'))
    done = single(*made.argv)
    assert done.returncode == 5
    assert "changed by hand" in done.stderr


def test_an_attempt_does_not_overwrite_a_trace(attempt: Callable[..., Attempt]) -> None:
    made = attempt(spec(ranks_per_node=1))
    done = single(*made.argv, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    assert done.returncode == 1
    assert "never overwritten" in made.notes()[0].message
    assert made.trace().outcome is Outcome.OK
    collect(made.traces, made.stem)
