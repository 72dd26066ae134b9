"""Keras's progress bars: one step line an epoch, under the heading above it; no evaluation, no bar of samples."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from parse.logs.engine.reader import batches
from parse.logs.formats import format_named, recognise
from parse.logs.path_facts import PathFacts
from parse.logs.window import Protocol, read_log
from parse.runs.log_attempt import attempt_of
from tests.unit.logs import text_logs

read = partial(text_logs.read, "keras")

# keras-team/keras-io, examples/vision/md/mnist_convnet.md
KERAS_2 = """\
Epoch 1/15
422/422 [==============================] - 13s 29ms/step - loss: 0.7840 - accuracy: 0.7643 - val_loss: 0.0780
Epoch 2/15
422/422 [==============================] - 13s 31ms/step - loss: 0.1199 - accuracy: 0.9639 - val_loss: 0.0559
Epoch 3/15
237/422 [===============>..............] - ETA: 7s - loss: 0.0398 - accuracy: 0.9877
"""
EVALUATED = KERAS_2 + "313/313 [==============================] - 1s 2ms/step - loss: 0.0240 - accuracy: 0.9922\n"
PREDICTED = KERAS_2 + "1/1 [==============================] - 0s 446ms/step\n"


def bar(step: int, of: int, time: str) -> str:
    """A bar as Keras 3 draws it (keras-team/keras, keras/src/utils/progbar.py), over the one before."""
    full = 20 * step // of
    done = f"\x1b[32m{'━' * full}\x1b[0m" if full else ""
    return (
        "\b" * 90 + f"\r\x1b[1m{step:3d}/{of}\x1b[0m {done}\x1b[37m{'━' * (20 - full)}\x1b[0m "
        f"\x1b[1m12s\x1b[0m {time}/step - accuracy: 0.8637 - loss: 0.3174"
    )


def keras_3(epochs: int = 3, evaluated: bool = False) -> str:
    lines = []
    for epoch in range(1, epochs + 1):
        lines.append(f"Epoch {epoch}/{epochs}")
        lines.append("".join(bar(step, 350, f"{100 + epoch}ms") for step in (1, 120, 240, 350)))
        if evaluated:
            lines.append(bar(350, 350, "9ms"))
    return "\n".join(lines) + "\n"


def columns(steps):
    return steps.epoch.tolist(), steps.step.tolist(), steps.epoch_steps.tolist(), steps.duration_s.tolist()


@pytest.mark.parametrize("text", [KERAS_2, EVALUATED, PREDICTED])
def test_the_last_bar_of_an_epoch_has_the_epoch_of_its_heading(tmp_path, text):
    steps, _ = read(tmp_path, text)
    assert columns(steps) == ([1, 2], [422, 422], [422, 422], pytest.approx([0.029, 0.031]))


@pytest.mark.parametrize("evaluated", [False, True])
def test_keras_3_draws_the_same_bar_for_every_step(tmp_path, evaluated):
    steps, _ = read(tmp_path, keras_3(evaluated=evaluated))
    assert columns(steps) == ([1, 2, 3], [350] * 3, [350] * 3, pytest.approx([0.101, 0.102, 0.103]))


@pytest.mark.parametrize("chunk_bytes", [200, 1 << 9, 1 << 11, 1 << 20])
def test_headings_hold_over_the_pieces_of_a_file(tmp_path, chunk_bytes):
    (path := tmp_path / "x.log").write_text(keras_3(60, evaluated=True))
    pieces = [batch.steps for batch in batches(path, format_named("keras"), chunk_bytes)]
    epochs = np.concatenate([steps.epoch for steps in pieces])
    assert epochs.tolist() == list(range(1, 61))
    assert np.concatenate([steps.duration_s for steps in pieces]).tolist() == pytest.approx(
        [(100 + epoch) / 1e3 for epoch in range(1, 61)]
    )


def test_one_line_an_epoch(tmp_path):
    steps, _ = read(
        tmp_path,
        "Epoch 1/50",
        "7/7 - 1s - 85ms/step - accuracy: 0.7202",
        "Epoch 2/50",
        "7/7 - 0s - 4ms/step - loss: 0.1",
    )
    assert columns(steps) == ([1, 2], [7, 7], [7, 7], pytest.approx([0.085, 0.004]))


@pytest.mark.parametrize("time", ["2s", "680us"])
def test_seconds_and_microseconds_are_no_durations(tmp_path, time):
    steps, _ = read(tmp_path, "Epoch 1/5", f"7/7 [==============================] - 14s {time}/step - loss: 0.1")
    assert steps.step.tolist() == [7] and np.isnan(steps.duration_s).all()


def test_bars_that_count_samples_are_no_steps(tmp_path):
    steps, _ = read(
        tmp_path,
        "Train on 60000 samples, validate on 10000 samples",
        "Epoch 1/2",
        "60000/60000 [==============================] - 120s 2ms/step - loss: 0.1",
        "Epoch 2/2",
        "60000/60000 [==============================] - 120s 2ms/step - loss: 0.1",
    )
    assert not len(steps.step)


def test_a_bar_without_a_heading_is_none(tmp_path):
    assert not len(read(tmp_path, "313/313 [==============================] - 1s 2ms/step - loss: 0.0240")[0].step)


@pytest.mark.parametrize("text", [KERAS_2, keras_3(), "Epoch 1/50\n7/7 - 1s - 85ms/step - accuracy: 0.7202\n"])
def test_it_is_recognised(tmp_path, text):
    (path := tmp_path / "x.log").write_text(text)
    assert recognise(path).name == "keras"


def test_the_whole_log_has_a_speed(tmp_path):
    (path := tmp_path / "x.log").write_text(keras_3())
    log_format, protocol, place = (
        format_named("keras"),
        Protocol(whole=True),
        PathFacts(devices=2, nodes=1, batch_size=64),
    )
    log = attempt_of(path, read_log(path, log_format, protocol), place, protocol).log
    assert log.printed == pytest.approx(128 / 0.1025) and log.wall_clock is None
    assert log.window == "step 350 of epoch 1 to step 350 of epoch 3"
