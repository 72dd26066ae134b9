"""The global clock beside the plain method on the same ranks: error, bound, length; and thousands of hosts simulated.

`python -m benchmarks.bench_clock [--repeats 20] [--only CASE]`: a repeat is three synchronisations of each in a case.
What needs hosts of their own is left out, with the reason, where they cannot be made.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.clock_ranks import METHODS
from benchmarks.clock_tree import Hosts, synchronise
from benchmarks.network import ROOT, Network, Paths, refused
from benchmarks.pairs import against_limit
from hpc.model.clock_model import STAR, ClockModel, SyncPoint

LIMIT = 1.1
HOST_CASES = (
    (Paths(name="4 hosts, quiet"), 0),
    (Paths(name="100 ± 20 µs", delay_us=100, jitter_us=20), 0),
    (Paths(name="100 / 300 µs", delay_us=100, back_us=300), 0),
    (Paths(name="100 ± 20 µs, 1 % lost", delay_us=100, jitter_us=20, loss_percent=1), 0),
    (Paths(name="4 hosts, cores busy"), 2),
)
HEAD = "| ranks | | error after a synchronisation, µs | bound | error between two | bound | held | one takes, s |"


@dataclass(frozen=True)
class MethodResult:
    """What one method's repeats in one case gave; errors, bounds [repeat, rank other than 0, requested time] in ns."""

    after: NDArray[np.float64]
    after_bound: NDArray[np.float64]
    between: NDArray[np.float64]
    between_bound: NDArray[np.float64]
    took_s: NDArray[np.float64]

    @classmethod
    def of(cls, repeats: list[list[dict[str, Any]]]) -> MethodResult:
        """From what benchmarks.clock_ranks printed of it."""
        after, between = (
            np.array([[r[when] for r in ranks[1:]] for ranks in repeats]) for when in ("after", "between")
        )
        took_s = np.array([ranks[0]["took_s"] for ranks in repeats])
        return cls(np.abs(after[..., 0]), after[..., 1], np.abs(between[..., 0]), between[..., 1], took_s)

    @property
    def held(self) -> tuple[int, int]:
        """How many errors were inside their bounds, and of how many."""
        inside = [self.after <= self.after_bound, self.between <= self.between_bound]
        return sum(int(part.sum()) for part in inside), sum(part.size for part in inside)

    def row(self, case: str, method: str) -> str:
        """A line of the table."""
        inside, count = self.held
        return (
            f"| {case} | {method} | {_median_and_most(self.after)} | {np.median(self.after_bound) / 1e3:.2f} "
            f"| {_median_and_most(self.between)} | {np.median(self.between_bound) / 1e3:.2f} | {inside} of {count} "
            f"| {np.median(self.took_s):.4f} |"
        )


def main() -> None:
    """Prints a table of the cases with the ratios below each, one of simulated hosts, and what converting takes."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_clock", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--repeats", type=int, default=20, help="of three synchronisations in each case")
    parser.add_argument("--only", default="", help="cases whose name has this in it, and nothing else")
    options = parser.parse_args()
    print(HEAD)
    _measure(options.repeats, options.only)
    if options.only:
        return
    print("\n| simulated hosts | hops at most | exchanges in a row | error / bound at most | bound, µs, by hops |")
    for hosts in (4, 32, 33, 256, 1024, 4096):
        print(_simulated(hosts))
    print()
    for line in _converting():
        print(line)


def _measure(repeats: int, only: str) -> None:
    for size, name in ((2, "2, shared memory"), (4, "4, shared memory")):
        if only in name:
            _show(name, _local(size, repeats), compare=False)  # ranks of one clock exchange nothing in a real run
    if reason := refused():
        print(f"no hosts of their own here: {reason}")
        return
    for paths, busy in HOST_CASES:
        if only in paths.name:
            with Network(paths) as network, busy_cores(busy):
                argv = ["-m", "benchmarks.clock_ranks", str(repeats)]
                _show(paths.name, network.run(*argv, timeout_s=60 + 30 * repeats))


def _show(case: str, printed: str, *, compare: bool = True) -> None:
    results = {name: MethodResult.of(repeats) for name, repeats in json.loads(printed).items()}
    for name in METHODS:
        print(results[name].row(case, name))
    ours, plain = (results[name] for name in METHODS)
    for what in ("after", "between", "took_s") if compare else ():
        ratios = [
            float(np.median(a) / np.median(b)) for a, b in zip(getattr(ours, what), getattr(plain, what), strict=True)
        ]
        print(against_limit(f"  {case}: ours / plain, {what}", ratios, LIMIT, ""), flush=True)


def _local(size: int, repeats: int) -> str:
    settings = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    argv = ["mpiexec", "-n", str(size), sys.executable, "-m", "benchmarks.clock_ranks", str(repeats)]
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, **settings}, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Meanwhile so many processes do nothing but compute."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _simulated(count: int) -> str:
    hosts, points = Hosts.drawn(count, path_ns=20_000, seed=count), [list[SyncPoint]() for _ in range(count)]
    outcome = synchronise(hosts, points, 10**9, STAR)
    share = np.abs(outcome.error_ns[1:]) / outcome.bound_ns[1:]
    by_hops = ", ".join(
        f"{np.median(outcome.bound_ns[outcome.hops == n]) / 1e3:.0f}" for n in range(1, outcome.hops.max() + 1)
    )
    return f"| {count} | {outcome.hops.max()} | {outcome.rounds} | {share.max():.2f} | {by_hops} |"


def _converting() -> Iterator[str]:
    """Stamps of 1024 ranks × 1000 steps with the points of a run of three, and of a hundred."""
    generator = np.random.default_rng(0)
    ends = 10**13 + np.cumsum(generator.normal(350e6, 5e6, (1024, 1000)).astype(np.int64), axis=1)
    stamps = (ends[:, :, np.newaxis] - np.linspace(3e8, 0, 6).astype(np.int64)).reshape(1024, -1)
    offset = generator.normal(1e12, 1e9, (1024, 1))
    for count in (3, 100):
        local = np.linspace(10**13, int(ends.max()) + 10**6, count).astype(np.int64) + generator.integers(
            0, 10**6, (1024, 1)
        )
        points = local, offset + generator.normal(0, 100, local.shape), np.full(local.shape, 5000.0)
        out = np.empty_like(stamps)
        tasks: dict[str, tuple[Callable[[ClockModel], object], float]] = {
            "6 M stamps": (lambda clock: clock.to_global(stamps, out), 0.15),  # noqa: B023 - called in this very turn
            "bounds of 1 M": (lambda clock: clock.bounds_ns(stamps[:, 3::6]), 0.1),
        }
        for name, (convert, limit_s) in tasks.items():
            taken_s = []
            for _ in range(10):
                begin_s = perf_counter()
                convert(ClockModel(*points))
                taken_s.append(perf_counter() - begin_s)
            yield against_limit(f"convert {name}, {count} points a rank", taken_s, limit_s, "s")


def _median_and_most(values_ns: NDArray[np.float64]) -> str:
    return f"{np.median(values_ns) / 1e3:.2f} ({values_ns.max() / 1e3:.1f})"


if __name__ == "__main__":
    main()
