"""The declaration of a log format: its step lines, the patterns of its other lines, and its rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

NO_NUMBER = -1
"""Absent value in a whole-number column; in a column of floats it is NaN."""

FIELDS = ("time", "epoch", "step", "first", "rank", "rate", "duration_s", "elapsed_s", "epoch_steps")
"""The groups that a step line's pattern may name.

`time` is a time stamp in any of the forms of `parse.logs.engine.fields`. `step` is the number of the last step that the
line speaks of, as printed; `first` the number that it counts from, where it prints an interval (`steps 100 to 200`).
`rate` is in samples/s, `duration_s` the seconds of one step, `elapsed_s` those of the whole interval. `epoch_steps` is
the number of steps in an epoch, where lines print it (`[ 6/53]`).
"""

FACTS = (
    "batch_size", "global_batch_size", "world_size", "nodes", "gpus_per_node", "precision", "model", "steps_per_epoch",
    "samples_per_epoch", "epochs", "warmup_epochs", "print_every", "data", "seed", "classes", "accumulation",
    "checksum",
)  # fmt: skip
"""The known facts of a header; its other facts (versions, devices) are stored under their own names.

`batch_size` is per device. `precision` is one of this project's (fp32, tf32, bf16, amp-fp16; fp16 with master weights
is the latter). `accumulation` is the number of printed steps per optimizer step."""


class LogError(ValueError):
    """A file is no log of a known format, or cannot be read; the text names the file and the reason."""


Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Step lines in the order of the file, a column per field; all columns are equally long.

    `time_s` counts from 1970 in whatever zone the log was printed (1904 is taken where a log prints no year).
    `offset` is where the line begins, in bytes of the text (of what a .gz holds, where it is one).
    """

    offset: Integers
    time_s: Floats
    epoch: Integers
    step: Integers
    first: Integers
    rank: Integers
    rate: Floats
    duration_s: Floats
    elapsed_s: Floats
    epoch_steps: Integers


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """A line that is no step line. `values` are texts by name.

    Kinds: `facts` (by the names of FACTS or others); `pause` (the training stands still: validation, checkpoint, the
    end of an epoch; perhaps a `reason`); `evaluation` (`top1` in percent, `epoch`, as far as printed); `mark` (an
    AI-Rank mark: `mark` and its values); `mllog` (`key`, `value`, `epoch_num`, …); `summary` (rates of the whole run
    as the program reports them: `rate`, `what`); `remark` (`text`: what is odd about the file itself).
    """

    kind: str
    offset: int
    time_s: float | None
    rank: int | None
    values: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class StepLine:
    """A form of step line. `pattern` is searched in lines that contain `marker`; its groups are named as in FIELDS.

    Lines of equal shape differ in digits alone: a pattern may match any digit (`\\d`), but no certain digit, before the
    end of its match.
    """

    marker: bytes
    pattern: re.Pattern[bytes]


Values = Callable[[re.Match[bytes]], Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class LogPattern:
    """A form of any other line. A match has as values its named groups, or those by `values`, and the `constants`.

    A group named `time` is the time stamp and none of the values; a group `rank` the rank. Only the
    first of several lines of one shape with a `pause` between two steps is read, so such a pattern must not match
    certain digits.
    """

    kind: str
    marker: bytes
    pattern: re.Pattern[bytes]
    values: Values | None = None
    constants: tuple[tuple[str, str], ...] = ()


def step(marker: bytes, pattern: bytes) -> StepLine:
    """A form of step line."""
    return StepLine(marker=marker, pattern=re.compile(pattern))


def line(kind: str, marker: bytes, pattern: bytes, values: Values | None = None, **constants: str) -> LogPattern:
    """A form of any other line; `constants` are values that every match has."""
    return LogPattern(
        kind=kind,
        marker=marker,
        pattern=re.compile(pattern),
        values=values,
        constants=tuple(constants.items()),
    )


fact, pause, evaluation, summary = (partial(line, kind) for kind in ("facts", "pause", "evaluation", "summary"))


@dataclass(frozen=True, kw_only=True)
class LogFormat:
    """A system whose logs are read, and its rule.

    `rates` is the scope of a printed rate: `all` ranks together, or one `rank`. `mean` is the kind of average of
    printed numbers: over `rates`, over step `durations`, whose mean divides the batch, or over `paces`, batch /
    duration. `numbered`: step numbers start anew in every `epoch` or go through the whole `run`; `from_zero`: the first
    step is number 0 even if a log does not show it. `warmup` and `total` are the reference protocol's. `model` is the
    default if neither header nor name has the model; `task` is the prefix of its name (`arcface`).
    """

    name: str
    title: str
    steps: tuple[StepLine, ...]
    patterns: tuple[LogPattern, ...] = ()
    rates: str = "all"
    mean: str = "rates"
    numbered: str = "epoch"
    warmup: int = 20
    total: int = 120
    model: str = ""
    task: str = ""
    from_zero: bool = False


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A part of a log: its step lines, and the facts of other lines, each in the order of the file."""

    steps: Steps
    records: tuple[LogRecord, ...]
