"""Forecasts of four hosts from fewer, against what the four then did: `python -m tests.truth.forecasts [--keep DIR]`.

Sweeps of the workload `delay`, whose compute has a known scatter, under a real Slurm on hosts with a network of known
delay and rate: one, two, three and four of them, nested, so that sizes follow each other in an order that a seed
shuffles. The speed of four is forecast from one, two and three, and from one and two. `--traces DIR` looks once more at
what was kept, `--only NUMBER` at one network. Ends with 1 where fewer than 17 of 20 are inside their interval, 2 where
the runs could not be made. Needs Slurm and what benchmarks.network needs.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.network import ROOT, NetworkError, Paths, refused
from hpc.model.trace_file import open_trace
from parse import forecast
from parse.extrapolation.step_terms import run_terms
from tests.truth.forecast_model import PARAMETERS
from tests.truth.slurm_hosts import SlurmHosts

SIZES, STEPS, WARMUP, SWEEPS, BATCH = (1, 2, 3, 4), 60, 5, 4, 4
FROM = ((1, 2, 3), (1, 2))
LIMIT = 17 / 20


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network's delay of a message and its rate, and the scatter of what a rank computes in 60 ms."""

    delay_ms: float
    scatter: float = 0.1
    rate_mbit: float | None = None

    @property
    def paths(self) -> Paths:
        return Paths(name=str(self), delay_us=1e3 * self.delay_ms, rate_mbit=self.rate_mbit)

    @property
    def workload(self) -> list[str]:
        """As options of a sweep; where the rate is limited, with a gradient that shows it."""
        if self.rate_mbit is not None:
            return ["--workload", f"{HEAVY}:Heavy"]
        return ["--workload", "delay", "--option", f"compute_ms=60@scatter={self.scatter}"]

    def __str__(self) -> str:
        rate = "" if self.rate_mbit is None else f", {self.rate_mbit:g} Mbit/s and {4 * PARAMETERS / 1e3:.0f} kB"
        return f"{self.delay_ms:g} ms{rate}, scatter {self.scatter:g}"


HEAVY = Path(__file__).with_name("forecast_model.py")
CASES = (
    Case(delay_ms=10), Case(delay_ms=10, scatter=0.3), Case(delay_ms=20), Case(delay_ms=20, scatter=0.3),
    Case(delay_ms=5, rate_mbit=50),
)  # fmt: skip


def run_all(folder: Path, cases: Mapping[int, Case]) -> None:
    """The sweeps of all cases: `folder`/NUMBER-SEED has the jobs and traces of one. Raises NetworkError."""
    if reason := refused():
        raise NetworkError(f"no hosts with networks of their own can be had here: {reason}")
    for number, case in cases.items():
        with SlurmHosts(case.paths, max(SIZES)) as hosts:
            for seed in range(SWEEPS):
                out = folder / f"{number}-{seed}"
                hosts.run(
                    "env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "hpc.sweep", "--site", hosts.site_file,
                    "--nodes", ",".join(map(str, SIZES)), "--placement", "nested", "--no-baseline", "--backend", "mpi",
                    *case.workload, "--batch-size", BATCH, "--steps", WARMUP + STEPS, "--warmup", WARMUP,
                    "--repeats", "1", "--seed", seed, "--out", out, timeout_s=900,
                )  # fmt: skip
                print(f"{case}: sweep {seed + 1} of {SWEEPS}", file=sys.stderr, flush=True)


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
    return Scored(**size["speed"], truth=BATCH * max(SIZES) * 1e3 / step_ms, sleep_ms=of_run.compute)


def trace_of(traces: Path, nodes: int) -> Path:
    """The trace of the run on so many hosts. Raises NetworkError."""
    for path in (traces / "traces").glob(f"{nodes}n1g*.h5"):
        return path
    raise NetworkError(f"{traces} holds no run on {nodes} hosts")


def main() -> int:
    """Command line: 0 where enough are inside, 1 where not, 2 where the runs could not be made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the traces there")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="run nothing; look at what was kept there")
    parser.add_argument("--only", type=int, choices=range(len(CASES)), metavar="NUMBER", help="one network, from 0")
    arguments = parser.parse_args()
    cases = {number: case for number, case in enumerate(CASES) if arguments.only in (None, number)}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that the hosts are ended
    failed = False
    with tempfile.TemporaryDirectory(prefix="rw-", dir="/var/tmp") as scratch:
        folder = arguments.traces or arguments.keep or Path(scratch)
        try:
            if arguments.traces is None:
                folder.mkdir(parents=True, exist_ok=True)
                run_all(folder, cases)
            for sizes in FROM:
                name, all_inside = f"from {', '.join(map(str, sizes))} hosts", list[bool]()
                for number, case in cases.items():
                    read = [scored(folder / f"{number}-{seed}", sizes) for seed in range(SWEEPS)]
                    all_inside += [each is not None and each.inside for each in read]
                    if not (its := [each for each in read if each is not None]):
                        print(f"{name}, {case}: cannot tell")
                        continue
                    off = [each.value / each.truth - 1 for each in its]
                    wide = [(each.high - each.low) / each.truth for each in its]
                    print(
                        f"{name}, {case}: {sum(each.inside for each in its)} of {SWEEPS} inside, {SWEEPS - len(its)} "
                        f"cannot tell; error {100 * np.median(off):+.1f} %, width {100 * np.median(wide):.0f} %; 60 ms "
                        f"of sleep took {max(each.sleep_ms for each in its):.0f} ms at most"
                    )
                print(f"{name}: {sum(all_inside)} of {len(all_inside)} inside")
                failed |= sum(all_inside) < LIMIT * len(all_inside)
        except NetworkError as error:
            print(error, file=sys.stderr)
            return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
