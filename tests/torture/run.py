"""Runs that are killed at random steps, on a real Slurm of two nodes with two ranks each, and runs that meet faults.

`python -m tests.torture.run --kills 100 --faults 200 [--seed N] [--only KIND] [--only-fault KIND] [--keep DIR]`. Every
rank keeps an account of its own of the steps that it completed; held against it are the traces, and what else is left.
Ends with 1 where anything is not as promised: an unreadable trace, more lost than the last copy lacked, another outcome
than the true one or none, a run measured twice, a process or a file that stayed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hpc.model.outcome import Outcome, RecordError, read_begin_record
from hpc.model.trace import TraceError
from hpc.recovery.folders import PARTIAL
from hpc.recovery.journal import read_progress
from tests.slurm.jobs import TWO_RANKS
from tests.sweeps import ROOT, sweep_argv, with_checkout
from tests.torture import checks, workload
from tests.torture.checks import COPY_S, LATE_S, Attempt
from tests.torture.fault_place import TrialError
from tests.torture.fault_run import Faults, fault_table, plan_trials
from tests.torture.fault_trials import KINDS as FAULT_KINDS
from tests.torture.fault_trials import Result
from tests.torture.injector import InjectorError
from tests.torture.kills import KINDS, TEN, Kind, Victim, choose, wrap_squeue
from tests.torture.truth import Life, Loss, read_life
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import TMP, DevClusterError, Shape
from tools.devcluster.daemons import missing_programs

RANKS = 4
STEPS = 20_000
LAST_STEP = 600
"""Kills come after a random step, this one at the latest; half of those that only copies survive after the first."""
SCRIPT = Path(__file__).with_name("saving.py")
ON_TWO_RANKS = ("--ranks-per-node", "2", "--cpus-per-rank", "1", "--no-baseline", "--gpus-per-node", "0")
LIMIT_S = 300.0
"""The time limit of every wait; only a failure reaches it."""


class TortureError(RuntimeError):
    """A run did not reach the state in which it is killed; the text names that state."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill: after which step, what was lost, what is wrong, how long all of it took."""

    number: int
    kind: str
    step: int
    attempts: int
    outcome: str
    loss: Loss
    wrong: Sequence[str]
    took_s: float
    stillborn: int = 0

    def __str__(self) -> str:
        lost = f"lost {self.loss.steps} steps, the oldest {self.loss.age_s:.2f} s old" if self.loss.steps else "lost 0"
        wrong = "".join(f"\n     WRONG: {text}" for text in self.wrong)
        return (
            f"{self.number:3} {self.kind:8} after step {self.step:3}: {self.outcome}, {lost}, "
            f"{self.attempts} attempts, {self.took_s:.1f} s{', started anew' * self.stillborn}{wrong}"
        )


