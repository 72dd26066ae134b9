"""Runs in which calls fail, folders go and come back or are full, and ranks hang at their exit."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpc.model.files import AttemptFiles
from hpc.model.outcome import Outcome, RecordError
from hpc.model.trace import TraceError
from hpc.recovery.folders import attempt_folder
from tests.slurm.jobs import save_state
from tests.torture import fault_workload
from tests.torture.checks import Attempt, until_none
from tests.torture.fault_checks import (
    POSSIBLE,
    check_run,
    left_on_nodes,
    left_on_this_node,
    path_on,
    processes_of,
    ranks_of,
    read_truth,
)
from tests.torture.fault_place import LIMIT_S, RANKS, STEPS, Place, Start, Trial, TrialError, by_hand, by_sweep
from tests.torture.injector import Fault, injections

AWAY_S = 0.6
"""So long a folder is away at least: several looks of the copier."""
ERRORS: Mapping[str, Sequence[str]] = {
    "open": ("EIO", "ESTALE", "EMFILE", "ENOENT", "EDQUOT", "EROFS"),
    "write": ("EIO", "ENOSPC", "ESTALE", "EDQUOT"),
    "rename": ("EIO", "ESTALE", "ENOSPC", "EDQUOT", "EROFS"),
    "stat": ("EIO", "ESTALE", "ENOENT"),
    "fsync": ("EIO", "ENOSPC", "ESTALE", "EDQUOT"),
    "close": ("EIO", "ENOSPC", "EDQUOT"),
    "unlink": ("EIO", "ESTALE", "EROFS"),
    "mkdir": ("EIO", "ENOSPC", "EDQUOT", "EROFS"),
    "fallocate": ("ENOSPC",),
}
"""The errors of each call. A client of NFS reports ENOENT for a file that another client has just made."""
SHARED_ONLY = frozenset({"ESTALE", "ENOENT", "EDQUOT", "EROFS"})
"""Errors that only a shared file system has: a node's memory has no quota, and is not remounted."""
NEVER_FAILS = frozenset({("node", "close"), ("node", "unlink")})
"""Calls that cannot fail in a node's memory."""
TIMES = (1, 1, 1, 1, 1, 1, 3, 3, 3, 0)
TWENTY = (
    ("script",) * 7
    + ("sweep",) * 3
    + ("slurm",) * 2
    + ("moved",) * 2
    + ("full",) * 2
    + ("mount", "hang", "controller", "records")
)
"""The kinds of twenty trials."""
KINDS = tuple(dict.fromkeys(TWENTY))
INJECTED = frozenset({"script", "sweep", "slurm"})
BEFORE_THE_NEXT_STEP, AFTER_THE_RANKS, AFTER_THE_JOB = "before the next step", "after the ranks", "after the job"
RETURNS = (BEFORE_THE_NEXT_STEP,) * 5 + (AFTER_THE_RANKS,) * 5 + (AFTER_THE_JOB,)
"""When a folder comes back. A job waits two minutes for it: few trials take so long."""
LEFT_EMPTY = (".begin.json", ".exit.json", "plan.*.json", "jobs/runs/*.json", "submitted.jsonl")
"""The records that a power cut leaves without content, each with or without the others; the first one always."""
HANGS = ("thread", "atexit", "finalize")
FULL, ROOM_PAGES = ("traces", "out"), (0, 1, 2, 3)
"""Which folder is full from the ranks' last steps on, and how much room small files have in it still."""
_PAGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Result:
    """One trial: what was done, what came of it, what is wrong."""

    number: int
    kind: str
    seed: int
    what: str
    fired: int
    outcomes: Sequence[str]
    wrong: Sequence[str]
    took_s: float

    @property
    def met(self) -> bool:
        """Whether the run met what was planned: a call that is chosen may not be made."""
        return self.fired > 0 or self.kind not in INJECTED

    def __str__(self) -> str:
        wrong = "".join(f"\n     WRONG: {text}" for text in self.wrong)
        repeat = f"\n     again: --fault-seed {self.seed} --only-fault {self.kind}" if self.wrong else ""
        fired = f"{self.fired} calls failed" if self.kind in INJECTED else "done"
        outcomes = ", ".join(self.outcomes) or "no attempt"
        return f"{self.number:3} {self.kind:10} {self.what}: {fired}, {outcomes}, {self.took_s:.1f} s{wrong}{repeat}"


