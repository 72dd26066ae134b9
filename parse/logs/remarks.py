"""What is odd about a log and its window: kinds with their figures, and the sentence of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hpc.system.text import plural
from parse.logs.engine.points import numbered


class Oddity(StrEnum):
    """The kinds of remarks on a log and its window."""

    OF_FORMAT = "of its format"
    CONTRADICTION = "contradiction"
    STAMPS_GO_BACK = "stamps go back"
    STAMPS_STAND_STILL = "stamps stand still"
    COARSE_STAMPS = "coarse stamps"
    MEANS_OF_STEPS = "means of steps"
    ANOTHER_RUN = "another run"
    IMPOSSIBLE_LINES = "impossible lines"
    LATE_LINES = "late lines"
    UNSTAMPED_STEPS = "unstamped steps"
    EPOCHS_OF_UNKNOWN_LENGTH = "epochs of unknown length"
    MORE_PAUSES = "more pauses"
    REPEATED_STEPS = "repeated steps"
    LATE_FIRST_STEP = "late first step"
    DROPPED_RECORDS = "dropped records"


@dataclass(frozen=True, kw_only=True)
class WindowRemark:
    """An oddity; `figures` are the arguments of its sentence. Steps are pairs of epoch and step, -1 without epochs."""

    kind: Oddity
    figures: Mapping[str, Any] = field(default_factory=dict)


def remark(kind: Oddity, **figures: Any) -> WindowRemark:
    """The remark with these figures."""
    return WindowRemark(kind=kind, figures=figures)


def remark_text(of: WindowRemark) -> str:
    """The sentence of a remark."""
    sentence = _SENTENCES[of.kind]
    return sentence.format(**of.figures) if isinstance(sentence, str) else sentence(**of.figures)


def _another_run(passed: tuple[int, int], to: tuple[int, int], byte: int) -> str:
    return (
        f"steps go back from {numbered(*passed)} to {numbered(*to)} at byte {byte}, as where a second run is appended: "
        "only what stands before counts"
    )


def _unknown_length(ends: int) -> str:
    return (
        f"the window goes over {plural(ends, 'end')} of epochs, but nothing says how many steps an epoch has: only "
        "what lies between the printed steps of each counts"
    )


def _repeated(steps: int) -> str:
    return (
        f"{plural(steps, 'step')} of the window stand on more than one line and count once, with the latest time stamp"
    )


def _late_first_step(first: tuple[int, int], warmup: int) -> str:
    return (
        f"the first printed step is {numbered(*first)}, beyond the warm-up of {warmup}: what came before, or that the "
        "run was resumed there, the log does not say"
    )


_SENTENCES: Mapping[Oddity, str | Callable[..., str]] = {
    Oddity.OF_FORMAT: "{text}",
    Oddity.CONTRADICTION: "{name} is {value} and {other} (byte {byte}) in it; the first counts",
    Oddity.STAMPS_GO_BACK: "time stamps go back between steps {begin} and {end}: there is no wall clock",
    Oddity.STAMPS_STAND_STILL: "time stamps stand still in the window: there is no wall clock",
    Oddity.COARSE_STAMPS: (
        "time stamps of {resolution_s:g} s do not resolve intervals of {interval_s:.3g} s: there are no step times"
    ),
    Oddity.MEANS_OF_STEPS: "step times are means over {stride} printed numbers each",
    Oddity.ANOTHER_RUN: _another_run,
    Oddity.IMPOSSIBLE_LINES: lambda lines: f"{plural(lines, 'step line')} with impossible numbers left out",
    Oddity.LATE_LINES: lambda lines: (
        f"{plural(lines, 'step line')} left out that came long after others of their steps"
    ),
    Oddity.UNSTAMPED_STEPS: lambda steps: f"{plural(steps, 'printed step')} left out that bear no time stamp",
    Oddity.EPOCHS_OF_UNKNOWN_LENGTH: _unknown_length,
    Oddity.MORE_PAUSES: "{more} more pauses are kept out than are listed",
    Oddity.REPEATED_STEPS: _repeated,
    Oddity.LATE_FIRST_STEP: _late_first_step,
    Oddity.DROPPED_RECORDS: "{records} evaluations and marks beyond the first {most} are not kept",
}
