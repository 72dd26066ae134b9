"""The doctor's job: what its script starts on the nodes, and what it leaves in its folder."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc.model.spec import RunSpec
from launch.jobs.launchers import Unquoted, in_container, local_argv, once_per_node_argv, run_argv
from launch.jobs.script import here_python, render_doctor
from launch.jobs.site import LAUNCHERS, Site

PART_S = 60
"""How long each part of the job may take."""


@dataclass(frozen=True, kw_only=True)
class NodeLook:
    """What the shell of one node found. `read` and `wrote` are empty where the shared folder took part, else say why
    not. `free_bytes` and `closed` are of node-local folders; `pythons` and `missing` of interpreters, by their path."""

    name: str
    cores: int | None = None
    read: str = ""
    wrote: str = ""
    free_bytes: Mapping[str, int] = field(default_factory=dict)
    closed: Mapping[str, str] = field(default_factory=dict)
    pythons: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    mpi4py: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[str, ...] = ()
    gpus: int | None = None


@dataclass(frozen=True, kw_only=True)
class Start:
    """One way to start ranks and what came of it: `status` is None where it was not tried, `told` what rank 0 wrote.

    `launcher` is empty on this machine, where mpiexec is the only one.
    """

    launcher: str
    mpi: str
    status: int | None = None
    told: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def met(self) -> bool:
        """Whether the ranks found one another."""
        return bool(self.told.get("ranks"))

    @property
    def findings(self) -> list[Mapping[str, str]]:
        """What the checks of the ranks came to."""
        return list(self.told.get("findings", ()))


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """What the job left. `modules` says of each that could not be loaded why, `printed` is what the script itself said,
    `ended` whether it came to its end."""

    ended: bool
    looks: tuple[NodeLook, ...]
    arrived: frozenset[str]
    starts: tuple[Start, ...]
    modules: Mapping[str, str]
    nodes_error: str = ""
    printed: str = ""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is to be looked at: `run` has the sizes, `token` is what nodes must read in `folder` and write there; `here`
    says that it is this machine, without Slurm."""

    run: RunSpec
    site: Site
    folder: Path
    token: str
    here: bool = False

    def prepare(self) -> None:
        """Writes what nodes and ranks read."""
        (self.folder / "token").write_text(f"{self.token}\n")
        (self.folder / "run.json").write_text(json.dumps(self.run.to_json(), indent=1) + "\n")

    def pythons(self) -> list[str]:
        """Every interpreter that runs on this site may use."""
        here = [] if "default" in self.site.interpreter else [here_python()]
        return list(dict.fromkeys([*here, *self.site.interpreter.values()]))

    def ways(self) -> list[tuple[str, str]]:
        """The site's launcher and what it speaks, then all others."""
        if self.here:
            return [("", "")]
        all_ways = [(launcher, mpi) for launcher, speaks in LAUNCHERS.items() for mpi in speaks]
        own = (self.site.launcher, self.site.mpi)
        return [own, *(way for way in all_ways if way != own)]

    def script(self, header: str) -> str:
        """The job's script for Slurm."""
        ways = [dataclasses.replace(self.site, launcher=launcher, mpi=mpi) for launcher, mpi in self.ways()]
        starts = [run_argv(self.run, way, self._program(at)) for at, way in enumerate(ways)]
        # Whatever the site's own launcher is: Slurm's is there.
        container = in_container(self.run, self.site)
        look = once_per_node_argv("srun", self.run.nodes, "", container, self._node_program())
        return render_doctor(header, self.site, self.folder, PART_S, look, starts)

    def local_script(self, launcher: Sequence[str]) -> str:
        """The same for this machine, by its mpiexec."""
        start = local_argv(self.run, launcher, [*self._program(0), "--simulate-nodes"])
        return render_doctor("#!/bin/bash\n", self.site, self.folder, PART_S, self._node_program(), [start])

    def read(self, printed: str = "") -> JobFacts:
        """What the job has left so far."""
        modules = {}
        for at, module in enumerate(self.site.modules):
            if (status := self._status(f"module{at}")) != 0:
                modules[module] = self._tail(f"module{at}.err") or f"exit status {status}"
        return JobFacts(
            ended=(self.folder / "end").exists(),
            looks=read_looks(self._text("nodes.out")),
            arrived=frozenset(path.name.removeprefix("node.") for path in self.folder.glob("node.*")),
            starts=tuple(self._start(at, *way) for at, way in enumerate(self.ways())),
            modules=modules,
            nodes_error=self._tail("nodes.err") if self._status("nodes") != 0 else "",
            printed=printed,
        )

    def _program(self, at: int) -> list[str]:
        words = ["--run", str(self.folder / "run.json"), "--out", str(self.folder / f"mpi{at}.json")]
        promised = ["--expect-transport", self.site.expect_transport] if self.site.expect_transport else []
        checks = [word for check in self.site.check_words for word in ("--check", check)]
        return [self.site.python("default", here_python()), "-m", "hpc.preflight", *words, *promised, *checks]

    def _node_program(self) -> list[str]:
        return ["sh", "-c", Unquoted('"$look"'), "look", str(self.folder), self.token, *self.pythons()]

    def _start(self, at: int, launcher: str, mpi: str) -> Start:
        try:
            told = json.loads(self._text(f"mpi{at}.json") or "{}")
        except ValueError:
            told = {}
        return Start(
            launcher=launcher, mpi=mpi, status=self._status(f"mpi{at}"), told=told, error=self._tail(f"mpi{at}.err")
        )

    def _status(self, name: str) -> int | None:
        text = self._text(f"{name}.status").strip()
        return int(text) if text.isdigit() else None

    def _tail(self, name: str) -> str:
        """The first and the last line that say anything; what srun says of its own where nothing else is."""
        lines = [line.strip("* \t") for line in self._text(name).splitlines()]
        lines = [line for line in lines if re.search(r"\w", line)]
        lines = [line for line in lines if not line.startswith("srun: ")] or lines
        return "; ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))[:500]

    def _text(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(errors="replace")
        except OSError:  # it never came to that part
            return ""


def read_looks(printed: str) -> tuple[NodeLook, ...]:
    """What `node.sh.j2` printed on all nodes: NAME<tab>FACT<tab>VALUE."""
    facts: dict[str, list[tuple[str, str]]] = {}
    for line in printed.splitlines():
        if line.count("\t") >= 2:
            name, fact, value = line.split("\t", 2)
            facts.setdefault(name, []).append((fact, value))
    return tuple(_look(name, found) for name, found in sorted(facts.items()))


def _look(name: str, facts: Sequence[tuple[str, str]]) -> NodeLook:
    def number(fact: str) -> int | None:
        return next((int(value) for known, value in facts if known == fact and value.isdigit()), None)

    def of(kind: str) -> dict[str, str]:
        return {fact.partition(" ")[2]: value for fact, value in facts if fact.partition(" ")[0] == kind}

    alone = dict(facts)
    return NodeLook(
        name=name,
        cores=number("cores"),
        read="" if (told := alone.get("read", "nothing was said")) == "yes" else told or "it is empty there",
        wrote="" if (told := alone.get("wrote", "nothing was said")) == "yes" else told,
        free_bytes={folder: int(kib) * 1024 for folder, kib in of("free").items() if kib.isdigit()},
        closed=of("closed"),
        pythons=of("python"),
        missing=of("missing"),
        mpi4py=of("mpi4py"),
        ports=tuple(f"{device} {state}" for fact, state in facts if (device := fact.removeprefix("port ")) != fact),
        gpus=number("gpus"),
    )
