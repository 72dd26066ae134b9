"""What the hooks of hpc.observe cost a step: with and without them by turns, in several processes.

Two equal models, of ResNet-50's depth (162 parameters), each in a DDP of its own over one rank; one is trained with
hooks, one without. Compared is the thread's CPU time, in which a busy neighbour shows less than in wall time. Putting
hooks on and off has Python forget what it knows of the classes, which no training does: after each turn some steps are
made that are not timed. A process is one measurement, the median of its pairs: where its code and data lie in memory
changes the price by as much as chance does.

`--control` puts no hooks on either: what remains is the error of the method. `--hook NAME` shows what a hook costs: the
model with hooks alone, that hook on and off.

`--events` shows what events of a device add to hooks, by a device whose events are empty and done at once: the price of
Python alone, of a step by turns with them and without, and before that of an event beside the host's record of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any

from benchmarks.bench_marks import EmptyEvent
from benchmarks.pairs import against_limit, with_interval

WARM_UP = 12
AGAIN, TIMED = 4, 6
"""Steps after hooks were put on or off: not timed, timed."""
LIMIT, STEP_MS = 0.5, 10
"""Per cent of a step of so many ms."""
BLOCKS, STEPS_A_BLOCK, EVENTS_A_STEP = 201, 50, 8
"""Of a loop of events alone."""


class EmptyDevice:
    """An accelerator of hpc.observe.device_clock that takes no time."""

    event_type = EmptyEvent

    def __init__(self, index: int = 0) -> None:
        self._stream = object()

    def make_event(self) -> EmptyEvent:
        return EmptyEvent()

    def current_stream(self) -> object:
        return self._stream

    def new_stream(self) -> object:
        return object()

    def is_capturing(self) -> bool:
        return False

    guard = nullcontext


def training(blocks: int, width: int, batch: int, device: str = "cpu", group: Any = None) -> Callable[[], None]:
    """One step of an own model at each call."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    stack = (
        torch.nn.Sequential(torch.nn.Linear(width, width, bias=False), torch.nn.BatchNorm1d(width))
        for _ in range(blocks)
    )
    model = DistributedDataParallel(torch.nn.Sequential(*stack).to(device), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loader: torch.utils.data.DataLoader[Any]
    if device == "cpu":
        samples = torch.utils.data.TensorDataset(torch.randn(9 * batch, width), torch.zeros(9 * batch))
        loader = torch.utils.data.DataLoader(samples, batch_size=batch)
    else:  # cut into batches on the host, the samples would take longer than the step
        batches_there: Any = [(torch.randn(batch, width, device=device), None) for _ in range(9)]
        loader = torch.utils.data.DataLoader(batches_there, batch_size=None, collate_fn=lambda its: its)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    source = batches()

    def step() -> None:
        inputs, _ = next(source)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def batch_for(step_ms: float, blocks: int, width: int, device: str) -> int:
    """The batch size whose step takes about so long on a device."""
    import torch
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/group", rank=0, world_size=1)
        batch = 64
        for _ in range(4):
            step = training(blocks, width, batch, device)
            for _ in range(WARM_UP):
                step()
            torch.cuda.synchronize()
            begin = perf_counter_ns()
            for _ in range(TIMED):
                step()
            torch.cuda.synchronize()
            taken_ms = (perf_counter_ns() - begin) / 1e6 / TIMED
            batch = max(64, round(batch * min(8.0, step_ms / taken_ms) / 64) * 64)
        dist.destroy_process_group()
    return batch


def measure(
    pairs: int, blocks: int, width: int, batch: int, control: bool, chosen: Sequence[str] | None, device: str = "cpu"
) -> tuple[list[float], list[float]]:
    """CPU time of the steps with hooks and of those without, ms; the k-th of both follow each other. On a GPU the wall
    time of a step, the mean of a turn.

    With `chosen`, names of hooks, both are of the model with hooks, and only these are switched.
    """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        from hpc.observe import hooks, recording
        from hpc.observe.observer import Observer

        hooks.install(folder, lambda name, then: None)  # no functional collectives in this model
        observer = recording.current
        assert isinstance(observer, Observer)
        backend = "gloo" if device == "cpu" else "nccl"
        dist.init_process_group(backend, init_method=f"file://{folder}/group", rank=0, world_size=1)
        on, optimizers = True, len(observer.handles)  # those of torch's hooks for all optimizers come first

        def switch(to: bool, names: Sequence[str] | None = None) -> None:
            nonlocal on
            if on == to:
                return
            on = to
            for patch in observer.patches:
                if names is None or patch.name in names:
                    patch.put() if to else patch.take()
            for handle in observer.handles[:optimizers] if names is None or "optimizer" in names else ():
                registered = handle.hooks_dict_ref()
                if to:
                    registered[handle.id] = removed[handle.id]
                else:
                    removed[handle.id] = registered.pop(handle.id)

        removed: dict[int, Any] = {}
        turn_of = on_turn(device)
        switch(not control)
        hooked = training(blocks, width, batch, device)
        for _ in range(WARM_UP):
            hooked()
        switch(False)
        bare = training(blocks, width, batch, device)  # made now, so that no hook knows its DDP
        for _ in range(WARM_UP):
            bare()
        if chosen:
            bare = hooked

        def turn(with_hooks: bool) -> list[float]:
            switch(with_hooks and not control, chosen)
            return turn_of(hooked if with_hooks else bare)

        turns = -(-pairs // TIMED)
        taken = by_turns(turns, turn)
        switch(True, chosen)
        assert not observer.off, "a hook has failed"
        assert device == "cpu" or observer.mark is not None, f"no clock of the device: {observer.device_facts}"
        events = sum(1 for at in range(1 << 13, len(observer.cells), 2) if observer.cells[at])
        print(f"{events / (turns * (AGAIN + TIMED) + WARM_UP):.1f} events a step with hooks")
        dist.destroy_process_group()
        return taken


def by_turns(turns: int, turn: Callable[[bool], list[float]]) -> tuple[list[float], list[float]]:
    """What each turn with a thing and each without it took; first one of the two, then the other."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(turns):
        for which in (0, 1) if number % 2 else (1, 0):
            taken[which].extend(turn(which == 0))
    return taken


def measure_events(pairs: int, blocks: int, width: int, batch: int) -> tuple[list[float], list[float]]:
    """As `measure`, of a model with hooks: steps whose events an empty device notes, and those of the host alone."""
    import torch
    import torch.distributed as dist
    from torch.optim import optimizer

    from hpc.observe import device_clock, events, hooks, recording
    from hpc.observe.observer import Observer

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        device_clock.ACCELERATORS["cpu"] = EmptyDevice
        hooks.install(folder, lambda name, then: None)
        observer = recording.current
        assert isinstance(observer, Observer)
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        step = training(blocks, width, batch)
        for _ in range(WARM_UP):
            step()
        mark, before_update = observer.mark, optimizer._global_optimizer_pre_hooks
        assert mark is not None, observer.device_facts
        of_device = dict(before_update)  # the begin of an update is an event on a device alone

        def turn(with_device: bool) -> list[float]:
            observer.mark = mark if with_device else None
            before_update.clear()
            before_update.update(of_device if with_device else {})
            return _turn(step)

        turns = -(-pairs // TIMED)
        taken = by_turns(turns, turn)
        assert not observer.off and "failed" not in observer.device_facts, "a hook has failed"
        recorded = events.read_events(observer.recorder.path)
        noted = sum(event.kind == events.DEVICE_TIME for event in recorded.device)
        print(f"{noted / (turns * (AGAIN + TIMED) + WARM_UP):.1f} events a step that the device notes")
        dist.destroy_process_group()
        return taken


def price_of_event() -> tuple[list[float], list[float]]:
    """CPU time of an event in a loop of them, ns: with the device's part, its time written; of the host alone."""
    from hpc.observe import device_clock, events

    with tempfile.TemporaryDirectory() as folder:
        recorder = events.Recorder(folder)
        recorder.reserve()
        errors: list[Exception] = []
        clock = device_clock.DeviceClock(recorder, EmptyDevice(), errors.append)
        cells, place, kind = recorder.cells, recorder.place, events.FORWARD_IN

        def turn(with_device: bool) -> list[float]:
            mark = clock.mark if with_device else None
            begin = thread_time_ns()
            for _ in range(STEPS_A_BLOCK):
                for _ in range(EVENTS_A_STEP):
                    at = place()
                    cells[at + 1] = kind
                    cells[at] = perf_counter_ns()
                    if mark is not None:
                        mark(at)
                if mark is not None:
                    clock.step_completed()
            return [(thread_time_ns() - begin) / STEPS_A_BLOCK / EVENTS_A_STEP]

        turn(True)  # the pool grows in the first steps
        taken = by_turns(BLOCKS, turn)
        assert not errors, errors
        return taken


def on_turn(device: str) -> Callable[[Callable[[], None]], list[float]]:
    """What times the steps of a turn on a device."""
    return _turn if device == "cpu" else _turn_on_device


def _turn(step: Callable[[], None]) -> list[float]:
    """The thread's CPU time of each step, ms."""
    taken = []
    for at in range(AGAIN + TIMED):
        begin = thread_time_ns()
        step()
        if at >= AGAIN:
            taken.append((thread_time_ns() - begin) / 1e6)
    return taken


def _turn_on_device(step: Callable[[], None]) -> list[float]:
    """The mean wall time of a step, ms: the device is waited for before the first and after the last."""
    import torch

    for _ in range(AGAIN):
        step()
    torch.cuda.synchronize()
    begin = perf_counter_ns()
    for _ in range(TIMED):
        step()
    torch.cuda.synchronize()
    return [(perf_counter_ns() - begin) / 1e6 / TIMED]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=500, help="of steps, in each process")
    parser.add_argument("--blocks", type=int, default=54, help="of three parameters each; 1 shows the hooks alone")
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--control", action="store_true", help="no hooks on either model")
    parser.add_argument("--hook", action="append", metavar="NAME", help="of a patched attribute, or optimizer")
    parser.add_argument("--events", action="store_true", help="those of a device, beside hooks without")
    arguments = parser.parse_args(argv)
    forwarded: tuple[Any, ...] = (arguments.pairs, arguments.blocks, arguments.width, arguments.batch_size)
    if not arguments.events:
        forwarded += (arguments.control, arguments.hook)
    medians, ratios, of_events = [], [], []
    for number in range(arguments.processes):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            if arguments.events:
                with_device, host_only = pool.submit(price_of_event).result()
                of_events.append(median(a / b for a, b in zip(with_device, host_only, strict=True)))
                print(f"an event: {median(with_device):.0f} ns with a device, {median(host_only):.0f} ns without")
            what = measure_events if arguments.events else measure
            ours, bare = pool.submit(what, *forwarded).result()
        ours_ms, bare_ms = (sorted(times)[len(times) // 2] for times in (ours, bare))
        medians.append(100 * median(a - b for a, b in zip(ours, bare, strict=True)) / STEP_MS)
        ratios.append(median(a / b for a, b in zip(ours, bare, strict=True)))
        print(
            f"process {number + 1}: {ours_ms:.3f} ms with, {bare_ms:.3f} ms without: {ratios[-1]:.3f} times, "
            f"{medians[-1]:+.3f} %"
        )
    if of_events:
        print(with_interval("an event that a device notes, beside one of the host alone", of_events, "times"))
    name = "events of a device" if arguments.events else "hooks of hpc.observe"
    print(with_interval(f"a step with {name}, beside one without", ratios, "times"))
    print(against_limit(name, medians, LIMIT, f"% of a step of {STEP_MS} ms"))
    return 0


if __name__ == "__main__":
    assert Path("benchmarks").exists(), "run from the checkout"
    sys.exit(main())
