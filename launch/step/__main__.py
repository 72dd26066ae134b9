"""One attempt of a run inside a job: `python -m launch.step --run ID OPTION… -- COMMAND…`.

The job script calls it once for each of its runs. It passes over a run that is final, or that another job may be
running; else it takes the run's next attempt number, starts COMMAND (the launcher of the ranks), ends it where it hangs
or where Slurm warns the job, fetches what dead ranks left, decides the outcome, and writes
TRACES/RUN.ATTEMPT.exit.json. docs/outcomes.md has the rules.

Exit status 0: the run is final, as before or now; 10: it is not ok, its record says why, or it is left to another job;
12: a signal ended the job; 13: the traces cannot be written; 14: a defect of this program, whose traceback is in the
job's output; 2: usage; 1: the code that the job script was written by is gone. The job script takes 1, 126 and 127 for
a Python that cannot start, and writes a record itself.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from hpc.system.command_line import run
from hpc.system.sanitize import deny_world_writing
from launch.jobs.options import RunLimits, option_rows
from launch.step.attempt import DEFECT, DONE, UNWRITABLE, Step, StepError, StepOptions, end_with_parent, say
from launch.step.claim import Job
from launch.step.signals import SignalLog

ROOT = Path(__file__).resolve().parents[2]
"""The folder of this code: a checkout, or the packages of an environment."""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m launch.step`; the job script's text comes on standard input."""
    signals = SignalLog(("USR1", "TERM", "INT"))
    end_with_parent()
    args = _arguments(sys.argv[1:] if argv is None else argv)
    options = _options(args)
    deny_world_writing()
    if (args.code / "launch").resolve() != ROOT / "launch":  # of an installation a folder of links
        say(
            f"the code that wrote this job, {args.code}, is gone, and {ROOT} is not it: plan the sweep again from there"
        )
        return 1
    if options.signal:
        signals.add(f"SIG{options.signal}")
    try:
        return Step(options, Job.here(), signals, sys.stdin.buffer.read()).run()
    except StepError as error:
        say(str(error))
        return UNWRITABLE
    except Exception:  # noqa: BLE001 - with status 1 the job script would take it for a Python that cannot start
        traceback.print_exc()
        return DEFECT


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m launch.step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--run", required=True, metavar="ID", help="the run")
    add("--traces", type=Path, required=True, metavar="DIR", help="folder of the traces and records")
    add("--logs", type=Path, required=True, metavar="DIR", help="folder of what the ranks print")
    add("--launcher", choices=("srun", "openmpi", "mpich", "local"), required=True,
        help="what starts a program on each node, to fetch what dead ranks left there")  # fmt: skip
    add("--nodes", type=int, default=1, metavar="N", help="how many nodes the run uses (%(default)s)")
    add("--nodelist", default="", metavar="NODES", help="which ones, with commas (default: those of the job)")
    add("--container", action="append", default=[], metavar="WORD",
        help="a word of the command in front of a program in a container; may be given several times")  # fmt: skip
    add("--code", type=Path, default=ROOT, metavar="DIR", help="the checkout that the job script was written by")
    add("--force", action="store_true", help="begin an attempt of a final run, too")
    add("--signal", "--told", default="", metavar="SIGNAL",  # earlier job scripts pass --told
        help="the signal that the job script has received before")  # fmt: skip
    add("--warning-s", type=float, default=60.0, metavar="S", help="how long before its time limit the job gets USR1")
    for row in option_rows(RunLimits):
        add(row.flag, type=float, default=row.default, metavar=row.metavar, help=row.help)
    add("command", nargs="+", metavar="COMMAND", help="what starts the ranks; behind --")
    return parser.parse_args(argv)


def _options(args: argparse.Namespace) -> StepOptions:
    return StepOptions(
        run=args.run, traces=args.traces, logs=args.logs, command=tuple(args.command), launcher=args.launcher,
        nodes=args.nodes, nodelist=args.nodelist or Job.here().nodelist, container=tuple(args.container),
        force=args.force, signal=args.signal, warning_s=args.warning_s,
        limits=RunLimits(**{row.name: getattr(args, row.name) for row in option_rows(RunLimits)}),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(main, "launch.step", lost_output=DONE))
