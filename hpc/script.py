"""Measures an unchanged training script of your own.

    rankwise observe -- train.py --its --arguments
    mpiexec -n 4 rankwise observe -- train.py --its --arguments
    srun -N2 --ntasks-per-node=8 --gpus-per-node=8 rankwise observe --steps 200 -- train.py --its --arguments
    torchrun --nproc-per-node 8 -m hpc.observe -- train.py --its --arguments
    accelerate launch -m hpc.observe -- train.py --its --arguments

Each rank runs the script as a process of its own, with the arguments behind --, and with torchrun's variables (RANK,
WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT) where they are not set; a single rank has them, too.
Where MPI does not connect the ranks (torchrun, accelerate, srun --mpi=none, no mpi4py), or the script imports mpi4py or
Horovod and so starts MPI itself, they connect by TCP, and meet by a file in --traces, which all nodes must share.

Hooks on torch record when it reads, computes, communicates and updates; rank 0 leaves a trace in --traces, whose steps
are the script's optimizer steps. `rankwise summarize traces/ --ledger` reads it. Launched again, it is another
run of the same point, or a new attempt of one that failed; --repeat names the run. Over node counts:
`rankwise sweep --nodes 1,2,4 --script train.py -- --its --arguments`.

Exit status 0: measured; 1: the script failed; 2: usage; 3: nothing was measured; 4: out of memory; 5: the script failed
before its first step, or the ranks did not start. A script that gets a signal has it from this process, which waits
for its end and ends as it did. docs/observe.md has what is measured, and what cannot be.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.by_hand import add_launch_options, place, run_by_hand, variables
from hpc.model.files import AttemptFiles
from hpc.model.spec import MIN_WARMUP_STEPS, SCRIPT, SCRIPT_STEPS, UNKNOWN, RunSpec, SpecError, secret_arguments
from hpc.preflight.run import read_expectations
from hpc.run.rendezvous import TORCHRUN, connect
from hpc.system.command_line import called
from hpc.system.command_parser import CommandParser
from hpc.system.sanitize import arguments_without_secrets, deny_world_writing
from hpc.system.version import with_version
from hpc.workloads import code_digest
from hpc.workloads.user_code import imported_packages

if TYPE_CHECKING:
    from hpc.measure.connections import Communicator

PROGRAM = "rankwise observe"
_WARMUP_STEPS = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `rankwise observe`, on every rank."""
    words = list(sys.argv[1:] if argv is None else argv)
    options, script = _split(words)
    of_launcher = [each for each in options if _LOCAL_RANK.fullmatch(each)]
    options = [each for each in options if each not in of_launcher]
    parser = make_parser()
    arguments = parser.parse_args(options)
    expectations = read_expectations(vars(arguments), parser)
    if not script:
        parser.error("no script: it follows --, as in: rankwise observe -- train.py --its --arguments")
    try:
        script = _script_of(script)
    except SpecError as error:
        parser.error(str(error))
    if confused := _ours_behind_the_script(words, script, parser):
        parser.error(
            f"{', '.join(confused)} behind {script[0]}: its own, or of {called('hpc.observe')}? Those come "
            f"first, then --, then the script: rankwise observe -- {_shown(script)} gives it all of them"
        )
    deny_world_writing()
    import numpy  # noqa: F401 - one that is broken is named in one line, before ranks meet

    status, trace = run_by_hand(
        "hpc.observe",
        partial(connect, arguments.traces, leave_mpi=_uses_mpi(script[0])),
        partial(_run, arguments, script),
        arguments,
        expectations,
        [*of_launcher, *script[1:]],
    )
    if trace is not None:
        repeat = AttemptFiles.of_stem(trace.parent, trace.stem).run_id.rpartition("_r")[2]
        if repeat != "1":
            print(f"run {repeat} of its point in {trace.parent}")
        readable = shlex.quote(str(trace if repeat == "1" else trace.parent))
        command = "rankwise summarize"
        print(f"trace: {trace}", f"read it: {command} {readable} --ledger", sep="\n", flush=True)
    if status < 0:  # the end of the script is that of this process
        with suppress(OSError):  # of SIGKILL there is no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


