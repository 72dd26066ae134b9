"""Whether steps wait for input that is read from files, and why it is late: workers, cores, storage."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.options import INPUT_FIGURES
from hpc.model.timestamps import ABSENT
from hpc.model.trace import Ints, Trace
from hpc.model.trace_file import open_trace
from parse import stats
from parse.rules import MOSTLY, NEARLY_ALL, READ_AT_ONCE, SMALL, WORTH_NAMING

_WORK = ("work", "reading", "processor")
_FIGURES = ("late", "late_share", *_WORK)


class InputCause(StrEnum):
    """Why input is late."""

    NO_WORKERS = "no workers"
    STORAGE = "storage"
    CORES = "cores"
    WORKERS = "workers"
    BURSTS = "bursts"


@dataclass(frozen=True, kw_only=True)
class InputReading:
    """The input of a point: means over ranks, steps and runs, in ms per batch.

    `workers` read for each rank. `late` is how long a batch is not ready after a step requests it, `late_share`
    the share of the steps in which that is so. `work` is what workers take for a batch: `reading` for the files, the
    rest for decoding; `processor` while it has one. `busy` is the share of the time that workers are at work, None
    without workers; `ready` the number of batches ready when a step needs one, None with too few steps. `cause` is
    None where input is not late. With `threads` workers are threads of the rank. `enough` workers per rank, with cores
    of their own, would keep up; None unless they are too few. Of some ranks alone, `usual_workers` are those of most of
    the others.
    """

    workers: int
    late: float
    late_share: float
    work: float
    reading: float
    processor: float
    busy: float | None
    ready: float | None
    cause: InputCause | None = None
    threads: bool = False
    enough: int | None = None
    usual_workers: int | None = None

    @property
    def decoding(self) -> float:
        """Decoding and augmenting, and waiting for a core meanwhile."""
        return self.work - self.reading


def reduce_input(trace: Trace, ranks: Sequence[int] = ()) -> InputReading | None:
    """The input of a run's window, of these ranks or of all, without a cause; None where it read no files or did not
    record it."""
    if trace.input is None or list(trace.input_names) != [*INPUT_FIGURES]:
        return None
    reports = {rank: report.input for rank, report in enumerate(trace.reports) if report.input}
    facts = next((report for rank, report in reports.items() if rank in ranks or not ranks), {})
    others = Counter(report["workers"] for rank, report in reports.items() if rank not in ranks and "workers" in report)
    workers, ahead = facts.get("workers"), facts.get("prefetched_batches")
    if not isinstance(workers, int) or not isinstance(ahead, int):
        return None
    sums, steps, busy, ready = np.zeros(len(_FIGURES)), 0, [], []
    for of_all in _chunks(trace):
        figures = of_all[list(ranks)] if ranks else of_all
        requested, _, _, done, reading, decoding, processor = np.moveaxis(figures, -1, 0)
        if (figures == ABSENT).any():
            return None
        late = (done - requested).clip(0)
        work = reading + decoding  # done − begun of one worker; of several that share a batch, what all took for it
        sums += [float(values.mean(axis=0).sum()) for values in (late, late > 0, work, reading, processor)]
        steps += figures.shape[1]
        elapsed = requested[:, -1] - requested[:, 0]
        if workers and elapsed.min() > 0:
            busy.append(float((work[:, :-1].sum(axis=1) / elapsed).mean()) / workers)
        if (count := figures.shape[1] - ahead) > 0:
            queued = [done[:, at : at + count] <= requested[:, :count] for at in range(ahead)]
            ready.append(float(np.sum(queued, axis=0).mean()) if queued else 0.0)
    if not steps or sums[_FIGURES.index("work")] <= 0:
        return None
    late, late_share, work, reading, processor = (sums / steps).tolist()
    return InputReading(
        workers=workers, late=late / 1e6, late_share=late_share, work=work / 1e6, reading=reading / 1e6,
        processor=processor / 1e6, busy=_mean(busy), ready=_mean(ready), threads=facts.get("workers_are") == "threads",
        usual_workers=others.most_common(1)[0][0] if ranks and others else None,
    )  # fmt: skip


def input_of_point(runs: Sequence[InputReading], step: float) -> InputReading | None:
    """The mean of the runs, with the cause where input is late in a step of so many ms; None without such runs."""
    if not runs or len({run.workers for run in runs}) > 1:
        return None
    means: dict[str, Any] = {name: stats.mean([getattr(run, name) for run in runs]) for name in _FIGURES}
    reading = InputReading(
        workers=runs[0].workers,
        threads=runs[0].threads,
        usual_workers=runs[0].usual_workers,
        busy=_mean([run.busy for run in runs if run.busy is not None]),
        ready=_mean([run.ready for run in runs if run.ready is not None]),
        **means,
    )
    if reading.late < WORTH_NAMING * step:
        return reading
    cause = _cause(reading)
    enough = ceil(reading.work / max(step - reading.late, SMALL * step))
    return dataclasses.replace(reading, cause=cause, enough=enough if cause is InputCause.WORKERS else None)


def input_of_ranks(traces: Sequence[Path], ranks: Sequence[int], step: float) -> InputReading | None:
    """As `input_of_point`, of these ranks alone; reads the traces again."""
    readings = []
    for path in traces:
        with open_trace(path) as trace:
            readings.append(reduce_input(trace, ranks))
    return input_of_point([reading for reading in readings if reading is not None], step)


def _cause(reading: InputReading) -> InputCause:
    if not reading.workers:
        return InputCause.NO_WORKERS
    if reading.busy is None or reading.busy < NEARLY_ALL:
        return InputCause.BURSTS
    if reading.reading >= reading.decoding:
        return InputCause.STORAGE
    return InputCause.CORES if reading.processor < MOSTLY * reading.decoding else InputCause.WORKERS


def _chunks(trace: Trace) -> Iterator[Ints]:
    """The figures of the measured steps, [rank, step, figure], a piece after the other."""
    assert trace.input is not None
    length = max(1, READ_AT_ONCE // len(trace.input))
    for first, stop in trace.blocks.tolist():
        for begin in range(first, stop, length):
            yield np.asarray(trace.input[:, begin : min(begin + length, stop)])


def _mean(values: Sequence[float]) -> float | None:
    return stats.mean(values) if values else None