def choose_fault(trial: Trial, rng: random.Random, start: Start) -> Fault:
    """A fault at one of the calls that a run without faults makes: every process is as likely as any other, and so is
    each of its calls."""
    calls = {
        (process, call, area): count
        for (process, call, area), count in trial.place.calls[start].items()
        if call in ERRORS and (area, call) not in NEVER_FAILS
    }
    if not calls:
        raise TrialError("a run without faults made none of the calls that can fail")
    process = rng.choice(sorted({key[0] for key in calls}))
    call = rng.choice(sorted({key[1] for key in calls if key[0] == process}))
    area = rng.choice(sorted({key[2] for key in calls if key[:2] == (process, call)}))
    errors = [error for error in ERRORS[call] if area != "node" or error not in SHARED_ONLY]
    return Fault(
        call=call, error=rng.choice(errors), process=process, paths=[trial.areas[area]],
        n=rng.randint(1, calls[process, call, area]), times=rng.choice(TIMES),
    )  # fmt: skip


def inject(trial: Trial, rng: random.Random, start: Start) -> tuple[str, bool, int]:
    """Makes the run with one fault; what was done, whether a rank met it, how many calls failed."""
    chosen = choose_fault(trial, rng, start)
    start(trial, chosen.variables(trial.place.library, trial.state))
    fired = injections(trial.state)
    return (
        f"{chosen} in {Path(chosen.paths[0]).name}",
        any(injection.process == "hpc.rank" for injection in fired),
        len(fired),
    )


def until_held(trial: Trial, process: subprocess.Popen[bytes]) -> bool:
    """Waits until all ranks hold in their step; False where the command ends instead."""
    limit = time.monotonic() + LIMIT_S
    while len(list(trial.truth.glob("holding.*"))) < RANKS:
        if process.poll() is not None:
            return False
        if time.monotonic() > limit:
            raise TrialError(f"the ranks do not come to step {fault_workload.HOLD_STEP}; see {trial.folder}")
        time.sleep(0.01)
    return True


def take_away(
    trial: Trial, rng: random.Random, away: Callable[[Path], object], back: Callable[[Path], object], empty: bool
) -> tuple[str, bool, list[str]]:
    """The traces' folder goes while the ranks hold in a step, and comes back at one of RETURNS.

    `empty` says that a folder without files is in its place meanwhile: the mount point. What was done, whether the
    ranks met it, what is wrong.
    """
    when = rng.choice(RETURNS)
    wrong: list[str] = []
    trial.hold.touch()
    with trial.started(["bash", str(trial.script)], {"TORTURE_HOLD": str(trial.hold)}) as process:
        held = until_held(trial, process)
        away(trial.traces)
        time.sleep(AWAY_S)
        if when != BEFORE_THE_NEXT_STEP:
            trial.hold.unlink()
        if when == AFTER_THE_RANKS:
            trial.hanging += [
                f"a rank does not end: {text}" for text in until_none(lambda: ranks_of(trial.folder), LIMIT_S)
            ]
        elif when == AFTER_THE_JOB:
            trial.wait(process)
        if not empty and trial.traces.exists():
            wrong.append(f"{trial.traces.name} was made anew while it was away")
            shutil.move(trial.traces, trial.folder / "made-anew")
        elif empty and (made := sorted(path.name for path in trial.traces.iterdir())):
            wrong.append(f"written below the mount point: {', '.join(made)}")
        back(trial.traces)
        trial.hold.unlink(missing_ok=True)
        trial.wait(process)
    if not held:
        raise TrialError(f"the run ended before the folder could be taken away; see {trial.folder}")
    return f"back {when}", when != BEFORE_THE_NEXT_STEP, wrong


