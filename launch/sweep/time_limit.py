"""Whether a job's time limit is long enough for what it has to do, as far as earlier attempts of its points tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.spec import RunSpec


class TooShort(Exception):
    """Not even the first run of a job fits its time limit; the text has the figures and the cure."""


_NEARLY = 0.8
"""An attempt that was cut off after this part of the time that there is now may be cut off again: it began later than
its job."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a job has: its name, its limit, and the warning before it in which no run is left to go on."""

    job: str
    limit_s: float
    margin_s: float


def durations_s(runs: Sequence[RunSpec], records: Mapping[str, Sequence[ExitRecord]]) -> dict[str, list[float]]:
    """How long each attempt of a point's runs took that ended `ok`, in seconds, by the point's id."""
    took: dict[str, list[float]] = {}
    for run in runs:
        for record in records.get(run.run_id, ()):
            if record.outcome is Outcome.OK:
                took.setdefault(run.point_id, []).append(float(record.end_unix_s - record.begin_unix_s))
    return took


def cut_off_s(runs: Sequence[RunSpec], records: Mapping[str, Sequence[ExitRecord]]) -> dict[str, float]:
    """How long the longest attempt of a point's runs lasted that a time limit ended, in seconds, by the point's id."""
    most: dict[str, float] = {}
    for run in runs:
        for record in records.get(run.run_id, ()):
            if record.outcome is Outcome.TIMEOUT:
                most[run.point_id] = max(most.get(run.point_id, 0.0), float(record.end_unix_s - record.begin_unix_s))
    return most


def check_room(
    room: Room, left: Sequence[RunSpec], took: Mapping[str, Sequence[float]], cut_off: Mapping[str, float]
) -> list[str]:
    """Warnings about a job with these runs to do, in order. Raises TooShort where the first one was never so quick.

    `took` and `cut_off` are what `durations_s` and `cut_off_s` return. Nothing is said of runs of whose points neither
    knows anything: there is no estimate then.
    """
    usable_s = room.limit_s - room.margin_s
    has = f"{room.job} has {room.limit_s / 60:g} min, less {room.margin_s:g} s before its end"
    cure = "raise --minutes-per-run or --time"
    known = [(run, took[run.point_id]) for run in left if took.get(run.point_id)]
    for run, its in known:
        if run is left[0] and min(its) > usable_s:
            raise TooShort(
                f"{has}: its first run, {run.run_id}, cannot end in that; attempts of its point took {_range(its)}: "
                f"{cure}"
            )
        if max(its) > usable_s:
            return [f"{has}: {run.run_id} may not end in that, attempts of its point took {_range(its)}: {cure}"]
    for run in left:
        if not took.get(run.point_id) and (most := cut_off.get(run.point_id, 0.0)) > _NEARLY * usable_s:
            return [
                f"{has}: {run.run_id} may not end in that, an attempt of its point was cut off after {most:.0f} s, and "
                f"none has ended yet: {cure}"
            ]
    if len(known) == len(left) and (together_s := sum(max(its) for _, its in known)) > usable_s:
        return [
            f"{has}: its {len(left)} runs took up to {together_s:.0f} s together before; those that do not fit are "
            f"left for another job: the same command submits it, or {cure}"
        ]
    return []


def _range(seconds: Sequence[float]) -> str:
    least, most = min(seconds), max(seconds)
    return f"{least:.0f} s" if least == most else f"{least:.0f} to {most:.0f} s"
