"""Measures a training workload over node counts.

    python -m hpc.sweep --nodes 1,2,4            plan, submit, follow the runs
    python -m hpc.sweep --nodes 1,2,4 --dry-run  write the jobs, submit none
    python -m hpc.sweep status                   show how every run stands
    python -m hpc.sweep cancel                   end the jobs of this folder
    python -m hpc.sweep retry oom --nodes 1,2,4  run again what ended with oom
    python -m hpc.sweep list                     show backends, workloads, sites

Lists multiply: every combination is a point, measured --repeats times. Where
Slurm is not installed, the same scripts run on this machine. The same command
again runs only what is not final. Then: python -m parse.summarize traces/

Exit status 0: every run is ok (--detach: every job is submitted; cancel: every
job has ended; --dry-run: planned); 1: a run is not ok, the sweep cannot start,
or its output cannot be written; 2: usage; 130: Ctrl-C, jobs of Slurm go on.
docs/sweeps.md has more.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpc.model.options import did_you_mean
from hpc.model.outcome import Outcome
from hpc.model.spec import MIN_WARMUP_STEPS, PRECISIONS, SCALINGS, TIMINGS, SpecError
from hpc.system.command_parser import CommandParser
from hpc.system.version import with_version
from launch.sweep.config import FORMER_OPTIONS, PROGRAM, SUBCOMMANDS
from launch.sweep.spec import LONGEST_BLOCK

_USAGE = f"""{PROGRAM} --nodes N,… [options]
       {PROGRAM} status | cancel [--out DIR | options]
       {PROGRAM} retry OUTCOME,… --nodes N,… [options]
       {PROGRAM} list"""
_DAILY = frozenset({
    "--nodes", "--ranks-per-node", "--backend", "--workload", "--batch-size", "--precision", "--option", "--env",
    "--steps", "--repeats", "--cluster", "--site", "--partition", "--account", "--time", "--out", "--config",
    "--dry-run", "--detach", "--force", "--help", "--help-all", "--version",
})  # fmt: skip
"""Options that --help shows; --help-all shows every one."""
_DAILY_OF_SUBCOMMANDS = frozenset({
    "--nodes", "--site", "--out", "--config", "--dry-run", "--detach", "--help", "--help-all",
})  # fmt: skip
_MORE_EXAMPLES = f"""more examples:
  {PROGRAM} --nodes 1,2,4 --ranks-per-node 8 --batch-size 128,256 --precision fp32,amp-fp16 --site mysite
  {PROGRAM} --cases 1n1g,1n8g,4n8g --env NCCL_ALGO=Ring,Tree --dry-run
  {PROGRAM} --nodes 1,2 --workload examples/my_training.py:MyTraining"""
_DESCRIPTIONS = {
    "status": """Shows every run: its outcome, or that it runs, waits or never ran; and the jobs.

Without options, or with --out alone: all sweeps planned in the folder. With
the options of a sweep: that sweep.

Exit status 0: every run is ok; 1: a run is not ok, or a file cannot be read;
2: usage.
""",
    "cancel": """Ends the jobs of sweeps, waits until they have ended, and records it.

Without options, or with --out alone: all sweeps planned in the folder. With
the options of a sweep: that sweep. Other jobs are left alone.

Exit status 0: every job has ended; 1: a job has not, or Slurm does not answer;
2: usage.
""",
    "list": """Shows backends, workloads, their options, and sites.

Exit status 0: shown; 2: usage.
""",
    "retry": """Runs a sweep, and again those of its runs that ended with these outcomes.

OUTCOME is one of invalid, oom, rank_fail; runs with any other outcome but ok
are run again without asking. Takes the options of the sweep.

Exit status 0: every run is ok; 1: a run is not ok, or the sweep cannot start;
2: usage.
""",
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A command line: its subcommand (empty: measure), the outcomes to retry, and options by their names with _."""

    subcommand: str = ""
    outcomes: str | None = None
    options: Mapping[str, Any]


