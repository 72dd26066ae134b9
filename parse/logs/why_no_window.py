"""Why a log has no window: how far it goes, and how far it would have to."""

from __future__ import annotations

from parse.logs.engine.intervals import Place, Tally
from parse.logs.engine.log_format import Family


def why_none(tally: Tally | None, family: Family, *, warmup: int, whole: bool, step_lines: int) -> str:
    """Why the intervals that were added up make no window; empty where they make one."""
    if tally is None or tally.last is None:
        return _without_steps(family, step_lines)
    last = f"the last printed step is {_named(tally.last)}"
    if whole:
        return "" if tally.steps else f"{last} and no other step before it can be counted from"
    if tally.begin is None or not tally.done:
        return f"too short: {last}; {_lacking(tally, tally.last, warmup)}"
    if not tally.steps:
        ends = f"steps {_named(tally.begin)} to {_named(tally.end or tally.begin)}"
        return f"no interval between the printed {ends} is free of pauses"
    return ""


def _without_steps(family: Family, step_lines: int) -> str:
    if not family.steps:
        return "it prints no steps, only whole epochs at best: python -m parse.airank has their speed"
    return "it has no line of a step" if not step_lines else "none of its step lines can be used"


def _lacking(tally: Tally, last: Place, warmup: int) -> str:
    span = tally.aim.span or 0
    if tally.begin is None:
        return f"the window begins at step {warmup} and needs {_needed(last, warmup + span)}"
    return f"the window that begins at step {_named(tally.begin)} needs {_needed(last, tally.begin.reached + span)}"


def _needed(last: Place, reached: int) -> str:
    if last.reached == last.step:
        return f"step {reached}"
    return f"step {reached} counted through the epochs, of which the last is number {last.reached}"


def _named(place: Place) -> str:
    return numbered(place.epoch, place.step)


def numbered(epoch: int, step: int) -> str:
    """A step as the log numbers it."""
    return f"{step} of epoch {epoch}" if epoch >= 0 else str(step)
