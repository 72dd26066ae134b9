"""Measures a training workload over node counts.

    rankwise sweep --nodes 1,2,4                 plan, submit, follow the runs
    rankwise sweep status                        show the state of every run
    rankwise sweep cancel                        end the jobs of this folder
    rankwise sweep retry oom                     run again what ended with oom
    rankwise sweep find-max batch-size …         seek the largest one that fits
    rankwise sweep accept --reference FILE       test a machine
    rankwise sweep recover FOLDER                make traces of dead ranks
    rankwise list                                show workloads, recipes, sites…

Lists multiply: every combination is a point, measured --repeats times. Where
Slurm is not installed, the same scripts run on this machine. The same command
again runs only what is not final. Then: rankwise summarize traces/

Exit status 0: every run is ok (--detach: submitted; cancel: jobs have ended;
--dry-run: planned); 1: a run is not ok, the sweep cannot start, or its output
cannot be written; 2: usage; 130: Ctrl-C, jobs of Slurm go on. docs/sweeps.md
has more.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Collection, Sequence
from functools import partial
from itertools import groupby

from hpc.model.options import OptionError, did_you_mean
from hpc.model.outcome import Outcome
from hpc.model.output_option import OutputFile, OutputFolder
from hpc.model.spec import SpecError
from hpc.system import removed
from hpc.system.command_line import called
from hpc.system.command_parser import CommandParser, HelpFormatter
from hpc.system.leaves import door
from hpc.system.sanitize import deny_world_writing, plain, without_secrets
from hpc.system.version import with_version
from launch.jobs.options import Help, OptionRow, truth
from launch.sweep.request import (
    ACCEPT_OPTIONS,
    MEASURING,
    OPTIONS,
    PROGRAM,
    SUBCOMMANDS,
    SUBMISSION,
    Request,
    make_request,
)  # fmt: skip
from launch.sweep.spec import AUTO

_USAGE = f"""{PROGRAM} --nodes N,… [options]
       {PROGRAM} status | cancel | retry OUTCOME,… [options]
       {PROGRAM} find-max NAME --nodes N,… [options]
       {PROGRAM} recover FOLDER | accept --reference FILE"""
_MORE_EXAMPLES = f"""more examples:
  {PROGRAM} --nodes 1,2,4 --ranks-per-node 8 --batch-size 128,256 --precision fp32,amp-fp16 --site mysite
  {PROGRAM} --cases 1n1g,1n8g,4n8g --env NCCL_ALGO=Ring,Tree --dry-run
  {PROGRAM} --nodes 1,2 --script train.py -- --its --arguments
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
    "find-max": """Seeks the largest value of NAME that fits into the memory, for every point.

NAME is batch-size, or an option that is a whole number (classes of arcface).
It begins with the value that a sweep would take, doubles it until a run ends
with oom, and halves what is between until 1 % is left. Every try is a run of
its own: the same command again goes on where it was. Takes the options of a
sweep; a run has 16 steps, 6 of them warm-up, unless --steps or --warmup say
otherwise.

Exit status 0: it is known for every point; 1: a run ended neither ok nor with oom,
nothing fits, or the search cannot start; 2: usage.
""",
    "accept": """Tests whether a machine is as fast as a reference says, and which node is slow.

    rankwise sweep accept --make-reference traces --reference machine.toml
    rankwise sweep accept --site mysite --reference machine.toml --junit accepted.xml

The doctor looks at the cluster; then every point of the reference is measured,
with the collectives of its ranks beside it, and the largest point of one node
on every node that is up. What is certainly slower than its tolerance fails: a
point, or a node against the others; the command that would drain such a node
is shown, not run. Everything is in a folder of its own, acceptance/DATE under
--out; rankwise history acceptance/*/traces shows all of them. The same
command again goes on with a test that was interrupted.

Exit status 0: passed; 1: a point or a node is slower than its tolerance; 2:
that could not be measured, or usage; 130: Ctrl-C, jobs of Slurm go on.
docs/compare.md has more.
""",
    "retry": """Runs again what ended with these outcomes in the sweeps of a folder.

OUTCOME is one of invalid, oom, rank_fail; runs with any other outcome but ok
need no asking. Without options, or with --out, --detach, --dry-run and
--max-jobs alone: all sweeps planned in the folder of which a run ended so, by
the commands that planned them. With the options of a sweep of the folder: that
sweep (with another --time or --partition, for example).

Exit status 0: every run of these jobs is ok; 1: a run is not ok, or the jobs
cannot start; 2: usage, or no run ended so.
""",
}


