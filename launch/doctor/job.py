"""The doctor's job: its script, and the results that it writes into its folder."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc.model.findings import CheckFinding, read_finding
from hpc.model.spec import RunSpec
from hpc.system.regular_file import parse_json, read_text
from hpc.system.text import natural
from launch.jobs.launchers import Unquoted, in_container, local_argv, once_per_node_argv, run_argv
from launch.jobs.script import CHECKOUT, expectations, here_python, render_doctor, setup_lines
from launch.jobs.site import LAUNCHERS, Site

PART_S = 60
"""The time limit of each part of the job."""


@dataclass(frozen=True, kw_only=True)
class AllocatedNode:
    """The results of the shell on one node. `read_error` and `write_error` are of the shared folder, empty if that
    worked. `free_bytes` and `unwritable` are by node-local folder, `pythons` and `missing` by interpreter path."""

    name: str
    read_error: str = ""
    write_error: str = ""
    free_bytes: Mapping[str, int] = field(default_factory=dict)
    unwritable: Mapping[str, str] = field(default_factory=dict)
    pythons: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    mpi4py: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Start:
    """One way to start ranks and its result: `status` is None if it was not tried, `report` is rank 0's JSON.

    `launcher` is empty on this machine, where only mpiexec is used.
    """

    launcher: str
    mpi: str
    status: int | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def connected(self) -> bool:
        return bool(self.report.get("ranks"))

    @property
    def findings(self) -> list[CheckFinding]:
        return [read_finding(values) for values in self.report.get("findings", ())]


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """The results of the job. `setup` has the errors of lines before the runs, `printed` the script's own output;
    `ended`: the script came to its end."""

    ended: bool
    nodes: tuple[AllocatedNode, ...]
    arrived: frozenset[str]
    starts: tuple[Start, ...]
    setup: Mapping[str, str]
    nodes_error: str = ""
    printed: str = ""


@dataclass(frozen=True, kw_only=True)
class DoctorJob:
    """The job to start: `run` has the sizes, `token` is the text that nodes must read from `folder` and write there;
    `here`: on this machine, without Slurm."""

    run: RunSpec
    site: Site
    folder: Path
    token: str
    here: bool = False

    def prepare(self) -> None:
        (self.folder / "token").write_text(f"{self.token}\n")
        (self.folder / "run.json").write_text(json.dumps(self.run.to_json(), indent=1) + "\n")

    def pythons(self) -> list[str]:
        """Every interpreter that runs on this site may use."""
        here = [] if "default" in self.site.interpreter else [here_python()]
        return list(dict.fromkeys([*here, *self.site.interpreter.values()]))

    def ways(self) -> list[tuple[str, str]]:
        """The site's launcher with its PMI or MPI type, then all other pairs."""
        if self.here:
            return [("", "")]
        all_ways = [(launcher, mpi) for launcher, speaks in LAUNCHERS.items() for mpi in speaks]
        configured = (self.site.launcher, self.site.mpi or "")
        return [configured, *(way for way in all_ways if way != configured)]

    def script(self, header: str) -> str:
        mounts = (self.folder, CHECKOUT)
        plain: dict[str, Any] = dict.fromkeys(("cpu_bind", "gpu_bind", "distribution"), "")
        others = dataclasses.replace(self.site, launcher_command=(), srun={}, **plain)
        ways = [self.site, *(dataclasses.replace(others, launcher=name, mpi=mpi) for name, mpi in self.ways()[1:])]
        starts = [run_argv(self.run, way, self._program(at), mounts) for at, way in enumerate(ways)]
        # srun, whatever the site's launcher is: every Slurm site has it.
        container = in_container(self.run, self.site, mounts)
        look = once_per_node_argv("srun", self.run.nodes, "", container, self._node_program())
        return render_doctor(header, self.site, self.folder, PART_S, look, starts)

    def local_script(self, launcher: Sequence[str]) -> str:
        start = local_argv(self.run, launcher, [*self._program(0), "--simulate-nodes"])
        return render_doctor("#!/bin/bash\n", self.site, self.folder, PART_S, self._node_program(), [start])

    def read(self, printed: str = "") -> JobFacts:
        setup = {}
        for at, line in enumerate(setup_lines(self.site)):
            if (status := self._status(f"setup{at}")) != 0:
                setup[line] = self._tail(f"setup{at}.err") or f"exit status {status}"
        return JobFacts(
            ended=(self.folder / "end").exists(),
            nodes=read_nodes(self._text("nodes.out")),
            arrived=frozenset(path.name.removeprefix("node.") for path in self.folder.glob("node.*")),
            starts=tuple(self._start(at, *way) for at, way in enumerate(self.ways())),
            setup=setup,
            nodes_error=self._tail("nodes.err") if self._status("nodes") != 0 else "",
            printed=printed,
        )

    def _program(self, at: int) -> list[str]:
        files = ["--run", str(self.folder / "run.json"), "--out", str(self.folder / f"mpi{at}.json")]
        return [self.site.python("default", here_python()), "-m", "hpc.preflight", *files, *expectations(self.site)]

    def _node_program(self) -> list[str]:
        return ["sh", "-c", Unquoted('"$look"'), "look", str(self.folder), self.token, *self.pythons()]

    def _start(self, at: int, launcher: str, mpi: str) -> Start:
        try:
            report = parse_json(self._text(f"mpi{at}.json") or "{}")
        except ValueError:
            report = {}
        return Start(
            launcher=launcher, mpi=mpi, status=self._status(f"mpi{at}"), report=report, error=self._tail(f"mpi{at}.err")
        )

    def _status(self, name: str) -> int | None:
        text = self._text(f"{name}.status").strip()
        return int(text) if text.isdigit() else None

    def _tail(self, name: str) -> str:
        """The first and the last line with text; lines of srun itself only if there are no others."""
        lines = [line.strip("* \t") for line in self._text(name).splitlines()]
        lines = [line for line in lines if re.search(r"\w", line)]
        lines = [line for line in lines if not line.startswith("srun: ")] or lines
        return "; ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))[:500]

    def _text(self, name: str) -> str:
        try:
            return read_text(self.folder / name, errors="replace")
        except OSError:  # that part was not reached
            return ""


