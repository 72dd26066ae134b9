"""The time of standalone communication: collectives measured on the ranks of a training."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from hpc.model.collective_plan import ALL_REDUCE, COMMUNICATION_OPTIONS, bus_factor
from hpc.model.collective_times import collective_times, pair_times
from hpc.model.run_fields import RunFields
from hpc.model.spec import COLLECTIVES
from hpc.model.timestamps import BEGIN, END
from hpc.model.trace import Trace, TraceError
from hpc.model.trace_file import read_trace
from hpc.system.text import plural
from parse import stats
from parse.ledger.meetings import unseen_ways
from parse.ledger.network import Link
from parse.ledger.types import BesideBenchmark, Standalone
from parse.logs.benchmarks import PROGRAM, Benchmarks, NcclTest
from parse.runs.result import Result

_ALIKE = ("backend", "nodes", "ranks_per_node", "gpus_per_node", "cpus_per_rank", "site", "container", "job_options")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The time of an operation: `ms` at each of `sizes` in bytes, ascending."""

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


def curves(trace: Trace) -> dict[str, Curve]:
    """The curve of every operation in a trace of collectives. Raises TraceError where it is of none."""
    times: dict[str, dict[int, float]] = {}
    for measured in collective_times(trace):
        times.setdefault(measured.operation, {})[measured.bytes] = measured.time_ns / 1e6
    ordered = {operation: sorted(points.items()) for operation, points in times.items()}
    return {
        operation: Curve(sizes=tuple(size for size, _ in points), ms=tuple(ms for _, ms in points))
        for operation, points in ordered.items()
    }


def matching(result: Result, diagnostics: Sequence[Result]) -> tuple[Result, ...]:
    """The diagnostic runs that are collectives of the very ranks of a training, equal in all that sets their speed and
    of the same measurement."""
    if result.requested.partly or result.run.diagnostic:
        return ()
    return tuple(
        each
        for each in diagnostics
        if each.run.diagnostic == COLLECTIVES
        and each.requested.measurement == result.requested.measurement
        and _ranks(each.run) == _ranks(result.run)
    )


_NAME = re.compile(r"[a-z0-9 -]{1,40}")
MAX_KINDS = 3


def recorded_collectives(trace: Trace) -> str:
    """What a step of a script calls by torch's own record, DDP's buckets among it, on the first rank that has one, or
    nothing; and which rank comes last to what no hook saw.

    Times are those that torch has measured: of the whole collective, waiting for others and overlap included.
    """
    kinds = [_kinds_of(report.script.get("collective_record")) for report in trace.reports]
    for rank, its in enumerate(kinds):
        texts = [text for kind in its if (text := _kind(kind))]
        if texts:
            further = f", {plural(len(texts) - MAX_KINDS, 'further kind')}" if len(texts) > MAX_KINDS else ""
            text = f"a step of rank {rank} by torch's record: {', '.join(texts[:MAX_KINDS])}{further}"
            return "; ".join([text, *_last_to_come(trace, kinds)])
    return ""


def _kinds_of(record: object) -> list[Mapping[str, object]]:
    kinds = record.get("kinds") if isinstance(record, Mapping) else None
    return [kind for kind in kinds if isinstance(kind, Mapping)] if isinstance(kinds, list) else []


def _kind(kind: Mapping[str, object]) -> str:
    """`3 × all-reduce of 1.05 MB in the forward, 2.1 ms behind the step's begin (0.25 ms each)`; empty for what is
    none."""
    name, count, size, duration, after = (
        kind.get(each) for each in ("name", "per_step", "bytes", "duration_ms", "after_ms")
    )
    if not (isinstance(name, str) and _NAME.fullmatch(name) and _is_positive(count)):
        return ""
    text = f"{count:g} × {name}"
    text += f" of {bytes_text(int(size))}" if _is_positive(size) else ""
    if kind.get("phase") in PHASES and _is_positive(after):
        text += f" in the {kind['phase']}, {after:.3g} ms behind the step's begin"
    return text + (f" ({duration:.3g} ms each)" if _is_positive(duration) else "")


PHASES = ("forward", "backward", "update")
OF_ALL = "default_pg"
"""The group of all ranks, in torch's record."""
NOTABLE_MS, NOTABLE = 1.0, 0.02
"""So long, and so much of the step, a rank comes after the first where it is named."""


