"""Whole trainings on paper: their history and its sums, their log, learning rates, checkpoints cut anywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpc.model.training import Begun, Epoch, TrainingError, TrainingHistory, TrainingState, check_shapes, log_lines
from hpc.run.train import CheckpointError, read_checkpoint, write_checkpoint
from hpc.workloads.schedule import Schedule
from parse.airank import judge, read_training, training_results
from tests.unit.traces import make_run

START, S = 1_700_000_000_000_000_000, 1_000_000_000
RUN = make_run(epochs=4, target_accuracy=75.0, data="imagefolder:/x", ranks_per_node=8)


def epoch(attempt: int, begin_s: int, correct: int, *, evaluated: bool = True) -> Epoch:
    """Ten seconds of training from so many seconds after the start, two of evaluation."""
    begin_ns = START + begin_s * S
    return Epoch(
        attempt=attempt, learning_rate=0.1, begin_ns=begin_ns, trained_ns=begin_ns + 10 * S,
        evaluated_ns=begin_ns + 12 * S if evaluated else 0, samples=1000, evaluated=100 if evaluated else 0,
        correct=correct,
    )  # fmt: skip


def history(*epochs: Epoch, begun: tuple[Begun, ...] = (), stop_s: int = 100, **changes: object) -> TrainingHistory:
    values: dict[str, object] = {
        "planned_epochs": 4, "target": 75.0, "eval_every": 1, "samples_per_epoch": 1000, "evaluation_samples": 100,
        "images_sha256": "0123456789abcdef", "begun": (Begun(attempt=1, unix_ns=START, epochs=0), *begun),
        "epochs": epochs, "stop_ns": START + stop_s * S, **changes,
    }  # fmt: skip
    return TrainingHistory(**values)  # type: ignore[arg-type]


WHOLE = history(epoch(1, 1, 40), epoch(1, 14, 74), epoch(1, 27, 75), stop_s=39)


def test_a_training_is_over_when_the_target_is_reached_or_its_epochs_are_done() -> None:
    assert (WHOLE.reached, WHOLE.is_over, WHOLE.best, WHOLE.time_to_train_s) == (3, True, 75.0, 39.0)
    short = history(*WHOLE.epochs[:2])
    assert (short.reached, short.is_over, short.best, short.time_to_train_s) == (None, False, 74.0, None)
    never = history(*[epoch(1, 13 * at, 10) for at in range(4)])
    assert (never.reached, never.is_over, never.best) == (None, True, 10.0)
    aimless = history(epoch(1, 0, 100), target=0.0)
    assert (aimless.reached, aimless.is_over) == (None, False)


def test_every_second_epoch_and_the_last_are_evaluated() -> None:
    sparse = history(eval_every=2, planned_epochs=5)
    assert [sparse.is_evaluated(number) for number in range(1, 6)] == [False, True, False, True, True]


def test_the_time_of_a_training_counts_all_attempts() -> None:
    # Attempt 2 began at 60 s, had one epoch and completed none; attempt 3 had the same at 80 s.
    begun = (Begun(attempt=2, unix_ns=START + 60 * S, epochs=1), Begun(attempt=3, unix_ns=START + 80 * S, epochs=1))
    resumed = history(epoch(1, 1, 40), epoch(3, 82, 80), begun=begun, stop_s=96)
    assert resumed.time_to_train_s == 94.0 and resumed.throughput == pytest.approx(2000 / 96)


def test_a_history_comes_back_from_json_and_others_are_refused() -> None:
    assert TrainingHistory.from_json(WHOLE.to_json()) == WHOLE
    for change in ({"epochs": 3}, {"target": "75"}, {"more": 1}, {"begun": []}, {"stop_ns": True}):
        with pytest.raises(TrainingError, match="not the history of a training"):
            TrainingHistory.from_json({**WHOLE.to_json(), **change})


def test_airank_finds_nothing_wrong_with_the_log(tmp_path: Path) -> None:
    path = tmp_path / "GPUx8.log"
    path.write_text("\n".join(log_lines(RUN, WHOLE)) + "\n")
    training = read_training(path)
    (result,) = training_results([training], 75.0)
    assert {violation.name for violation in judge(result)} == {"speedup"}  # there is no log of 1 device
    assert result.time_to_train_s == pytest.approx(39.0)
    assert result.accuracy == 75.0


def test_a_target_that_is_never_reached_ends_the_log_as_aborted() -> None:
    lines = list(log_lines(RUN, history(epoch(1, 1, 40))))
    assert any('"run_stop"' in line and '"status": "aborted"' in line for line in lines)
    assert not any("target_quality_time" in line for line in lines)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (Schedule(warmup_epochs=2), [0.5, 1.0, 1.0, 0.75, 0.25]),
        (Schedule(warmup_epochs=0, step_epochs=2), [1.0, 1.0, 0.1, 0.1, 0.01]),
    ],
)
def test_learning_rates_follow_the_published_schedules(schedule: Schedule, rates: list[float]) -> None:
    assert [schedule.rate(1.0, at, 5) for at in range(5)] == pytest.approx(rates)


STATE = TrainingState(
    arrays={"model.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "velocity.0": np.zeros(2)},
    values={"scaler": {"scale": 2.0}},
)


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "r.1.checkpoint"
    write_checkpoint(path, {"ranks": 2}, STATE)
    facts, state = read_checkpoint(path)
    assert (facts, state.values, [*state.arrays]) == ({"ranks": 2}, STATE.values, [*STATE.arrays])
    for name, array in STATE.arrays.items():
        assert state.arrays[name].dtype == array.dtype and (state.arrays[name] == array).all()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_checkpoint_cut_at_any_byte_or_changed_in_any_is_refused(tmp_path: Path) -> None:
    path, damaged = tmp_path / "r.1.checkpoint", tmp_path / "r.2.checkpoint"
    write_checkpoint(path, {"ranks": 2}, STATE)
    content = path.read_bytes()
    for at in range(len(content)):
        damaged.write_bytes(content[:at])
        with pytest.raises(CheckpointError, match=r"r\.2\.checkpoint cannot be used.*remove it"):
            read_checkpoint(damaged)
        damaged.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(CheckpointError, match="cut or changed"):
            read_checkpoint(damaged)


def test_a_state_of_another_model_is_named() -> None:
    here = {"model.weight": (2, 3), "velocity.0": (2,)}
    check_shapes(STATE.arrays, here)
    with pytest.raises(ValueError, match=r"model.weight is \[2, 3\] there and \[2, 4\] here"):
        check_shapes(STATE.arrays, {**here, "model.weight": (2, 4)})
    with pytest.raises(ValueError, match=r"only one of the two has model\.bias"):
        check_shapes(STATE.arrays, {**here, "model.bias": (2,)})
