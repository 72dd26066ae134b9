"""Keras's progress bars: one step line an epoch, under the heading above it; no evaluation, no bar of samples."""

from __future__ import annotations

import numpy as np
import pytest

from parse.logs.engine.reader import batches
from parse.logs.formats import format_named
from parse.logs.path_facts import PathFacts
from parse.logs.window import Protocol, read_log
from parse.runs.log_attempt import attempt_of


def bar(step: int, of: int, time: str) -> str:
    """A bar as Keras 3 draws it (keras-team/keras, keras/src/utils/progbar.py), over the one before."""
    full = 20 * step // of
    done = f"\x1b[32m{'━' * full}\x1b[0m" if full else ""
    return (
        "\b" * 90 + f"\r\x1b[1m{step:3d}/{of}\x1b[0m {done}\x1b[37m{'━' * (20 - full)}\x1b[0m "
        f"\x1b[1m12s\x1b[0m {time}/step - accuracy: 0.8637 - loss: 0.3174"
    )


def keras_3(epochs: int) -> str:
    """Epochs of 350 steps, each evaluated."""
    lines = []
    for epoch in range(1, epochs + 1):
        lines.append(f"Epoch {epoch}/{epochs}")
        lines.append("".join(bar(step, 350, f"{100 + epoch}ms") for step in (1, 120, 240, 350)))
        lines.append(bar(350, 350, "9ms"))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("chunk_bytes", [200, 1 << 9, 1 << 11, 1 << 20])
def test_headings_hold_over_the_pieces_of_a_file(tmp_path, chunk_bytes):
    (path := tmp_path / "x.log").write_text(keras_3(60))
    pieces = [batch.steps for batch in batches(path, format_named("keras"), chunk_bytes)]
    epochs = np.concatenate([steps.epoch for steps in pieces])
    assert epochs.tolist() == list(range(1, 61))
    assert np.concatenate([steps.duration_s for steps in pieces]).tolist() == pytest.approx(
        [(100 + epoch) / 1e3 for epoch in range(1, 61)]
    )


def test_the_whole_log_has_a_speed(tmp_path):
    (path := tmp_path / "x.log").write_text(keras_3(3))
    log_format, protocol, place = (
        format_named("keras"),
        Protocol(whole=True),
        PathFacts(devices=2, nodes=1, batch_size=64),
    )
    log = attempt_of(path, read_log(path, log_format, protocol), place, protocol).log
    assert log.printed == pytest.approx(128 / 0.1025) and log.wall_clock is None
    assert log.window == "step 350 of epoch 1 to step 350 of epoch 3"