def _last_to_come(trace: Trace, kinds: Sequence[Sequence[Mapping[str, object]]]) -> list[str]:
    """Where a step of all ranks has collectives that no hook saw: which rank comes last to the first call of a kind.

    On the host by when ranks call it, counted from the median begin of a step. On a device that is no arrival: there by
    the durations that torch measured, because a collective ends on all ranks together. A kind of the backward may be
    DDP's buckets, of which the stamps of a step tell who is late.
    """
    if not any(_OWN_RECORD in way for way in unseen_ways(trace)):
        return []
    steps = np.concatenate([np.arange(first, stop) for first, stop in trace.blocks])
    begins_ns, ends_ns = (trace.to_global(stamp)[:, steps] for stamp in (BEGIN, END))
    begin_ms: NDArray[np.float64] = np.median(begins_ns - begins_ns.mean(axis=0), axis=1) / 1e6
    least_ms = max(NOTABLE_MS, NOTABLE * float(np.median(ends_ns - begins_ns)) / 1e6)
    on_device = any(report.stamp_bound_ns for report in trace.reports)
    texts = []
    for kind in kinds[0]:
        same = [kind.get(name) for name in SAME]
        its = [next((each for each in of_rank if [*map(each.get, SAME)] == same), {}) for of_rank in kinds]
        times = [each.get("duration_ms" if on_device else "after_ms") for each in its]
        known = [ms for ms in times if _is_positive(ms)]
        if kind.get("group") != OF_ALL or kind.get("phase") == PHASES[1] or len(known) < len(times):
            continue
        arrives_ms = -np.array(known) if on_device else begin_ms + known
        late_ms = arrives_ms - arrives_ms.min()
        if late_ms.max() >= least_ms:
            of = f" of {bytes_text(int(size))}" if _is_positive(size := kind.get("bytes")) else ""
            late = f"rank {late_ms.argmax()} comes {late_ms.max():.3g} ms after the first"
            texts.append(f"{late} to the {kind['name']}{of}")
    return texts


_OWN_RECORD = "torch's own record"
"""In the way by which ranks also meet."""


SAME = ("name", "group", "bytes", "phase")
"""What kinds of collectives of two ranks have in common that are one."""


