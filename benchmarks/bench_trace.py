"""Writing, reading and summarising a trace of 1024 ranks × 1000 steps, against h5py alone doing the same bytes.

`python -m benchmarks.bench_trace [FOLDER]`; the folder's file system is the one that is measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import h5py
import numpy as np

from benchmarks.pairs import BLOCKS, against_limit, compare
from hpc.model.outcome import Outcome
from hpc.model.spec import RunSpec
from hpc.model.trace import Trace
from hpc.model.trace_file import write_trace
from parse.runs.load import load

RANKS, STEPS, WARMUP_STEPS = 1024, 1000, 20
ARRAYS = ("stamps", "samples", "losses")
WRITE_LIMIT, READ_LIMIT, MEMORY_LIMIT, HELP_LIMIT_S = 1.5, 10.0, 2.5, 0.3


def main() -> None:
    """Prints one line per comparison."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_trace", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(tempfile.gettempdir()))
    print(_help())
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as name:
        _compare(Path(name))


def _compare(folder: Path) -> None:
    ours, plain = folder / "ours.h5", folder / "plain.h5"
    _compare_writing(ours, plain, large_trace())
    summary = compare(
        "read, convert and summarise a trace / plain h5py's read",
        lambda: load([ours]),
        lambda: _read_plain(plain),
        limit=READ_LIMIT,
    )
    print(summary)
    print(_memory(ours, plain))


def _compare_writing(ours: Path, plain: Path, trace: Trace) -> None:
    """Leaves both files behind for the reading."""
    arrays = {name: getattr(trace, name) for name in ARRAYS}

    def remove() -> None:
        ours.unlink(missing_ok=True)
        plain.unlink(missing_ok=True)
        os.sync()  # what the last call left for the disk is its own affair

    writing = compare(
        "write a trace / plain h5py, both with fsync",
        lambda: write_trace(ours, trace),
        lambda: _write_plain(plain, arrays),
        limit=WRITE_LIMIT,
        between=remove,
    )
    print(writing)
    remove()
    write_trace(ours, trace)
    _write_plain(plain, arrays)


def large_trace() -> Trace:
    """A trace of 16 simulated hosts with drifting clocks; every step has a length of its own."""
    generator = np.random.default_rng(0)
    run = RunSpec(
        nodes=128, ranks_per_node=8, gpus_per_node=8, cpus_per_rank=8, backend="torch-ddp", workload="resnet50",
        batch_size=128, precision="fp32", scaling="weak", warmup_steps=WARMUP_STEPS,
        measured_steps=STEPS - WARMUP_STEPS, repeat=1, seed=0, site="bench",
    )  # fmt: skip
    step_ns = generator.normal(350e6, 5e6, (RANKS, STEPS)).astype(np.int64)
    ends = 10**13 + np.cumsum(step_ns, axis=1)
    stamps = np.stack([ends - (step_ns * part).astype(np.int64) for part in (1, 0.95, 0.6, 0.2, 0.1, 0)], axis=2)
    offset = generator.normal(1e12, 1e9, (RANKS, 1))
    points = np.stack([stamps[:, 0, 0] - 10**6, stamps[:, 15, 0], ends[:, -1] + 10**6], axis=1)
    return Trace(
        run=run, attempt=1, outcome=Outcome.OK, stamps=stamps, samples=np.full((RANKS, STEPS), 128, np.int32),
        losses=generator.normal(size=(RANKS, STEPS)), steps_completed=np.full(RANKS, STEPS),
        blocks=np.array([[WARMUP_STEPS, STEPS]]), clock_local_ns=points,
        clock_offset_ns=offset + generator.normal(0, 100, (RANKS, 3)), clock_bound_ns=np.full((RANKS, 3), 5000.0),
        clock_domains=[f"host-{rank // 8}" for rank in range(RANKS)], barrier_exits_ns=points,
        ranks=[_facts(rank) for rank in range(RANKS)], environment={"software": {"numpy": np.__version__}},
    )  # fmt: skip


def _facts(rank: int) -> dict[str, Any]:
    core = rank % 8 * 8
    gpu = {"kind": "gpu", "name": "H200", "uuid": f"GPU-{rank}"}
    return {
        "rank": rank, "hostname": f"n{rank // 8}", "boot_id": f"boot-{rank // 8}", "cpus": 128,
        "affinity": list(range(core, core + 8)), "nvidia_driver": "570.1", "device": gpu,
    }  # fmt: skip


def _write_plain(path: Path, arrays: Mapping[str, Any]) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _read_plain(path: Path) -> dict[str, Any]:
    with h5py.File(path, "r") as file:
        return {name: file[name][()] for name in ARRAYS}


def _memory(ours: Path, plain: Path) -> str:
    """The peak of memory while a trace is summarised, over the bytes of its data."""
    data_bytes = sum(array.nbytes for array in _read_plain(plain).values())
    tracemalloc.start()
    load([ours])
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    ratio = peak_bytes / data_bytes
    verdict = "met" if ratio <= MEMORY_LIMIT else "missed"
    return (
        f"memory of read, convert and summarise / the data: {peak_bytes / 2**20:.0f} MiB / "
        f"{data_bytes / 2**20:.0f} MiB = {ratio:.2f}; limit {MEMORY_LIMIT:g}: {verdict}"
    )


def _help() -> str:
    """How long `rankwise summarize --help` takes, interpreter and all."""
    taken_s = []
    for _ in range(BLOCKS):
        begin = perf_counter()
        subprocess.run([sys.executable, "-m", "parse.summarize", "--help"], check=True, stdout=subprocess.DEVNULL)
        taken_s.append(perf_counter() - begin)
    return against_limit("parse.summarize --help", taken_s, HELP_LIMIT_S, "s")


if __name__ == "__main__":
    main()
