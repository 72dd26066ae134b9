"""What the hooks of hpc.observe cost a step: with and without them by turns, in several processes.

Two equal models, of ResNet-50's depth (162 parameters), each in a DDP of its own over one rank; one is trained with
hooks, one without. Compared is the thread's CPU time, in which a busy neighbour shows less than in wall time. Putting
hooks on and off has Python forget what it knows of the classes, which no training does: after each turn some steps are
made that are not timed. A process is one measurement, the median of its pairs: where its code and data lie in memory
changes the price by as much as chance does.

`--control` puts no hooks on either: what remains is the error of the method. `--hook NAME` shows what a hook costs: the
model with hooks alone, that hook on and off.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any

from benchmarks.pairs import against_limit

WARM_UP = 12
AGAIN, TIMED = 4, 6
"""Steps after hooks were put on or off: not timed, timed."""
LIMIT, STEP_MS = 0.5, 10
"""Per cent of a step of so many ms."""


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
        from hpc.observe import hooks

        hooks.install(folder, lambda name, then: None)  # no functional collectives in this model
        observer = hooks.current
        assert observer is not None
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
        taken: tuple[list[float], list[float]] = ([], [])
        turns = -(-pairs // TIMED)
        for turn in range(turns):
            for which in (0, 1) if turn % 2 else (1, 0):
                switch(which == 0 and not control, chosen)
                taken[which].extend(turn_of((hooked, bare)[which]))
        switch(True, chosen)
        assert not observer.off, "a hook has failed"
        assert device == "cpu" or observer.mark is not None, f"no clock of the device: {observer.device_facts}"
        events = sum(1 for at in range(1 << 13, len(observer.cells), 2) if observer.cells[at])
        print(f"{events / (turns * (AGAIN + TIMED) + WARM_UP):.1f} events a step with hooks")
        dist.destroy_process_group()
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=500, help="of steps, in each process")
    parser.add_argument("--blocks", type=int, default=54, help="of three parameters each; 1 shows the hooks alone")
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--control", action="store_true", help="no hooks on either model")
    parser.add_argument("--hook", action="append", metavar="NAME", help="of a patched attribute, or optimizer")
    arguments = parser.parse_args()
    forwarded = (
        arguments.pairs, arguments.blocks, arguments.width, arguments.batch_size, arguments.control, arguments.hook,
    )  # fmt: skip
    medians = []
    for number in range(arguments.processes):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            hooked, bare = pool.submit(measure, *forwarded).result()
        middle_ms, bare_ms = (sorted(times)[len(times) // 2] for times in (hooked, bare))
        medians.append(100 * median(a - b for a, b in zip(hooked, bare, strict=True)) / STEP_MS)
        print(f"process {number + 1}: {middle_ms:.3f} ms with hooks, {bare_ms:.3f} ms without, {medians[-1]:+.3f} %")
    print(against_limit("hooks of hpc.observe", medians, LIMIT, f"% of a step of {STEP_MS} ms"))
    return 0


if __name__ == "__main__":
    assert Path("benchmarks").exists(), "run from the checkout"
    sys.exit(main())
