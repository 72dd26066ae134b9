"""A run that goes on, by the copies of its ranks' journals: how far it is, how fast, and who is waited for lately.

The recent windows are the last steps, few and then twice as many, until the ledger would name a rank that
is late by SETTLED of a step: few show soon what is late by much. The ledger itself judges them, at ALLOWED in place of
what it allows for a point: who watches looks every few seconds, for days, and equal ranks must not be accused by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from hpc.model.files import AttemptFiles, server_time_s
from hpc.model.spec import RunSpec
from hpc.model.timestamps import END
from hpc.model.trace import Trace, TraceError
from hpc.model.trace_file import write_trace
from hpc.recovery.folders import BEAT, JournalError
from hpc.recovery.journal import RankProgress, planned_steps, read_window
from hpc.recovery.recover import recent_trace
from parse.ledger.breakdown import step_breakdown
from parse.ledger.cells import MOST_PIECES, PIECE_STEPS
from parse.ledger.finding import LateResult
from parse.ledger.point import ledgers
from parse.ledger.verdict import ROTATING, Because, CannotTell, Nobody, Straggler, Verdict
from parse.ledger.verdicts import point_verdicts
from parse.runs.attempt import NoSamplesError, measure
from parse.runs.load import load
from parse.runs.result import results
from parse.say.straggler import brief_text
from parse.text import gauge_text

STALE_S = 60.0
"""Of copies that are older nothing is said but their age."""
SIZES = (50, 100, 200, 400)
"""Steps of a window."""
SETTLED = 0.05
"""A window is long enough where a rank that is late by this share of every step would be named."""
ALLOWED = 2.0**-19
"""How often equal ranks may show as much in one look: what two ranks can show in the pieces of one window."""


@dataclass(frozen=True, kw_only=True)
class RecentDelay:
    """Ranks that others wait for in the recent window: in words, by how many ms they are late, and in how many of its
    steps, up to which."""

    text: str
    ranks: tuple[int, ...]
    cause: str
    late_ms: float
    steps: int
    last_step: int


@dataclass(frozen=True, kw_only=True)
class RunLook:
    """An attempt as of its last copies, `age_s` old. `reason` is why no more is said of it, or of who is waited for.

    `step` counts from 1, `steps` is None of a script that runs to its end, `speed` is in the run's unit, None where
    samples are not counted. A rank that is late by `limit_ms` in every step would be named, None: not known.
    """

    stem: str
    age_s: float
    reason: str = ""
    run: RunSpec | None = None
    step: int = 0
    steps: int | None = None
    speed: float | None = None
    remaining_s: float | None = None
    delay: RecentDelay | None = None
    limit_ms: float | None = None


class RecentWindows:
    """Who is waited for in the last steps, look by look; `count` windows of SIZES are long enough, of `size` steps."""

    def __init__(self) -> None:
        self.count = 1
        self.limit_ms: float | None = None
        self._is_settled, self._before = False, tuple[int, ...]()

    @property
    def size(self) -> int:
        return SIZES[self.count - 1]

    def judge(self, trace: Trace) -> tuple[Straggler, Trace] | None:
        """Whom this look and the one before name by a test, which has none for turns, and in which of the last steps of
        a trace. Raises TraceError where these cannot be judged."""
        named = next(filter(None, (self._named(trace, size) for size in SIZES[: self.count])), None)
        before, self._before = self._before, () if named is None else named[0].ranks
        return named if named is not None and named[0].ranks == before else None

    def _named(self, trace: Trace, size: int) -> tuple[Straggler, Trace] | None:
        part = last_steps(trace, size)
        if not len(part.blocks) or len(part.stamps) ** (1 - min(MOST_PIECES, size // PIECE_STEPS)) > ALLOWED:
            verdict: Verdict = CannotTell(because=Because.FEW_STEPS)
        else:
            is_last = size == self.size and not self._is_settled
            verdict = point_verdicts([step_breakdown(part)], with_limits=is_last, allowed=ALLOWED).verdict
        if isinstance(verdict, Straggler):
            return (verdict, part) if verdict.chance is not None and verdict.kind != ROTATING else None
        if size == self.size and not self._is_settled and len(trace.stamps[0]) > size:
            self._adapt(verdict, trace)
        return None

    def _adapt(self, verdict: Nobody | CannotTell, trace: Trace) -> None:
        """Takes a longer window from now on where the longest is too short, and remembers what it shows."""
        self.limit_ms = verdict.limit if isinstance(verdict, Nobody) else None
        if (self.limit_ms is not None and self.limit_ms <= SETTLED * 1e3 * step_s(trace)) or self.count == len(SIZES):
            self._is_settled = True
        else:
            self.count += 1


def step_s(trace: Trace) -> float:
    """How long a step of it takes, with what is between its blocks."""
    return float(np.diff(trace.stamps[0, :, END]).mean()) / 1e9


def last_steps(trace: Trace, count: int) -> Trace:
    """The trace of the last `count` steps of a trace, and of the one before them."""
    first = max(0, len(trace.stamps[0]) - count - 1)
    stamps = trace.stamps[:, first:]
    blocks = np.clip(trace.blocks - first, (1, 0), None)
    return replace(
        trace, stamps=stamps, samples=trace.samples[:, first:], losses=trace.losses[:, first:],
        steps_completed=np.full(len(stamps), stamps.shape[1]), blocks=blocks[blocks[:, 0] < blocks[:, 1]],
    )  # fmt: skip


class LiveRun:
    """An attempt that has begun and not ended."""

    def __init__(self, files: AttemptFiles) -> None:
        self.files = files
        self._progress: dict[int, RankProgress] = {}
        self._windows = RecentWindows()
        self._last: tuple[int, RunLook] | None = None

    def look(self) -> RunLook:
        """It now. Reads copies alone; what cannot be read is the reason."""
        nothing = RunLook(stem=self.files.stem, age_s=inf)
        try:
            age_s = copy_age_s(self.files.partial)
            nothing = replace(nothing, age_s=age_s)
            if age_s > STALE_S:
                return nothing
            self._progress, journals = read_window(self.files.partial, self._windows.size + 1, self._progress)
            trace = recent_trace(self.files.partial, journals)
        except (JournalError, TraceError, OSError) as error:
            return replace(nothing, reason=str(error))
        stop = journals[0].first + len(journals[0].samples)
        if self._last is not None and self._last[0] == stop:
            return replace(self._last[1], age_s=age_s, step=self._step)
        steps = planned_steps(min(each.steps for each in self._progress.values()))
        look = replace(nothing, run=trace.run, step=self._step, steps=steps)
        self._last = stop, self._judged(trace, stop, look)
        return self._last[1]

    @property
    def _step(self) -> int:
        return min((each.completed for each in self._progress.values()), default=0)

    def _judged(self, trace: Trace, stop: int, look: RunLook) -> RunLook:
        """With the speed of the window, whose last step is `stop` − 1, and who is waited for in it."""
        if not len(trace.blocks):
            return replace(look, reason="in its warm-up")
        if look.steps is not None:
            look = replace(look, remaining_s=(look.steps - look.step) * step_s(trace))
        try:
            with suppress(NoSamplesError):  # a script's may not be known
                look = replace(look, speed=measure(trace).throughput)
            if reason := why_not_compared(trace):
                return replace(look, reason=reason)
            named = self._windows.judge(trace)
        except TraceError as error:
            return replace(look, reason=str(error))
        if not trace.run.is_script:  # whose ranks may also meet where no hook sees it, which is known at its end
            look = replace(look, limit_ms=self._windows.limit_ms)
        return look if named is None else replace(look, delay=delay_of(*named, stop))


def measured_steps(trace: Trace) -> int:
    """How many steps of it are measured."""
    return int((trace.blocks[:, 1] - trace.blocks[:, 0]).sum())


def why_not_compared(trace: Trace) -> str:
    """Why nothing is said of who is waited for while the run goes on; empty where it is."""
    if len(trace.stamps) == 1:
        return "one rank waits for no other"
    scripts = [report.extra.get("script") or {} for report in trace.reports]
    if trace.run.is_script and not all(scripts):
        return "not yet known how its ranks meet"
    if trace.run.is_script and not all(script.get("meets_as_one") for script in scripts):
        return "its ranks meet in groups, or not at all: who is waited for is known at its end"
    return ""


def delay_of(verdict: Straggler, trace: Trace, stop: int) -> RecentDelay | None:
    """What the ledger finds of these ranks in the steps of a trace, the last of which is `stop` − 1; None where it
    finds them in no delay of theirs."""
    with TemporaryDirectory() as folder:  # its ledger is made as that of any trace, from a file
        write_trace(Path(folder) / f"{trace.run_id}.{trace.attempt}.h5", trace)
        (ledger,) = ledgers(results(load([Path(folder)])))
    steps = round(verdict.share * measured_steps(trace))
    for finding in ledger.findings:
        its = finding.what.straggler if isinstance(finding.what, LateResult) else finding.what
        if isinstance(its, Straggler) and its.ranks == verdict.ranks:
            return RecentDelay(
                text=brief_text(its, ledger, is_result=isinstance(finding.what, LateResult)), ranks=its.ranks,
                cause=max(its.cause, key=its.cause.__getitem__, default=""), late_ms=its.arrival_skew,
                steps=steps, last_step=stop,
            )  # fmt: skip
    return None


def copy_age_s(partial: Path) -> float:
    """The age of the copies of the node whose last are oldest, by the file server's clock; inf without copies."""
    beats = [path.stat().st_mtime for path in partial.glob(f"*{BEAT}")] if partial.is_dir() else []
    return max(0.0, server_time_s(partial.parent) - min(beats)) if beats else inf


