"""What a rank of a run is started with, and what of it a failure reports."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.model.files import AttemptFiles, TracesFolder
from hpc.model.spec import RunSpec
from hpc.preflight.run import Expectations, Preflight
from hpc.recovery.journal import Journal
from hpc.recovery.stacks import Stacks
from hpc.run.rank_end import RankFailure

if TYPE_CHECKING:
    from hpc.measure.connections import Communicator

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID")  # a script has SLURM_PROCID, too


@dataclass(frozen=True, kw_only=True)
class RankArguments:
    """The arguments of the command line. `run` and `script` are None where no sweep planned the run."""

    run: Path | None
    attempt: int
    traces: Path
    script: Path | None
    simulate_nodes: bool
    copy_s: float = 10.0
    expectations: Expectations = field(default_factory=Expectations)


class Rank:
    """The state of this rank that a failure reports, filled as the run goes on."""

    def __init__(self, arguments: RankArguments, run: RunSpec) -> None:
        self.arguments, self.run = arguments, run
        self.folder = TracesFolder.of(AttemptFiles(arguments.traces, run.run_id, arguments.attempt))
        self.number = _from_environment(_RANKS) or 0
        self.comm: Communicator | None = None  # once all requested ranks are known to be present
        self.journal: Journal | None = None
        self.stacks: Stacks | None = None
        self.preflight = Preflight(run, arguments.expectations)
        self.training = False
        self.script = ""
        self.problems: dict[str, str] = {}

    def failure(self, error: BaseException) -> RankFailure:
        """The report of this rank's failure by `error`."""
        return RankFailure(
            rank=self.number,
            folder=self.folder,
            error=error,
            step=-1 if self.journal is None else self.journal.steps_completed + self.journal.unmeasured[0] - 1,
            training=self.training,
            nccl_warnings=self.preflight.nccl_warnings,
        )


def _from_environment(names: Sequence[str]) -> int | None:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None)
