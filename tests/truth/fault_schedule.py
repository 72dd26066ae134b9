"""Faults as text, and in which windows of a run and at which steps of a window each is."""

from __future__ import annotations

from dataclasses import dataclass

NOTHING = "none"
WARMUP, WINDOW = 10, 100
"""Steps before the first window, and of a window: a run of several is cut into as many."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """So much of something, in a phase, on these ranks, at the positions in a window that `when` gives."""

    how: str
    phase: str
    amount: float
    ranks: tuple[int, ...]
    when: str = ""

    @property
    def shows_later(self) -> int:
        """By how many steps: what comes after a reduction makes a rank late for the next."""
        return int(self.phase in ("transfer", "update"))

    def weight(self, rank: int, position: int, repeat: int = 1) -> float:
        """The share of the amount on this rank at this step of a window; repeats of the run are by turns the first and
        the second."""
        if rank not in self.ranks:
            return 0.0
        kind = self.when.rstrip("0123456789")
        number = int(self.when[len(kind) :] or 0)
        return {
            "": 1.0,
            "every": float(position % number == 3) if number else 0.0,
            "once": float(position == number),
            "first": float(position == number and repeat % 2 == 1),
            "second": float(position == number and repeat % 2 == 0),
            "from": float(position >= number),
            "until": float(position < number),
            "grow": position / (WINDOW - 1),
            "fall": 1 - position / (WINDOW - 1),
            "turns": float(self.ranks[position % len(self.ranks)] == rank),
        }[kind]


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Faults joined by `+`; ranks are joined by a dot."""
    if text == NOTHING:
        return ()
    faults = []
    for part in text.split("+"):
        what, _, where = part.partition("@")
        how, phase, amount = what.split(":")
        ranks, _, when = where.partition("/")
        faults.append(
            Fault(how=how, phase=phase, amount=float(amount), ranks=tuple(map(int, ranks.split("."))), when=when)
        )
    return tuple(faults)


def position_of(step: int) -> int:
    """The place of a step in its window."""
    return (step - WARMUP) % WINDOW


def window_of(step: int) -> int:
    """The number of a step's window; warm-up belongs to the first."""
    return max(0, step - WARMUP) // WINDOW


def faults_of(text: str, window: int) -> tuple[Fault, ...]:
    """Those of a window; the windows are parted by semicolons, and after the last comes the first."""
    windows = text.split(";")
    return parse_faults(windows[window % len(windows)])
