"""Delays injected into each run, and the verdict expected of its ledger. Runs on 2 nodes × 2 ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc.model.run_fields import RunFields
from parse.ledger.verdict import NONE, PERSISTENT, ROTATING, TRANSIENT

NODES, RANKS_PER_NODE = 2, 2
RANKS = NODES * RANKS_PER_NODE
WARMUP, STEPS = 10, 75
UNDELAYED = range(3)
"""Delays of 0 on these ranks: as many runs in the same job, in which nobody is late."""
MODELS = Path(__file__).with_name("ddp_models.py")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The right verdict: one of `kinds`, and if it names stragglers, these ranks and this cause.

    The straggler is late every `every` steps. `meeting` is the collective before which most of its delay arises, as the
    ledger names it, where a step has several. `merged`: the terms from batch to reduction must be reported as one.
    """

    kinds: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    node: str = ""
    cause: str = ""
    every: int = 1
    meeting: str = ""
    merged: bool = False


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Runs of one command, alike except for one option or one environment variable with several values.

    `varied` is its name, `cases` maps each value to the expected verdict. `measured`: values are compared with the
    sleeps, which a real training does not allow. `baseline` adds the runs on one rank.
    """

    backend: str
    varied: str
    cases: Mapping[str, Expected]
    workload: str = "delay"
    options: Mapping[str, str] = field(default_factory=dict)
    repeats: int = 1
    baseline: bool = False

    @property
    def measured(self) -> bool:
        """Whether its steps consist of recorded sleeps only."""
        return self.workload == "delay"

    @property
    def name(self) -> str:
        """Backend, workload, the options that differ from their defaults, and what is varied: of each another."""
        options = (f"{name}={value}" for name, value in self.options.items())
        return " ".join([self.backend, self.workload.rpartition(":")[2], *options, self.varied])

    @property
    def is_option(self) -> bool:
        """Whether `varied` is an option; otherwise it is an environment variable."""
        return self.varied.islower()

    @property
    def undelayed(self) -> tuple[str, ...]:
        """The values that delay nobody: the same work without the delay, in the same job."""
        return tuple(value for value, expected in self.cases.items() if not expected.ranks)

    def value_of(self, run: RunFields) -> str | None:
        """The run's value of `varied`; None for a run of another sweep."""
        options = dict(run.options)
        value = options.pop(self.varied, None) if self.is_option else run.env.get(self.varied)
        same_file = _file(run.workload or "") == _file(self.workload)
        same = same_file and run.backend == self.backend and options == self.options
        return value if same and run.ranks == RANKS and value in self.cases else None

    @property
    def runs(self) -> int:
        """Number of runs without the baseline."""
        return len(self.cases) * self.repeats


def _file(workload: str) -> str:
    """A workload without the folder of its file, which differs in traces from another checkout."""
    return workload.rpartition("/")[2]


NOBODY = Expected(kinds=(NONE,))


def _persistent(rank: int, cause: str, **more: Any) -> Expected:
    return Expected(kinds=(PERSISTENT,), ranks=(rank,), cause=cause, **more)


def _node(number: int) -> Expected:
    ranks = tuple(range((number - 1) * RANKS_PER_NODE, number * RANKS_PER_NODE))
    return Expected(kinds=(PERSISTENT,), ranks=ranks, node=f"node{number}", cause="compute")


def _tenth(rank: int) -> Expected:
    return Expected(kinds=(TRANSIENT,), ranks=(rank,), cause="compute", every=10)


def _delays(backend: str, quiet: int) -> tuple[Sweep, ...]:
    """The `delay` workload: each kind of delay on each rank, and `quiet` runs without delays."""
    ranks = range(RANKS)
    on_one = {f"10+30@rank={rank}": _persistent(rank, "compute") for rank in ranks}
    on_node = {
        "10+30@rank=0+30@rank=1": _node(1),
        "10+30@rank=2+30@rank=3": _node(2),
    }
    rotating = {"10+30@rank=rotate": Expected(kinds=(ROTATING,), ranks=tuple(ranks), cause="compute")}
    tenth = {f"10+30@rank={rank};every=10": _tenth(rank) for rank in ranks}
    data = {f"20@rank={rank}": _persistent(rank, "data") for rank in ranks}
    update = {f"10@rank={rank}": _persistent(rank, "optimizer") for rank in ranks}
    computes = {"compute_ms": "10"}
    of_compute = {f"10+0@rank={rank}": NOBODY for rank in UNDELAYED}
    nobody = {f"0@rank={rank}": NOBODY for rank in UNDELAYED}
    return (
        Sweep(backend=backend, varied="compute_ms", cases={"10": NOBODY}, repeats=quiet, baseline=True),
        Sweep(backend=backend, varied="compute_ms", cases=of_compute | on_one | on_node | rotating | tenth),
        Sweep(backend=backend, varied="data_ms", cases=nobody | data, options=computes),
        Sweep(backend=backend, varied="transfer_ms", cases={"15": NOBODY}, repeats=2, baseline=True),
        Sweep(backend=backend, varied="update_ms", cases=nobody | update, options=computes),
    )


def _model(
    name: str,
    *,
    backend: str = "torch-ddp",
    data: str = "",
    compute: str = "",
    options: Mapping[str, str] | None = None,
) -> Sweep:
    """A real training: nobody is late, rank 1 is in its data or in the middle of its backward.

    `data` and `compute` name the collective before which that delay arises, where a step has several.
    """
    cases = {
        **{f"data:0@rank={rank}": NOBODY for rank in UNDELAYED},
        "data:20@rank=1": _persistent(1, "data", meeting=data),
        "compute:20@rank=1": _persistent(1, "compute", meeting=compute),
    }
    return Sweep(backend=backend, workload=f"{MODELS}:{name}", varied="SLEEP", cases=cases, options=options or {})


_REDUCTION = "reduction of the gradients"
SWEEPS = (
    *_delays("mpi", quiet=4),
    *_delays("torch-ddp", quiet=4),
    _model("WithoutBatchNorm"),
    _model("WithBatchNorm"),
    _model("WithBatchNorm", options={"broadcast_buffers": "on"}, data="broadcast of buffers", compute=_REDUCTION),
    _model("WithCommonNorm", data="all-reduce 1 of 4", compute="all-reduce 4 of 4"),
    _model("WithShardedHead", data="features", compute=_REDUCTION),
    _model("WithoutBatchNorm", backend="torch-fsdp", data="all-gather 1 of 6", compute=_REDUCTION),
)
