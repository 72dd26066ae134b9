"""Ways to end a run from one moment to the next."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpc.model.outcome import Outcome
from tests.processes import processes
from tests.torture.truth import Life
from tests.waiting import until
from tools.devcluster.cluster import DevCluster


@dataclass(frozen=True, kw_only=True)
class Victim:
    """The running job to kill, in one of its starts."""

    cluster: DevCluster
    job_id: str
    life: Life
    rng: random.Random


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A way to kill. `outcomes` has what may be made of it; `exact` says that the node's own storage outlives it, so
    that nothing is lost but the step that was being completed; else the last copy is what remains. `more` says that the
    run is begun once more, in another life of the job or in another job. `saves`: the run is a script that makes a
    checkpoint on the signal and ends, so that its trace is whole."""

    name: str
    kill: Callable[[Victim], None]
    outcomes: frozenset[Outcome]
    exact: bool = False
    more: bool = False
    saves: bool = False


def _kill_rank(victim: Victim) -> None:
    _kill(victim.rng.choice(sorted(victim.life.pids.values())))


def _kill_ranks(victim: Victim) -> None:
    pids = sorted(victim.life.pids.values())
    victim.rng.shuffle(pids)
    for pid in pids:
        _kill(pid)


def _cancel(victim: Victim) -> None:
    victim.cluster.run("scancel", "--signal=KILL", "--full", victim.job_id)


def _signal(victim: Victim) -> None:
    """One of scancel's ways: to the steps, to the job's script, which hands it on, or a plain scancel."""
    victim.cluster.run("scancel", *victim.rng.choice(SIGNALS), victim.job_id)


def _kill_job(victim: Victim) -> None:
    """Script, launcher, ranks and whatever they started: all that has the job's number."""
    limit = time.monotonic() + 60
    while pids := list(processes_of(victim.cluster, victim.job_id)):
        for pid in pids:
            _kill(pid)
        assert time.monotonic() < limit, f"processes {pids} of job {victim.job_id} do not end"


def _cut_power(victim: Victim) -> None:
    """Comes back when Slurm has noticed: a node that is back before that is taken for one that was always there."""
    name = victim.rng.choice(victim.cluster.shape.node_names)
    victim.cluster.kill_node(name)
    until(lambda: victim.cluster.states()[name].startswith("down"), f"{name} is down for Slurm")
    for local in ("spool", "tmp"):  # like its memory: sockets that stay would keep the requeued job's steps from there
        for path in (victim.cluster.root / local / name).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    victim.cluster.start_node(name)


def wrap_squeue(cluster: DevCluster) -> dict[str, str]:
    """Variables by which a sweep and its jobs find a squeue that answers with nothing while `_queries` exists."""
    wrapper, queries = cluster.root / "wrapped" / "squeue", _queries(cluster)
    wrapper.parent.mkdir(exist_ok=True)
    wrapper.write_text(f'#!/bin/bash\n[ -e {queries} ] || exec {shutil.which("squeue")} "$@"\necho >>{queries}\n')
    wrapper.chmod(0o755)
    return {"PATH": f"{wrapper.parent}:{os.environ['PATH']}"}


def _queries(cluster: DevCluster) -> Path:
    """Has a line for each question since squeue answers with nothing."""
    return cluster.root / "queries"


def _empty_squeue(victim: Victim) -> None:
    """Six answers without the job, as of a wrapper whose cache is empty; then a rank of the attempt is killed."""
    queries = _queries(victim.cluster)
    queries.touch()
    until(lambda: queries.stat().st_size >= 6, "squeue was asked six times")
    queries.unlink()
    _kill_rank(victim)


SIGNALS: tuple[tuple[str, ...], ...] = (
    (), *((f"--signal={name}", *whom) for name in ("USR1", "TERM", "INT", "HUP") for whom in ((), ("--batch",)))
)  # fmt: skip
"""Arguments of scancel by which a script is asked to make a checkpoint. With `--full` srun would receive the signal,
too, and end the ranks of any script, or forward it a second time."""
RANK_FAIL = frozenset({Outcome.RANK_FAIL})
CANCELLED = frozenset({Outcome.CANCELLED})
LOST = frozenset({Outcome.LOST})
NODE_FAIL = frozenset({Outcome.NODE_FAIL})
KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="rank", kill=_kill_rank, outcomes=RANK_FAIL, exact=True),
        Kind(name="signal", kill=_signal, outcomes=frozenset({Outcome.OK}), saves=True),
        Kind(name="squeue", kill=_empty_squeue, outcomes=RANK_FAIL, exact=True),
        Kind(name="ranks", kill=_kill_ranks, outcomes=RANK_FAIL, exact=True),
        Kind(name="scancel", kill=_cancel, outcomes=CANCELLED),
        Kind(name="job", kill=_kill_job, outcomes=LOST, more=True),
        Kind(name="node", kill=_cut_power, outcomes=NODE_FAIL, more=True),
    )
}
TEN = ("rank", "signal", "squeue", "ranks", "ranks", "scancel", "scancel", "job", "job", "node")
"""The kinds of ten kills."""


def choose(batch: Sequence[str], count: int, only: str | None, rng: random.Random) -> list[str]:
    """So many names: whole batches, each in a random order, or `only` one name."""
    chosen: list[str] = []
    while len(chosen) < count:
        chosen += [only] * len(batch) if only else rng.sample(batch, len(batch))
    return chosen[:count]


def processes_of(cluster: DevCluster, job_id: str) -> Iterator[int]:
    """Every process that was started with the job's number, Slurm's own left out."""
    variables = {f"SLURM_JOB_ID={job_id}", f"SLURM_CONF={cluster.conf}"}
    for process in processes():
        if variables <= process.environ:
            with suppress(OSError):
                if Path(f"/proc/{process.pid}/comm").read_text().strip() not in ("slurmstepd", "slurmd"):
                    yield process.pid


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
