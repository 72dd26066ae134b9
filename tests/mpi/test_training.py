"""Real trainings to real targets on scikit-learn's digits: killed, resumed, refused, and never there."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc.backends import BACKENDS, missing_modules
from hpc.data import main as make_data
from hpc.model.outcome import Outcome
from hpc.model.spec import RunSpec
from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from hpc.model.training import TrainingHistory
from hpc.recovery.collect import collect
from hpc.run.train import read_checkpoint, write_checkpoint
from parse.airank import judge, read_training, training_results
from tests.mpi.attempts import HERE, Ranks, spec
from tests.mpi.conftest import further

MORTAL = HERE / "dying_rank.py"
PER_EPOCH = 45
"""Steps of an epoch: 1,437 digits on two ranks, 16 each."""
BITWISE = ("torch-ddp", "torch-horovod", "tensorflow-horovod")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("set") / "digits"
    assert make_data(["make", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(params=["torch-ddp", *further("torch-horovod", "tensorflow-horovod")])
def backend(request: pytest.FixtureRequest) -> str:
    if missing := missing_modules(request.param):
        pytest.skip("; ".join(missing))
    name: str = request.param
    return name


class Training:
    """A run in a folder, attempt after attempt."""

    def __init__(self, ranks: Ranks, folder: Path, digits: Path, backend: str, **changes: Any) -> None:
        usual: dict[str, Any] = {
            "backend": backend, "workload": "mlp", "data": f"imagefolder:{digits}", "batch_size": 16, "epochs": 4,
            "options": {"augmentation": "off", "workers": "1", "width": "64"}, "telemetry": "off",
        }  # fmt: skip
        self.run: RunSpec = spec(**{**usual, **changes})
        self._ranks, self._folder, self.traces = ranks, folder, folder / "traces"
        self.traces.mkdir(parents=True, exist_ok=True)
        (folder / "job.sh").write_text("#!/bin/bash\n")
        (folder / "run.json").write_text(json.dumps(self.run.to_json()))

    def attempt(
        self, number: int, *, dies: tuple[int, int] | None = None, full: tuple[int, int] | None = None, **how: Any
    ) -> subprocess.CompletedProcess[str]:
        """Attempt `number`; `dies` is a rank and its step, in which it is killed, `full` the steps between which rank 0
        cannot write."""
        env = {"FRAMEWORK": BACKENDS[self.run.backend].framework}
        if full is not None:
            env |= {"FULL_FROM": str(full[0]), "FULL_UNTIL": str(full[1])}
        if dies is not None:
            env |= {"DIES_RANK": str(dies[0]), "DIES_STEP": str(dies[1])}
        words = ["--attempt", str(number), "--traces", str(self.traces), "--script", str(self._folder / "job.sh")]
        done = self._ranks(self.run.ranks, MORTAL, str(self._folder / "run.json"), *words, check=False, env=env, **how)
        if dies is not None:
            assert done.returncode != 0
            collect(self.traces, f"{self.run.run_id}.{number}")
        return done

    def checkpoint(self, number: int) -> Path:
        return self.traces / f"{self.run.run_id}.{number}.checkpoint"

    def trace(self, number: int) -> Trace:
        return read_trace(self.traces / f"{self.run.run_id}.{number}.h5")

    def history(self, number: int) -> TrainingHistory:
        history = self.trace(number).history
        assert history is not None
        return history


_killed: dict[str, Path] = {}


def killed_training(
    ranks: Ranks, tmp_path_factory: pytest.TempPathFactory, folder: Path, digits: Path, backend: str
) -> Training:
    """A training that was killed in its third epoch, and as torch-ddp before any epoch was done, too. One is made for
    all tests of a backend; each gets a copy in the folder."""
    if backend not in _killed:
        _killed[backend] = tmp_path_factory.mktemp("killed")
        first = Training(ranks, _killed[backend], digits, backend)
        deaths = [(0, 7)] if backend == "torch-ddp" else []
        for number, death in enumerate([*deaths, (1, 2 * PER_EPOCH + 20)], 1):
            first.attempt(number, dies=death)
    shutil.copytree(_killed[backend], folder)
    return Training(ranks, folder, digits, backend)


def test_a_killed_training_is_resumed_and_ends_like_one_that_was_not(
    ranks: Ranks, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, digits: Path, backend: str
) -> None:
    # A disk that is full at a checkpoint costs no training.
    whole = Training(ranks, tmp_path / "whole", digits, backend)
    done = whole.attempt(1, full=(PER_EPOCH + 5, 2 * PER_EPOCH + 5))
    assert done.returncode == 0, done.stderr
    undisturbed = whole.history(1)
    error = f"after epoch 2: [Errno 27] File too large: '{whole.checkpoint(1)}'"
    assert undisturbed.checkpoint_errors == (error,)
    assert f"no checkpoint {error}" in whole.trace(1).evidence
    assert [epoch.samples for epoch in undisturbed.epochs] == [1438] * 4  # 1,437 images; one is repeated
    assert [epoch.evaluated for epoch in undisturbed.epochs] == [360] * 4
    assert undisturbed.best is not None and undisturbed.best > 80
    assert not whole.checkpoint(1).exists()

    killed = killed_training(ranks, tmp_path_factory, tmp_path / "killed", digits, backend)
    # Killed before any epoch is done it begins anew, and the clock goes on.
    at_once = [1] if backend == "torch-ddp" else []
    later, last = len(at_once) + 1, len(at_once) + 2
    assert killed.checkpoint(later).exists() and not any(killed.checkpoint(number).exists() for number in at_once)
    done = killed.attempt(last)
    assert done.returncode == 0, done.stderr
    resumed = killed.history(last)
    begins = [(begun.attempt, begun.epochs) for begun in resumed.begun]
    assert begins == [*((number, 0) for number in (*at_once, later)), (last, 2)]
    assert [epoch.attempt for epoch in resumed.epochs] == [later, later, last, last]
    assert [epoch.accuracy for epoch in resumed.epochs] == [epoch.accuracy for epoch in undisturbed.epochs]
    if backend in BITWISE:
        states = [epoch.state_sha256 for epoch in undisturbed.epochs]
        assert len(set(states)) == 4 and [epoch.state_sha256 for epoch in resumed.epochs] == states
    assert [path.name for path in killed.traces.glob("*.checkpoint")] == []
    assert killed.trace(last).outcome is Outcome.OK

    # The last attempt's output is the whole training's log, and breaks no rule of AI-Rank's but that of the accuracy.
    log = tmp_path / "GPUx1.log"
    log.write_text(done.stdout)
    (result,) = training_results([read_training(log)], 100.0)
    assert [violation.name for violation in judge(result)] == ["accuracy"]
    assert result.accuracy == pytest.approx(resumed.best)


def test_a_target_ends_the_training(ranks: Ranks, tmp_path: Path, digits: Path) -> None:
    training = Training(ranks, tmp_path, digits, "torch-ddp", target_accuracy=60.0, epochs=9)
    assert training.attempt(1).returncode == 0
    history = training.history(1)
    assert history.reached == len(history.epochs) < 9 and (history.best or 0) >= 60


@pytest.mark.all
def test_a_target_that_is_never_reached_is_named(ranks: Ranks, tmp_path: Path, digits: Path) -> None:
    training = Training(ranks, tmp_path, digits, "torch-ddp", target_accuracy=100.0, epochs=2, eval_every=2)
    done = training.attempt(1)
    assert done.returncode == 0
    history = training.history(1)
    assert (history.reached, len(history.epochs), history.time_to_train_s) == (None, 2, None)
    assert [epoch.accuracy is None for epoch in history.epochs] == [True, False]
    assert '"status": "aborted"' in done.stdout


def test_a_checkpoint_that_cannot_be_used_is_refused_with_the_reason(
    ranks: Ranks, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, digits: Path
) -> None:
    training = killed_training(ranks, tmp_path_factory, tmp_path / "refused", digits, "torch-ddp")
    path = training.checkpoint(2)
    facts, state = read_checkpoint(path)

    def refused(number: int) -> str:
        done = training.attempt(number)
        assert done.returncode == 3, done.stderr
        path.rename(training.checkpoint(number))  # where the next attempt finds it
        training.checkpoint(number).rename(path)
        return done.stderr

    of_others = {**facts, "ranks": 4, "history": {**facts["history"], "images_sha256": "0"}}
    write_checkpoint(path, of_others, state)
    reasons = refused(3)
    assert "is of another training: ranks is 4 there and 2 here" in reasons
    assert "it was trained on other images" in reasons
    other = {**state.arrays, "model.1.weight": state.arrays["model.1.weight"][:5]}
    write_checkpoint(path, facts, replace(state, arrays=other))
    assert "it is of another model: 1.weight is [5, 192] there and [64, 192] here" in refused(4)


@pytest.mark.all
def test_a_training_killed_while_the_disk_is_full_goes_on_from_the_checkpoint_before(
    ranks: Ranks, tmp_path: Path, digits: Path
) -> None:
    other = Training(ranks, tmp_path, digits, "torch-ddp")
    other.attempt(1, full=(PER_EPOCH + 5, 9 * PER_EPOCH), dies=(1, 2 * PER_EPOCH + 5))
    assert other.attempt(2).returncode == 0
    assert [epoch.attempt for epoch in other.history(2).epochs] == [1, 2, 2, 2]
