"""A run that goes on, by the copies of its ranks' journals: how far it is, how fast, and who is waited for lately.

The recent window are the last steps, as few as the ledger needs to name a rank that is late by SETTLED of a step. The
ledger itself judges it, at ALLOWED in place of what it allows for a point: who watches looks every few seconds, for
days, and equal ranks must not be accused by then.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

from hpc.model.files import AttemptFiles, server_time_s
from hpc.model.spec import RunSpec
from hpc.model.trace import Trace, TraceError
from hpc.model.trace_file import write_trace
from hpc.recovery.folders import BEAT, JournalError
from hpc.recovery.journal import RankProgress, planned_steps, read_window
from hpc.recovery.recover import recent_trace
from parse.ledger.breakdown import StepBreakdown, step_breakdown
from parse.ledger.finding import LateResult
from parse.ledger.point import ledgers
from parse.ledger.verdict import ROTATING, Because, CannotTell, Nobody, Straggler, Verdict
from parse.ledger.verdicts import point_verdicts
from parse.runs.attempt import NoSamplesError, measure
from parse.runs.load import load
from parse.runs.result import results
from parse.say.straggler import brief_text

STALE_S = 60.0
"""Of copies that are older nothing is said but their age."""
LEAST_STEPS, MOST_STEPS = 40, 640
"""Of a window; each is twice the one before."""
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


class RecentWindow:
    """Who is waited for in the window of the last `size` steps, look by look."""

    def __init__(self) -> None:
        self.size = LEAST_STEPS
        self.limit_ms: float | None = None
        self._is_settled, self._before = False, tuple[int, ...]()

    def judge(self, run: StepBreakdown, steps: int) -> Straggler | CannotTell | Nobody:
        """The verdict on these steps: a straggler where this look and the one before name the same ranks by a test,
        which has none for turns; else Nobody or that it is not known."""
        verdict = point_verdicts([run], with_limits=not self._is_settled, allowed=ALLOWED).verdict
        self._adapt(verdict, run, steps)
        is_sure = isinstance(verdict, Straggler) and verdict.chance is not None and verdict.kind != ROTATING
        before, self._before = self._before, verdict.ranks if is_sure else ()
        if isinstance(verdict, Straggler) and not (is_sure and verdict.ranks == before):
            return Nobody()
        return verdict

    def _adapt(self, verdict: Verdict, run: StepBreakdown, steps: int) -> None:
        """Takes twice as many steps from now on where these are too few, and remembers what they show."""
        if self._is_settled or steps < self.size or isinstance(verdict, Straggler):
            return
        self.limit_ms = verdict.limit if isinstance(verdict, Nobody) else None
        if self.limit_ms is not None and self.limit_ms * 1e6 <= SETTLED * run.step_ns:
            self._is_settled = True
        elif isinstance(verdict, Nobody) or verdict.because in (Because.FEW_STEPS, Because.SOME_STEPS):
            self._is_settled = 2 * self.size > MOST_STEPS
            self.size = min(2 * self.size, MOST_STEPS)


class LiveRun:
    """An attempt that has begun and not ended."""

    def __init__(self, files: AttemptFiles) -> None:
        self.files = files
        self._progress: dict[int, RankProgress] = {}
        self._window = RecentWindow()
        self._last: tuple[int, RunLook] | None = None

    def look(self) -> RunLook:
        """It now. Reads copies alone; what cannot be read is the reason."""
        nothing = RunLook(stem=self.files.stem, age_s=inf)
        try:
            age_s = copy_age_s(self.files.partial)
            nothing = replace(nothing, age_s=age_s)
            if age_s > STALE_S:
                return nothing
            self._progress, journals = read_window(self.files.partial, self._window.size + 1, self._progress)
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
        try:
            run = step_breakdown(trace)
            with suppress(NoSamplesError):  # a script's may not be known
                look = replace(look, speed=measure(trace).throughput)
        except TraceError as error:
            return replace(look, reason=str(error))
        if look.steps is not None:
            look = replace(look, remaining_s=(look.steps - look.step) * run.step_ns / 1e9)
        if reason := why_not_compared(trace):
            return replace(look, reason=reason)
        verdict = self._window.judge(run, measured_steps(trace))
        if not trace.run.is_script:  # whose ranks may also meet where no hook sees it, which is known at its end
            look = replace(look, limit_ms=self._window.limit_ms)
        if isinstance(verdict, Straggler):
            return replace(look, delay=delay_of(trace, verdict, stop))
        return look


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
    if trace.run.is_script and not all(script["meets_as_one"] for script in scripts):
        return "its ranks meet in groups, or not at all: who is waited for is known at its end"
    return ""


def delay_of(trace: Trace, verdict: Straggler, stop: int) -> RecentDelay | None:
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
