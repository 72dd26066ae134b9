"""A sweep's runs as figures, then drawn: a live table that fits the terminal, or a line per event."""

from __future__ import annotations

import heapq
import os
import signal
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from hpc.model.outcome import BeginRecord, ExitRecord, Outcome
from hpc.model.spec import RunSpec
from hpc.system.command_line import text_width
from hpc.system.sanitize import plain
from hpc.system.text import filled, grouped
from launch.cluster.query import JobState

# The runs as figures.

MIN_STEPS_FOR_PACE = 10
"""The least number of steps to measure a run's pace: the first steps compile and allocate."""


class Unavailable(StrEnum):
    """The system that a follower waits for."""

    SCHEDULER = "scheduler"
    TRACES = "traces"


RUNNING, PENDING, NO_RECORD, NEVER_BEGAN = "running", "pending", "no record", "never began"


@dataclass(frozen=True, kw_only=True)
class StepCount:
    """Steps that a running attempt has completed, as of its newest readable journal or copy.

    `planned` is None for a script that runs to its end. `median_step_s` is the median duration of its recent steps;
    None where too few have been timed.
    """

    completed: int
    planned: int | None
    median_step_s: float | None = None

    @property
    def text(self) -> str:
        """`12/120`, or `12` of a number that is not known."""
        return f"{self.completed}" if self.planned is None else f"{self.completed}/{self.planned}"

    @property
    def remaining_s(self) -> float | None:
        """Time that the remaining steps take at the measured pace; None before MIN_STEPS_FOR_PACE steps."""
        if self.planned is None or self.median_step_s is None or self.completed < MIN_STEPS_FOR_PACE:
            return None
        return (self.planned - self.completed) * self.median_step_s


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run as a row of the table; `record` is of the last attempt that ended, in this sweep or an earlier one.

    `reason` is why the job of a pending run is pending. `news`: the run was not final when the following began. A run
    whose job was requeued may have a record and be running again: `state`, `attempt`, `steps` and `elapsed_s` are then
    of the running attempt. `steps` and `elapsed_s` are None if they are not known. `speed` is in the run's unit per
    second.
    """

    run: RunSpec
    state: str
    record: ExitRecord | None = None
    speed: float | None = None
    reason: str = ""
    news: bool = True
    attempt: int = 0
    steps: StepCount | None = None
    elapsed_s: float | None = None

    @property
    def ended(self) -> bool:
        """Whether the state is an outcome."""
        return self.record is not None and self.state == self.record.outcome

    @property
    def over(self) -> bool:
        """Whether the run has an outcome, or its job has ended without one."""
        return self.ended or self.state in (NO_RECORD, NEVER_BEGAN)


@dataclass(frozen=True, kw_only=True)
class Outage:
    """The scheduler does not answer, or the shared folder of traces is away, full or closed."""

    what: Unavailable
    since_unix_s: float
    lasts_s: float
    error: str
    began_s: float = 0.0  # by the monotonic clock

    @classmethod
    def after(cls, before: Outage | None, what: Unavailable, error: str) -> Outage:
        """The outage of now: the one before, if it is of the same, else a new one."""
        now_s = time.monotonic()
        since_unix_s, began_s = time.time(), now_s
        if before is not None and before.what is what:
            since_unix_s, began_s = before.since_unix_s, before.began_s
        return cls(what=what, since_unix_s=since_unix_s, lasts_s=now_s - began_s, error=error, began_s=began_s)


@dataclass(frozen=True, kw_only=True)
class SweepTimeLeft:
    seconds: float
    queue_wait: bool = False


class RunDurations:
    """Durations of runs that ended `ok`, to estimate others of the same point or case."""

    def __init__(self, ended: Iterable[tuple[RunSpec, float]]) -> None:
        """`ended` holds pairs of a run and its duration in seconds."""
        ended = list(ended)
        points = grouped((run.point_id, duration_s) for run, duration_s in ended)
        cases = grouped((_case(run), duration_s) for run, duration_s in ended)
        self._points = {point: median(durations) for point, durations in points.items()}
        self._cases = {case: median(durations) for case, durations in cases.items()}

    def expected_s(self, run: RunSpec) -> float | None:
        return self._points.get(run.point_id, self._cases.get(_case(run)))


def _case(run: RunSpec) -> tuple[str, str]:
    return run.case, run.workload


def attempt_elapsed_s(begin: BeginRecord | None, first_seen_unix_s: float, now_unix_s: float) -> float:
    """Time since an attempt began. Never negative.

    The record is by the clock of the job's node, the others by this machine's. If the node's clock is ahead, or its
    record could not be read, the time since this machine first saw the attempt is returned, which is a lower bound.
    """
    begin_unix_s = first_seen_unix_s if begin is None else min(begin.begin_unix_s, first_seen_unix_s)
    return max(0.0, now_unix_s - begin_unix_s)


def row_remaining_s(row: Row, durations: RunDurations) -> float | None:
    """Remaining time of a run: 0 if it is over, None without a pace and without earlier runs."""
    if row.over:
        return 0.0
    if row.state == RUNNING and row.steps is not None and row.steps.remaining_s is not None:
        return row.steps.remaining_s
    expected_s = durations.expected_s(row.run)
    if expected_s is None or row.state not in (RUNNING, PENDING):
        return None
    return max(0.0, expected_s - (row.elapsed_s or 0.0))


def sweep_time_left(
    jobs: Mapping[str, Sequence[Row]], states: Mapping[str, JobState], durations: RunDurations, max_jobs: int | None,
    *, queued: bool,
) -> SweepTimeLeft | None:  # fmt: skip
    """Estimated time until all jobs have ended; None if the remaining time of one of their runs is not known.

    The runs of a job run one after another, `max_jobs` jobs at the same time (None: all), running jobs first.
    `queued`: a pending job waits in a scheduler's queue for an unknown time.
    """
    live = [name for name in jobs if states[name] in (JobState.RUNNING, JobState.PENDING)]
    if not live or any(state is JobState.UNREACHABLE for state in states.values()):
        return None
    live.sort(key=lambda name: states[name] is not JobState.RUNNING)
    remaining_s: list[float] = []
    for name in live:
        times_s = [row_remaining_s(row, durations) for row in jobs[name]]
        known_s = [time_s for time_s in times_s if time_s is not None]
        if len(known_s) < len(times_s):
            return None
        remaining_s.append(sum(known_s))
    pending = any(states[name] is JobState.PENDING for name in live)
    return SweepTimeLeft(seconds=_makespan_s(remaining_s, max_jobs), queue_wait=queued and pending)


def _makespan_s(jobs_s: Sequence[float], max_jobs: int | None) -> float:
    """When the last job ends if each starts, in order, as soon as one of `max_jobs` places is free."""
    if max_jobs is None:
        return max(jobs_s)
    places = [0.0] * min(max_jobs, len(jobs_s))
    for job_s in jobs_s:
        heapq.heapreplace(places, places[0] + job_s)
    return max(places)


_OUTAGE = {
    Unavailable.SCHEDULER: ("the scheduler has not answered", "the scheduler answers again"),
    Unavailable.TRACES: ("the traces could not be read or written", "the traces can be read and written again"),
}
"""The start of the sentence about an outage, and the message after it."""
_GAP = "  "
_MIN_RESULT_WIDTH = 10
_WIDTH_BESIDE_IDS = 68
"""With fewer columns beside run ids the runs have short names: state 11, step 11, two times of 7, results, gaps."""
_MAX_TITLE_LINES = 2
_MAX_OUTAGE_LINES = 3


@contextmanager
def open_view(console: Console, heading: str) -> Iterator[EventLines | LiveTable]:
    """A live table where the console can move its cursor, else a line per event; `heading` is printed first.

    The cursor is shown again however the block ends, also by an interrupt or a signal that ends the process.
    """
    print_line(console, heading)
    # FORCE_COLOR has rich call a pipe a terminal.
    if not (console.is_terminal and console.file.isatty()) or console.is_dumb_terminal:
        yield EventLines(console)
        return
    live = Live(console=console, auto_refresh=False)
    with _cursor_restored_on_death(console):
        try:
            live.start()
        except BaseException:
            console.show_cursor(True)
            raise
        try:
            yield LiveTable(live)
        finally:
            live.stop()


@contextmanager
def _cursor_restored_on_death(console: Console) -> Iterator[None]:
    """Shows the cursor before SIGTERM or SIGHUP ends the process, unless they are handled or ignored."""

    def show_cursor_and_die(number: int, _: object) -> None:
        # Not by rich: the signal may have interrupted one of its writes.
        with suppress(OSError):
            os.write(console.file.fileno(), b"\n\x1b[?25h")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, show_cursor_and_die)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


class EventLines:
    """Prints a line for each attempt that began or ended and for each outage.

    `<run id> attempt <n>: began`, `<run id> attempt <n>: <outcome>[, <speed> <unit> | : <reason>] (<i> of <m>)`. An
    attempt that began and ended between two looks has the second line alone.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        self._over: set[str] = set()
        self._unavailable: Unavailable | None = None

    def show(self, rows: Sequence[Row], outage: Outage | None, time_left: SweepTimeLeft | None) -> None:
        """Called after each look; with an `outage` the rows are the last known ones."""
        self._show_outage(outage)
        for row in rows:
            if row.record is not None and (name := row.record.stem) not in self._ended:
                self._ended.add(name)
                self._over.add(row.run.run_id)
                if row.news:
                    print_line(self._console, f"{_describe_end(row, row.record)} ({len(self._over)} of {len(rows)})")
            if row.state == RUNNING and (name := f"{row.run.run_id}.{row.attempt}") not in self._begun:
                self._begun.add(name)
                if row.news:
                    print_line(self._console, f"{row.run.run_id} attempt {row.attempt}: began")

    def _show_outage(self, outage: Outage | None) -> None:
        before, self._unavailable = self._unavailable, None if outage is None else outage.what
        if before is not None and before is not self._unavailable:
            print_line(self._console, _OUTAGE[before][1])
        if outage is not None and before is not outage.what:
            print_line(self._console, describe_outage(outage))


