"""Kinds of scripts by kinds of launchers: whether each is measured, and a known delay is named. One table.

`python -m tests.truth.launches [--python PYTHON]`; PYTHON, in its environment, runs the scripts and the launchers, this
one reads what they leave. A run is right where its exit status is 0, one trace is there with all steps, and its ledger
names rank 1, the phase of the delay, and its ms a step within 1 ms or 10 % of what the script slept. What is not right
is run again, once, because a machine has delays of its own; the table has the number of tries. Ends with 1 where a run
is not right.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpc.model.outcome import Outcome
from hpc.model.trace_file import read_trace
from parse.ledger.types import Ledger
from parse.ledger.verdict import PERSISTENT
from tests.mpi.conftest import RANKS_ENV, mpiexec
from tests.truth.delays import describe_all, findings_of
from tests.truth.programs import ROOT, SCRIPTS, cluster_in, command
from tests.truth.windows import ledger_of
from tools.devcluster.cluster import DevCluster

STEPS, WARMUP, SLEEP_MS = 60, 10, 20
ALLOWED_MS, ALLOWED = 1.0, 0.1
"""What the delay may differ from what the script slept, whichever is larger."""
TIMEOUT_S = 150
MODULE = "kinds"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of tests/observe_scripts/kinds.py, the phase of its delay, and the modules that it needs. It may sleep
    several `times` a step; of its first steps some are `unseen`; `spawns`: it starts its ranks itself."""

    name: str
    phase: str = "data"
    needs: tuple[str, ...] = ("torch",)
    times: int = 1
    unseen: int = 0
    spawns: bool = False
    title: str = ""
    script: str = "kinds.py"