def read_arguments(argv: Sequence[str]) -> Request:
    """The request of a command line. Raises SpecError where it is invalid; exits on --help, and with 2 on what argparse
    refuses."""
    arguments = list(argv)
    script_arguments: list[str] | None = None
    if "--" in arguments:
        at = arguments.index("--")
        arguments, script_arguments = arguments[:at], arguments[at + 1 :]
    subcommand = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    if subcommand in removed.OF_SWEEP:
        raise SpecError(f"{subcommand} is no word of it any more: {removed.OF_SWEEP[subcommand]}")
    if subcommand is not None and subcommand not in SUBCOMMANDS:
        raise SpecError(
            f"unknown word {subcommand!r}; the first argument is {', '.join(SUBCOMMANDS)}, or an option (--help)"
            f"{did_you_mean(subcommand, SUBCOMMANDS)}"
        )
    operand = ""
    if subcommand in ("retry", "find-max") and arguments and not arguments[0].startswith("-"):
        operand = arguments.pop(0)
    parser = sweep_parser(subcommand or "")
    namespace, extras = parser.parse_known_args(arguments)
    if extras:
        _explain_extras(subcommand, extras)
        script = vars(namespace).get("script")
        if script and script_arguments is None:
            long = [extra.partition("=")[0] for extra in extras if extra.startswith("--") and len(extra) > len("--lr")]
            near = "".join(did_you_mean(option, parser.long_options()) for option in long)
            parser.error(
                f"{shlex.join(extras)}: no options of a sweep. Arguments of the script follow --, as in --script "
                f"{shlex.join([str(script), '--', *extras])}{near}"
            )
        parser.error(f"unrecognized arguments: {' '.join(extras)}")
    return make_request(subcommand or "", operand, {**vars(namespace), "arguments": script_arguments})


def _explain_extras(subcommand: str | None, extras: Sequence[str]) -> None:
    """Raises SpecError with an explanation of unrecognized arguments, if there is one."""
    for extra in extras:
        name = extra.removeprefix("--").partition("=")[0]
        if subcommand is None and name in SUBCOMMANDS:
            raise SpecError(f"{name} must be the first argument, without dashes: {PROGRAM} {SUBCOMMANDS[name]}")
        if subcommand == "retry" and extra.strip(",") in set(Outcome):
            raise SpecError(f"outcomes are one comma list, as in retry oom,rank_fail; {extra!r} is apart")
        if subcommand is not None and extra.partition("=")[0] in sweep_parser().long_options():
            reason = "measures the points of its reference" if subcommand == "accept" else "submits nothing"
            raise SpecError(f"{subcommand} {reason}: leave out {extra}")


class SweepParser(CommandParser):
    """A CommandParser whose --help shows a page of its options: those of `shown`."""

    shown: Collection[str] = ()

    def long_options(self) -> list[str]:
        """Every option of two dashes."""
        return [option for option in self._option_string_actions if option.startswith("--")]

    def print_short_help(self) -> None:
        """Prints the help without the options that are not shown."""
        for action in self._actions:
            if not set(action.option_strings) & set(self.shown):
                action.help = argparse.SUPPRESS
        self.epilog = None
        self.print_help()


class _ShowShortHelp(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, SweepParser)
        parser.print_short_help()
        parser.exit(0)


