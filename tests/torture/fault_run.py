"""Many trials with faults, one after the other, and their table."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture.fault_place import Place, local_place, slurm_place
from tests.torture.fault_trials import KINDS, TWENTY, Result, make_trial, mounts_refused
from tests.torture.kills import choose
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import Shape
from tools.devcluster.daemons import missing_programs


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """One trial to be made: its kind, and the seed that determines it."""

    kind: str
    seed: int


def plan_trials(trials: int, seed: int, only: str | None, first_seed: int | None) -> list[Seeded]:
    """Kinds and seeds of so many trials; with `first_seed` the first is the trial that this seed determines."""
    rng = random.Random(seed)
    planned = [Seeded(kind=kind, seed=rng.randrange(10**6)) for kind in choose(TWENTY, trials, only, rng)]
    if planned and first_seed is not None:
        planned[0] = Seeded(kind=planned[0].kind, seed=first_seed)
    return planned


@dataclass(kw_only=True)
class Faults:
    """Makes trials; what they leave is in `runs`. A Slurm is started in `scratch` for the first that needs it."""

    scratch: Path
    runs: Path
    notes: list[str] = field(default_factory=list)

    def made(self, planned: Sequence[Seeded]) -> Iterator[Result]:
        """The results, one by one. Raises TrialError, InjectorError, DevClusterError."""
        replacements = self._replacements()
        with ExitStack() as opened:
            places: dict[bool, Place] = {}
            for number, trial in enumerate(planned, 1):
                kind = replacements.get(trial.kind, trial.kind)
                on_slurm = kind in ("slurm", "controller")
                if on_slurm not in places:
                    places[on_slurm] = self._slurm(opened) if on_slurm else local_place(self.runs / "local")
                yield make_trial(places[on_slurm], kind, self.runs / f"fault-{number:03}-{kind}", number, trial.seed)

    def _slurm(self, opened: ExitStack) -> Place:
        cluster = opened.enter_context(DevCluster(self.scratch / "f", Shape(nodes=2, gpus=0)))
        return slurm_place(self.runs / "slurm", cluster)

    def _replacements(self) -> dict[str, str]:
        """Kinds of trials that this machine does not allow, each with its replacement."""
        replacements: dict[str, str] = {}
        if missing := missing_programs():
            replacements |= {"slurm": "script", "controller": "script"}
            self.notes.append(f"no trial was made on Slurm: {missing}")
        if mounts_refused():
            replacements |= {"mount": "moved", "full": "script"}
            self.notes.append("no mount was taken away or full: only root may mount here")
        return replacements


def fault_table(results: Sequence[Result]) -> str:
    """By kind: how many trials, in how many of them something failed, and how often something was wrong."""
    lines = [f"{'kind':10} {'trials':>6} {'met a fault':>11} {'ok':>4} {'wrong':>6}"]
    for kind in KINDS:
        if of_kind := [result for result in results if result.kind == kind]:
            met = sum(result.met for result in of_kind)
            ended_ok = sum(list(result.outcomes) == ["ok"] for result in of_kind)
            wrong = sum(bool(result.wrong) for result in of_kind)
            lines.append(f"{kind:10} {len(of_kind):6} {met:11} {ended_ok:4} {wrong:6}")
    return "\n".join(lines)