def read_arguments(argv: Sequence[str]) -> Request:
    """The request of a command line. Raises SpecError on a wrong subcommand or its former flag; exits on --help,
    and with 2 on what argparse refuses."""
    arguments = list(argv)
    _refuse_former_flags(arguments)
    subcommand = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    if subcommand is not None and subcommand not in SUBCOMMANDS:
        raise SpecError(
            f"unknown word {subcommand!r}; the first argument is {', '.join(SUBCOMMANDS)}, or an option (--help)"
            f"{did_you_mean(subcommand, SUBCOMMANDS)}"
        )
    outcomes = None
    if subcommand == "retry" and not {"-h", "--help", "--help-all"} & set(arguments):
        outcomes = arguments.pop(0) if arguments and not arguments[0].startswith("-") else ""
    parser = sweep_parser(subcommand or "")
    namespace, extras = parser.parse_known_args(arguments)
    if extras:
        _explain_extras(subcommand, extras)
        parser.error(f"unrecognized arguments: {' '.join(extras)}")
    return Request(subcommand=subcommand or "", outcomes=outcomes, options=vars(namespace))


def _refuse_former_flags(arguments: Sequence[str]) -> None:
    """Raises SpecError on a flag, or the beginning of one, that is a subcommand now."""
    current = sweep_parser().long_options()
    for argument in arguments:
        flag = argument.partition("=")[0]
        if len(flag) < len("--x") or any(option.startswith(flag) for option in current):
            continue
        for name, form in SUBCOMMANDS.items():
            if f"--{name}".startswith(flag):
                rest = ", followed by the other options" if len(arguments) > 1 and name != "list" else ""
                raise SpecError(f"--{name} is now a word: {PROGRAM} {form}{rest}")
        for name, form in FORMER_OPTIONS.items():
            if f"--{name}".startswith(flag):
                raise SpecError(f"--{name} is now {form}")


def _explain_extras(subcommand: str | None, extras: Sequence[str]) -> None:
    """Raises SpecError where more can be said of unrecognized arguments than that."""
    for extra in extras:
        if subcommand is None and extra in SUBCOMMANDS:
            raise SpecError(f"{extra} must be the first argument: {PROGRAM} {SUBCOMMANDS[extra]}")
        if subcommand == "retry" and extra.strip(",") in set(Outcome):
            raise SpecError(
                f"retry takes its outcomes as one comma list, as in retry oom,rank_fail; {extra!r} is apart"
            )
        if subcommand is not None and extra.partition("=")[0] in sweep_parser().long_options():
            reason = "takes no options" if subcommand == "list" else "submits nothing"
            raise SpecError(f"{subcommand} {reason}: leave out {extra}")


class SweepParser(CommandParser):
    """A CommandParser whose --help shows its daily options alone."""

    daily: Collection[str] = ()

    def long_options(self) -> list[str]:
        """Every option of two dashes."""
        return [option for option in self._option_string_actions if option.startswith("--")]

    def print_daily_help(self) -> None:
        """Prints the help without the options that are not daily."""
        for action in self._actions:
            if not set(action.option_strings) & set(self.daily):
                action.help = argparse.SUPPRESS
        self.epilog = None
        self.print_help()


class _ShowDailyHelp(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, SweepParser)
        parser.print_daily_help()
        parser.exit(0)


def sweep_parser(subcommand: str = "") -> SweepParser:
    """The parser of what follows the subcommand, of the whole command line where there is none."""
    parser = SweepParser(
        prog=f"{PROGRAM} {subcommand}".rstrip(),
        usage=_usage(subcommand),
        description=_DESCRIPTIONS.get(subcommand, __doc__),
        epilog=None if subcommand else _MORE_EXAMPLES,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=30),
        add_help=False,
    )
    parser.daily = _DAILY_OF_SUBCOMMANDS if subcommand else _DAILY
    shown = "this help" if subcommand == "list" else "the daily options"
    parser.add_argument("-h", "--help", action=_ShowDailyHelp, nargs=0, help=f"show {shown} and exit")
    with_version(parser)
    if subcommand == "list":
        return parser
    parser.add_argument("--help-all", action="help", help="show every option and exit")
    for add_group in (_add_points, _add_method, _add_place, _add_limits):
        add_group(parser)
    if subcommand in ("", "retry"):
        _add_submission(parser)
    return parser


def _usage(subcommand: str) -> str:
    if not subcommand:
        return _USAGE
    if subcommand == "list":
        return f"{PROGRAM} list"
    return f"{PROGRAM} {SUBCOMMANDS[subcommand]} [options]"


