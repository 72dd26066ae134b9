"""A sweep's runs while it is followed: a line for each attempt that begins or ends, and for each outage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console

from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.spec import RunSpec
from hpc.system.command_line import text_width
from hpc.system.sanitize import plain
from hpc.system.text import filled


class Unavailable(StrEnum):
    """The system that a follower waits for."""

    SCHEDULER = "scheduler"
    TRACES = "traces"


RUNNING, PENDING, NO_RECORD, NEVER_BEGAN = "running", "pending", "no record", "never began"


@dataclass(frozen=True, kw_only=True)
class Row:
    """The state of a run; `record` is of the last attempt that ended, in this sweep or an earlier one.

    `news`: the run was not final when the following began. A run whose job was requeued may have a record and be
    running again: `state` and `attempt` are then of the running attempt. `speed` is in the run's unit per second.
    """

    run: RunSpec
    state: str
    record: ExitRecord | None = None
    speed: float | None = None
    news: bool = True
    attempt: int = 0


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


_OUTAGE = {
    Unavailable.SCHEDULER: ("the scheduler has not answered", "the scheduler answers again"),
    Unavailable.TRACES: ("the traces could not be read or written", "the traces can be read and written again"),
}
"""The start of the sentence about an outage, and the message after it."""


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

    def show(self, rows: Sequence[Row], outage: Outage | None) -> None:
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


def describe_outage(outage: Outage) -> str:
    """The outage as one sentence: its start, its duration and the error."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(outage.since_unix_s))
    duration = f"{outage.lasts_s:.0f} s" if outage.lasts_s < 120 else f"{outage.lasts_s / 60:.0f} min"
    error = f": {outage.error}" if outage.error else ""
    return f"{_OUTAGE[outage.what][0]} since {since} ({duration}), the state of the jobs is not known{error}"


def _describe_end(row: Row, record: ExitRecord) -> str:
    text = f"{row.run.run_id} attempt {record.attempt}: {record.outcome}"
    if row.speed is not None:
        return f"{text}, {row.speed:.2f} {row.run.unit}/s"
    return f"{text}: {record.evidence[0]}" if record.evidence and record.outcome is not Outcome.OK else text


def print_whole(console: Console, text: str) -> None:
    """Prints a line unwrapped, because it is made to fit already or is to be copied."""
    console.out(plain(text), highlight=False)


def print_line(console: Console, text: str) -> None:
    """Prints a line, with control characters made harmless; in a terminal as lines that fit it."""
    lines = filled(plain(text), text_width()) if console.is_terminal else [plain(text)]
    console.print("\n".join(lines), markup=False, highlight=False, emoji=False, soft_wrap=True)