KINDS = (
    Kind(name="ddp", title="DDP"),
    Kind(name="accumulated", title="DDP, no_sync, two batches a step", phase="compute", times=2),
    Kind(name="scaled", title="DDP, autocast, gradient scaler, evaluations", phase="optimizer"),
    Kind(name="compiled", title="DDP, torch.compile"),
    Kind(name="workers", title="DDP, a loader with a worker", phase="compute"),
    Kind(name="hooked", title="DDP, a comm hook", phase="compute"),
    Kind(name="fsdp2", title="FSDP2", phase="compute"),
    Kind(name="fsdp1", title="FSDP1", phase="compute"),
    Kind(name="tensor_parallel", title="tensor parallel (DTensor)", phase="compute"),
    Kind(name="by_hand", title="all-reduces by hand", phase="compute"),
    Kind(name="autograd_grad", title="torch.autograd.grad"),
    Kind(name="zero", title="ZeroRedundancyOptimizer"),
    Kind(name="local", title="parameters averaged each fifth step"),
    Kind(name="compiled_update", title="torch.compile(optimizer.step)", unseen=1),
    Kind(name="no_loader", title="no DataLoader"),
    Kind(name="rollouts", title="reinforcement learning"),
    Kind(name="trainer", title="Hugging Face Trainer", needs=("transformers", "accelerate")),
    Kind(name="lightning", title="Lightning", needs=("lightning",), script="by_lightning.py"),
    Kind(name="accelerate", title="Accelerate, two batches a step", needs=("accelerate",), phase="compute", times=2),
    Kind(name="deepspeed", title="DeepSpeed, ZeRO-1", needs=("deepspeed",), phase="compute"),
    Kind(name="spawned", title="mp.spawn", spawns=True),
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where runs are made: the interpreter, a folder of their own, and a cluster where one is needed."""

    python: str
    folder: Path
    cluster: Callable[[], DevCluster]


Command = tuple[Sequence[str], Mapping[str, str]]
"""Its words, and its environment where that is not this process's."""


def by_torchrun(place: Place, words: Sequence[str], *options: str) -> Command:
    return [place.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options, *words], {}


def with_restarts(place: Place, words: Sequence[str]) -> Command:
    """With a store for each attempt: in one for all, ranks of torch 2.13 find addresses of the attempt before, and one
    in two launches of two ranks over gloo hangs or fails, without any hooks."""
    return by_torchrun(place, words, "--max-restarts", "1")[0], {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def as_module(place: Place, words: Sequence[str]) -> Command:
    """`-m kinds`, by the file that hpc.observe prints for a module."""
    at = words.index("--") + 1
    env = {"PYTHONPATH": os.pathsep.join([str(SCRIPTS), *_path()])}
    argv = [place.python, *words[:at], "-m", MODULE, *words[at + 1 :]]
    shown = subprocess.run(
        argv, capture_output=True, text=True, check=False, cwd=place.folder, env={**os.environ, **env}
    )
    file = place.folder / f"run_{MODULE}.py"
    file.write_text(shown.stderr.partition("\n\n")[2])
    return by_torchrun(place, [*words[:at], str(file), *words[at + 1 :]])[0], env


def by_mpiexec(place: Place, words: Sequence[str]) -> Command:
    return [mpiexec() or "mpiexec", "-n", "2", place.python, *words], {}


def by_srun(place: Place, words: Sequence[str], *options: str) -> Command:
    argv = ["srun", *options, "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", place.python, *words]
    return argv, place.cluster().environ


def without_mpi(place: Place, words: Sequence[str]) -> Command:
    return by_srun(place, words, "--mpi=none")


def by_accelerate(place: Place, words: Sequence[str]) -> Command:
    options = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    options += ["--dynamo_backend", "no"]
    return [place.python, "-m", "accelerate.commands.launch", *options, *words], {}


def by_deepspeed(place: Place, words: Sequence[str]) -> Command:
    options = ["--num_accelerators", "2", "--master_port", "29551", "--module"]
    return [place.python, "-m", "deepspeed.launcher.runner", *options, *words[1:]], {"DS_ACCELERATOR": "cpu"}


def by_itself(place: Place, words: Sequence[str]) -> Command:
    at = words.index("--")
    return [place.python, *words[:at], "--cpus-per-rank", "1", *words[at:]], {}


LAUNCHERS: Mapping[str, tuple[Callable[[Place, Sequence[str]], Command], tuple[str, ...]]] = {
    "torchrun": (by_torchrun, ()),
    "torchrun --max-restarts 1": (with_restarts, ()),
    "torchrun, a module": (as_module, ()),
    "mpiexec": (by_mpiexec, ("mpi4py",)),
    "srun": (by_srun, ("mpi4py",)),
    "srun --mpi=none": (without_mpi, ()),
    "accelerate launch": (by_accelerate, ("accelerate",)),
    "deepspeed": (by_deepspeed, ("deepspeed",)),
    "python": (by_itself, ()),
}
"""By its name: how a launcher starts `-m hpc.observe …` on two ranks, and the modules that it needs."""
OF_ALL = ("ddp", "fsdp2", "scaled")
"""Kinds that every launcher starts; torchrun starts all."""
FURTHER = (
    ("lightning", "python"), ("lightning", "mpiexec"), ("trainer", "accelerate launch"), ("trainer", "mpiexec"),
    ("accelerate", "accelerate launch"), ("deepspeed", "deepspeed"),
)  # fmt: skip


def pairs() -> Iterator[tuple[Kind, str]]:
    """What is run: every kind by torchrun, or by itself, three by every launcher, and what belongs together."""
    for kind in KINDS:
        for launcher in LAUNCHERS:
            usual = launcher == ("python" if kind.spawns else "torchrun")
            if usual or (kind.name in OF_ALL and launcher != "python") or (kind.name, launcher) in FURTHER:
                yield kind, launcher


def _path() -> list[str]:
    return [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]


def run(kind: Kind, launcher: str, place: Place) -> tuple[str, str]:
    """Runs a kind by a launcher in the place's folder: what is not right, empty where all is; and what is measured."""
    shutil.rmtree(place.folder, ignore_errors=True)
    place.folder.mkdir(parents=True)
    plan, truth = place.folder / "plan.json", place.folder / "truth"
    plan.write_text(json.dumps({"steps": STEPS, "windows": [[kind.phase, 1, SLEEP_MS]]}))
    words = [
        "-m",
        "hpc.observe",
        "--warmup",
        str(WARMUP),
        "--",
        str(SCRIPTS / kind.script),
        kind.name,
        str(plan),
        str(truth),
    ]
    argv, env = LAUNCHERS[launcher][0](place, words)
    env = {**RANKS_ENV, "PYTHONPATH": os.pathsep.join(_path()), "GLOO_SOCKET_IFNAME": "lo", **env}
    try:
        done = subprocess.run(
            argv, cwd=place.folder, env={**os.environ, **env}, capture_output=True, text=True, check=False,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not at its end after {TIMEOUT_S} s", ""
    (place.folder / "output").write_text(done.stdout + done.stderr)
    traces = [*(place.folder / "traces").glob("*.h5")]
    if done.returncode or len(traces) != 1:
        return f"exit status {done.returncode}, {len(traces)} traces", ""
    trace = read_trace(traces[0])
    if trace.outcome is not Outcome.OK or trace.stamps.shape[:2] != (2, STEPS - kind.unseen):
        return f"{trace.outcome}, ranks and steps {trace.stamps.shape[:2]}", ""
    slept = json.loads((truth / "rank1.json").read_text())["slept_ns"][kind.phase]
    return _judged(kind, ledger_of([trace], place.folder / "ledger"), float(np.mean(slept)) * kind.times / 1e6)


def _judged(kind: Kind, ledger: Ledger, slept_ms: float) -> tuple[str, str]:
    named = findings_of(ledger)
    if not named:
        return describe_all(ledger), ""
    its = named[0]
    phase = max(its.cause, key=its.cause.__getitem__)
    measured = f"rank {', '.join(map(str, its.ranks))}, {phase}: {its.cause[phase]:.2f} of {slept_ms:.2f} ms"
    if (its.ranks, its.kind, phase) != ((1,), PERSISTENT, kind.phase):
        return describe_all(ledger), measured
    is_off = abs(its.cause[phase] - slept_ms) > max(ALLOWED_MS, ALLOWED * slept_ms)
    return "its ms" if is_off else "", measured


def lacking(python: str, modules: Sequence[str]) -> list[str]:
    """Those that this interpreter does not have."""
    find = f"import importlib.util as u; print(*[m for m in {[*modules]} if u.find_spec(m) is None])"
    return subprocess.run([python, "-c", find], capture_output=True, text=True, check=True).stdout.split()


def judge(options: argparse.Namespace, folder: Path, scratch: Path) -> bool:
    """Whether anything is not right."""
    versions = "import sys, torch; print('Python', *sys.version.split()[:1], 'torch', torch.__version__)"
    print(subprocess.run([options.python, "-c", versions], capture_output=True, text=True, check=True).stdout)
    absent = {*lacking(options.python, sorted({m for kind in KINDS for m in kind.needs} | {"mpi4py", "deepspeed"}))}
    wrong = made = 0
    print("| kind | launcher | tries | measured of slept | not right |\n|---|---|---:|---|---|")
    with ExitStack() as stack:
        clusters: list[DevCluster] = []

        def cluster() -> DevCluster:
            clusters[:] = clusters or [stack.enter_context(cluster_in(scratch / "cluster"))]
            return clusters[0]

        for kind, launcher in pairs():
            if options.only and not re.search(options.only, f"{kind.name} by {launcher}"):
                continue
            begin = f"| {kind.title} | {launcher} |"
            if missing := sorted({*kind.needs, *LAUNCHERS[launcher][1]} & absent):
                print(f"{begin} 0 | | not run: no {', '.join(missing)} |", flush=True)
                continue
            at = folder / f"{kind.name}-{[*LAUNCHERS].index(launcher)}"
            place = Place(python=options.python, folder=at, cluster=cluster)
            reason, measured = run(kind, launcher, place)
            if is_again := bool(reason):
                reason, measured = run(kind, launcher, place)
            made, wrong = made + 1, wrong + bool(reason)
            print(f"{begin} {1 + is_again} | {measured} | {reason} |", flush=True)
    print(f"{made - wrong} of {made} runs are right")
    return bool(wrong)


def main() -> int:
    """Command line: 0 where all is right, 1 where something is not."""
    python = {"default": sys.executable, "help": "runs scripts and launchers (default: this one)"}
    return command(__doc__, judge, ("--python", python))


if __name__ == "__main__":
    sys.exit(main())