def sweep_parser(subcommand: str = "") -> SweepParser:
    """The parser of what follows the subcommand, of the whole command line where there is none."""
    parser = SweepParser(
        prog=f"{PROGRAM} {subcommand}".rstrip(),
        usage=f"{PROGRAM} {SUBCOMMANDS[subcommand]} [options]" if subcommand else _USAGE,
        description=_DESCRIPTIONS.get(subcommand, __doc__),
        epilog=None if subcommand else _MORE_EXAMPLES,
        formatter_class=partial(HelpFormatter, max_help_position=30),
        add_help=False,
    )
    rows = [row for row in OPTIONS if subcommand in MEASURING or row.group != SUBMISSION]
    if subcommand == "accept":
        rows = list(ACCEPT_OPTIONS)
    page = Help.SUBCOMMANDS if subcommand else Help.DAILY
    always = ["--help", "--help-all", "--config", *([] if subcommand else ["--version"])]
    parser.shown = frozenset([*always, *(row.flag for row in rows if row.page >= page)])
    parser.add_argument("-h", "--help", action=_ShowShortHelp, nargs=0, help="show the daily options and exit")
    with_version(parser)
    parser.add_argument("--help-all", action="help", help="show every option and exit")
    for name, group in groupby(rows, key=lambda row: row.group):
        _add_group(parser.add_argument_group(name), list(group), with_config=subcommand != "accept")
    return parser


def make_parser() -> argparse.ArgumentParser:
    """The options of the command and of its subcommands, for the completion of a shell."""
    from hpc.recovery import recover

    parser: argparse.ArgumentParser = sweep_parser()
    subparsers = parser.add_subparsers(metavar="SUBCOMMAND")
    for name in SUBCOMMANDS:
        its: argparse.ArgumentParser = recover.make_parser() if name == "recover" else sweep_parser(name)
        subparsers.add_parser(name, parents=[its], add_help=False, help=SUBCOMMANDS[name])
    return parser


_OUTPUTS = {"out": OutputFolder, "junit": OutputFile, "update_reference": OutputFile}
"""Options that name what is written."""


def _add_group(group: argparse._ArgumentGroup, rows: Sequence[OptionRow], *, with_config: bool) -> None:
    for row in rows:
        if row.read is truth:
            group.add_argument(row.flag, action="store_const", const=True, help=row.help)
        else:
            action = _OUTPUTS.get(row.name) or ("append" if row.is_assigned else "store")
            group.add_argument(row.flag, action=action, metavar=row.metavar, help=row.help)
    if rows[-1].name == "out" and with_config:
        group.add_argument(
            "--config", metavar="FILE", help="TOML with the names of these options; the command line wins"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. 0: every run is ok (or was submitted); 1: a run or a submission failed; 2: usage, or an
    acceptance test that could not measure."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == ["recover"]:
        from hpc.recovery import recover  # imported here: it takes numpy

        return recover.main(arguments[1:])
    try:
        request = read_arguments(arguments)
    except SpecError as error:
        return _refuse(error, 2)
    deny_world_writing()
    from launch.sweep import submit  # imported here: --help does not need it

    try:
        return _run(request)
    except (SpecError, OptionError) as error:
        return _refuse(error, 2)
    except submit.FAILURES as error:
        return _refuse(error, 1)


def _run(request: Request) -> int:
    from launch.sweep import status, submit

    if request.subcommand in ("status", "cancel"):
        return (status.show if request.subcommand == "status" else status.cancel)(request)
    if request.accepted is not None:
        return int(door("accept").accept(request.accepted, request))
    produce = submit.once
    if request.sought:
        leaf = door("find-max")
        request, produce = leaf.as_tries(request), leaf.search
    elif any(sweep.repeats == AUTO for sweep in request.sweeps):
        produce = door("auto repeats").repeats_until_known
    if request.subcommand == "retry":
        leaf = door("retry")
        if not request.sweeps:
            return int(leaf.retry(request, _run))
        produce = leaf.if_any_ended_so(produce)
    return submit.sweep(request, produce)


def _refuse(error: BaseException, status: int) -> int:
    text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    print(f"{called('hpc.sweep')}: {plain(without_secrets(text))}", file=sys.stderr)
    return status
