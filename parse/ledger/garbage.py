"""What Python's collections of garbage take of the steps of a script, by its hooks: those of a millisecond or more.

While one runs no thread of Python does; ranks that collect in different steps wait for one another in each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from hpc.model.trace import RankReport, Trace
from hpc.system.text import plural
from parse import stats
from parse.rules import WORTH_NAMING


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """Of a rank: `count` collections in `steps` measured steps, mean ms a step, and those of the steps with most."""

    count: int = 0
    steps: int = 0
    ms: float = 0.0
    by_step: Mapping[int, float] = field(default_factory=dict)

    def of(self, steps: Sequence[int] | None) -> float:
        """Its mean in these steps, ms; None: in all."""
        return self.ms if not steps else sum(self.by_step.get(step, 0.0) for step in steps) / len(steps)

    @property
    def often(self) -> str:
        """`8 times in 80 steps`."""
        return f"{plural(self.count, 'time')} in {plural(self.steps, 'step')}"


def _garbage(report: RankReport) -> Garbage:
    """What a rank states; nothing where that is none."""
    stated = report.script.get("garbage")
    if not isinstance(stated, Mapping):
        return Garbage()
    try:
        count, steps, ms = int(stated["count"]), int(stated["steps"]), float(stated["ms"])
        by_step = {int(step): float(each) for step, each in stated["by_step"]}
    except (TypeError, ValueError, KeyError, OverflowError):
        return Garbage()
    its = Garbage(count=count, steps=steps, ms=ms, by_step=by_step)
    return its if count > 0 and steps > 0 and all(map(isfinite, [ms, *by_step.values()])) else Garbage()


def garbage_of(
    trace: Trace, ranks: Sequence[int], others: Sequence[int], steps: Sequence[int] | None
) -> tuple[float, float, str] | None:
    """What collections take in these steps, ms, None: in all: on these ranks in the mean, on the others in the median;
    how often the first of the ranks collects. None where these ranks do not."""
    its, theirs = ([_garbage(trace.reports[rank]) for rank in side] for side in (ranks, others))
    if not any(each.count for each in its):
        return None
    value, usual = stats.mean([each.of(steps) for each in its]), stats.median([each.of(steps) for each in theirs])
    return value, usual, its[0].often


def garbage_remarks(trace: Trace, step_ms: float) -> Iterator[str]:
    """The ranks whose collections take a material part of the step, and how often they collect."""
    by_rank = {rank: _garbage(report) for rank, report in enumerate(trace.reports)}
    longest = sorted((rank for rank in by_rank if by_rank[rank].count), key=lambda rank: -by_rank[rank].ms)
    if not longest or by_rank[longest[0]].ms < WORTH_NAMING * step_ms:
        return
    named = [f"{by_rank[rank].ms:.2f} ms a step on rank {rank} ({by_rank[rank].often})" for rank in longest[:2]]
    further = f", less on {plural(len(longest) - 2, 'further rank')}" if longest[2:] else ""
    yield f"Python collects its garbage for {', '.join(named)}{further}"
