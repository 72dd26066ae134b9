"""The declaration of a log format: its step lines, the patterns of its other lines, and its rule."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

NO_NUMBER = -1
"""Absent value in a whole-number column; in a column of floats it is NaN."""

FIELDS = (
    "time", "epoch", "step", "first", "rank", "rate", "duration_s", "elapsed_s", "mean_s", "mean_rate", "epoch_steps",
    "batch",
)  # fmt: skip
"""The groups that a step line's pattern may name, beside those IN_OTHER_UNITS.

`time` is a time stamp in any of the forms of `parse.logs.engine.fields`. `step` is the number of the last step that the
line speaks of, as printed; `first` the number that it counts from, where it prints an interval (`steps 100 to 200`).
`rate` is in the format's unit per second, `duration_s` the seconds of one step, `elapsed_s` those of the whole
interval, `mean_s` the mean of all steps since the epoch began (`Time 0.403 ( 2.123)`, or since `mean_from`),
`mean_rate` the same of the rate.
`epoch_steps` is the number of steps in an epoch, where lines print it (`[ 6/53]`), or that a progress bar counts to.
`batch` is what a step takes in, in the format's unit: the mean over the steps since the line before.
"""

IN_OTHER_UNITS = (
    "duration_ms", "steps_per_s", "runtime", "since_s", "since_ms", "mean_ms", "consumed", "consumed_billions",
)  # fmt: skip
"""Groups that are printed in the place of another: milliseconds of a step, or steps per second, for `duration_s`; the
time since a progress bar began, `02:03` or `1:02:03`, or since the training did, a number, for `time`; what all steps
so far took in, or billions of it, for `batch`."""

FACTS = (
    "batch_size", "global_batch_size", "world_size", "nodes", "gpus_per_node", "precision", "model", "steps_per_epoch",
    "samples_per_epoch", "epochs", "warmup_epochs", "print_every", "data", "seed", "classes", "accumulation",
    "checksum", "sequence_length", "tokens_per_step", "micro_batch_size", "micro_batches", "processes",
    "gpus_per_process",
)  # fmt: skip
"""The known facts of a header; its other facts (versions, devices) are stored under their own names.

