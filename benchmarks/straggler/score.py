"""What a tool says of a training, held against what the training recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

COMPUTE = ("forward", "backward")
"""A tool may say `compute` for either."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What a rank slept as a delay in a phase: ms a step, the mean over all steps behind the warm-up."""

    rank: int
    phase: str
    ms: float


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What the ranks of a training recorded. `step_ms`, `cpu_ms`: a rank's mean step behind the warm-up, and its
    CPU time."""

    causes: tuple[Cause, ...]
    step_ms: float
    cpu_ms: float
    scored_ms: bool = True

    @property
    def ranks(self) -> set[int]:
        return {cause.rank for cause in self.causes}


@dataclass(frozen=True, kw_only=True)
class Score:
    """One answer. `phases` and `ms`: of the causes whose rank is named, how many are right, of how many."""

    control: bool
    right: bool
    """Exactly the delayed ranks are named; of a control, the answer is `none`."""
    missed: bool
    """A delayed rank is not named."""
    denied: bool
    """The answer is `none`, and a rank is delayed."""
    accused: bool
    """A rank is named that is not delayed."""
    cannot_tell: bool
    phases: tuple[int, int]
    ms: tuple[int, int]


def truth_of(folder: Path, warmup: int, *, scored_ms: bool = True) -> Truth:
    """From the files of the training's ranks."""
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("truth-*.json"))]
    if not ranks:
        raise FileNotFoundError(f"no truth-*.json in {folder}: the training did not come to its end")
    sums: dict[tuple[int, str], float] = {}
    for each in ranks:
        for step, phase, what, _, ms in each["sleeps"]:
            if what == "delay" and step >= warmup:
                sums[each["rank"], phase] = sums.get((each["rank"], phase), 0.0) + ms
    count = len(ranks[0]["steps"]) - warmup
    times = [step for each in ranks for step in each["steps"][warmup:]]
    return Truth(
        causes=tuple(Cause(rank=rank, phase=phase, ms=ms / count) for (rank, phase), ms in sorted(sums.items())),
        step_ms=fmean(wall for wall, _ in times), cpu_ms=fmean(cpu for _, cpu in times), scored_ms=scored_ms,
    )  # fmt: skip


def score(truth: Truth, answer: dict[str, Any]) -> Score:
    """The answer is one of answer.schema.json."""
    findings = answer["findings"]
    named = {rank for finding in findings for rank in finding["who"]}
    verdict = answer["verdict"]
    by_cause = [
        (cause, [finding for finding in findings if cause.rank in finding["who"]])
        for cause in truth.causes
        if cause.rank in named
    ]
    phases = [any(same_phase(finding.get("phase"), cause.phase) for finding in its) for cause, its in by_cause]
    lengths = [any(same_ms(finding.get("ms_per_step"), cause.ms) for finding in its) for cause, its in by_cause]
    return Score(
        control=not truth.causes,
        right=named == truth.ranks and (verdict == "named" if truth.causes else verdict == "none"),
        missed=bool(truth.ranks - named),
        denied=bool(truth.causes) and verdict == "none",
        accused=bool(named - truth.ranks),
        cannot_tell=verdict == "cannot tell",
        phases=(sum(phases), len(phases)),
        ms=(sum(lengths), len(lengths)) if truth.scored_ms else (0, 0),
    )  # fmt: skip


def same_phase(phase: str | None, true: str) -> bool:
    """Whether the phase of a finding is the cause's, or the coarser one of both passes."""
    return phase == true or (phase == "compute" and true in COMPUTE)


def same_ms(ms: float | None, true: float) -> bool:
    """Within 1 ms or a tenth."""
    return ms is not None and abs(ms - true) <= max(1.0, 0.1 * true)
