"""Forecasts of four hosts from fewer, against what the four then did: `python -m tests.truth.forecasts [--keep DIR]`.

Sweeps of the workload `delay`, whose compute has a known scatter, on hosts with a network of known delay: one, two,
three and four of them. The speed of four is forecast from one, two and three, and from one and two. `--traces DIR`
looks once more at what was kept. Ends with 1 where fewer than 17 of 20 are inside their interval, 2 where the runs
could not be made. Needs what benchmarks.network needs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.network import Network, NetworkError, Paths, refused
from hpc import rank
from hpc.model.spec import RunSpec
from hpc.model.trace_file import open_trace
from parse import forecast
from parse.extrapolation.step_terms import run_terms

SIZES, STEPS, WARMUP, SWEEPS = (1, 2, 3, 4), 60, 5, 5
FROM = ((1, 2, 3), (1, 2))
NETWORKS = ((10, 0.1), (10, 0.3), (20, 0.1), (20, 0.3))
"""Each one's delay of a message, ms, and the scatter of what a rank computes in 60 ms; SWEEPS sweeps on each."""
LIMIT = 17 / 20


def spec(nodes: int, scatter: float, seed: int) -> RunSpec:
    """A training of one rank per node."""
    return RunSpec(
        nodes=nodes, ranks_per_node=1, gpus_per_node=0, cpus_per_rank=1, backend="mpi", workload="delay", batch_size=4,
        precision="fp32", scaling="weak", warmup_steps=WARMUP, measured_steps=STEPS, repeat=1, seed=seed, site="hosts",
        options={"compute_ms": f"60@scatter={scatter}"},
    )  # fmt: skip


def run_all(folder: Path) -> None:
    """The runs of all sweeps: `folder`/NETWORK-SEED has the traces of one. Raises NetworkError."""
    if reason := refused():
        raise NetworkError(f"no hosts with networks of their own can be had here: {reason}")
    (script := folder / "job.sh").write_text("#!/bin/sh\n")
    for number, (delay_ms, scatter) in enumerate(NETWORKS):
        with Network(Paths(name=f"{delay_ms} ms", delay_us=1e3 * delay_ms), max(SIZES)) as network:
            for nodes in SIZES:
                print(f"{delay_ms} ms, {nodes} hosts", flush=True)
                starts = []
                for seed in range(SWEEPS):
                    run = spec(nodes, scatter, seed)
                    (traces := folder / f"{number}-{seed}").mkdir(exist_ok=True)
                    (described := folder / f"{number}-{run.run_id}.json").write_text(json.dumps(run.to_json()))
                    starts.append(
                        [str(each) for each in (described, "--attempt", 1, "--traces", traces, "--script", script)]
                    )
                network.run("-m", "tests.truth.forecasts", "--ranks", json.dumps(starts), ranks=nodes, timeout_s=600)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Speeds of four hosts, samples/s: the interval of the forecast, and what they did; what 60 ms of sleep took."""

    low: float
    value: float
    high: float
    truth: float
    sleep_ms: float

    @property
    def inside(self) -> bool:
        return self.low <= self.truth <= self.high


def scored(traces: Path, sizes: Sequence[int]) -> Scored | None:
    """The forecast from these sizes of a sweep; None where it cannot tell. Raises NetworkError where a run lacks."""
    with tempfile.TemporaryDirectory() as scratch:
        for nodes in sizes:
            shutil.copy(trace_of(traces, nodes), scratch)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            forecast.main([scratch, "--nodes", str(max(SIZES)), "--format", "json"])
    (series,) = json.loads(out.getvalue())["series"]
    if series["steps"] is None or not series["steps"]["sizes"]:
        return None
    (size,) = series["steps"]["sizes"]
    with open_trace(trace_of(traces, max(SIZES))) as trace:
        of_run = run_terms(trace, 1.0)
    step_ms = float(of_run.work.work.max(axis=0).mean() + of_run.added.mean())
    return Scored(**size["speed"], truth=4 * max(SIZES) * 1e3 / step_ms, sleep_ms=of_run.compute)


def trace_of(traces: Path, nodes: int) -> Path:
    """The trace of the run on so many hosts. Raises NetworkError."""
    for path in traces.glob(f"{nodes}n1g*.h5"):
        return path
    raise NetworkError(f"{traces} holds no run on {nodes} hosts")


def main() -> int:
    """Command line: 0 where enough are inside, 1 where not, 2 where the runs could not be made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the traces there")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="run nothing; look at what was kept there")
    parser.add_argument("--ranks", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ranks is not None:
        return max(rank.main(argv) for argv in json.loads(arguments.ranks))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that the hosts are ended
    failed = False
    with tempfile.TemporaryDirectory(prefix="rw-", dir="/var/tmp") as scratch:
        folder = arguments.traces or arguments.keep or Path(scratch)
        try:
            if arguments.traces is None:
                folder.mkdir(parents=True, exist_ok=True)
                run_all(folder)
            for sizes in FROM:
                all_inside = []
                for number, (delay_ms, scatter) in enumerate(NETWORKS):
                    read = [scored(folder / f"{number}-{seed}", sizes) for seed in range(SWEEPS)]
                    all_inside += [each is not None and each.inside for each in read]
                    if not (its := [each for each in read if each is not None]):
                        print(f"from {', '.join(map(str, sizes))} hosts, {delay_ms} ms, scatter {scatter}: cannot tell")
                        continue
                    off = [each.value / each.truth - 1 for each in its]
                    wide = [(each.high - each.low) / each.truth for each in its]
                    print(
                        f"from {', '.join(map(str, sizes))} hosts, {delay_ms} ms, scatter {scatter}: "
                        f"{sum(each.inside for each in its)} of {SWEEPS} inside, {SWEEPS - len(its)} cannot tell; "
                        f"error {100 * np.median(off):+.1f} %, "
                        f"width {100 * np.median(wide):.0f} %; "
                        f"60 ms of sleep took {max(each.sleep_ms for each in its):.0f} ms at most",
                        flush=True,
                    )
                print(f"from {', '.join(map(str, sizes))} hosts: {sum(all_inside)} of {len(all_inside)} inside")
                failed |= sum(all_inside) < LIMIT * len(all_inside)
        except NetworkError as error:
            print(error, file=sys.stderr)
            return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
