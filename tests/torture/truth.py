"""The steps that a rank had completed by its own account, against those in its trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.torture.workload import RECORD


@dataclass(frozen=True, kw_only=True)
class Life:
    """One life of a job: its ranks' process ids, and when each completed its steps, in seconds since 1970."""

    pids: Mapping[int, int]
    completed: Mapping[int, Sequence[float]]

    @property
    def steps(self) -> dict[int, int]:
        """The completed steps by rank."""
        return {rank: len(times) for rank, times in self.completed.items()}


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The loss of the worst rank: steps that the trace lacks, and the age of the oldest of them at the kill."""

    steps: int
    age_s: float


def read_life(folder: Path, job_id: str, restarts: int) -> Life:
    """The account that the ranks of this life left in `folder`, so far as it goes."""
    truth = folder / "truth"
    pids, completed = {}, {}
    for path in truth.glob(f"{job_id}.{restarts}.*.pid"):
        rank = int(path.stem.rsplit(".", 1)[1])
        if text := path.read_text().strip():
            pids[rank] = int(text)
    for path in truth.glob(f"{job_id}.{restarts}.*.steps"):
        content = path.read_bytes()
        records = list(RECORD.iter_unpack(content[: len(content) // RECORD.size * RECORD.size]))
        assert [step for step, _ in records] == list(range(len(records))), path
        completed[int(path.stem.rsplit(".", 1)[1])] = [when for _, when in records]
    return Life(pids=pids, completed=completed)


def lost(life: Life, traced: Mapping[int, int], killed_s: float) -> Loss:
    """The loss where the trace has `traced` steps by rank."""
    worst = Loss(steps=0, age_s=0.0)
    for rank, times in life.completed.items():
        missing = times[traced.get(rank, 0) :]
        if missing:
            worst = Loss(steps=max(worst.steps, len(missing)), age_s=max(worst.age_s, killed_s - missing[0]))
    return worst


def too_many(traced: Mapping[int, int], completed: Mapping[int, int]) -> list[int]:
    """The ranks with more steps in the trace than they completed."""
    return [rank for rank, steps in traced.items() if steps > completed.get(rank, 0)]
