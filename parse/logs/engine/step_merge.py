"""Step lines of interleaved ranks and appended runs, put in order: points of one run, each when it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parse.logs.engine.intervals import (
    MAX_EPOCH,
    MAX_STEP,
    NO_POINTS,
    STEP_BITS,
    Points,
    StepLines,
    merged,
    rates_apart,
)
from parse.logs.engine.log_format import NO_NUMBER, Floats, Integers, LogRecord, Steps

BLOCK = 32_768
"""Lines are looked at as many at a time."""
HOLD = 16_384
"""As many lines may come between those of two ranks for one step."""
LIMIT = 131_072
"""The maximum of lines held back, however far apart the lines of two ranks are."""
NEAR = 2
"""Printed steps by which ranks that run together may be apart."""
OTHER_BAR = "another progress bar"
BEFORE = -1
"""Stands for a place before the first step line."""

DAY_S, LEAP_YEAR_S = 86_400.0, 366 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class Return:
    """The place where a log goes back to a step that it had passed: another run begins.

    `after` is the offset of the last line before it; `passed` and `to` are keys.
    """

    offset: int
    after: int
    passed: int
    to: int


class StepMerge:
    """Takes step lines in the order of the file, gives points in the order of steps.

    A point is given once as many lines as HOLD came after its last one. Steps that come back without a new epoch are
    those of another run (an appended log, a requeued job) where their time stamps are after all before them, or where,
    without stamps, the lines before are never taken up again, as those of interleaved ranks are: then `back` is set and
    only steps before them count.

    `bars`: the lines are progress bars, of which a step's first one counts: a bar is redrawn after a pause, but for
    those that print the time of a step.
    `one_bar`: the one that is drawn for the longest time has the steps, and another one is a pause.
    """

    def __init__(self, *, bars: bool = False, one_bar: bool = False) -> None:
        self.back: Return | None = None
        self.late_lines = self.unusable = self.merged = self.apart = 0
        self.ranks: dict[int, int] = {}
        """The ranks that lines bear, with the keys of their first steps."""
        self.pauses: dict[int, list[str]] = {}
        """Why the training pauses after a step, by its key."""
        self.last = BEFORE
        """The key of the furthest step."""
        self.closed = False
        """The window is over: lines that come late are no longer counted."""
        self._waiting: list[StepLines] = []
        self._pauses: list[tuple[LogRecord, str]] = []
        self._past_hold = 0
        self._flushed = BEFORE
        self._continued: set[int] = set()
        self._clock = _Clock()
        self._bars, self._one_bar = bars, one_bar
        self._counts_to: int | None = None

    def add(self, steps: Steps, pauses: Sequence[tuple[LogRecord, str]]) -> Points:
        """The points that are complete with these lines."""
        if self.back is not None:
            return NO_POINTS
        if len(steps.step):
            self._waiting.append(self._lines(steps))
        if self._waiting:
            self._pauses += pauses
        if sum(map(len, self._waiting)) < BLOCK and len(self._pauses) < BLOCK:
            return NO_POINTS
        return self._points(final=False)

    def finish(self) -> Points:
        """The points that are left at the end of the log."""
        return self._points(final=True) if self._waiting else NO_POINTS

    def forget_pauses(self, before: int) -> None:
        """Forgets the pauses before a point that has been given."""
        for key in [key for key in self.pauses if key < before]:
            del self.pauses[key]

    def _lines(self, steps: Steps) -> StepLines:
        time_s = self._clock.unwrapped(steps.time_s)
        sane = (steps.step >= 0) & (steps.step < MAX_STEP) & (steps.epoch >= NO_NUMBER) & (steps.epoch < MAX_EPOCH)
        self.unusable += len(sane) - int(sane.sum())
        lines = StepLines(
            key=((steps.epoch + 1) << STEP_BITS) | steps.step,
            offset=steps.offset,
            time_s=time_s,
            rate=_finite(steps.rate),
            duration_s=_finite(steps.duration_s),
            elapsed_s=_finite(steps.elapsed_s),
            mean_s=_finite(steps.mean_s),
            mean_rate=_finite(steps.mean_rate),
            first=steps.first,
            epoch_steps=steps.epoch_steps,
            rank=steps.rank,
            batch=steps.batch,
        )
        return lines if sane.all() else lines.take(sane)

    def _points(self, final: bool) -> Points:
        lines = StepLines.joined(self._waiting)
        if self._bars:
            lines = self._of_bars(lines)
        until = len(lines) if final else max(len(lines) - HOLD, self._past_hold)
        lines, until = self._before_return(lines, until)
        if until:
            self.last = max(self.last, int(lines.key[:until].max()))
        self._place_pauses(lines)
        in_time = lines.key > self._flushed
        past_hold = np.arange(len(lines)) < until
        self.late_lines += 0 if self.closed else int((past_hold & ~in_time).sum())
        ripe = self._ripe(lines.key, in_time, past_hold)
        keep = ~ripe & (in_time | ~past_hold)
        done, remaining = lines.take(_rows(ripe)), lines.take(_rows(keep))
        self._waiting, self._past_hold = [remaining], int((keep & past_hold).sum())
        if not len(done):
            return NO_POINTS
        self._flushed = max(self._flushed, int(done.key.max()))
        steps, apart = rates_apart(done)
        self.merged, self.apart = self.merged + steps, self.apart + apart
        ranks, places = np.unique(done.rank, return_index=True)
        self.ranks = dict(zip(ranks.tolist(), done.key[places].tolist(), strict=True)) | self.ranks
        return merged(done)

    def _of_bars(self, lines: StepLines) -> StepLines:
        """The first line of each step; with `one_bar` of the bar that is drawn for the longest time, the others become
        pauses."""
        of_bar = np.ones(len(lines), np.bool_)
        if self._one_bar and np.isfinite(lines.time_s).any():
            if self._counts_to is None:
                self._counts_to = int(lines.epoch_steps[np.nanargmax(lines.time_s)])
            of_bar = lines.epoch_steps == self._counts_to
            others = lines.offset[~of_bar]
            _, first = np.unique(np.searchsorted(lines.offset[of_bar], others), return_index=True)
            self._pauses += [
                (LogRecord(kind="pause", offset=offset, time_s=None, rank=None, values={}), OTHER_BAR)
                for offset in others[first].tolist()
            ]
        candidates = np.flatnonzero(of_bar)
        repeated = (np.diff(lines.key[candidates], prepend=-1) == 0) & np.isnan(lines.duration_s[candidates])
        of_bar[candidates[repeated]] = False
        self._past_hold -= int((~of_bar[: self._past_hold]).sum())
        return lines.take(of_bar)

    def _ripe(
        self, key: Integers, in_time: npt.NDArray[np.bool_], past_hold: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Mask of the lines that belong to complete steps; the last of these wait for the lines that follow."""
        open_keys = key[in_time & ~past_hold]
        ripe = in_time
        if len(open_keys):
            ripe = in_time & (key < _last_but(NEAR - 1, key[in_time & (key < open_keys.min())]))
        if (unripe := int((in_time & ~ripe).sum())) > LIMIT:
            ripe |= in_time & (key <= np.partition(key[in_time & ~ripe], unripe - LIMIT)[unripe - LIMIT])
        return ripe

    def _before_return(self, lines: StepLines, until: int) -> tuple[StepLines, int]:
        """The lines up to where the log goes back, judged by the lines up to `until`."""
        alike = _is_single_rank(lines.rank)
        order = np.arange(len(lines)) if alike else np.argsort(lines.rank, kind="stable")
        key, rank = lines.key[order], lines.rank[order]
        down = (key[1:] < key[:-1]) & (rank[1:] == rank[:-1])
        returns: list[tuple[int, int]] = []
        outlier = np.zeros(len(lines), np.bool_)
        for rank_number in sorted({*rank[1:][down].tolist()}):
            chain = order if alike else order[rank == rank_number]
            isolated = chain[outliers(_places(lines.key[chain]))]
            if len(isolated):
                outlier[isolated] = True
                continue
            judged = range(*np.searchsorted(chain, [self._past_hold, until]).tolist())
            back, continued = another_run(lines.take(chain), rank_number in self._continued, judged)
            if continued:
                self._continued.add(rank_number)
            if back is not None:
                returns.append((int(chain[back]), int(lines.key[chain[:back]].max())))
        if outlier.any():
            self.unusable += int(outlier.sum())
            self._past_hold -= int(outlier[: self._past_hold].sum())
            return self._before_return(lines.take(~outlier), until - int(outlier[:until].sum()))
        if not returns:
            return lines, until
        place, passed = min(returns)
        self.back = Return(
            offset=int(lines.offset[place]), after=int(lines.offset[place - 1]), passed=passed, to=int(lines.key[place])
        )
        return lines.take(slice(place)), place

    def _place_pauses(self, lines: StepLines) -> None:
        """Places each pause after the furthest step that its rank, or else any rank, printed before it."""
        chains: dict[int | None, tuple[Integers, Integers]] = {None: _course(lines)}
        for record, reason in self._pauses:
            if self.back is not None and record.offset >= self.back.offset:
                continue
            if record.rank is not None and record.rank not in chains:
                chains[record.rank] = _course(lines.take(lines.rank == record.rank))
            key = _furthest(*chains[record.rank], record.offset)
            if key == BEFORE:
                key = max(_furthest(*chains[None], record.offset), self._flushed)
            if key != BEFORE:
                reasons = self.pauses.setdefault(key, [])
                if reason not in reasons:
                    reasons.append(reason)
        self._pauses.clear()


