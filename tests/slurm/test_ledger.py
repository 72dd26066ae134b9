"""The ledger on a real Slurm whose nodes have clocks of their own: who is late, and why. Figures are for `make truth`.

Delays are so long that a busy machine changes no verdict; what else is compared are exact times of the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parse.ledger.verdict import PERSISTENT, ROTATING, TRANSIENT
from tests.truth.cases import Expected, Sweep
from tests.truth.compare import compare
from tests.truth.run import Point, points_of, run_sweep
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


# test_own_script.py names a late rank here; the figures are of `make truth`.
@pytest.mark.all
@pytest.mark.parametrize(("sweep", "value"), [(sweep, value) for sweep in SWEEPS for value in sweep.cases])
def test_the_ledger_names_the_straggler_and_the_cause(points: dict[str, Point], sweep: Sweep, value: str) -> None:
    point, ledger = points[value], points[value].ledger
    named = ledger.stragglers
    # Load that held up a rank in one step may cost more, and is named first.
    verdict = next((each for each in named if each.ranks == sweep.cases[value].ranks), ledger.verdict)
    compared = compare(replace(ledger, verdict=verdict), point.runs, sweep.cases[value], measured=False)
    assert [miss.text for miss in compared.misses if not miss.machine] == []
