"""What communication costs by itself: collectives measured on the ranks of a training, held against its transfer."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc.model.collective_plan import ALL_REDUCE, COMMUNICATION_OPTIONS
from hpc.model.collective_times import collective_times
from hpc.model.spec import COLLECTIVES, RunSpec
from hpc.model.trace import Trace, TraceError
from hpc.model.trace_file import read_trace
from parse.ledger.types import Alone
from parse.result import Result

_ALIKE = ("backend", "nodes", "ranks_per_node", "gpus_per_node", "cpus_per_rank", "site", "container")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """How long an operation takes by itself: `ms` at each of `sizes` in bytes, which rise."""

    operation: str
    sizes: tuple[int, ...]
    ms: tuple[float, ...]

    def time_ms(self, size_bytes: int) -> float | None:
        """The time at a size, between two measured ones on the straight line of their logarithms; None outside them."""
        if not self.sizes or not self.sizes[0] <= size_bytes <= self.sizes[-1]:
            return None
        above = bisect.bisect_left(self.sizes, size_bytes)
        if self.sizes[above] == size_bytes:
            return self.ms[above]
        low, high = self.sizes[above - 1], self.sizes[above]
        share = math.log(size_bytes / low) / math.log(high / low)
        return self.ms[above - 1] * math.exp(share * math.log(self.ms[above] / self.ms[above - 1]))


def alone(trace: Trace) -> dict[str, Curve]:
    """The curve of every operation in a trace of collectives. Raises TraceError where it is none."""
    times_by_operation: dict[str, dict[int, float]] = {}
    for measured in collective_times(trace):
        times_by_operation.setdefault(measured.operation, {})[measured.bytes] = measured.time_ns / 1e6
    return {
        operation: Curve(
            operation=operation, sizes=tuple(sorted(times)), ms=tuple(times[size] for size in sorted(times))
        )
        for operation, times in times_by_operation.items()
    }


def matching(result: Result, probes: Sequence[Result]) -> tuple[Result, ...]:
    """Those probes that are collectives of the very ranks of a training: as many, placed, told and set up alike."""
    if result.requested.partly or result.run.diagnostic:
        return ()
    return tuple(
        probe for probe in probes if probe.run.diagnostic == COLLECTIVES and _ranks(probe.run) == _ranks(result.run)
    )


def beside(
    result: Result, gradient_bytes: int, exposed_ms: float, probes: Sequence[Result]
) -> tuple[Alone | None, tuple[str, ...]]:
    """What one all-reduce of a training's gradients takes by itself, beside what of it is exposed in the training; and
    a line for whatever stands in the way. None without a line where nobody has measured it."""
    remarks = []
    for probe in matching(result, probes):
        for run_id, path in _traces(probe):
            try:
                curve = alone(read_trace(path)).get(ALL_REDUCE)
            except TraceError as error:
                remarks.append(str(error))
                continue
            if curve is None:
                continue
            took_ms = curve.time_ms(gradient_bytes)
            if took_ms is not None:
                return Alone(gradient_bytes=gradient_bytes, alone=took_ms, exposed=exposed_ms, run_id=run_id), ()
            border = "min" if gradient_bytes < curve.sizes[0] else "max"
            remarks.append(
                f"what {gradient_bytes} bytes of gradients would take alone is not known: {run_id} measured all-reduce "
                f"from {curve.sizes[0]} to {curve.sizes[-1]} bytes (--option {border}_bytes={gradient_bytes})"
            )
        if not probe.ok:
            outcomes = ", ".join(run.outcome_text for run in probe.runs)
            remarks.append(
                f"what communication costs alone is not known: the collectives of {probe.requested.case} {outcomes}"
            )
    return None, tuple(dict.fromkeys(remarks))


def _ranks(run: RunSpec) -> tuple[object, ...]:
    """What must be equal for a collective to take equally long."""
    options: Mapping[str, str] = {name: run.options[name] for name in COMMUNICATION_OPTIONS if name in run.options}
    return (*(getattr(run, name) for name in _ALIKE), dict(run.env), options)


def _traces(probe: Result) -> list[tuple[str, Path]]:
    return [
        (run.requested.run_id, run.attempt.trace)
        for run in probe.ok
        if run.attempt is not None and run.attempt.trace is not None
    ]
