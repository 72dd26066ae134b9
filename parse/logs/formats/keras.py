"""Keras's progress bars, of Keras 2 and 3, whatever program draws them: the last one of each epoch.

Bars carry neither a time nor an epoch, and how long a step took is a mean since the second step of the epoch, to the
millisecond; that of the epoch's last bar is read, under the epoch of the line `Epoch 1/5` above it. It takes in the
validation where the bar has `val_` numbers. Seconds and microseconds (`1s/step`) are too coarse, or are of samples.
"""

from __future__ import annotations

from parse.logs.engine.log_format import LogFormat, heading, step

_BAR = rb"(?:^|[\s\x08:>])(?P<step>\d+)/(?P<epoch_steps>\d+) "
_TIME = rb"(?:(?P<duration_ms>\d+)ms|\d+[um]?s)/step - "

FORMAT = LogFormat(
    name="keras",
    title="Keras progress bars",
    steps=(
        step(b"=] - ", _BAR + rb"\[={1,200}\] - \d+s " + _TIME),
        step("━ ".encode(), _BAR + "(?:━){1,200} ".encode() + rb"(?:\d+:){0,2}\d+s " + _TIME),
        step(b"s/step - ", _BAR + rb"- \d+s - " + _TIME),
    ),
    patterns=(
        heading(b"Epoch ", rb"(?:^|[\s\x08:>])Epoch (?P<epoch>\d+)/\d+\s*$"),
        # Older versions count samples, and call them steps.
        heading(b"Train on ", rb"\bTrain on \d+ samples\b"),
    ),
    mean="durations",
)
