"""The ledger on a real Slurm whose nodes have clocks of their own: who is late, and why. Figures are for `make truth`.

Delays are so long that a busy machine changes no verdict; what else is compared are exact times of the same steps.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parse.ledger.types import PERSISTENT, ROTATING, TRANSIENT
from tests.truth.cases import Expected, Sweep
from tests.truth.compare import compare
from tests.truth.exact import TERMS
from tests.truth.run import Point, points_of, run_sweep
from tests.waiting import LIMIT_S
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import CLOCK_DISTANCE_S

ROOT = Path(__file__).resolve().parents[2]
STEPS, WARMUP = 105, 5
SWEEPS = (
    Sweep(
        backend="mpi",
        varied="compute_ms",
        cases={
            "5+80@rank=1": Expected(kinds=(PERSISTENT,), ranks=(1,), cause="compute"),
            "5+80@rank=2+80@rank=3": Expected(kinds=(PERSISTENT,), ranks=(2, 3), node="node2", cause="compute"),
            "5+80@rank=rotate": Expected(kinds=(ROTATING,), ranks=(0, 1, 2, 3), cause="compute"),
            "5+150@rank=3;every=5": Expected(kinds=(TRANSIENT,), ranks=(3,), cause="compute", every=5),
        },
    ),
    Sweep(
        backend="mpi",
        varied="update_ms",
        cases={"80@rank=2": Expected(kinds=(PERSISTENT,), ranks=(2,), cause="optimizer")},
    ),
)


@pytest.fixture(scope="module")
def traces(cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the runs of all sweeps."""
    folder = tmp_path_factory.mktemp("delays")
    for sweep in SWEEPS:
        run_sweep(sweep, folder, cluster, steps=STEPS, warmup=WARMUP)
    yield folder / "traces"


@pytest.fixture(scope="module")
def points(traces: Path, cluster: DevCluster) -> dict[str, Point]:
    points = points_of(traces, SWEEPS, distance_s=CLOCK_DISTANCE_S if cluster.shape.clocks else 0)
    return {point.value: point for point in points}


@pytest.mark.parametrize(("sweep", "value"), [(sweep, value) for sweep in SWEEPS for value in sweep.cases])
def test_the_ledger_names_the_straggler_and_the_cause(points: dict[str, Point], sweep: Sweep, value: str) -> None:
    point, ledger = points[value], points[value].ledger
    named = (ledger.verdict, *ledger.further)
    # Load that held up a rank in one step may cost more, and is named first.
    verdict = next((each for each in named if each.ranks == sweep.cases[value].ranks), ledger.verdict)
    assert verdict.costs <= ledger.verdict.costs
    compared = compare(replace(ledger, verdict=verdict), point.runs, sweep.cases[value], measured=False)
    assert [miss.text for miss in compared.misses if not miss.machine] == []


@pytest.mark.all
def test_a_sleep_on_one_rank_is_wait_on_the_others(points: dict[str, Point]) -> None:
    """A sleep on one of four ranks is the others' wait; on that rank it has its own name, and least wait.

    So it is by the exact stamps, where load of this machine does not take more than 80 ms in every step.
    """
    for value, term, rank in (("5+80@rank=1", "compute", 1), ("80@rank=2", "optimizer", 2)):
        ledger = points[value].ledger
        names = [term.name for term in ledger.terms]
        exact = np.mean([known.stamped.per_rank for known in points[value].runs], axis=0)
        assert names == list(TERMS) and exact[rank, TERMS.index(term)] >= 80
        assert max(ledger.terms, key=lambda term: term.mean.value).name == TERMS[exact.mean(axis=0).argmax()]
        of_ranks = [place.terms[names.index(term)] for place in ledger.ranks]
        waits = [place.terms[names.index("wait")] for place in ledger.ranks]
        assert of_ranks.index(max(of_ranks)) == exact[:, TERMS.index(term)].argmax()
        assert waits.index(min(waits)) == exact[:, TERMS.index("wait")].argmin()


def test_the_summary_has_the_sentence(traces: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "parse.summarize", str(traces), "--ledger"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    for value, *parts in (
        ("5+80@rank=1", "rank 1 (node1) computes "),
        ("5+80@rank=2+80@rank=3", "node node2 (ranks 2, 3) computes "),
        ("5+80@rank=rotate", "ranks 0 to 3 take turns: in ", "one of them computes "),
        ("5+150@rank=3;every=5", "rank 3 (node2) computes ", " in steps 5, ", " only (one in 5)"),
        ("80@rank=2", "rank 2 (node2) takes ", " longer for its previous optimizer step than the median rank"),
    ):
        _, begins, rest = text.partition(f"{value}: a step takes ")
        assert begins, value
        sentences = rest.partition(": a step takes ")[0]  # load that held up a rank in one step may have one of its own
        assert all(part in sentences for part in parts), sentences
        recorded = re.search(r"which costs .*? ms a step; without that ([\d,.]+) instead of ([\d,.]+) ", sentences)
        assert recorded is not None, sentences
        without, instead = (float(speed.replace(",", "")) for speed in recorded.groups())
        assert without > instead