_USE_MPI = {"horovod", "mpi4py"}
"""Packages by which a script starts MPI itself."""


def _uses_mpi(script: str) -> bool:
    """Whether the script, or what it imports from its folder, imports one of these."""
    try:
        return bool(_USE_MPI & imported_packages(script))
    except SpecError:  # which is said where the run is made
        return False


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The options, each with its value, and the script with its arguments.

    `--` is between the two, but for torchrun, which keeps one that directly follows `-m hpc.observe` to itself.
    """
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("--", "-m"):
        at += 1 if "=" in words[at] or words[at + 1 : at + 2] == ["--"] else 2
    return words[:at], words[at + 1 if words[at : at + 1] == ["--"] else at :]


_LOCAL_RANK = re.compile(r"--local[_-]rank=\d+")
"""What deepspeed and torch.distributed.launch put before all other arguments of each rank: the script gets it."""
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
_LAUNCHERS = {
    **dict.fromkeys(("torchrun", "accelerate"), "-m hpc.observe"),
    **dict.fromkeys(("srun", "mpiexec", "mpirun"), PROGRAM),
}
"""What starts ranks, each with how it starts the hooks: by a module, or by any program."""


def _script_of(command: Sequence[str]) -> Sequence[str]:
    """The script and its arguments, of `python train.py` too. Raises SpecError, with what to type, for others."""
    program, *rest = command
    at = next((at for at, argument in enumerate(command) if argument.endswith(".py")), 0)
    if (name := Path(program).name) in _LAUNCHERS and at:
        launcher = [argument for argument in command[:at] if not _PYTHON.fullmatch(argument)]
        raise SpecError(
            f"{name} starts ranks, and rankwise observe measures in each: "
            f"{_shown(launcher)} {_LAUNCHERS[name]} -- {_shown(command[at:])}"
        )
    if _PYTHON.fullmatch(name) and not Path(program).is_dir():
        path = shutil.which(program)
        if path is None or Path(path).absolute().parent != Path(sys.executable).absolute().parent:
            raise SpecError(
                f"{program} is {path or 'not on PATH'}, and the script runs in the Python of rankwise observe, "
                f"{sys.executable}: leave {program} out, or start rankwise observe by it"
            )
        while rest[:1] == ["-u"]:
            os.environ["PYTHONUNBUFFERED"] = rest.pop(0)
        command = rest
    if command[:1] == ["-m"] and command[1:]:
        file, module = f"run_{command[1].rpartition('.')[2]}.py", command[1]
        raise SpecError(
            f"-m {module} is a module, and what is observed is a file: make {file} of these lines, then "
            f"rankwise observe -- {_shown([file, *command[2:]])}\n\n"
            f"import runpy\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import {module}\n\n"
            f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
        )
    if command and command[0].startswith("-"):
        raise SpecError(f"{command[0]}: an option of Python is not passed on; its variable is (-O: PYTHONOPTIMIZE=1)")
    if not command:
        raise SpecError(f"{program} names no script: behind -- comes SCRIPT.py")
    return command


def _shown(arguments: Sequence[str]) -> str:
    return shlex.join(arguments_without_secrets(arguments))


def _ours_behind_the_script(
    words: Sequence[str], script: Sequence[str], parser: argparse.ArgumentParser
) -> Sequence[str]:
    """Options that rankwise observe has, too, where no -- says whose they are. Launchers by Python keep one back."""
    if "--" in words or any(name.startswith(("TORCHELASTIC_", "ACCELERATE_")) for name in os.environ):
        return ()
    ours = {option for action in parser._actions for option in action.option_strings}
    return [argument for argument in script[1:] if argument.partition("=")[0] in ours]


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser(
        prog=PROGRAM, usage=f"{PROGRAM} [options] -- SCRIPT.py [arguments of the script]", description=__doc__
    )
    add = parser.add_argument_group("what is measured").add_argument
    add("--steps", metavar="N", type=int, default=SCRIPT_STEPS,
        help="end the script after N optimizer steps, warm-up included (default: it runs to its end)")  # fmt: skip
    add("--warmup", metavar="N", type=int, default=_WARMUP_STEPS,
        help=f"first steps that no number counts (default {_WARMUP_STEPS}; at least {MIN_WARMUP_STEPS})")  # fmt: skip
    add("--batch-size", metavar="N", type=int, default=0,
        help="samples of a rank's step, for a script without a DataLoader")  # fmt: skip
    add("--tokens-per-sample", metavar="N", type=int, default=0,
        help="of a language model: tokens of a sample (its sequence length), so that speeds are tokens/s")  # fmt: skip
    cpus = ": torchrun's OMP_NUM_THREADS, else the cores that the ranks of a node may use, shared by them"
    add_launch_options(parser, cpus=cpus, env="what is measured")
    parser.set_defaults(cpus_decided=False)
    return with_version(parser)


def _cpus_per_rank(requested: int | None, ranks_per_node: int, comm: Communicator) -> tuple[int, bool]:
    """As requested, else as torchrun has set them, else the cores that the ranks of the first node may use, shared by
    them; and whether a launcher or the machine decided, and nobody requested them. Collective.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "") if TORCHRUN in os.environ else ""
    is_stated = threads.isdigit() and not _by_torchrun(threads, os.getppid())
    by_torchrun, stated = comm.bcast((int(threads) if threads.isdigit() else 0, is_stated))
    cores = comm.gather(sorted(os.sched_getaffinity(0)) if comm.rank < ranks_per_node else [])
    shared = comm.bcast(None if cores is None else max(1, len(set().union(*cores)) // ranks_per_node))
    return ((by_torchrun or shared), not stated) if requested is None else (requested, False)


def _by_torchrun(threads: str, agent: int) -> bool:
    """Whether torchrun itself set OMP_NUM_THREADS, which it does where nobody has: then the process `agent` was started
    without. Where that cannot be read, by the value that torchrun sets for several ranks."""
    try:
        names = {entry.partition(b"=")[0] for entry in Path(f"/proc/{agent}/environ").read_bytes().split(b"\0")}
    except OSError:
        names = {TORCHRUN.encode()}
    if TORCHRUN.encode() in names:  # no agent: a script between it and this process, or not readable
        return threads == "1" and os.environ.get("LOCAL_WORLD_SIZE", "1") != "1"
    return b"OMP_NUM_THREADS" not in names


def _run(arguments: argparse.Namespace, script: Sequence[str], comm: Communicator) -> RunSpec:
    """The run that this rank takes part in. Collective; raises SpecError."""
    where = place(arguments, comm)
    cpus, arguments.cpus_decided = _cpus_per_rank(arguments.cpus_per_rank, where["ranks_per_node"], comm)
    path = Path(script[0]).parent.resolve() / Path(script[0]).name  # one script has one path, whatever leads to it
    if path.suffix != ".py" or not path.is_file():
        meant = f". Did you mean {script[0]}.py?" if path.with_name(f"{path.name}.py").is_file() else ""
        raise SpecError(f"{script[0]!r} is no Python file here (looked for {path}): behind -- comes SCRIPT.py{meant}")
    stored = arguments_without_secrets(script[1:])
    if (secret := secret_arguments(script[1:])) and comm.rank == 0:
        print(f"stored as {', '.join(secret)}: runs that differ there alone are runs of one point", file=sys.stderr)
    if arguments.steps <= arguments.warmup:
        raise SpecError(f"--steps is {arguments.steps} and --warmup {arguments.warmup}: no step is left to measure")
    return RunSpec(
        **where, cpus_per_rank=cpus, backend=SCRIPT, workload=str(path), batch_size=arguments.batch_size,
        precision=UNKNOWN, scaling="weak", warmup_steps=arguments.warmup,
        measured_steps=arguments.steps - arguments.warmup, repeat=1, seed=0,
        code_digest=code_digest(str(path)), arguments=stored, env=variables(arguments.env),
        tokens_per_sample=arguments.tokens_per_sample,
    )  # fmt: skip