`batch_size` is per device. `precision` is one of this project's (fp32, tf32, bf16, amp-fp16; fp16 with master weights
is the latter). `accumulation` is the number of printed steps per optimizer step; `micro_batches` is, the other way
round, the number of passes of `micro_batch_size` samples of a device in a printed step. `sequence_length` is the number
of tokens of a sample, `tokens_per_step` that of a printed step. `processes` is the number of ranks that print facts,
where these are 0 to the last without a gap, `gpus_per_process` the devices of one."""
OF_RUN = "instance"
"""A fact beside others of its line: these are of one run of several on a machine, and stand before those of the
machine."""
SCOPES = ("kv_store", "worker", "printed_by", "lines_of_step", OF_RUN)
"""Facts of whose numbers they are. `worker` is set where a log is that of one of several, `printed_by` is `node`
where each node prints its own rate, `writer` where each may; `lines_of_step` is the number of lines of which each is of
a part of a step."""


class LogError(ValueError):
    """A file is no log of a known format, or cannot be read; the text names the file and the reason."""


class UnknownFormatError(LogError):
    """A file can be read, and is no log of the formats looked for."""


class UnrecognisedError(UnknownFormatError):
    """A text has no line that is known of any format."""


Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Step lines in the order of the file, a column per field; all columns are equally long.

    `time_s` counts from 1970 in whatever zone the log was printed (1904 is taken where a log prints no year).
    `offset` is where the line begins, in bytes of the text (of what a .gz holds, where it is one). `batch` counts all
    steps so far where the format's lines print what they `consumed`.
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
    mean_s: Floats
    mean_rate: Floats
    epoch_steps: Integers
    batch: Floats


T = TypeVar("T")


def without_rows(columns: type[T]) -> T:
    """The columns of a dataclass of columns, each of them empty."""
    types = {each.name: np.int64 if each.type == "Integers" else np.float64 for each in dataclasses.fields(columns)}  # type: ignore[arg-type]  # it is one
    return columns(**{name: np.empty(0, its) for name, its in types.items()})


NO_STEPS = without_rows(Steps)


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """A line that is no step line. `values` are texts by name.

    Kinds: `facts` (by the names of FACTS or others); `pause` (the training pauses: validation, checkpoint, the
    end of an epoch; perhaps a `reason`); `evaluation` (`top1` in percent, `epoch`, as far as printed); `mark` (an
    AI-Rank mark: `mark` and its values); `mllog` (`key`, `value`, `epoch_num`, …); `summary` (rates of the whole run
    as the program reports them: `rate`, `what`); `epoch` (one whole epoch: `rate`, `seconds`, `epoch`, as far as
    printed); `heading` (the line above progress bars: `epoch`, or nothing where those below it count no steps);
    `remark` (`text`: what is odd about the file itself).
    """

    kind: str
    offset: int
    time_s: float | None
    rank: int | None
    values: Mapping[str, str]


class _Line:
    """A form of line, made and compiled at its first use: all formats together have 500 of them, a log has a few."""

    expression: bytes | Callable[[], bytes]

    @cached_property
    def source(self) -> bytes:
        """The regular expression."""
        return self.expression() if callable(self.expression) else self.expression

    @cached_property
    def pattern(self) -> re.Pattern[bytes]:
        return re.compile(self.source)


@dataclass(frozen=True, kw_only=True)
class StepLine(_Line):
    """A form of step line. `pattern` is searched in lines that contain `marker`; its groups are named as in FIELDS.

    Lines of equal shape differ in digits alone: a pattern may match any digit (`\\d`), but no certain digit; where it
    does, `certain_digits` has all lines matched one by one. `written`: the form in the words of --pattern.
    """

    marker: bytes
    expression: bytes | Callable[[], bytes]
    certain_digits: bool = False
    written: str = ""


Values = Callable[[re.Match[bytes]], Mapping[str, str]]


@dataclass(frozen=True)
class LogPattern(_Line):
    """A form of any other line. A match has as values its named groups, or those by `values`.

    A group named `time` is the time stamp and none of the values, `time_ms` one in milliseconds since any origin; a
    group `rank` the rank. Only the first of several lines of one shape with a `pause` between two steps is read, so
    such a pattern must not match certain digits. A `block` goes on over the lines below its marker's, BLOCK_BYTES at
    most.
    """

    kind: str
    marker: bytes
    expression: bytes | Callable[[], bytes]
    values: Values | None = None
    block: bool = False


fact = partial(LogPattern, "facts")


@dataclass(frozen=True, kw_only=True)
class LogFormat:
    """A system whose logs are read, and its rule.

    `unit` is what its rates count, `samples` or `tokens`; `rates` is their scope: `all` ranks together, or one `rank`.
    `printed` is which of the printed numbers the speed comes from, `rates` or step `durations`: work over time either
    way. `publishes_mean`: its reference protocol publishes the arithmetic mean of the rates, or of batch / duration,
    which is no work over time. `numbered`: step numbers restart in every `epoch` or go through the whole
    `run`; `from_zero`: the first step is number 0 even if a log does not show it. `warmup` and `total` are the
    reference protocol's. `mean_from`: running means leave out the steps of an epoch up to that printed
    number; None: they have all. `model` is the default if neither header nor name has the model; `task` is the prefix
    of its name (`arcface`). `bars`: its step lines are progress bars, redrawn after a pause; `one_bar`: several of
    them are alike but for what they count to, and the one that is drawn for the longest time has the steps. `anywhere`:
    any program may print such lines, so that step lines of another format win; one of the texts `signs`, where there
    are any, must be in the log, too. `counts`: in the place of a step its lines have the `samples` of the epoch so far.
    `continued` matches the line ends after
    which a line goes on.
    """

    name: str
    title: str
    steps: tuple[StepLine, ...]
    patterns: tuple[LogPattern, ...] = ()
    unit: str = "samples"
    rates: str = "all"
    printed: str = "rates"
    publishes_mean: bool = False
    numbered: str = "epoch"
    warmup: int = 20
    total: int = 120
    model: str = ""
    task: str = ""
    from_zero: bool = False
    mean_from: int | None = None
    bars: bool = False
    one_bar: bool = False
    anywhere: bool = False
    signs: tuple[bytes, ...] = ()
    counts: str = "steps"
    continued: re.Pattern[bytes] | None = None

    @cached_property
    def consumes(self) -> bool:
        """Whether `batch` counts all steps so far."""
        return any(b"(?P<consumed" in form.source for form in self.steps)

    def joined(self, text: bytes) -> bytes:
        """The text, as long as it was, with a blank for each line end after which a line goes on."""
        return self.continued.sub(b" ", text) if self.continued else text

    @property
    def headed(self) -> bool:
        """Whether its steps are progress bars under headings."""
        return any(log_pattern.kind == "heading" for log_pattern in self.patterns)


@dataclass(frozen=True, kw_only=True)
class LogPart:
    """A part of a log: its step lines, and the facts of other lines, each in the order of the file; `units` are the
    worth of the last digit of what lines print of the time of a step, by the names of these fields."""

    steps: Steps
    records: tuple[LogRecord, ...]
    units: Mapping[str, float] = dataclasses.field(default_factory=dict)


class SampleCount:
    """Of lines that count samples: how many a step takes in, which the first line of an epoch shows."""

    def __init__(self) -> None:
        self._per_step = 0

    def applied(self, batch: LogPart) -> LogPart:
        """The batch with numbers of steps; without any where samples are no whole number of them, as behind a log's
        lost beginning."""
        samples = batch.steps.step
        if not self._per_step and len(samples):
            self._per_step = int(samples.min())
        step, rest = np.divmod(samples, self._per_step or MAX_SAMPLES)
        numbered = np.where((rest == 0) & (step > 0), step, NO_NUMBER)
        taken_in = np.full(len(samples), float(self._per_step))
        return dataclasses.replace(batch, steps=dataclasses.replace(batch.steps, step=numbered, batch=taken_in))


# Progress bars under headings: of those below `Epoch 2/5` the first full one is epoch 2, and the others are none.

MAX_SAMPLES = 1 << 60
"""More than an epoch has."""
MAX_DIGITS = 9
"""Epochs with more digits are none that a program counted to."""


class Headings:
    """The heading above the bars of a log, carried from batch to batch."""

    def __init__(self) -> None:
        self._epoch = NO_NUMBER
        """The epoch whose full bar is to come; NO_NUMBER if none is."""
        self._epoch_steps = NO_NUMBER
        """The steps of the first epoch, and so of all."""
        self._counts_steps = True

    def applied(self, batch: LogPart) -> LogPart:
        """The batch with one step per heading: the first full bar below it, with the heading's epoch.

        Evaluations draw bars below a full one, or count to another number than the first epoch. Below a heading without
        an epoch bars count something else than steps, and are dropped to the end of the log.
        """
        headings = [record for record in batch.records if record.kind == "heading"]
        self._counts_steps &= all("epoch" in record.values for record in headings)
        epochs = [self._epoch, *(_number(record.values.get("epoch", "")) for record in headings)]
        steps = batch.steps
        above = np.searchsorted([record.offset for record in headings], steps.offset)
        epoch = np.array(epochs, np.int64)[above]
        full = np.flatnonzero((steps.step == steps.epoch_steps) & (epoch != NO_NUMBER) & self._counts_steps)
        if len(full) and self._epoch_steps == NO_NUMBER:
            self._epoch_steps = int(steps.epoch_steps[full[0]])
        full = full[steps.epoch_steps[full] == self._epoch_steps]
        _, first = np.unique(above[full], return_index=True)
        indices = full[first]
        self._epoch = NO_NUMBER if len(headings) in above[indices] else epochs[-1]
        columns = {name: column[indices] for name, column in vars(steps).items()}
        return dataclasses.replace(batch, steps=Steps(**{**columns, "epoch": epoch[indices]}))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else NO_NUMBER
