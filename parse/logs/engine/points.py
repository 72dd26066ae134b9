"""Turns step lines into points: one per printed step, whichever ranks print it and however their lines interleave."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from parse.logs.engine.log_format import Floats, Integers

STEP_BITS = 40
MAX_STEP, MAX_EPOCH = 1 << STEP_BITS, 1 << 20
"""Larger numbers are none that a program counted to."""
MAX_SIZES = 8
"""Up to as many sizes of groups are sorted one by one."""


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """The columns of step lines and points. `key` has the order of epochs and steps; NaN: not printed."""

    key: Integers
    offset: Integers
    time_s: Floats
    rate: Floats
    duration_s: Floats
    elapsed_s: Floats
    mean_s: Floats
    first: Integers
    epoch_steps: Integers
    batch: Floats

    def take(self, which: npt.NDArray[np.bool_] | Integers | slice) -> Self:
        """Those rows."""
        return type(self)(**{name: column[which] for name, column in vars(self).items()})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of all, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    @property
    def epoch(self) -> Integers:
        """The epoch's printed number."""
        return (self.key >> STEP_BITS) - 1

    @property
    def step(self) -> Integers:
        """The step's printed number."""
        return self.key & (MAX_STEP - 1)

    def __len__(self) -> int:
        return len(self.key)


@dataclass(frozen=True, kw_only=True)
class StepLines(_Columns):
    """Step lines in the order of the file."""

    rank: Integers


@dataclass(frozen=True, kw_only=True)
class Points(_Columns):
    """Printed steps in their order: of the lines of each the latest time stamp and the medians of the numbers.

    `offset` is that of the line with the latest stamp, `lines` the number of lines.
    """

    lines: Integers


_NO_NUMBERS, _NO_FLOATS = np.empty(0, np.int64), np.empty(0)
NO_POINTS = Points(
    key=_NO_NUMBERS, offset=_NO_NUMBERS, time_s=_NO_FLOATS, rate=_NO_FLOATS, duration_s=_NO_FLOATS,
    elapsed_s=_NO_FLOATS, mean_s=_NO_FLOATS, first=_NO_NUMBERS, epoch_steps=_NO_NUMBERS, batch=_NO_FLOATS,
    lines=_NO_NUMBERS,
)  # fmt: skip


def epoch_and_step(key: int) -> tuple[int, int]:
    """The printed numbers of a key."""
    return (key >> STEP_BITS) - 1, key & (MAX_STEP - 1)


def merged(lines: StepLines) -> Points:
    """A point for each key of the lines."""
    shared = {name: column for name, column in vars(lines).items() if name != "rank"}
    if (np.diff(lines.key) > 0).all():
        return Points(**shared, lines=np.ones(len(lines), np.int64))
    order = np.lexsort((np.where(np.isnan(lines.time_s), -np.inf, lines.time_s), lines.key))
    lines = lines.take(order)
    begins = np.flatnonzero(np.concatenate([[True], np.diff(lines.key) > 0]))
    counts = np.diff(np.append(begins, len(lines)))
    latest = begins + counts - 1
    return Points(
        key=lines.key[begins],
        offset=lines.offset[latest],
        time_s=lines.time_s[latest],
        rate=_medians(lines.rate, begins, counts),
        duration_s=_medians(lines.duration_s, begins, counts),
        elapsed_s=_medians(lines.elapsed_s, begins, counts),
        mean_s=_medians(lines.mean_s, begins, counts),
        first=lines.first[latest],
        epoch_steps=np.maximum.reduceat(lines.epoch_steps, begins),
        batch=_medians(lines.batch, begins, counts),
        lines=counts,
    )


def _medians(values: Floats, begins: Integers, counts: Integers) -> Floats:
    """The median of the numbers of each group, `counts` values from `begins` on; NaN where it has none."""
    finite = np.isfinite(values)
    if not finite.any():
        return np.full(len(begins), np.nan)
    ordered = _ordered(values, begins, counts)
    numbers = np.add.reduceat(finite.astype(np.int64), begins)
    middle = (ordered[begins + np.maximum(numbers - 1, 0) // 2] + ordered[begins + np.maximum(numbers // 2, 0)]) / 2
    return np.where(numbers > 0, middle, np.nan)


def _ordered(values: Floats, begins: Integers, counts: Integers) -> Floats:
    """The values in their groups, each group in ascending order and NaN last; groups of one size are sorted at once."""
    sizes = np.unique(counts)
    if len(sizes) > MAX_SIZES:
        return values[np.lexsort((values, np.repeat(np.arange(len(begins)), counts)))]
    ordered = values.copy()
    for size in sizes[sizes > 1].tolist():
        rows = begins[counts == size, None] + np.arange(size)
        ordered[rows] = np.sort(values[rows], axis=1)
    return ordered


def numbered(epoch: int, step: int) -> str:
    """A step as the log numbers it: `120 of epoch 3`, or `120` where the log has no epochs."""
    return f"{step} of epoch {epoch}" if epoch >= 0 else str(step)