def read_nodes(printed: str) -> tuple[AllocatedNode, ...]:
    """The output of `node.sh.j2` on all nodes: lines of NAME<tab>FACT<tab>VALUE."""
    facts: dict[str, dict[str, str]] = {}
    ports: dict[str, list[str]] = {}
    for line in printed.splitlines():
        if line.count("\t") >= 2:
            name, fact, value = line.split("\t", 2)
            facts.setdefault(name, {})[fact] = value
            if fact.startswith("port "):  # a device may have several
                ports.setdefault(name, []).append(f"{fact.removeprefix('port ')} {value}")
    return tuple(_node(name, facts[name], ports.get(name, ())) for name in sorted(facts, key=natural))


def _node(name: str, facts: Mapping[str, str], ports: Sequence[str]) -> AllocatedNode:
    def by_subject(kind: str) -> dict[str, str]:
        return {fact.partition(" ")[2]: value for fact, value in facts.items() if fact.partition(" ")[0] == kind}

    read, wrote = (facts.get(fact, "no answer") for fact in ("read", "wrote"))
    return AllocatedNode(
        name=name, read_error="" if read == "yes" else read or "it is empty there",
        write_error="" if wrote == "yes" else wrote,
        free_bytes={folder: int(kib) * 1024 for folder, kib in by_subject("free").items() if kib.isdigit()},
        unwritable=by_subject("closed"), pythons=by_subject("python"), missing=by_subject("missing"),
        mpi4py=by_subject("mpi4py"), ports=tuple(ports),
    )  # fmt: skip