# The same as OpenMetrics text.

Labels = dict[str, str]


def openmetrics(looks: Sequence[tuple[RunLook, float | None]]) -> str:
    """The text, of each look and the speed that is expected of its run, where one is known."""
    return "".join([*(_family(*each, looks) for each in FAMILIES), "# EOF\n"])


def _family(name: str, meaning: str, of: Callable[[RunLook, float | None], tuple[Labels, float | None]],
            looks: Iterable[tuple[RunLook, float | None]]) -> str:  # fmt: skip
    samples = [
        ({"run": look.stem, **labels}, value) for look, (labels, value) in ((each[0], of(*each)) for each in looks)
    ]
    return gauge_text(name, meaning, [(labels, value) for labels, value in samples if value is not None])


def _in_unit(look: RunLook, speed: float | None) -> tuple[Labels, float | None]:
    return {"unit": look.run.unit if look.run else ""}, speed


def _delay(look: RunLook, _: float | None) -> tuple[Labels, float | None]:
    its = look.delay
    if its is None:
        return {}, None
    return {"ranks": " ".join(map(str, its.ranks)), "cause": its.cause}, its.late_ms / 1e3


FAMILIES: Sequence[tuple[str, str, Callable[[RunLook, float | None], tuple[Labels, float | None]]]] = (
    ("rankwise_copy_age_seconds", "age of the copies that all else is read from; without a finite one none are there",
     lambda look, _: ({}, look.age_s if look.age_s < float("inf") else None)),
    ("rankwise_step", "steps that all ranks have completed, warm-up included",
     lambda look, _: ({}, look.step if look.run else None)),
    ("rankwise_steps", "steps that the run makes, where that is known", lambda look, _: ({}, look.steps)),
    ("rankwise_speed", "samples (or tokens) a second of the recent window",
     lambda look, _: _in_unit(look, look.speed)),
    ("rankwise_expected_speed", "the median of earlier runs of the same point, or that of a reference",
     lambda look, expected: _in_unit(look, expected if look.run else None)),
    ("rankwise_remaining_seconds", "time to the last step at the pace of the recent window",
     lambda look, _: ({}, look.remaining_s)),
    ("rankwise_delay_seconds", "by how much ranks are late that the others wait for, where that is sure", _delay),
)  # fmt: skip
"""Name, meaning, and labels and value of a look and the speed expected of it; None: no sample."""
