"""Time stamps of a device against its kernels, for `make gpu-day`: on a GPU by torch.profiler, else simulated."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu_day import read_figures

BORDER_US = 20.0
"""A time stamp may lie so far outside of the gap between two kernels."""


class PartError(Exception):
    """A part could not measure all that it is for; the text says what."""


class Figures:
    """The figures of a part, in its file as soon as they are known."""

    def __init__(self, path: Path) -> None:
        self._path, self._values = path, read_figures(path)

    def put(self, name: str, value: Any) -> None:
        """Adds one, or replaces it."""
        self._values[name] = value
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(self._values))
        beside.replace(self._path)


class Kernel(NamedTuple):
    """A kernel, or a copy, by Unix time in ns: when the host launched it, when it began and ended on the device."""

    launched_ns: int
    begin_ns: int
    end_ns: int


class Border(NamedTuple):
    """A time stamp of the device, and when the host recorded its event; Unix time in ns."""

    recorded_ns: int
    stamp_ns: int


def border_errors_ns(borders: Iterable[Border], kernels: Sequence[Kernel]) -> list[int]:
    """By border that has kernels on both sides: how far its stamp is outside of the gap between the end of those
    launched before its record and the begin of those after it. 0: inside; negative: too early; positive: too late."""
    errors = []
    for border in borders:
        before = [kernel.end_ns for kernel in kernels if kernel.launched_ns < border.recorded_ns]
        after = [kernel.begin_ns for kernel in kernels if kernel.launched_ns >= border.recorded_ns]
        if not before or not after:
            continue
        low = max(before)
        high = max(low, min(after))
        errors.append(min(0, border.stamp_ns - low) + max(0, border.stamp_ns - high))
    return errors


def read_kernels(path: Path, stream: int | None = None) -> list[Kernel]:
    """Those of a profile of torch.profiler; of the stream that has most, or of the one that is named."""
    from parse.trace_events.kineto import EVENTS, values_of

    base_ns, launches, ran = 0, {}, []
    for name, value in values_of(path):
        if name == "baseTimeNanoseconds":
            base_ns = int(value)
        if name != EVENTS or not isinstance(value, dict) or value.get("ph") != "X":
            continue
        kind, its = value.get("cat"), value.get("args", {})
        if kind in ("cuda_runtime", "cuda_driver") and "correlation" in its:
            launches[its["correlation"]] = float(value["ts"])
        elif kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            ran.append((its.get("correlation"), its.get("stream"), float(value["ts"]), float(value["dur"])))
    streams = [each[1] for each in ran]
    wanted = max(set(streams), key=streams.count, default=None) if stream is None else stream
    return sorted(
        Kernel(*(base_ns + round(us * 1e3) for us in (launches[correlation], begin, begin + length)))
        for correlation, which, begin, length in ran
        if which == wanted and correlation in launches
    )


def put_borders(figures: Figures, name: str, errors_ns: Sequence[int]) -> None:
    """Raises PartError where there are none."""
    if not errors_ns:
        raise PartError(f"{name}: no border has kernels on both sides")
    sizes_us = sorted(abs(error) / 1e3 for error in errors_ns)
    value = {
        "borders": len(sizes_us), "within 20 µs": sum(size <= BORDER_US for size in sizes_us),
        "between their kernels": sum(size == 0 for size in sizes_us), "median µs outside": sizes_us[len(sizes_us) // 2],
        "largest µs outside": sizes_us[-1],
    }  # fmt: skip
    figures.put(name, value)


class Training(NamedTuple):
    """A training on a device. `work` queues the copy, the forward, the backward and the update of a step; `profiled`
    runs a function and returns the kernels that ran meanwhile, and how Unix time differs from the host's clock, ns."""

    clock: Callable[[], int]
    make_event: Callable[[], Any]
    stream: Any
    work: Sequence[Callable[[], object]]
    profiled: Callable[[Callable[[], None]], tuple[Sequence[Kernel], int]]


def measure_borders(figures: Figures, training: Training, steps: int = 20) -> None:
    """Puts how far the training's time stamps are from its kernels. Raises PartError where they are too far."""
    from hpc.measure.timer import device_timer

    timer = device_timer("phases", steps, training.make_event, training.stream, training.clock)
    records = (timer.batch_ready, timer.forward_end, timer.grads_ready, timer.end)
    columns = (1, 2, 3, 5)  # of the time stamps; t4 is that of a reduction, of which there is none
    recorded: list[tuple[int, int]] = []

    def segment() -> None:
        recorded.clear()
        timer.begin(0)
        for step in range(steps):
            for work, record, column in zip(training.work, records, columns, strict=True):
                work()
                recorded.append((6 * step + column, training.clock()))
                record()
        timer.resolve()

    segment()
    kernels, offset = training.profiled(segment)
    figures.put("kernels", len(kernels))
    figures.put("bound µs", timer.bound_ns / 1e3)
    borders = [Border(host_ns + offset, timer.stamps[at] + offset) for at, host_ns in recorded]
    errors = border_errors_ns(borders, kernels)
    put_borders(figures, "borders of own backends' steps", errors)
    check_borders(errors)


def torch_training(folder: Path) -> Training:
    """On the GPU, with kernels by torch.profiler."""
    import torch

    device, width, batch = torch.device("cuda", 0), 4096, 1024
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    host, inputs = torch.randn(batch, width).pin_memory(), torch.empty(batch, width, device=device)
    losses: list[Any] = []

    def backward() -> None:
        losses[0].backward()

    def update() -> None:
        losses.clear()
        optimizer.step()
        optimizer.zero_grad()

    def profiled(segment: Callable[[], None]) -> tuple[Sequence[Kernel], int]:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            segment()
            offset = time.time_ns() - time.perf_counter_ns()
        profile.export_chrome_trace(str(folder / "profile.json"))
        return read_kernels(folder / "profile.json"), offset

    work = (
        lambda: inputs.copy_(host, non_blocking=True), lambda: losses.append(model(inputs).square().mean()),
        backward, update,
    )  # fmt: skip
    make_event: Callable[..., Any] = partial(torch.cuda.Event, enable_timing=True)
    return Training(time.perf_counter_ns, make_event, torch.cuda.current_stream(), work, profiled)


def simulated_training(**device_facts: Any) -> Training:
    """On the simulated device of the tests, whose kernels tell their true times; its host takes 2 µs for each look at
    the clock."""
    from tests.simulated_device import SimulatedDevice, VirtualClock

    clock = VirtualClock(costs_ns=repeat(2_000))
    device = SimulatedDevice(clock, **{"rate": 5e-5, "offset_ns": 7e12, "resolution_ns": 500, **device_facts})
    ran: list[tuple[int, int, Any]] = []

    def run(ms: float) -> None:
        launched = clock()
        ran.append((launched, round(ms * 1e6), device.run(ms)))

    def profiled(segment: Callable[[], None]) -> tuple[Sequence[Kernel], int]:
        ran.clear()
        segment()
        return [Kernel(launched, work.true_ns - length, work.true_ns) for launched, length, work in ran], 0

    work = tuple(partial(run, ms) for ms in (0.2, 1.0, 2.0, 0.5))
    return Training(clock, device.make_event, device.current_stream(), work, profiled)


def check_borders(errors_ns: Sequence[int]) -> None:
    """Raises PartError where a border is off by more than the goal."""
    off = sum(abs(error) > BORDER_US * 1e3 for error in errors_ns)
    if off:
        raise PartError(f"{off} of {len(errors_ns)} borders are off by more than {BORDER_US:g} µs")