class Sweep:
    """A sweep of one run that goes on until it is killed, followed as a person would follow it."""

    def __init__(self, cluster: DevCluster, folder: Path, kind: Kind) -> None:
        folder.mkdir(parents=True)
        self.folder, self.traces, self.cluster = folder, folder / "traces", cluster
        program = SCRIPT if kind.saves else Path(workload.__file__)
        shutil.copy(program, folder)
        what = (
            (*ON_TWO_RANKS, "--script", program.name) if kind.saves
            else (*TWO_RANKS, "--workload", f"{folder}/workload.py:Tortured", "--steps", str(STEPS))
        )  # fmt: skip
        self._log = (folder / "sweep.log").open("w")
        self._process = subprocess.Popen(
            sweep_argv(
                "--site", str(cluster.site_file), "--nodes", "2", "--repeats", "1", "--warmup", "5",
                "--copy-s", f"{COPY_S:g}", "--out", str(folder), *what,
            ),
            cwd=folder, env={**with_checkout(cluster.environ), **wrap_squeue(cluster)}, stdout=self._log,
            stderr=self._log,
        )  # fmt: skip

    def begun(self, attempt: int) -> tuple[str, int] | None:
        """The job and the life of it that an attempt of this number runs in, once it does."""
        for path in self.traces.glob(f"*.{attempt}.begin.json"):
            with suppress(RecordError):  # it is being written
                begin = read_begin_record(path)
                return begin.job_id, begin.restart_count
        return None

    def life(self, attempt: int, step: int) -> tuple[str, Life] | None:
        """The job, and the account of an attempt all ranks of which have completed this step."""
        if (begun := self.begun(attempt)) is None:
            return None
        life = read_life(self.folder, *begun)
        far = len(life.pids) == len(life.completed) == RANKS and all(len(t) > step for t in life.completed.values())
        return (begun[0], life) if far else None

    def until_life(self, attempt: int, step: int) -> tuple[str, Life] | None:
        """Waits for that; None where the sweep ends instead. Raises TortureError after the limit."""
        limit = time.monotonic() + LIMIT_S
        while (life := self.life(attempt, step)) is None and not self.has_ended():
            if time.monotonic() > limit:
                raise TortureError(f"attempt {attempt} does not come to step {step}; see {self.folder}")
            time.sleep(0.01)
        return life

    def copied(self) -> dict[int, int]:
        """How many steps of each rank have been copied to the traces."""
        partials = self.traces.glob(f"*{PARTIAL}")
        return {rank: progress.completed for partial in partials for rank, progress in read_progress(partial).items()}

    def until_copied(self) -> None:
        """Waits until some steps of every rank have been. Raises TortureError after the limit."""
        limit = time.monotonic() + LIMIT_S
        while len(copied := self.copied()) < RANKS or not all(copied.values()):
            if time.monotonic() > limit or self.has_ended():
                raise TortureError(f"no copies come; see {self.folder}")
            time.sleep(0.01)

    def has_ended(self) -> bool:
        """Whether it says that its runs have ended."""
        return self._process.poll() is not None

    def until_ended(self) -> None:
        """Waits for that. Raises TortureError after the limit."""
        try:
            self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise TortureError(f"the sweep does not end; see {self.folder}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends what is left of it."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: 0 where all is as promised, 1 where not, 2 where nothing could be killed."""
    args = _arguments(argv)
    if args.kills and (missing := missing_programs()):
        print(missing, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that the cluster is stopped
    print(f"seed {args.seed}: the same kills and faults again by --seed {args.seed}", flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rw-", dir="/var/tmp") as scratch:  # nodes do not share /tmp
        folder = (args.keep or Path(scratch) / "runs").absolute()
        try:
            kills = make_kills(args, Path(scratch), folder)
            results = make_faults(args, Path(scratch), folder)
        except (TortureError, TrialError, InjectorError, DevClusterError) as error:
            print(error, file=sys.stderr)
            return 2
    print(f"{time.monotonic() - begin:.0f} s")
    return int(any(kill.wrong for kill in kills) or any(result.wrong for result in results))


def make_kills(args: argparse.Namespace, scratch: Path, folder: Path) -> list[Kill]:
    """Prints a line for each kill, then their table. Raises TortureError."""
    kills: list[Kill] = []
    if not args.kills:
        return kills
    rng = random.Random(args.seed)
    with DevCluster(scratch / "c", Shape(nodes=2, gpus=0, slurmd_timeout_s=5)) as cluster:
        for number, kind in enumerate(map(KINDS.__getitem__, choose(TEN, args.kills, args.only, rng)), 1):
            kills.append(torture(cluster, kind, folder / f"{number:03}-{kind.name}", number, rng))
            print(kills[-1], flush=True)
    print(table(kills), flush=True)
    return kills


def make_faults(args: argparse.Namespace, scratch: Path, folder: Path) -> list[Result]:
    """Prints a line for each trial with a fault, then their table. Raises TrialError, InjectorError."""
    results: list[Result] = []
    if not args.faults:
        return results
    faults = Faults(scratch=scratch, runs=folder)
    for result in faults.made(plan_trials(args.faults, args.seed, args.only_fault, args.fault_seed)):
        print(result, flush=True)
        results.append(result)
    print(fault_table(results), *faults.notes, sep="\n", flush=True)
    return results


def torture(cluster: DevCluster, kind: Kind, folder: Path, number: int, rng: random.Random) -> Kill:
    """Starts a run, kills it, waits until all is over, and looks at what is left. Raises TortureError."""
    begin_s, step, after_copy = time.monotonic(), rng.randint(0, LAST_STEP), rng.random() < 0.5
    stillborn = 0
    with ExitStack() as opened:
        sweep = opened.enter_context(Sweep(cluster, folder, kind))
        while (started := sweep.until_life(1, step)) is None:
            stillborn += 1
            check_stillborn(sweep, stillborn)
            sweep = opened.enter_context(Sweep(cluster, folder.with_name(f"{folder.name}-{stillborn}"), kind))
        job_id, before = started
        if after_copy and not kind.exact and not kind.saves:
            sweep.until_copied()
        copied, killed_s = sweep.copied(), time.time()
        kind.kill(Victim(cluster=cluster, job_id=job_id, life=before, rng=rng))
        if kind.more and (second := sweep.until_life(2, step=0)) is not None:
            cluster.run("scancel", second[0])
        sweep.until_ended()
    ended_s = time.time()
    recovered = subprocess.run(
        [sys.executable, "-m", "hpc.sweep", "recover", str(sweep.folder)],
        env=with_checkout(cluster.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    wrong = [] if recovered.returncode == 0 else [f"hpc.sweep recover: {recovered.stderr.strip()}"]
    wrong += [f"left running: {text}" for text in checks.until_none(lambda: checks.processes_left(cluster))]
    wrong += [f"left in the traces: {text}" for text in checks.half_files(sweep.traces)]
    if not (kind.exact or kind.saves):
        clean(cluster)
    wrong += [f"left on a node: {text}" for text in checks.local_files(cluster)]
    loss, attempts = Loss(steps=0, age_s=0.0), list[Attempt]()
    try:
        attempts = checks.attempts_of(sweep.traces)
        life = read_life(sweep.folder, job_id, attempts[0].begin.restart_count)
        loss, more = checks.check_killed(kind, attempts[0], life, killed_s, copied)
        if kind.saves:
            wrong += checks.check_saved(attempts[0], life, sweep.folder / "truth")
        wrong += more + checks.check_later(attempts[1:], sweep.folder, ended_s)
    except (TraceError, RecordError) as error:
        wrong.append(str(error))
    records = [attempt.record for attempt in attempts]
    return Kill(
        number=number, kind=kind.name, step=step, attempts=len(attempts), loss=loss, wrong=wrong,
        outcome=", ".join("none" if record is None else str(record.outcome) for record in records),
        took_s=time.monotonic() - begin_s, stillborn=stillborn,
    )  # fmt: skip


def check_stillborn(sweep: Sweep, times: int) -> None:
    """A run that ended before it was killed: Open MPI's start crashes now and then, and that is a launch_fail.

    Raises TortureError where it is anything else, or happens again and again.
    """
    records = [attempt.record for attempt in checks.attempts_of(sweep.traces)]
    outcomes = [None if record is None else record.outcome for record in records]
    if outcomes != [Outcome.LAUNCH_FAIL] or times > 2:
        raise TortureError(f"the run ended before it was killed, as {outcomes}; see {sweep.folder}")


def clean(cluster: DevCluster) -> None:
    """Removes the files that a job which was killed as a whole could not collect, as a person would."""
    cluster.run(
        "srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--mpi=none", "--export=ALL",
        "env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "hpc.recovery", "clean",
    )  # fmt: skip


def table(kills: Sequence[Kill]) -> str:
    """By kind: how many kills, the worst loss, and how often something was wrong."""
    lines = [f"{'kind':8} {'kills':>5} {'worst loss in steps':>20} {'in s':>6} {'wrong':>6}   promised"]
    for name, kind in KINDS.items():
        if of_kind := [kill for kill in kills if kill.kind == name]:
            promised = (
                "what the slowest rank lacks" if kind.saves
                else "the step that is not complete" if kind.exact else f"what is younger than {COPY_S:g} s"
            )  # fmt: skip
            late = "" if kind.exact or kind.saves else f" (and {LATE_S:g} s for a busy machine)"
            lines.append(
                f"{name:8} {len(of_kind):5} {max(kill.loss.steps for kill in of_kind):20} "
                f"{max(kill.loss.age_s for kill in of_kind):6.2f} {sum(bool(kill.wrong) for kill in of_kind):6}   "
                f"{promised}{late}"
            )
    if stillborn := sum(kill.stillborn for kill in kills):
        lines.append(f"{stillborn} runs ended as launch_fail before they were killed, and were started anew")
    return "\n".join(lines)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.run", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--faults", type=int, default=0, metavar="N", help="how many trials with faults (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of which kills and faults, and when")
    parser.add_argument("--only", choices=sorted(KINDS), help="only kills of this kind")
    parser.add_argument("--only-fault", choices=sorted(FAULT_KINDS), help="only faults of this kind")
    parser.add_argument("--fault-seed", type=int, help="the first trial is the one with this seed of its own")
    parser.add_argument("--keep", type=Path, metavar="DIR", help=f"leave the runs there, outside {TMP}")
    args = parser.parse_args(argv)
    if args.keep and TMP in args.keep.absolute().parents:
        parser.error(f"--keep {args.keep}: the nodes do not share {TMP}; name a folder outside it")
    return args


if __name__ == "__main__":
    sys.exit(main())
