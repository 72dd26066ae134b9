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
from dataclasses import fields

from hpc.system.command_line import run
from hpc.system.job_facts import job_here
from hpc.system.sanitize import deny_world_writing
from launch.jobs.options import RunLimits, flag, option_rows
from launch.step.attempt import (
    DEFECT,
    DONE,
    ENDING,
    ROOT,
    UNWRITABLE,
    SignalLog,
    Step,
    StepError,
    StepOptions,
    end_with_parent,
    say,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m launch.step`; the job script's text comes on standard input."""
    signals = SignalLog(("USR1", *ENDING))
    end_with_parent()
    options = _options(sys.argv[1:] if argv is None else argv)
    deny_world_writing()
    if (options.code / "launch").resolve() != ROOT / "launch":  # of an installation a folder of links
        gone = f"the code that wrote this job, {options.code}, is gone, and {ROOT} is not it"
        say(f"{gone}: plan the sweep again from there")
        return 1
    if options.signal:
        signals.add(f"SIG{options.signal}")
    try:
        return Step(options, job_here(), signals, sys.stdin.buffer.read()).run()
    except StepError as error:
        say(str(error))
        return UNWRITABLE
    except Exception:  # noqa: BLE001 - with status 1 the job script would take it for a Python that cannot start
        traceback.print_exc()
        return DEFECT


def _options(argv: Sequence[str]) -> StepOptions:
    parser = argparse.ArgumentParser(
        prog="python -m launch.step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    for option in fields(StepOptions):
        if option.metadata:
            add(flag(option.name), **option.metadata)
    rows = option_rows(RunLimits)
    for row in rows:
        add(row.flag, type=float, default=row.default, metavar=row.metavar, help=row.help)
    add("command", nargs="+", metavar="COMMAND", help="what starts the ranks; behind --")
    values = vars(parser.parse_args(argv))
    values["nodelist"] = values["nodelist"] or job_here().nodelist
    limits = RunLimits(**{row.name: values.pop(row.name) for row in rows})
    return StepOptions(**values, limits=limits)


if __name__ == "__main__":
    sys.exit(run(main, "launch.step", lost_output=DONE))
