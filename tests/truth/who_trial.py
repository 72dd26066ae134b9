"""Known delays drawn into cells, and what the search makes of them: `python -m tests.truth.who_trial`.

21 kinds of delay × 6 kinds of scatter × 4, 16 and 512 ranks, each against the same draws without the delay: who is
named, and what is saved against what the steps really were longer by. Ends with 1 where fewer than NAMED of the delays
in a tenth of the steps or more are named, fewer than EXACT of the costs are within CLOSE of the truth, or more than
ACCUSED are named without a cause.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from parse.ledger.cells import CellWindow
from parse.ledger.who import Kind, Named, search

Floats = npt.NDArray[np.float64]
Delay = Callable[[int, np.random.Generator, Floats], set[int]]
"""Of the number of a run, its generator and own times [step, rank] in ms: adds the delay, returns who is late."""

SCATTERS = ("normal", "autoregressive", "heavy tails", "skewed", "two modes", "common to all")
STEPS, STEP_MS, SCATTER_MS = 120, 20.0, 0.3
NAMED, EXACT, CLOSE, ACCUSED = 0.97, 0.95, 0.1, 0.01
SHOWN_MS = 0.05
"""What makes a step longer by less, 0.25 %, next to nothing of many ranks, is held against none of these."""


def scatter(generator: np.random.Generator, kind: str, ranks: int) -> Floats:
    """Of a run [step, rank], ms."""
    drawn = generator.standard_normal((STEPS, ranks))
    match kind:
        case "autoregressive":
            before = np.zeros(ranks)
            for step in range(STEPS):
                before = drawn[step] = 0.8 * before + 0.6 * drawn[step]
        case "heavy tails":
            drawn = np.clip(0.6 * generator.standard_t(2.5, (STEPS, ranks)), -4, 12)
        case "skewed":
            drawn = generator.exponential(1, (STEPS, ranks)) - 1
        case "two modes":
            drawn = 0.4 * drawn + np.where(generator.random((STEPS, ranks)) < 0.05, 6, 0)
        case "common to all":
            drawn = 0.6 * drawn + 1.5 * generator.standard_normal(STEPS)[:, None]
    return np.maximum(SCATTER_MS * drawn, -3 * SCATTER_MS)


def always(ms: float, *ranks: int) -> Delay:
    def late(run: int, generator: np.random.Generator, own_ms: Floats) -> set[int]:
        own_ms[:, list(ranks)] += ms
        return {*ranks}

    return late


def in_share(ms: float, share: float, rank: int = 1) -> Delay:
    def late(run: int, generator: np.random.Generator, own_ms: Floats) -> set[int]:
        own_ms[generator.random(len(own_ms)) < share, rank] += ms
        return {rank}

    return late


def every(ms: float, period: int, rank: int = 2) -> Delay:
    def late(run: int, generator: np.random.Generator, own_ms: Floats) -> set[int]:
        own_ms[period - 1 :: period, rank] += ms
        return {rank}

    return late


def by_run(ms: float, *ranks: int) -> Delay:
    """Another in each run; −1 for nobody."""

    def late(run: int, generator: np.random.Generator, own_ms: Floats) -> set[int]:
        if ranks[run] >= 0:
            own_ms[:, ranks[run]] += ms
        return {rank for rank in ranks if rank >= 0}

    return late


def all_but(ms: float, rank: int) -> Delay:
    def late(run: int, generator: np.random.Generator, own_ms: Floats) -> set[int]:
        own_ms[:, np.arange(own_ms.shape[1]) != rank] += ms
        return {rank}

    return late


def turns(ms: float) -> Delay:
    def late(run: int, generator: np.random.Generator, own_ms: Floats) -> set[int]:
        own_ms[::2, 2] += ms
        own_ms[1::2, 3] += ms
        return {2, 3}

    return late


def course(of_step: Callable[[Floats], Floats], rank: int = 1) -> Delay:
    def late(run: int, generator: np.random.Generator, own_ms: Floats) -> set[int]:
        own_ms[:, rank] += of_step(np.linspace(0, 1, len(own_ms)))
        return {rank}

    return late


def together(*delays: Delay) -> Delay:
    def late(run: int, generator: np.random.Generator, own_ms: Floats) -> set[int]:
        return {rank for delay in delays for rank in delay(run, generator, own_ms)}

    return late


KINDS: Mapping[str, Delay] = {
    "nothing": always(0.0), "one rank": always(3, 2), "one rank, little": always(0.3, 2), "a pair": always(3, 2, 3),
    "a pair, little": always(0.6, 2, 3), "in half of the steps": in_share(5, 0.5), "in 30 %": in_share(5, 0.3),
    "in 10 %": in_share(5, 0.1), "in 4 %": in_share(10, 0.04), "every second step": every(5, 2),
    "every tenth step": every(8, 10), "another in each run": by_run(3, 0, 3, 1),
    "one run of three": by_run(3, -1, 2, -1),
    "one is faster": all_but(4, 0), "two in turn": turns(4),
    "from mid-run": course(lambda at: np.where(at >= 0.5, 4.0, 0.0)),
    "a ramp": course(lambda at: 6 * at), "two ranks": together(always(4, 0), always(2, 2)),
    "two kinds": together(always(3, 0), every(8, 10, 2)),
    "four of four": together(always(2, 0), every(10, 10, 2), in_share(6, 0.2, 1), every(9, 7, 3)),
    "half of the ranks": together(always(3, 0), always(3, 1)),
}  # fmt: skip
SELDOM = "in 4 %"
THREE_RUNS = ("another in each run", "one run of three")


@dataclass
class Count:
    """What became of draws: those that should be named and are, costs that are close, accused without a cause."""

    expected: int = 0
    named: int = 0
    costs: list[float] = field(default_factory=list)
    silent: int = 0
    accused: int = 0

    @property
    def holds(self) -> bool:
        """Whether all three are as they must be."""
        exact = np.mean(np.abs(np.array(self.costs) - 1) <= CLOSE) if self.costs else 1.0
        return bool(
            self.named >= NAMED * self.expected and exact >= EXACT and self.accused <= max(1, ACCUSED * self.silent)
        )


def drawn(kind: str, how: str, ranks: int, seed: int) -> tuple[list[Named], set[int], float]:
    """What is findings in a draw, who is late, and by how much the steps are longer for it, ms."""
    late, usual, late_ranks = [], [], set[int]()
    for run in range(3 if kind in THREE_RUNS else 2):
        generator = np.random.default_rng((seed, run, zlib.crc32(kind.encode())))
        own_ms = STEP_MS + scatter(generator, how, ranks)
        usual.append(own_ms.copy())
        late_ranks |= KINDS[kind](run, generator, own_ms)
        late.append(own_ms)
    own_ms, without = np.concatenate(late), np.concatenate(usual)
    cells = np.rint((own_ms - np.median(own_ms, axis=1)[:, None]) * 1e6).astype(np.int64)
    findings = search(
        CellWindow(
            late=cells, run=np.repeat(np.arange(len(late)), STEPS), roles=np.zeros(ranks, np.int64),
            nodes=np.arange(ranks) // 2, step_ns=float(own_ms.max(axis=1).mean()) * 1e6,
        )
    )  # fmt: skip
    return findings, late_ranks, float((own_ms.max(axis=1) - without.max(axis=1)).mean())


def trial(ranks: int, seeds: Sequence[int], kinds: Sequence[str] = (*KINDS,)) -> Count:
    """Of so many ranks; prints a line for each kind."""
    total = Count()
    for kind in kinds:
        right, costs = 0, []
        for how in SCATTERS:
            for seed in seeds:
                findings, late_ranks, longer = drawn(kind, how, ranks, seed)
                named = {rank for each in findings for rank in each.ranks}
                if kind == "nothing":
                    total.silent += 1
                    total.accused += bool(findings)
                    right += not findings
                    continue
                right += late_ranks <= named
                if kind != "one is faster" and longer >= SHOWN_MS:
                    costs.append(sum(each.saves_ns for each in findings if each.kind is not Kind.FASTER) / 1e6 / longer)
                if kind != SELDOM and (longer >= SHOWN_MS or kind == "one is faster"):
                    total.expected += 1
                    total.named += late_ranks <= named
        total.costs += costs
        exact = f", saved / true {np.median(costs):.2f} [{min(costs):.2f}, {max(costs):.2f}]" if costs else ""
        print(f"{ranks:4} ranks  {kind:22} {right:3} of {len(SCATTERS) * len(seeds)}{exact}", flush=True)
    return total


def main() -> int:
    """Prints a line for each kind and number of ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=5, metavar="N", help="so many of 4 ranks; fewer of more")
    draws = parser.parse_args().draws
    counts = [trial(ranks, range(max(1, draws // part))) for ranks, part in ((4, 1), (16, 2), (512, 5))]
    for count in counts:
        close = np.mean(np.abs(np.array(count.costs) - 1) <= CLOSE)
        print(f"named {count.named} of {count.expected}; {100 * close:.0f} % of the costs within 10 %; "
              f"{count.accused} of {count.silent} accused")  # fmt: skip
    return 0 if all(count.holds for count in counts) else 1


if __name__ == "__main__":
    sys.exit(main())
