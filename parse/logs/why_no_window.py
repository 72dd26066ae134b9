"""Why a log has no window: how far it goes, and how far it would have to."""

from __future__ import annotations

from parse.logs.engine.intervals import Place, WindowSum
from parse.logs.engine.log_format import LogFormat


def why_no_window(
    window_sum: WindowSum | None, log_format: LogFormat, *, warmup: int, whole: bool, step_lines: int
) -> str:
    """Why the intervals that were added up make no window; empty where they make one."""
    if window_sum is None or window_sum.last is None:
        return _without_steps(log_format, step_lines)
    last = f"the last printed step is {_named(window_sum.last)}"
    if whole:
        return "" if window_sum.steps else f"{last} and no other step before it can be counted from"
    if window_sum.begin is None or not window_sum.done:
        return f"too short: {last}; {_lacking(window_sum, window_sum.last, warmup)}"
    if not window_sum.steps:
        ends = f"steps {_named(window_sum.begin)} to {_named(window_sum.end or window_sum.begin)}"
        return f"no interval between the printed {ends} is free of pauses"
    return ""


def _without_steps(log_format: LogFormat, step_lines: int) -> str:
    if not log_format.steps:
        return "it prints no steps, only whole epochs at best: python -m parse.airank has their speed"
    return "it has no line of a step" if not step_lines else "none of its step lines can be used"


def _lacking(window_sum: WindowSum, last: Place, warmup: int) -> str:
    span = window_sum.target.span or 0
    if window_sum.begin is None:
        return f"the window begins at step {warmup} and needs {_needed(last, warmup + span)}"
    needed = _needed(last, window_sum.begin.reached + span)
    return f"the window that begins at step {_named(window_sum.begin)} needs {needed}"


def _needed(last: Place, reached: int) -> str:
    if last.reached == last.step:
        return f"step {reached}"
    return f"step {reached} counted through the epochs, of which the last is number {last.reached}"


def _named(place: Place) -> str:
    return numbered(place.epoch, place.step)


def numbered(epoch: int, step: int) -> str:
    """A step as the log numbers it."""
    return f"{step} of epoch {epoch}" if epoch >= 0 else str(step)