def moved(trial: Trial, rng: random.Random) -> tuple[str, bool, list[str]]:
    """The folder is renamed, and renamed back."""
    aside = trial.folder / "aside"
    return take_away(trial, rng, lambda path: path.rename(aside), aside.rename, empty=False)


def unmounted(trial: Trial, rng: random.Random) -> tuple[str, bool, list[str]]:
    """The folder is a mount that is lost, and mounted again; needs root."""
    store = trial.folder / "store"
    trial.traces.rename(store)
    trial.traces.mkdir()

    def mount(path: Path) -> None:
        subprocess.run(["mount", "--bind", str(store), str(path)], check=True)

    def unmount(path: Path) -> None:
        subprocess.run(["umount", "-l", str(path)], check=True)

    mount(trial.traces)
    try:
        return take_away(trial, rng, unmount, mount, empty=True)
    finally:
        unmount(trial.traces)
        trial.traces.rename(trial.folder / "mount-point")
        store.rename(trial.traces)


def full(trial: Trial, rng: random.Random) -> tuple[str, bool, list[str]]:
    """The traces, or all folders of the sweep, are full from a step on, and have room again for the next command; needs
    root."""
    place, room = {"traces": trial.traces, "out": trial.out}[rng.choice(FULL)], rng.choice(ROOM_PAGES)
    store, filler = trial.folder / "store", place / ".filler"
    shutil.copytree(place, store)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)], check=True)
    try:
        shutil.copytree(store, place, dirs_exist_ok=True)
        shutil.rmtree(store)
        trial.hold.touch()
        with trial.started(["bash", str(trial.script)], {"TORTURE_HOLD": str(trial.hold)}) as process:
            held = until_held(trial, process)
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(_PAGE_BYTES))
            os.truncate(filler, max(0, filler.stat().st_size - room * _PAGE_BYTES))
            trial.hold.unlink()
            trial.wait(process)
        if not held:
            raise TrialError(f"the run ended before the folder was full; see {trial.folder}")
        filler.unlink()
        shutil.copytree(place, store)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
    shutil.rmtree(place)
    store.rename(place)
    return f"{place.name} with room for {room} pages", True, []


WAITING_SRUN = """#!/bin/bash
# Slurm's own srun, which waits before it starts a run's ranks.
case "$*" in *hpc.rank*) ;; *) exec {srun} "$@" ;; esac
touch {mark}.reached
until [ -e {mark}.go ]; do sleep 0.05; done
exec {srun} "$@"
"""


def controller(trial: Trial, rng: random.Random) -> tuple[str, bool, list[str]]:
    """The controller is killed before or while srun creates the step of the ranks, and started again."""
    cluster, mark, late = trial.place.cluster, trial.folder / "srun", rng.random() < 0.5
    assert cluster is not None
    bin_folder = trial.folder / "bin"
    bin_folder.mkdir()
    srun = bin_folder / "srun"
    srun.write_text(WAITING_SRUN.format(srun=shutil.which("srun"), mark=mark))
    srun.chmod(0o755)
    path = f"{bin_folder}:{trial.place.environ['PATH']}"
    with trial.started(trial.place.sweep_argv(trial.out), {"PATH": path}) as process:
        limit = time.monotonic() + LIMIT_S
        while not mark.with_suffix(".reached").exists():
            if process.poll() is not None or time.monotonic() > limit:
                raise TrialError(f"the run does not come to its srun; see {trial.folder}")
            time.sleep(0.01)
        save_state(cluster, cluster.run("squeue", "-h", "-o", "%i").split()[0])
        if late:
            mark.with_suffix(".go").touch()
            time.sleep(rng.uniform(0.0, 0.3))
        cluster.kill("slurmctld")
        mark.with_suffix(".go").touch()
        time.sleep(rng.uniform(0.0, 8.0))
        cluster.start_controller()
        trial.wait(process)
    return f"killed {'while' if late else 'before'} srun creates the step", False, []


def mounts_refused() -> bool:
    """Whether this user may not mount."""
    tried = ["unshare", "--mount", "mount", "--bind", "/var", "/mnt"]
    return os.getuid() != 0 or subprocess.run(tried, capture_output=True, check=False).returncode != 0


