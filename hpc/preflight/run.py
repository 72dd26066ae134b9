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
from hpc.model.checks import CHECKS, CheckError, Level, read_levels
from hpc.model.findings import Finding
from hpc.model.spec import RunSpec
from hpc.preflight.compare import Stage, judge
from hpc.preflight.facts import facts_of_rank, launched
from hpc.preflight.gpus import bare
from hpc.preflight.transports import let_nccl_tell, read_transports, unread_reason, warnings
from hpc.preflight.types import Launched, RankFacts, Seen, Transports

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """What the site says of itself: the transport between nodes, empty for none, and the levels that it changes."""

    expect_transport: str = ""
    levels: Mapping[str, Level] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments by which a job script hands on what its site promises."""
    group = parser.add_argument_group("preflight")
    group.add_argument(
        "--expect-transport", metavar="NAME", default="", help="how NCCL goes from node to node: ib, socket, …"
    )
    group.add_argument("--check", metavar="NAME=LEVEL", action="append", default=[],
                       help=f"make a check fatal, alarm or off: {', '.join(CHECKS)}")  # fmt: skip


def read_expectations(expect_transport: str, checks: Sequence[str], parser: argparse.ArgumentParser) -> Expectations:
    """What the arguments promise; ends the program with a usage error where that cannot be."""
    try:
        return Expectations(expect_transport=expect_transport, levels=read_levels(checks))
    except CheckError as error:
        parser.error(str(error))


class Preflight:
    """What was found so far. All ranks call the same methods in the same order, and find the same."""

    def __init__(self, run: RunSpec, expectations: Expectations) -> None:
        self._run, self._expectations = run, expectations
        self._launched = Launched(size=0, variables={}, library="")
        self._findings: dict[str, Finding] = {}
        self._log = ""
        self._rank, self._simulated = 0, False
        self.ranks: Sequence[RankFacts] = ()

    @property
    def findings(self) -> list[Finding]:
        """In the order in which they were made first."""
        return list(self._findings.values())

    @property
    def launched(self) -> Launched:
        """What MPI and the launcher said."""
        return self._launched

    def started(self, size: int, library: str) -> None:
        """Before a communicator is used for anything: MPI says how many ranks there are. Not collective."""
        self._launched = launched(size, library)
        self._look(Stage.STARTED)

    def met(self, comm: Intracomm, world: World) -> None:
        """Before the framework is loaded. Collective."""
        self._rank, self._simulated = world.rank, world.nodes_simulated
        self.ranks = comm.allgather(facts_of_rank(self._run, world))
        self._look(Stage.MET)

    def let_nccl_tell(self, folder: Path) -> None:
        """Before the framework is loaded: NCCL shall write how it connects into the folder, unless a person has said
        otherwise."""
        if self._run.gpus_per_node:
            self._log = let_nccl_tell(folder / f"nccl.rank{self._rank}")

    def built(self, comm: Intracomm, facts: dict[str, Any]) -> None:
        """Checks the rank once its backend is built; adds the findings to `facts`, the rank's entry in the trace.

        Collective. Raises InvalidRun as `demand` does.
        """
        self.ranks = [
            _with_framework_facts(rank, *described)
            for rank, described in zip(self.ranks, comm.allgather(_of_framework(facts)), strict=True)
        ]
        self._look(Stage.BUILT)
        self._add_findings(comm.rank, facts)
        self.demand()

    def stepped(self, comm: Intracomm, facts: dict[str, Any]) -> None:
        """Checks NCCL's connections after steps, outside the measured ones. Does nothing on CPUs.

        Collective. Raises InvalidRun as `demand` does.
        """
        if not self._run.gpus_per_node:
            return
        mine = self.ranks[comm.rank]
        try:
            connections = (
                read_transports(self._log, mine.hostname, os.getpid())
                if self._log
                else Transports(unread=unread_reason())
            )
        except Exception as error:  # noqa: BLE001 - a log of NCCL's that is read wrongly must not keep others waiting
            connections = Transports(unread=f"{self._log} cannot be read ({type(error).__name__}: {error})")
        everyone = zip(self.ranks, comm.allgather(connections), strict=True)
        self.ranks = [dataclasses.replace(rank, transports=transports) for rank, transports in everyone]
        self._look(Stage.STEPPED)
        self._add_findings(comm.rank, facts)
        self.demand()

    def nccl_warnings(self) -> list[str]:
        """What NCCL has warned of to the file that it was told to write."""
        return warnings(self._log, socket.gethostname(), os.getpid()) if self._log else []

    def demand(self) -> None:
        """Raises InvalidRun, on every rank alike, with each fatal check that failed and its cure."""
        if fatal := [finding for finding in self.findings if finding.fatal]:
            raise InvalidRun(". ".join(map(str, fatal)))

    def _add_findings(self, rank: int, facts: dict[str, Any]) -> None:
        """Adds all findings to `facts`, the rank's entry in the trace."""
        mine = self.ranks[rank]
        facts["preflight"] = {finding.name: finding.to_json() for finding in self.findings}
        about_node = mine.about_node and dataclasses.asdict(mine.about_node)
        gpus = [dataclasses.asdict(gpu) for gpu in mine.gpus]
        start = {"node": about_node, "gpus": gpus, "gpus_in_sight": mine.in_sight and list(mine.in_sight)}
        facts["start"] = {name: value for name, value in start.items() if value}
        if mine.transports is not None:
            facts["nccl"] = dataclasses.asdict(mine.transports)

    def _look(self, stage: Stage) -> None:
        seen = Seen(
            run=self._run,
            launched=self._launched,
            ranks=self.ranks,
            expect_transport=self._expectations.expect_transport,
            simulated=self._simulated,
        )
        for finding in judge(stage, seen, self._expectations.levels):
            self._findings[finding.name] = finding


_OfFramework = tuple[tuple[str, ...] | None, str, dict[str, str]]


def _of_framework(facts: Mapping[str, Any]) -> _OfFramework:
    """UUIDs of the rank's devices, None where the framework does not report them; the device's name; versions."""
    device = facts.get("device", {})
    devices = facts.get("backend", {}).get("devices") or [device]
    uuids = [device.get("uuid") for device in devices if device.get("kind") == "gpu"]
    known_uuids = tuple(bare(str(uuid)) for uuid in uuids) if uuids and all(uuids) else None
    software = {name: str(value) for name, value in facts.get("software", {}).items() if value is not None}
    return known_uuids, str(device.get("name") or ""), software


def _with_framework_facts(
    rank: RankFacts, devices: tuple[str, ...] | None, name: str, software: dict[str, str]
) -> RankFacts:
    rank = dataclasses.replace(rank, device=name or rank.device, software=software)
    return rank if devices is None else dataclasses.replace(rank, devices=devices, devices_unread="")
