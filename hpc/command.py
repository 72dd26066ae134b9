"""`rankwise`: every command under one name. Behind each is a module that `python -m` runs; only that is imported."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module

from hpc.system import command_line, removed
from hpc.system.import_guard import use_own_packages
from hpc.system.text import nearest

TYPE_CHECKING = False  # typing itself takes longer to import than all else here
if TYPE_CHECKING:
    import argparse

USAGE = "usage: rankwise COMMAND [options]       (rankwise COMMAND --help explains one)"
HELP = f"""{USAGE}

Three are enough for most people:
  sweep --nodes 1,2,4      measure training over node counts: on Slurm, or here
  summarize traces/        how it scales; --ledger: where the time goes, and why
  report traces/           the same as a page to hand on: one HTML file

your own script, unchanged observe -- train.py; sweep --script train.py
a folder's sweeps          sweep status, sweep retry OUTCOME,…, sweep cancel
backends, sites, recipes   list
a machine                  doctor (before the first sweep), collectives
several measurements       compare BASE NEW, history FOLDER…
MLflow, W&B, CSV, …        export traces/ --to TARGET
sizes not measured         forecast traces/ --nodes 16,64
one run                    watch (as it goes on), timeline TRACE (for Perfetto)
traces and logs of others  summarize, collective-trace
to try without a cluster   devcluster start (a Slurm of this machine), data make
your shell                 completion bash | zsh | fish

--version shows the version. Without the command: `python -m rankwise COMMAND`.
"""
SHELLS = ("bash", "zsh", "fish")
COMPLETION = """usage: rankwise completion bash | zsh | fish

Prints the completion of rankwise for a shell:
  bash   rankwise completion bash > ~/.local/share/bash-completion/completions/rankwise
  zsh    rankwise completion zsh > _rankwise       (in a folder of $fpath)
  fish   rankwise completion fish > ~/.config/fish/completions/rankwise.fish
"""
PARSERS = {
    "hpc.observe": "hpc.script", "hpc.sweep": "launch.sweep.cli",
    "launch.devcluster": "tools.devcluster.__main__", "launch.doctor": "launch.doctor.command",
    "parse.export": "parse.export.__main__",
    "parse.report": "parse.report.__main__",
}  # fmt: skip
"""The module with `make_parser` of a command, where that is another one."""


def main() -> int:
    """Runs the command that the command line names; the exit status."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["help"] and arguments[1:]:
        arguments = [*arguments[1:], "--help"]
    return command_line.run(lambda: _answer(arguments), "rankwise") if _is_own(arguments) else _start(arguments)


def _is_own(arguments: Sequence[str]) -> bool:
    return not arguments or arguments[0] not in (*command_line.SUBCOMMANDS, *command_line.COMMANDS)


def _answer(arguments: Sequence[str]) -> int:
    """What `rankwise` itself answers: its help, its version, a shell's completion, or what a subcommand should be."""
    if arguments[:1] in (["--help"], ["-h"], ["help"]):
        print(HELP, end="")
        return 0
    if arguments[:1] == ["--version"]:
        from hpc.system.version import version_line

        print(version_line())
        return 0
    if arguments[:1] == ["completion"]:
        return _complete(arguments[1:])
    if not arguments:
        print(HELP, end="", file=sys.stderr)
        return 2
    if instead := removed.COMMANDS.get(arguments[0]):
        print(f"rankwise: {arguments[0]} is no command any more: {instead}", file=sys.stderr)
        return 2
    near = nearest(arguments[0], command_line.SUBCOMMANDS)
    hint = f"; did you mean rankwise {near}?" if near else ""
    print(f"{USAGE}\nrankwise: {arguments[0]!r} is no command of it{hint} (rankwise --help)", file=sys.stderr)
    return 2


def _start(arguments: Sequence[str]) -> int:
    """Runs the module of the command in this process, as `python -m` does; the module ends the process."""
    subcommand, *sys.argv[1:] = arguments
    command_line.begin(subcommand)
    use_own_packages()
    runpy.run_module(command_line.SUBCOMMANDS.get(subcommand, subcommand), run_name="__main__", alter_sys=True)
    return 0


def _complete(arguments: Sequence[str]) -> int:
    """Prints the completion of a shell: made once, so that no Python starts where somebody presses Tab."""
    if list(arguments) == ["--help"] or list(arguments) == ["-h"]:
        print(COMPLETION, end="")
        return 0
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        print(COMPLETION, end="", file=sys.stderr)
        return 2
    try:
        import shtab
    except ModuleNotFoundError:
        print("rankwise completion: shtab, which writes it, is not installed: pip install shtab", file=sys.stderr)
        return 1
    use_own_packages()
    print(shtab.complete(_whole_parser(), arguments[0]))
    return 0


def _whole_parser() -> argparse.ArgumentParser:
    """A parser of all commands, with what each of their arguments can be."""
    import argparse

    import shtab

    whole = argparse.ArgumentParser("rankwise", description="Measures how distributed training scales.")
    subparsers = whole.add_subparsers(metavar="COMMAND")
    for subcommand, module in command_line.SUBCOMMANDS.items():
        parser = _parser_of(module)
        summary = " ".join((parser.description or "").partition("\n\n")[0].split())
        subparsers.add_parser(subcommand, parents=[parser], add_help=False, help=summary)
        for action in _arguments(parser):
            metavar, action.help = str(action.metavar), re.split("[.;:] ", action.help or "")[0]
            if metavar.startswith("{"):
                action.choices = metavar.strip("{}").split(",")
            elif any(name in metavar for name in ("FILE", "PATH", "DIR", "TRACE", "FOLDER", "DOCUMENT", "RUN")):
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads this attribute of an action
    subparsers.add_parser("completion", help="completion of a shell").add_argument("shell", choices=SHELLS)
    return whole


def _parser_of(module: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = import_module(PARSERS.get(module, module)).make_parser()
    return parser


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Those of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action.choices, dict):
            for each in action.choices.values():
                yield from _arguments(each)
