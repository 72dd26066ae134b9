"""What start and end of a measurement cost where TCP connects many ranks: they are threads of processes of one machine.

`python -m benchmarks.bench_ranks`. Times grow with the machine's load, so each is held against that of fewer ranks in
the same run, and both against n log n; an allgather also against the same through rank 0 alone (a tree of one level).
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from hpc.measure import connections
from hpc.measure.clock import GlobalClock
from hpc.measure.connections import Connections
from hpc.run.rendezvous import join
from hpc.system.job_facts import Launch

SIZES, THREADS, REPEATS, LIMIT_S = (128, 512, 2048), 64, 10, 300.0
RANKS_PER_CLOCK = 64
SMALL, STAMPS = "x" * 78, np.zeros((64, 6), np.int64)
"""80 bytes as JSON; the time stamps of 64 steps."""
GROWTH = 1.5
"""Limit of a time at the largest size against that at the smallest, over the growth of n log n."""


def main() -> None:
    """Prints a line per figure."""
    times = {size: measured(size, connections.FAN_OUT) for size in SIZES}
    through_rank_0 = measured(SIZES[1], SIZES[1])
    few, many = SIZES[0], SIZES[-1]
    expected = many * math.log2(many) / (few * math.log2(few))
    for name in times[many]:
        shown = ", ".join(f"{times[size][name]:.3g}" for size in SIZES)
        growth = times[many][name] / times[few][name] / expected
        verdict = "met" if growth <= GROWTH else "NOT MET"
        sizes = ", ".join(map(str, SIZES))
        limit = "" if name == ALLGATHER else f"; limit {GROWTH:g}: {verdict}"
        print(f"{name}, s, {sizes} ranks: {shown}; growth / that of n log n: {growth:.2f}{limit}", flush=True)
    ratio = through_rank_0[ALLGATHER] / times[SIZES[1]][ALLGATHER]
    print(f"{ALLGATHER}, {SIZES[1]} ranks, through rank 0 alone / along the tree: {ratio:.2f}")


ALLGATHER = "allgather of 80 bytes, which is n² bytes"


def measured(size: int, fan_out: int) -> dict[str, float]:
    """Seconds of what rank 0 of so many does with the others, by its name."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.perf_counter()
        processes = [
            context.Process(target=_process, args=(first, size, fan_out, Path(folder), begin_s, sender))
            for first in range(0, size, THREADS)
        ]
        for process in processes:
            process.start()
        times: dict[str, float] = receiver.recv()
        for process in processes:
            process.join()
    if any(process.exitcode for process in processes):
        sys.exit(f"ranks failed: {[process.exitcode for process in processes]}")
    return times


def _process(first: int, size: int, fan_out: int, folder: Path, begin_s: float, sender: Any) -> None:
    connections.FAN_OUT = fan_out
    with ThreadPoolExecutor(THREADS) as threads:
        done = [threads.submit(_rank, rank, size, folder, begin_s) for rank in range(first, min(first + THREADS, size))]
        for each in done:
            if (times := each.result()) is not None:
                sender.send(times)


def _rank(rank: int, size: int, folder: Path, begin_s: float) -> dict[str, float] | None:
    """What rank 0 took."""
    launch = Launch(launcher="torchrun", rank=rank, size=size, one_node=True, identity="bench")
    comm = join(launch, folder, LIMIT_S)
    joined_s = time.perf_counter()
    clock = GlobalClock(comm, domain=f"clock {rank // RANKS_PER_CLOCK}")
    everyone = np.empty((size, *STAMPS.shape), np.int64) if rank == 0 else None
    actions = {
        "clocks synchronised": clock.synchronise,
        "time stamps gathered": lambda: comm.Gather(STAMPS, everyone),
        "barrier": comm.Barrier,
        ALLGATHER: lambda: comm.allgather(SMALL),
    }
    times = {name: _taken(comm, act) for name, act in actions.items()}
    comm.Barrier()
    return {"joined": joined_s - begin_s, **times} if rank == 0 else None


def _taken(comm: Connections, act: Any) -> float:
    """Mean seconds of several in a row, until all ranks have done the last one."""
    comm.Barrier()
    begin_s = time.perf_counter()
    for _ in range(REPEATS):
        act()
    comm.Barrier()
    return (time.perf_counter() - begin_s) / REPEATS


if __name__ == "__main__":
    main()