def _is_positive(value: object) -> TypeGuard[float]:
    """Whether it is a finite number above 0, and no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def bytes_text(count: int) -> str:
    """`1.05 MB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


@dataclass(frozen=True, kw_only=True)
class MeasuredCollectives:
    """What a run of collectives measured on the very ranks of a training: all-reduces by size in the mean and in the
    median, which one call that lost a packet does not move, and pairs of nodes. None where it has none."""

    run_id: str
    all_reduce: Curve | None
    median: Curve | None
    links: tuple[Link, ...]


def read_collectives(
    result: Result, diagnostics: Sequence[Result]
) -> tuple[tuple[MeasuredCollectives, ...], tuple[str, ...]]:
    """Those of the ranks of a training; a remark for each that there should be and is not."""
    read, remarks = [], []
    for collectives in matching(result, diagnostics):
        for path in [run.trace for run in collectives.ok if run.trace is not None]:
            try:
                read.append(_measured(read_trace(path)))
            except TraceError as error:
                remarks.append(str(error))
        if not collectives.ok:
            outcomes = ", ".join(run.outcome_text for run in collectives.runs)
            remarks.append(
                "how long communication takes standalone is not known: "
                f"the collectives of {collectives.requested.case} {outcomes}"
            )
    return tuple(read), tuple(dict.fromkeys(remarks))


def _measured(trace: Trace) -> MeasuredCollectives:
    medians = sorted(
        (each.bytes, each.median_ns / 1e6) for each in collective_times(trace) if each.operation == ALL_REDUCE
    )
    median = Curve(sizes=tuple(size for size, _ in medians), ms=tuple(ms for _, ms in medians)) if medians else None
    return MeasuredCollectives(
        run_id=trace.run_id, all_reduce=curves(trace).get(ALL_REDUCE), median=median, links=_links(trace)
    )


def _links(trace: Trace) -> tuple[Link, ...]:
    """By pairs of nodes; bandwidth where a larger message than the smallest was measured."""
    pairs = pair_times(trace)
    smallest, largest = (choose((pair.bytes for pair in pairs), default=0) for choose in (min, max))
    hosts = {report.node_rank or 0: report.hostname or f"node {report.node_rank}" for report in trace.reports}
    large = {pair.nodes: pair for pair in pairs if pair.bytes == largest > smallest}
    return tuple(
        Link(
            nodes=(hosts[pair.nodes[0]], hosts[pair.nodes[1]]),
            latency_ms=pair.fastest_ns / 1e6,
            # GB/s each way between two nodes whose ranks all exchange messages at once.
            bandwidth=trace.run.ranks_per_node * big.bytes / big.fastest_ns if (big := large.get(pair.nodes)) else None,
        )
        for pair in pairs
        if pair.bytes == smallest
    )


def standalone_reduction(
    measured: Sequence[MeasuredCollectives], gradient_bytes: int, exposed_ms: float | None
) -> tuple[Standalone | None, tuple[str, ...]]:
    """One standalone all-reduce of a training's gradients, beside its exposed part in the training; and remarks with
    the reason if none of these runs has their size. None without a remark if the gradients' volume or its exposed part
    is not known."""
    remarks = []
    for each in measured if gradient_bytes and exposed_ms is not None else ():
        if (curve := each.all_reduce) is None:
            continue
        ms = curve.time_ms(gradient_bytes)
        if ms is not None and exposed_ms is not None:
            standalone = Standalone(
                gradient_bytes=gradient_bytes, standalone=ms, exposed=exposed_ms, run_id=each.run_id
            )
            return standalone, ()
        border = "min" if gradient_bytes < curve.sizes[0] else "max"
        remarks.append(
            f"how long {gradient_bytes} bytes of gradients take standalone is not known: {each.run_id} measured "
            f"all-reduce from {curve.sizes[0]} to {curve.sizes[-1]} bytes (--option {border}_bytes={gradient_bytes})"
        )
    return None, tuple(dict.fromkeys(remarks))


def beside_benchmarks(
    devices: int, gradient_bytes: int, standalone: Standalone | None, benchmarks: Benchmarks
) -> tuple[tuple[BesideBenchmark, ...], tuple[str, ...]]:
    """The all-reduce of a training's gradients by every benchmark on as many devices, and a remark for each that did
    not measure this size; neither where that is 0, not known. Tests with wrong results, and those of several groups at
    once, do not count; osu_allreduce only where its path says the case, since it prints no number of ranks."""
    beside, remarks = [], []
    measured = [
        (test.file, "nccl-tests", test.case, curve_of_test(test), "its options -b, -e")
        for test in benchmarks.nccl_tests
        if (test.operation, test.devices, test.groups) == (ALL_REDUCE, devices, 1) and not test.wrong
    ]
    measured += [
        (
            test.file, f"{PROGRAM} ({test.library}, {test.buffers} buffers)", test.case,
            _curve((row.bytes, row.value) for row in test.rows), "its option -m",
        )
        for test in benchmarks.osu_tests
        if test.devices == devices and test.case
    ]  # fmt: skip
    factor = bus_factor(ALL_REDUCE, devices)

    def bandwidth(ms: float) -> float:
        """GB/s on the bus."""
        return gradient_bytes / (ms * 1e6) * factor

    for file, program, case, curve, options in measured if gradient_bytes and devices > 1 else ():
        ms = curve.time_ms(gradient_bytes)
        if ms is not None:
            beside.append(
                BesideBenchmark(
                    file=file, program=program, case=case, gradient_bytes=gradient_bytes, time=ms,
                    bus_bandwidth=bandwidth(ms),
                    standalone_bus_bandwidth=None if standalone is None else bandwidth(standalone.standalone),
                )
            )  # fmt: skip
        elif sizes := curve.sizes:
            remarks.append(
                f"{file}: {program} measured all-reduce from {sizes[0]} to {sizes[-1]} bytes, not "
                f"{gradient_bytes} bytes of gradients ({options})"
            )
    return tuple(beside), tuple(remarks)


def curve_of_test(test: NcclTest) -> Curve:
    """The times of a test by size; the mean of a size that it has several times."""
    return _curve((row.bytes, row.timing.time_us) for row in test.rows if row.timing is not None)


def _curve(sizes_and_us: Iterable[tuple[int, float]]) -> Curve:
    ms: dict[int, list[float]] = {}
    for size, time_us in sizes_and_us:
        if size > 0 and time_us > 0:
            ms.setdefault(size, []).append(time_us / 1e3)
    return Curve(sizes=tuple(sorted(ms)), ms=tuple(stats.mean(ms[size]) for size in sorted(ms)))


def _ranks(run: RunFields) -> tuple[object, ...]:
    """The settings that must be equal for a collective to take equally long."""
    options = {name: run.options[name] for name in COMMUNICATION_OPTIONS if name in run.options}
    return (*(getattr(run, name) for name in _ALIKE), dict(run.env), options)