class _Clock:
    """Time stamps that lack a date or a year, put on one axis: they restart at midnight or at new year."""

    def __init__(self) -> None:
        self.last = np.nan
        self.shift = 0.0

    def unwrapped(self, time_s: Floats) -> Floats:
        stamped = np.flatnonzero(np.isfinite(time_s))
        if not len(stamped):
            return time_s
        printed = time_s[stamped]
        before = np.concatenate([[printed[0] if np.isnan(self.last) else self.last], printed[:-1]])
        self.last = float(printed[-1])
        period = _period_s(printed)
        wraps = np.where(period == _period_s(before), np.round((before - printed) / np.maximum(period, 1)), 0)
        if not wraps.any() and not self.shift:
            return time_s
        shift = self.shift + np.cumsum(wraps * period)
        self.shift = float(shift[-1])
        unwrapped = time_s.copy()
        unwrapped[stamped] = printed + shift
        return unwrapped


def _period_s(printed: Floats) -> Floats:
    """The period in seconds after which such time stamps restart; 0 if they hold a whole date."""
    return np.where(printed < 0, LEAP_YEAR_S, np.where(printed < DAY_S, DAY_S, 0.0))


def outliers(place: Integers) -> Integers:
    """Single lines of one rank far ahead of both their neighbours: garbled numbers."""
    highest = np.maximum.accumulate(place)
    down = np.flatnonzero(place[1:] < place[:-1]) + 1
    down = down[down >= 2]
    return down[(highest[down - 1] - place[down] > NEAR) & (place[down] > highest[down - 2])] - 1