class LiveTable:
    def __init__(self, live: Live) -> None:
        self._live = live
        self._names: Mapping[str, str] = {}
        self._common = ""

    def show(self, rows: Sequence[Row], outage: Outage | None, time_left: SweepTimeLeft | None) -> None:
        if any(row.run.run_id not in self._names for row in rows):
            self._common, self._names = short_names([row.run for row in rows])
        table = SweepTable(rows=rows, outage=outage, time_left=time_left, names=self._names, common=self._common)
        self._live.update(table, refresh=True)


@dataclass(frozen=True, kw_only=True)
class SweepTable:
    """The table as drawn, at most a terminal's lines and columns; `names` and `common` are `short_names`."""

    rows: Sequence[Row]
    outage: Outage | None
    time_left: SweepTimeLeft | None
    names: Mapping[str, str]
    common: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n").join(self.lines(console.width, console.height - 1))

    def lines(self, width: int, height: int) -> list[Text]:
        """The counts, the most important rows, the number of other rows, and the outage if there is one."""
        outage = [] if self.outage is None else _wrap(describe_outage(self.outage), width, _MAX_OUTAGE_LINES)
        # Decided by the ids alone, so that the layout does not change while the sweep runs.
        full = max((len(row.run.run_id) for row in self.rows), default=0) + _WIDTH_BESIDE_IDS <= width
        names = {row.run.run_id: row.run.run_id for row in self.rows} if full else self.names
        common = "" if full else self.common
        title = _wrap(_title(self.rows, self.time_left, common), width, min(_MAX_TITLE_LINES, max(1, height // 4)))
        shown, others = choose_rows(self.rows, max(1, height - len(title) - len(outage) - 1))
        columns = _columns(shown, names, ended=all(row.over for row in self.rows))
        table = _lay_out(shown, columns, width)
        rest = [] if others is None else [Text(f"… and {others}", style="dim")]
        lines = [*(Text(line, style="bold") for line in title), *table, *rest, *(Text(line) for line in outage)]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return lines[: max(1, height)]


def choose_rows(rows: Sequence[Row], max_lines: int) -> tuple[list[Row], str | None]:
    """The rows that fit into `max_lines` lines in the order of their display, and the rest as counts, None if all fit.

    Running rows come first, then ended ones, failures before others and the latest first, then pending ones in order.
    With three lines or more, at least one ended and one pending row is shown, if there are any.
    """
    running = [row for row in rows if row.state == RUNNING]
    over = sorted((row for row in rows if row.over), key=_rank_of_end)
    coming = [row for row in rows if row.state != RUNNING and not row.over]
    if len(rows) <= max_lines:
        return [*running, *over, *coming], None
    max_lines = max(1, max_lines - 1)  # a line is for the counts
    for_others = min(bool(over) + bool(coming), max_lines - 1) if max_lines > 2 else 0
    running_shown = running[: max_lines - for_others]
    max_lines -= len(running_shown)
    max_coming = min(len(coming), max(max_lines - len(over), -(-max_lines // 3)))
    over_shown, coming_shown = over[: max_lines - max_coming], coming[:max_coming]
    shown = [*running_shown, *over_shown, *coming_shown]
    ids = {row.run.run_id for row in shown}
    others = [row for row in rows if row.run.run_id not in ids]
    return shown, f"{len(others)} more: {_describe_counts(others)}"


def short_names(runs: Sequence[RunSpec]) -> tuple[str, dict[str, str]]:
    """The parts that all run ids have in common, and by run id a short name of the other parts: `2n8g b64 r3`.

    The digest is left out if the other parts distinguish the points.
    """
    words = {run.run_id: run.run_id.split("_") for run in runs}
    differ = [len(set(column)) > 1 for column in zip(*words.values(), strict=True)]
    middle = range(1, len(differ) - 2)
    picked = [0, *(at for at in middle if differ[at])]
    points = {run.point_id: tuple(words[run.run_id][at] for at in picked) for run in runs}
    if len(set(points.values())) < len(points):
        picked.append(len(differ) - 2)
    names = {run_id: " ".join([*(its[at] for at in picked), its[-1]]) for run_id, its in words.items()}
    common = [next(iter(words.values()))[at] for at in middle if not differ[at]] if words else []
    return " ".join(common), names


def describe_outage(outage: Outage) -> str:
    """The outage as one sentence: its start, its duration and the error."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(outage.since_unix_s))
    duration = f"{outage.lasts_s:.0f} s" if outage.lasts_s < 120 else f"{outage.lasts_s / 60:.0f} min"
    error = f": {outage.error}" if outage.error else ""
    return f"{_OUTAGE[outage.what][0]} since {since} ({duration}), the state of the jobs is not known{error}"


def format_clock(seconds: float | None) -> str:
    """`0:05`, `12:40`, `1:04:10`, `4d 03h`; nothing for None."""
    if seconds is None:
        return ""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 100:
        return f"{hours // 24}d {hours % 24:02d}h"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def format_time_left(time_left: SweepTimeLeft) -> str:
    """`about 12 min left`; with `plus queue time` if that comes on top."""
    if time_left.seconds < 90:
        about = f"{time_left.seconds:.0f} s"
    elif time_left.seconds < 90 * 60:
        about = f"{time_left.seconds / 60:.0f} min"
    else:
        hours, minutes = divmod(round(time_left.seconds / 60), 60)
        about = f"{hours} h {minutes:02d} min"
    return f"about {about} left" + (" plus queue time" if time_left.queue_wait else "")


@dataclass(frozen=True, kw_only=True)
class _Column:
    heading: str
    cells: Sequence[str]
    right: bool = False
    keep: int = 0
    """Columns with a lower number are left out first where the terminal is too narrow."""

    @property
    def width(self) -> int:
        return max(map(cell_len, (self.heading, *self.cells)))

    def cell(self, row: int, width: int) -> str:
        text = self.heading if row < 0 else self.cells[row]
        if (excess := cell_len(text) - width) > 0:
            return f"{set_cell_size(text, width - 1)}…"
        return " " * -excess + text if self.right else text + " " * -excess


def _columns(shown: Sequence[Row], names: Mapping[str, str], *, ended: bool) -> list[_Column]:
    """All columns but the last, which takes the remaining width; after the end of a sweep, those with content."""
    steps = [row.steps for row in shown]
    columns = [
        _Column(heading="run", cells=[names[row.run.run_id] for row in shown], keep=9),
        _Column(heading="state", cells=[row.state for row in shown], keep=9),
        _Column(
            heading="step", right=True, keep=3,
            cells=["" if count is None else count.text for count in steps],
        ),
        _Column(heading="elapsed", right=True, keep=1, cells=[format_clock(row.elapsed_s) for row in shown]),
        _Column(
            heading="left", right=True, keep=2,
            cells=[format_clock(None if count is None else count.remaining_s) for count in steps],
        ),
    ]  # fmt: skip
    return [column for column in columns if any(column.cells)] if ended else columns


def _lay_out(shown: Sequence[Row], columns: list[_Column], width: int) -> list[Text]:
    def total() -> int:
        return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)

    while total() > width and (droppable := [column for column in columns if column.keep < 9]):
        columns = [column for column in columns if column is not min(droppable, key=lambda each: each.keep)]
    widths = [column.width for column in columns]
    widths[0] = max(4, widths[0] - max(0, total() - width))
    rest = width - sum(widths) - len(_GAP) * len(widths)
    units = sorted({_unit(row) for row in shown})
    if rest >= _MIN_RESULT_WIDTH and any(results := [_result(row, named=len(units) > 1) for row in shown]):
        columns = [*columns, _Column(heading=f"{units[0] if len(units) == 1 else 'speed'}, or why", cells=results)]
        widths.append(rest)
    lines = []
    for at in range(-1, len(shown)):
        cells = [column.cell(at, its) for column, its in zip(columns, widths, strict=True)]
        lines.append(Text(_GAP.join(cells).rstrip(), style="dim" if at < 0 else _style(shown[at])))
    return lines


def _result(row: Row, *, named: bool) -> str:
    """The speed of a run that ended, `named` with its unit, or why it has none."""
    if row.state == RUNNING:
        return ""
    if row.ended and row.speed is not None:
        return f"{row.speed:.2f}{f' {_unit(row)}' if named else ''}"
    if row.ended and row.record is not None and row.state != Outcome.OK:
        return plain("".join(row.record.evidence[:1]))
    return plain(row.reason)


def _unit(row: Row) -> str:
    return f"{row.run.unit}/s"


def _style(row: Row) -> str:
    if row.state == RUNNING:
        return "bold"
    return "red" if row.over and row.state != Outcome.OK else ""


def _rank_of_end(row: Row) -> tuple[bool, int]:
    return row.state == Outcome.OK, -row.record.end_unix_s if row.record is not None else 0


def _title(rows: Sequence[Row], time_left: SweepTimeLeft | None, common: str) -> str:
    ended = f"{sum(row.over for row in rows)} of {len(rows)} runs ended"
    head = ", ".join(filter(None, (ended, format_time_left(time_left) if time_left else "")))
    return "; ".join(filter(None, (f"{head}: {_describe_counts(rows)}", common)))


def _describe_counts(rows: Sequence[Row]) -> str:
    """`2 running, 1 oom, 20 ok, 27 pending`: failures before those that are ok."""
    counts = Counter(row.state for row in rows)
    first, last = [RUNNING], [Outcome.OK, PENDING]
    middle = [state for state in counts if state not in (*first, *last)]
    return ", ".join(f"{counts[state]} {state}" for state in (*first, *middle, *last) if counts[state])


def _describe_end(row: Row, record: ExitRecord) -> str:
    text = f"{row.run.run_id} attempt {record.attempt}: {record.outcome}"
    if row.speed is not None:
        return f"{text}, {row.speed:.2f} {_unit(row)}"
    return f"{text}: {record.evidence[0]}" if record.evidence and record.outcome is not Outcome.OK else text


def _wrap(text: str, width: int, max_lines: int) -> list[str]:
    return textwrap.wrap(plain(text), max(1, width), max_lines=max_lines, placeholder="…")


def print_whole(console: Console, text: str) -> None:
    """Prints a line unwrapped, because it is made to fit already or is to be copied."""
    console.out(plain(text), highlight=False)


def print_line(console: Console, text: str) -> None:
    """Prints a line, with control characters made harmless; in a terminal as lines that fit it."""
    lines = filled(plain(text), text_width()) if console.is_terminal else [plain(text)]
    console.print("\n".join(lines), markup=False, highlight=False, emoji=False, soft_wrap=True)