def _add_points(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is measured (without GPUs the defaults are smaller, and said)").add_argument
    add("--nodes", metavar="N,…", help="node counts, each with every --ranks-per-node")
    add("--ranks-per-node", metavar="N,…", help="MPI ranks per node, one GPU each (default: the node's GPUs, else 1)")
    add("--cases", metavar="2n8g,…", help="nodes and ranks per node in one word, beside or instead of --nodes")
    add("--cpus-per-rank", metavar="N,…", help="threads of each rank (default: a node's cores shared by its ranks)")
    add("--gpus-per-node", metavar="N", help="GPUs that a node has; 0 runs on CPUs (default: the site's, else sinfo's)")
    add("--backend", metavar="NAME,…", help="framework and strategy (default torch-ddp)")
    add("--workload", metavar="NAME,…", help="what is trained (default resnet50), or FILE.py:FACTORY of your own")
    add("--batch-size", metavar="N,…", help="samples per device, or with --scaling strong in all (default 128)")
    add("--precision", metavar="P,…", help=f"{', '.join(PRECISIONS)} (default fp32)")
    add("--scaling", metavar="S,…", help=f"{', '.join(SCALINGS)} (default weak)")
    add(
        "--timing",
        metavar="T,…",
        help=f"{', '.join(TIMINGS)} (default phases: six time stamps a step; step: begin, batch, end, and "
        "the framework's fused way in between)",
    )
    add("--telemetry", metavar="T,…", help="on, off (default on: a helper on each node reads clocks, power and load)")
    add("--xla", action="append_const", dest="option", const="xla=on", help="the same as --option xla=on")
    add("--option", action="append", metavar="NAME=V,…", help="option of the backend or workload (see `list`)")
    add(
        "--env",
        action="append",
        metavar="NAME=V,…",
        help="environment variable of the runs; \\, is a comma in a value",
    )


def _add_method(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("how it is measured").add_argument
    add("--steps", metavar="N", help="steps of a run, warm-up included (default 120)")
    add("--warmup", metavar="N", help="first steps that no number counts (default 20, at least 5)")
    add("--block-steps", metavar="N",
        help=f"measured steps of a block (default {LONGEST_BLOCK}; 0: one block): a run with more has several, each "
        f"entered through {MIN_WARMUP_STEPS} unmeasured steps, with the clocks synchronised in between")  # fmt: skip
    add("--repeats", metavar="N", help="runs of every point (default 5)")
    add("--seed", metavar="N", help="seed of weights and synthetic data (default 0)")
    add("--placement", metavar="P",
        help="separate (default): a job, and so an allocation, for each node count; nested: one for all, the smaller "
        "cases on some of the larger ones' nodes, in blocks shuffled by seed")  # fmt: skip
    add("--no-baseline", dest="baseline", action="store_const", const=False,
        help="do not add 1n1g runs: there will be no speedup")  # fmt: skip
    add("--collectives", action="store_const", const=True,
        help="add to every set of ranks that trains one run of its collectives alone: what communication could cost at "
        "best (sizes by --option; `list` shows them)")  # fmt: skip
    add("--twin", action="store_const", const=True,
        help="add to every point on several ranks the same without reduction of gradients, for the ledger")  # fmt: skip


def _add_place(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("where it runs").add_argument
    add(
        "--cluster",
        choices=("auto", "slurm", "local"),
        help="auto (the default): Slurm where a site is named or Slurm is installed, else this machine",
    )
    add("--site", metavar="NAME|FILE", help="facts of the cluster (TOML); default: the one that knows this host's name")
    for name in ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude"):
        add(f"--{name}", metavar="TEXT", help="as in sbatch")
    add("--time", metavar="MIN", help="time limit of each job in minutes; a plan that would not fit is split")
    add(
        "--minutes-per-run",
        metavar="MIN",
        help="minutes that a job's time limit allows each run (default 10)",
    )
    add("--out", metavar="DIR", help="folder for jobs/ and traces/ (default: this one)")
    add("--config", metavar="FILE", help="TOML with the names of these options; the command line wins")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what watches over a run").add_argument
    add("--copy-s", metavar="S", help="seconds between copies of what ranks have recorded (default 10; 0: none)")
    add("--start-limit-s", metavar="S", help="a run that makes no step for so long after its start hangs (default 600)")
    add("--hang-steps", metavar="N", help="later: one that makes none for N times its median step (default 10)")
    add("--hang-extra-s", metavar="S", help="and so many seconds (default 60)")


def _add_submission(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is done").add_argument
    add("--dry-run", action="store_true", help="write and show everything, submit nothing")
    add("--detach", action="store_true", help="submit and leave; without it the sweep follows its runs")
    add("--max-jobs", metavar="N", help="at most so many jobs of this sweep in the queue; others as those end")
    add(
        "--rerun-if-changed",
        action="store_true",
        help="run again what was measured with other packages, another Python, MPI or commit than are here now",
    )
    add("--force", action="store_true", help="run final runs again as well")
