"""What `rankwise observe` costs a step, the helper beside each rank counted: CPU time of all processes, in pairs.

Two ranks train by DDP under torchrun, with it and without by turns. A step works for about a ms and sleeps until its
length is over, because the CPU time of longer work scatters by more than what is looked for. Counted is what all tasks
of the launch were on a core (`/proc/PID/task/TID/schedstat`) from one step to a later one: imports, the search for
models, the end and the trace are not in it. What the helpers and the node's agent take themselves needs no pair, and
is known where the difference is lost in what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RANKS = 2
WARM_UP = 60
LIMITS: Mapping[int, float] = {10: 0.5, 100: 0.1}
"""Per cent of a step of so many ms."""
WINDOW_S = 20
"""Longer than from one store of the journal to the next."""
PATIENCE_S = 300


def train(folder: Path, step_ms: int) -> None:
    """The script of a rank; says by files when the steps that count begin and have ended."""
    import torch
    import torch.distributed as dist

    from benchmarks.bench_observe import training

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step, rank = training(4, 32, 16), dist.get_rank()
    counted = WINDOW_S * 1000 // step_ms
    next_s = time.monotonic()
    for number in range(WARM_UP + counted):
        if number == WARM_UP:
            (folder / f"begin.{rank}").touch()
        step()
        next_s = max(next_s + step_ms / 1e3, time.monotonic())
        time.sleep(max(0.0, next_s - time.monotonic()))
    (folder / f"end.{rank}").touch()
    time.sleep(1)  # until it is read
    dist.destroy_process_group()


def cpu_ns(pid: int) -> tuple[int, int]:
    """What the tasks of a process and of all that descend from it have been on a core, and those of Rankwise alone."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    tree = {pid}
    while more := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= more
    total = beside = 0
    for each in tree:
        with suppress(OSError):
            ran = sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{each}/task").glob("*/schedstat"))
            words = Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")
            total += ran
            beside += ran * (each != pid and bool({b"hpc.observe", b"hpc.node_agent"}.intersection(words)))
    return total, beside


def measure(step_ms: int, *, observed: bool) -> tuple[float, float]:
    """CPU time of a step and rank, ms: all, and that of Rankwise's own processes. Raises RuntimeError where the launch
    does not end well."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prefix = ["-m", "hpc.observe", "--traces", str(folder / "traces"), "--"] if observed else []
        command = [
            str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", str(RANKS), "--standalone",
            *prefix, __file__, "--train", str(folder), str(step_ms),
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with (folder / "log").open("w") as log:
            launch = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            try:
                begin_ns = _at(launch, folder / "begin.0")
                end_ns = _at(launch, folder / "end.0")
                status = launch.wait(PATIENCE_S)
            finally:
                launch.kill()
        if status:
            raise RuntimeError((folder / "log").read_text())
    steps = RANKS * WINDOW_S * 1000 // step_ms
    total, beside = ((end - begin) / 1e6 / steps for begin, end in zip(begin_ns, end_ns, strict=True))
    return total, beside


def _at(launch: subprocess.Popen[bytes], path: Path) -> tuple[int, int]:
    """The CPU time of the launch when there is such a file."""
    limit_s = time.monotonic() + PATIENCE_S
    while not path.exists():
        if launch.poll() is not None or time.monotonic() > limit_s:
            raise RuntimeError(f"{path.name}: never\n{(path.parent / 'log').read_text()}")
        time.sleep(0.005)
    return cpu_ns(launch.pid)


def main(argv: Sequence[str] | None = None) -> int:
    from benchmarks.pairs import against_limit

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=6, help="of launches, for each length of a step")
    parser.add_argument("--train", nargs=2, metavar=("DIR", "MS"), help="be the script of a rank")
    arguments = parser.parse_args(argv)
    if arguments.train:
        train(Path(arguments.train[0]), int(arguments.train[1]))
        return 0
    for step_ms, limit in LIMITS.items():
        shares, of_own = [], []
        for number in range(arguments.pairs):
            taken = {
                observed: measure(step_ms, observed=observed) for observed in ((True, False)[:: 1 - 2 * (number % 2)])
            }
            (with_ms, own_ms), (without_ms, _) = taken[True], taken[False]
            shares.append(100 * (with_ms - without_ms) / step_ms)
            of_own.append(100 * own_ms / step_ms)
            print(
                f"{step_ms} ms: {with_ms:.4f} ms with, {without_ms:.4f} ms without: {shares[-1]:+.3f} %; "
                f"helper and agent {of_own[-1]:.3f} %",
                flush=True,
            )
        print(against_limit(f"hpc.observe with its helper, step of {step_ms} ms", shares, limit, "% of the step"))
        print(against_limit("helper and agent alone", of_own, limit, "% of the step"), flush=True)
    return 0


if __name__ == "__main__":
    sys.path.append(str(ROOT))  # where it is the script of a rank
    sys.exit(main())
