"""The helper process of a node, seen from the rank that starts it: started once, and never a reason to fail."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpc.measure.world import World
from hpc.model.spec import RunSpec
from hpc.node_agent.connections import ConnectionLog
from hpc.node_agent.sources import RankProcess
from hpc.system.import_guard import ROOT
from hpc.system.text import grouped

if TYPE_CHECKING:
    from hpc.measure.connections import Communicator

START_S, STOP_S = 30.0, 10.0
"""Time limits in seconds: for the helper to find its series (a sleeping driver takes seconds to wake), and for each of
its ends: of telemetry, and of itself, which a shared folder that does not answer can delay."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One helper's samples: `local_ns` [sample] of the node's perf_counter_ns, `values` [sample, series], NaN absent.

    `facts` has the helper's place, the reasons for unread figures, and, as `problem`, the reason for an early end.
    """

    local_ns: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    series: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def of_node(self) -> Recording:
        """The same without what it has of single ranks."""
        chosen = [at for at, name in enumerate(self.series) if not name.startswith("local_rank")]
        facts = {name: fact for name, fact in self.facts.items() if name not in ("threads", "cores")}
        series = tuple(self.series[at] for at in chosen)
        return replace(self, values=self.values[:, chosen], series=series, facts=facts)


@dataclass(frozen=True, kw_only=True)
class TelemetryRequest:
    """A request to read telemetry: `gpus` are UUIDs, empty for all GPUs of the driver, None for none."""

    gpus: Sequence[str] | None = None
    interval_s: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Copying:
    """A request to copy the journals in `folders`, by rank, to the folder `partial`."""

    folders: Mapping[int, Path]
    partial: Path
    interval_s: float


class NodeAgent:
    """A helper process that reads telemetry of this node, and copies the journals of its ranks.

    `ranks` are those of the node, in the order of their MPI rank. Failures are recorded as facts and raise nothing; one
    part goes on if the other fails. The node's connections are looked at by this process: they end before a helper that
    busy cores keep waiting has its turn.
    """

    def __init__(
        self, ranks: Sequence[RankProcess], *, telemetry: TelemetryRequest | None = None, copying: Copying | None = None
    ) -> None:
        self.telemetry, self.copying = telemetry, copying
        self._ranks = ranks
        self._facts: dict[str, dict[str, Any]] = {"agent": {}, "telemetry": {}, "copies": {}}
        self._process: subprocess.Popen[bytes] | None = None
        self._output = b""
        self._samples = -1
        self._connections, self._look_due_s = ConnectionLog(), 0.0

    def start(self) -> None:
        """Starts the helper; with telemetry, waits until it knows its series."""
        request: dict[str, Any] = {"ranks": [asdict(rank) for rank in self._ranks], "telemetry": None, "copies": None}
        try:
            if self.telemetry is not None:
                self._samples = os.memfd_create("samples")  # no name: the file vanishes with this process
                request["telemetry"] = {**asdict(self.telemetry), "samples": self._samples}
            if self.copying is not None:
                request["copies"] = asdict(self.copying)
            path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hpc.node_agent", "--parent", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(self._samples,) if self._samples >= 0 else (),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        except OSError as error:
            self._fail(f"did not start: {error}")
            if self.copying is not None:
                print(f"stamps are not copied while the run goes on: {error}", file=sys.stderr, flush=True)
            return
        self._send(json.dumps(request, default=str))
        facts = self._facts["telemetry"]
        if self.telemetry is not None:
            self._receive(lambda: "series" in facts or "problem" in facts, START_S)
            if "series" not in facts:
                facts["problem"] = f"did not start: {facts.get('problem', f'no reply within {START_S:g} s')}"

    def sample(self) -> None:
        """Has telemetry read now, beside its rhythm; does not wait for it."""
        if self.telemetry is not None:
            self._send("sample")
            self._connections.look()

    def look(self) -> None:
        """Looks at what the node's connections have sent, if that is due; with telemetry only."""
        if self.telemetry is not None and monotonic() >= self._look_due_s:
            self._connections.look()
            self._look_due_s = monotonic() + self.telemetry.interval_s * self._connections.every

    def stop_telemetry(self) -> Recording | None:
        """Takes one last sample and returns all of them; None without telemetry."""
        if self.telemetry is None:
            return None
        facts = self._facts["telemetry"]
        self._send("stop")
        self._receive(lambda: "failed" in facts or "problem" in facts, STOP_S)
        if "failed" not in facts:
            facts.setdefault("problem", f"did not end within {STOP_S:g} s")
        series = tuple(facts.pop("series", ()))
        if not facts.get("failed"):
            facts.pop("failed", None)
        row = np.dtype([("ns", np.int64), ("values", np.float64, (len(series),))])
        stored = os.pread(self._samples, os.fstat(self._samples).st_size, 0) if series else b""
        rows = np.frombuffer(stored, row, count=len(stored) // row.itemsize)  # the last one may have been cut off
        if self._samples >= 0:
            os.close(self._samples)
            self._samples = -1
        return Recording(
            local_ns=rows["ns"].copy(),
            values=rows["values"].copy(),
            series=series,
            facts={**self._facts_of("telemetry", self.telemetry.interval_s), **self._connections.end()},
        )

    def copy_facts(self) -> dict[str, Any]:
        """The interval, where the helper runs, which copies failed and why, and whether it ended early."""
        assert self.copying is not None
        self._receive(lambda: False, 0)
        return self._facts_of("copies", self.copying.interval_s)

    def end(self) -> None:
        """The trace is on the disk: has the copies removed, and ends the helper."""
        process = self._process
        if process is None:
            return
        self._send("end")
        self._process = None
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            problem = "the helper did not end" if self.copying is None else "copies of stamps could not be removed"
            print(f"{problem} within {STOP_S:g} s", file=sys.stderr, flush=True)
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                pipe and pipe.close()

    def _send(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):  # `_receive` reports that it ended
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()

    def _receive(self, is_complete: Callable[[], bool], limit_s: float) -> None:
        """Takes in reports until they are complete, the time is up, or the helper has ended."""
        process, end_s = self._process, monotonic() + limit_s
        if process is None or process.stdout is None:
            return
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        while not is_complete() and poll.poll(max(0.0, end_s - monotonic()) * 1e3):
            if not (chunk := os.read(process.stdout.fileno(), 1 << 16)):
                status = process.wait()
                self._fail(f"ended early: {f'signal {-status}' if status < 0 else f'exit status {status}'}")
                return
            *lines, self._output = (self._output + chunk).split(b"\n")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        with suppress(ValueError):  # a site's Python may print at its start: that is not a report
            for part, facts in json.loads(line).items():
                if part == "copies" and "failed" in facts:
                    self._facts[part].setdefault("failed", []).append(facts["failed"])
                else:
                    self._facts[part] |= facts

    def _fail(self, problem: str) -> None:
        for part in ("telemetry", "copies"):
            self._facts[part].setdefault("problem", problem)

    def _facts_of(self, part: str, interval_s: float) -> dict[str, Any]:
        return {"interval_s": interval_s, **self._facts["agent"], **self._facts[part]}


def start_agent(
    comm: Communicator, world: World, run: RunSpec, gpus: Sequence[str | None], folder: Path, partial: Path,
    copy_s: float, process: RankProcess | None = None,
) -> NodeAgent | None:  # fmt: skip
    """Starts a helper on each node and returns it on the node's first rank; None on all others. Collective.

    `process` is what trains on this rank, by default this process.
    `gpus` are the UUIDs of this rank's GPUs, None if the framework does not expose one; `folder` holds this rank's
    journal. Simulated nodes are one machine: the first one's helper reads telemetry for all of them. With
    a `copy_s` of 0 nothing is copied, with a line on standard error.
    """
    if copy_s <= 0 and comm.rank == 0:
        print("copies are off: what a lost node has measured is lost", file=sys.stderr, flush=True)
    machine = 0 if world.nodes_simulated else world.node_rank
    its = asdict(process or RankProcess.this_process())
    is_local_first = world.local_rank == 0
    all_ranks = comm.gather((machine, is_local_first, world.rank, world.node_rank, its, list(gpus), str(folder)))
    everyone = comm.scatter(None if all_ranks is None else _for_first_ranks(all_ranks))
    if everyone is None:
        return None
    is_first = everyone[0][0] == world.rank
    telemetry = copying = None
    if run.telemetry != "off" and is_first:
        uuids = list(dict.fromkeys(uuid for *_, theirs, _ in everyone for uuid in theirs))
        telemetry = TelemetryRequest(
            gpus=None if run.gpus_per_node == 0 else [] if None in uuids else [uuid for uuid in uuids if uuid]
        )
    if copy_s > 0 and is_local_first:
        folders = {rank: Path(theirs) for rank, node, *_, theirs in everyone if node == world.node_rank}
        copying = Copying(folders=folders, partial=partial, interval_s=copy_s)
    if telemetry is None and copying is None:
        return None
    processes = [RankProcess(**{**its, "cores": tuple(its["cores"])}) for *_, its, _, _ in everyone]
    agent = NodeAgent(processes, telemetry=telemetry, copying=copying)
    agent.start()
    return agent


def _for_first_ranks(all_ranks: Sequence[Sequence[Any]]) -> list[list[Sequence[Any]] | None]:
    """By rank what those of its machine have stated, for the first one of a machine and of a node."""
    machines = grouped((entry[0], entry[2:]) for entry in all_ranks)
    return [
        machines[machine] if is_local_first or machines[machine][0][0] == rank else None
        for machine, is_local_first, rank, *_ in all_ranks
    ]


def sample(agent: NodeAgent | None) -> None:
    """Has telemetry of this node read now, where this rank started its helper."""
    if agent is not None:
        agent.sample()