def hang(trial: Trial, rng: random.Random) -> str:
    """The last rank does not end after its steps."""
    how = rng.choice(HANGS)
    trial.run(["bash", str(trial.script)], {"TORTURE_HANG": how})
    return how


def cut_power(trial: Trial, rng: random.Random) -> str:
    """The machine loses its power while the ranks hold in a step, or after the run, before its exit record or after it:
    no process survives, and records are without content, of zeros, or not there."""
    when = rng.choice(("in a step", "before the exit record", "after the run"))
    trial.hold.touch()
    with trial.started(["bash", str(trial.script)], {"TORTURE_HOLD": str(trial.hold)}) as process:
        if not until_held(trial, process):
            raise TrialError(f"the run ended before the power was cut; see {trial.folder}")
        if when == "in a step":
            trial.end_all(process)
        trial.hold.unlink()
        trial.wait(process)
    until_none(lambda: processes_of(trial.folder), 30)
    stem = AttemptFiles(trial.traces, trial.run_id, 1)
    if when == "before the exit record":
        stem.exit_record.unlink()
        if rng.random() < 0.5:
            shutil.move(stem.trace, attempt_folder(trial.traces, stem.stem))  # the traces had no room for it
    damage = rng.choice(("empty", "zeros", "gone"))
    chosen = {LEFT_EMPTY[0], *rng.sample(LEFT_EMPTY, rng.randint(1, len(LEFT_EMPTY)))}
    for path in [path for path in trial.out.rglob("*") if path.is_file()]:
        if any(path.match(f"*{name}") for name in chosen) or stem.begin_record == path:
            if damage == "gone":
                path.unlink()
            else:
                path.write_bytes(b"" if damage == "empty" else bytes(path.stat().st_size))
                os.utime(path, (time.time() - 3600,) * 2)  # the machine has started again since
    for path in stem.partial.glob("*.beat"):
        os.utime(path, (time.time() - 3600,) * 2)
    return f"{when}, {damage}: {', '.join(sorted(chosen))}"


def make_trial(place: Place, kind: str, folder: Path, number: int, seed: int) -> Result:
    """Makes one trial of this kind, which the seed determines, and judges it. Raises TrialError."""
    begin_s, rng = time.monotonic(), random.Random(seed)
    trial = Trial(place, folder)
    wrong: list[str] = []
    met, fired = False, 0
    if kind in INJECTED:
        what, met, fired = inject(trial, rng, by_hand if kind == "script" else by_sweep)
    elif kind == "hang":
        what = hang(trial, rng)
    elif kind == "records":
        what = cut_power(trial, rng)
    else:
        make = {"moved": moved, "mount": unmounted, "full": full, "controller": controller}[kind]
        what, met, wrong = make(trial, rng)
    trial.next_command()
    wrong += trial.hanging + [f"left running: {text}" for text in until_none(lambda: processes_of(folder), 30)]
    truth = read_truth(trial.truth, ranks=RANKS, planned=STEPS)
    attempts: list[Attempt] = []
    try:
        attempts, more = check_run(
            trial.traces, trial.run_id, truth, ranks_met_the_fault=met, on_node=path_on(place.cluster),
            possible=POSSIBLE | {Outcome.LOST} if kind == "records" else POSSIBLE,
        )  # fmt: skip
        wrong += [text for text in more if kind != "records" or not text.endswith(".damaged")]  # an emptied record
    except (TraceError, RecordError) as error:
        wrong.append(str(error))
    local = left_on_nodes(place.cluster, attempts) if place.cluster else left_on_this_node(trial.traces, attempts)
    wrong += [f"left in node-local storage: {path}" for path in local]
    records = [attempt.record for attempt in attempts]
    return Result(
        number=number, kind=kind, seed=seed, what=what, fired=fired, wrong=wrong, took_s=time.monotonic() - begin_s,
        outcomes=["no record" if record is None else str(record.outcome) for record in records],
    )  # fmt: skip
