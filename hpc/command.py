"""`rankwise`: every command under one name. Behind each is a module that `python -m` runs; only that is imported."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from hpc.system import command_line
from hpc.system.import_guard import use_own_packages

USAGE = "usage: rankwise COMMAND [options]       (rankwise COMMAND --help explains one)"
HELP = f"""{USAGE}

Three are enough for most people:
  sweep --nodes 1,2,4      measure training over node counts: on Slurm, or here
  summarize traces/        how it scales; --ledger: where the time goes, and why
  report traces/           the same as a page to hand on: one HTML file

a folder's sweeps          status, retry OUTCOME,…, cancel
your own script, as it is  observe -- train.py; sweep --script train.py
a machine                  doctor (before the first sweep), accept, collectives
backends, sites, recipes   list
memory                     find-max batch-size: the largest that fits
several measurements       compare BASE NEW, history FOLDER…
one run                    timeline TRACE (for Perfetto), recover FOLDER
traces and logs of others  summarize logs/, airank, pipeline-trace
to try without a cluster   devcluster start (a Slurm of this machine), data make

--version shows the version. `python -m MODULE` runs the same commands:
hpc.sweep, parse.summarize, … (docs/start.md).
"""


def main() -> int:
    """Runs the command that the command line names; the exit status."""
    arguments = sys.argv[1:]
    return command_line.run(lambda: _answer(arguments), "rankwise") if _is_own(arguments) else _start(arguments)


def _is_own(arguments: Sequence[str]) -> bool:
    return not arguments or arguments[0] not in command_line.SUBCOMMANDS


def _answer(arguments: Sequence[str]) -> int:
    """What `rankwise` itself answers: its help, its version, or what a subcommand should be."""
    if arguments[:1] in (["--help"], ["-h"], ["help"]):
        print(HELP, end="")
        return 0
    if arguments[:1] == ["--version"]:
        from hpc.system.version import version_line

        print(version_line())
        return 0
    if not arguments:
        print(HELP, end="", file=sys.stderr)
        return 2
    near = get_close_matches(arguments[0], command_line.SUBCOMMANDS, n=1)
    hint = f"; did you mean rankwise {near[0]}?" if near else ""
    print(f"{USAGE}\nrankwise: {arguments[0]!r} is no command of it{hint} (rankwise --help)", file=sys.stderr)
    return 2


def _start(arguments: Sequence[str]) -> int:
    """Runs the module of the command in this process, as `python -m` does; the module ends the process."""
    subcommand, *rest = arguments
    module, *first_arguments = command_line.SUBCOMMANDS[subcommand].split()
    sys.argv[1:] = [*first_arguments, *rest]
    command_line.begin(subcommand)
    use_own_packages()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0
