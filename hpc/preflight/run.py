"""The checks of one run, stage by stage: facts of this rank, brought to all, compared by all alike."""

from __future__ import annotations

import argparse
import dataclasses
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc.backends import InvalidRun
from hpc.measure.world import World
from hpc.model.findings import CHECKS, CheckError, CheckFinding, Level, read_finding, read_levels
from hpc.model.options import PROMISES, PromiseError, read_promises
from hpc.model.spec import RunSpec
from hpc.model.typed import read_fields
from hpc.preflight.compare import CheckStage, judge
from hpc.preflight.facts import facts_of_rank, launched
from hpc.preflight.transports import enable_nccl_log, read_transports, unread_reason, warnings
from hpc.preflight.types import Launched, RankFacts, Seen, Transports
from hpc.system.gpus import bare_uuid

if TYPE_CHECKING:
    from hpc.measure.connections import Communicator
    from hpc.model.trace import RankReport


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """The site's settings: the transport between nodes, empty for none, the levels that it changes, and what it
    promises of the network (hpc.model.options), which no check compares: the ledger does."""

    expect_transport: str = ""
    levels: Mapping[str, Level] = field(default_factory=dict)
    network: Mapping[str, float] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments by which a job script passes on its site's settings."""
    group = parser.add_argument_group("preflight")
    group.add_argument(
        "--expect-transport", metavar="NAME", default="", help="how NCCL goes from node to node: ib, socket, …"
    )
    group.add_argument("--check", metavar="NAME=LEVEL", action="append", default=[],
                       help=f"make a check fatal, alarm or off: {', '.join(CHECKS)}")  # fmt: skip
    group.add_argument("--expect-network", metavar="NAME=NUMBER", action="append", default=[],
                       help=f"what the network between nodes must reach: {', '.join(PROMISES)}")  # fmt: skip


def read_expectations(arguments: dict[str, Any], parser: argparse.ArgumentParser) -> Expectations:
    """The expectations in the parsed arguments, which are taken out of them; ends the program with a usage error where
    they are invalid."""
    transport, checks = arguments.pop("expect_transport"), arguments.pop("check")
    try:
        network = read_promises(arguments.pop("expect_network"))
        return Expectations(expect_transport=transport, levels=read_levels(checks), network=network)
    except (CheckError, PromiseError) as error:
        parser.error(str(error))


class Preflight:
    """The findings so far. All ranks call the same methods in the same order, and have the same findings: rank 0 gets
    the facts of all, `ranks`, and judges them."""

    def __init__(self, run: RunSpec, expectations: Expectations) -> None:
        self._run, self._expectations = run, expectations
        self.launched = Launched(size=0, variables={}, library="")
        self._findings: dict[str, CheckFinding] = {}
        self._log = ""
        self._rank, self._simulated = 0, False
        self._mine = RankFacts(rank=0, node=0, hostname="", cores=())
        self.ranks: Sequence[RankFacts] = ()

    @property
    def findings(self) -> list[CheckFinding]:
        """In the order in which they were made first."""
        return list(self._findings.values())

    def started(self, size: int, library: str) -> None:
        """Checks the number of ranks in MPI before any communicator is used. Not collective."""
        self.launched = launched(size, library)
        self._look(CheckStage.STARTED)

    def met(self, comm: Communicator, world: World) -> None:
        """Before the framework is loaded. Collective."""
        self._rank, self._simulated = world.rank, world.nodes_simulated
        self._mine = facts_of_rank(self._run, world)
        self._compare(comm, CheckStage.MET)

    def enable_nccl_log(self, folder: Path) -> None:
        """Makes NCCL log its connections to a file in the folder. Before the framework is loaded."""
        if self._run.gpus_per_node:
            self._log = enable_nccl_log(folder / f"nccl.rank{self._rank}", requested=self._run.env)

    def built(self, comm: Communicator, report: RankReport) -> RankReport:
        """Checks the rank once its backend is built; returns its report with the findings added.

        Collective. Raises InvalidRun as `demand` does.
        """
        self._mine = dataclasses.replace(self._mine, **_of_framework(report))
        self._compare(comm, CheckStage.BUILT)
        self.demand()
        return self._with_findings(report)

    def stepped(self, comm: Communicator, report: RankReport, pid: int | None = None) -> RankReport:
        """Checks NCCL's connections after steps, outside the measured ones; returns the report. Does nothing on CPUs.

        `pid` is the process that uses NCCL, by default this one. Collective. Raises InvalidRun as `demand` does.
        """
        if not self._run.gpus_per_node:
            return report
        try:
            connections = Transports(unread=unread_reason())
            if self._log:
                connections = read_transports(self._log, self._mine.hostname, pid or os.getpid(), comm.size)
        except Exception as error:  # noqa: BLE001 - a log of NCCL's that is read wrongly must not keep others waiting
            connections = Transports(unread=f"{self._log} cannot be read ({type(error).__name__}: {error})")
        self._mine = dataclasses.replace(self._mine, transports=connections)
        self._compare(comm, CheckStage.STEPPED)
        self.demand()
        return self._with_findings(report)

    def nccl_warnings(self) -> list[str]:
        """The warnings in NCCL's log."""
        return warnings(self._log, socket.gethostname(), os.getpid()) if self._log else []

    def demand(self) -> None:
        """Raises InvalidRun, on every rank alike, with each fatal check that failed and its fix."""
        if fatal := [finding for finding in self.findings if finding.fatal]:
            raise InvalidRun(". ".join(map(str, fatal)))

    def _with_findings(self, report: RankReport) -> RankReport:
        mine = self._mine
        start = {
            "node": mine.about_node and dataclasses.asdict(mine.about_node),
            "gpus": [dataclasses.asdict(gpu) for gpu in mine.gpus],
            "gpus_in_sight": mine.in_sight and list(mine.in_sight),
            "network": dict(self._expectations.network),
        }
        return dataclasses.replace(
            report,
            preflight={finding.name: finding.to_json() for finding in self.findings},
            start={name: value for name, value in start.items() if value},
            nccl=report.nccl if mine.transports is None else dataclasses.asdict(mine.transports),
        )

    def _compare(self, comm: Communicator, stage: CheckStage) -> None:
        """What rank 0 finds in the facts of all ranks."""
        everyone = comm.gather(dataclasses.asdict(self._mine))
        if everyone is not None:
            self.ranks = [RankFacts(**read_fields(RankFacts, facts)) for facts in everyone]
            self._look(stage)
        for finding in map(read_finding, comm.bcast([finding.to_json() for finding in self.findings])):
            self._findings[finding.name] = finding

    def _look(self, stage: CheckStage) -> None:
        seen = Seen(
            run=self._run,
            launched=self.launched,
            ranks=self.ranks,
            expect_transport=self._expectations.expect_transport,
            simulated=self._simulated,
        )
        for finding in judge(stage, seen, self._expectations.levels):
            self._findings[finding.name] = finding


def _of_framework(report: RankReport) -> dict[str, Any]:
    """The facts of a rank that its framework reports: UUIDs of its devices if all have one, name, versions."""
    uuids = report.gpu_uuids
    facts: dict[str, Any] = {
        "software": {name: str(value) for name, value in (report.software or {}).items() if value is not None}
    }
    if name := (report.device or {}).get("name"):
        facts["device"] = str(name)
    if uuids and all(uuids):
        facts |= {"devices": tuple(bare_uuid(str(uuid)) for uuid in uuids), "devices_unread": ""}
    return facts