def another_run(lines: StepLines, continued: bool, judged: range) -> tuple[int | None, bool]:
    """The first line of another run among lines of one rank, or of indistinguishable ranks; and whether lines that were
    left have been continued by then, as those of interleaved ranks are.

    `continued`: they were continued before. Lines before those `judged` are known to begin no other run; those behind
    show the continuation.
    """
    place = _places(lines.key)
    highest = np.maximum.accumulate(place)
    down = np.flatnonzero(place[1:] < place[:-1]) + 1
    by = highest[down - 1] - place[down]
    code = np.sort(place * len(place) + np.arange(len(place)))
    same_step = _count_before(code, place[down], down)
    ahead = np.maximum(_count_before(code, place[down] - 1, down), _count_before(code, place[down] - 2, down))
    continues = (
        ahead > same_step
    )  # more ranks have printed the step before this one than this one; or the one before that
    latest = np.fmax.accumulate(lines.time_s)[down - 1]
    excess = lines.time_s[down] - latest
    stamped = np.isfinite(excess)
    if stamped.any():
        begun = lines.time_s[np.flatnonzero(np.isfinite(lines.time_s))[0]]
        pace = (latest - begun) / np.maximum(highest[down - 1], 1)
        soon = 3 * pace + 1
        elsewhere = (excess > 0) | (lines.time_s[down] < begun - soon)  # after all before, or before all
        later = np.where(by > NEAR, elsewhere, excess > soon)
    else:
        later = np.zeros(len(down), np.bool_)
    strange = ~stamped & ~continues & (by > NEAR)
    seen = np.logical_or.accumulate(np.concatenate([[continued], continues[:-1]])) if len(down) else continues
    taken_up = np.logical_or.accumulate(continues[::-1])[::-1]
    mine = (down >= judged.start) & (down < judged.stop)
    begins = np.flatnonzero(((stamped & later) | (strange & (seen | ~taken_up))) & mine)
    continued = continued or bool(continues[down < judged.stop].any())
    return (int(down[begins[0]]) if len(begins) else None), continued


def _rows(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | slice:
    """The same rows, as a slice where they follow each other: that copies nothing."""
    first, count = int(mask.argmax()) if len(mask) else 0, int(mask.sum())
    return slice(first, first + count) if mask[first : first + count].all() else mask


def _finite(values: Floats) -> Floats:
    """The values, NaN for infinite ones."""
    infinite = np.isinf(values)
    return np.where(infinite, np.nan, values) if infinite.any() else values


def _last_but(others: int, key: Integers) -> int:
    """The greatest key but for that many greater ones, or the smallest; BEFORE of no keys."""
    for _ in range(others):
        lower = key[key < key.max(initial=BEFORE)]
        key = lower if len(lower) else key
    return int(key.max(initial=BEFORE))


def _places(key: Integers) -> Integers:
    """Keys by their place among all printed ones."""
    return np.asarray(np.unique(key, return_inverse=True)[1], np.int64)


def _count_before(code: Integers, place: Integers, row: Integers) -> Integers:
    """The number of rows before `row` with that place; `code` has all places and rows, ordered."""
    rows = len(code)
    counted = np.searchsorted(code, place * rows + row) - np.searchsorted(code, place * rows)
    return np.where(place >= 0, counted, 0)


def _is_single_rank(rank: Integers) -> bool:
    return len(rank) == 0 or bool((rank == rank[0]).all())


def _course(lines: StepLines) -> tuple[Integers, Integers]:
    """The offsets of lines, and the furthest step up to each."""
    return lines.offset, np.maximum.accumulate(lines.key)


def _furthest(offsets: Integers, furthest: Integers, offset: int) -> int:
    place = int(np.searchsorted(offsets, offset))
    return int(furthest[place - 1]) if place else BEFORE
