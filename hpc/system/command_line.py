"""The entry of every command: `python -m` of a module, Ctrl-C, missing packages, unwritable standard output.

Each package calls `start` when it is imported, before a command imports anything that takes time. Each command ends
with `sys.exit(run(main, "hpc.sweep"))`. Both import as little as they can.
"""

from __future__ import annotations

import io
import os
import sys

from hpc.system import leaves, removed

TYPE_CHECKING = False  # typing itself takes longer to import than all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

SUBCOMMANDS = {
    "sweep": "hpc.sweep", "summarize": "parse.summarize", "report": "parse.report", "observe": "hpc.observe",
    "collectives": "hpc.collectives", "data": "hpc.data", "devcluster": "launch.devcluster", "list": "launch.catalog",
    **leaves.COMMANDS,
}  # fmt: skip
"""The commands of `rankwise`, each with the module behind it."""
COMMANDS = tuple(sorted({*SUBCOMMANDS.values(), "hpc.preflight", "hpc.recovery"}))
"""Modules that people run; each ends with `run`."""
PROGRAMS = ("hpc.node_agent", "hpc.rank", "launch.step")
"""Modules that job scripts, ranks and nodes run. They have their own exit statuses and signals."""
REQUIREMENTS = ("h5py", "jinja2", "numpy", "rich", "submitit")
"""Packages that every command may import, as pyproject.toml requires them."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
NOT_DONE = 1
"""Exit status of a command that could not do what was requested."""
VERDICTS = ("hpc.sweep accept", "parse.compare", "parse.history")
"""Commands whose exit status is a verdict: 1 is "slower", so that 2 has to say that there is none."""

_command = ""
"""The command that this process is; empty where it is none, as in a test."""


def start() -> None:
    """Prepares the process for the module that `python -m` names, while its package is being imported.

    Ctrl-C during a command's imports and a missing package become one line each. A module that was a command in the
    release before ends the process with 2. Has no effect in other processes.
    """
    name = _module_run()
    if name in (*COMMANDS, *PROGRAMS):
        _prepare(name)
    elif instead := removed.COMMANDS.get(name):
        print(f"{name} is no command any more: {instead}", file=sys.stderr)
        raise SystemExit(2)


def begin(subcommand: str) -> None:
    """Prepares the process for this command of `rankwise`, as `start` does for a module."""
    _prepare(SUBCOMMANDS.get(subcommand, subcommand))


def called(module: str) -> str:
    """The command of a module as people type it: `rankwise sweep` for hpc.sweep."""
    names = {each: name for name, each in SUBCOMMANDS.items()}
    return f"rankwise {names.get(module, module)}" if module in COMMANDS else module


def _prepare(name: str) -> None:
    global _command  # noqa: PLW0603
    _command = name
    sys.excepthook = _excepthook


def _module_run() -> str:
    """The module that `python -m` names, until Python runs it; else an empty text.

    Python sets sys.argv[0] to "-m" while it looks for the module, and to its path afterwards.
    """
    argv = getattr(sys, "argv", [])
    if argv[:1] != ["-m"]:
        return ""
    argument = sys.orig_argv[-len(argv)]  # MODULE, or -mMODULE
    return (argument.partition("m")[2] if argument.startswith("-") else argument).removesuffix(".__main__")


def not_done(name: str) -> int:
    """The exit status of this command where it cannot do what was requested, whatever hinders it."""
    return 2 if {name, " ".join([name, *sys.argv[1:2]])}.intersection(VERDICTS) else NOT_DONE


def run(main: Callable[[], int], name: str, *, lost_output: int | None = None) -> int:
    """Calls the `main` of a command and returns its exit status.

    Standard output and error escape characters that their encoding lacks. If one cannot be written the command ends
    with `not_done`: silently for a closed pipe, else with one line. A command that supervises measurements must not end
    for that: it goes on, and `lost_output` is its exit status in place of 0. Ctrl-C gives 130; a missing package, with
    one line, and a bug, with its traceback, `not_done`.
    """
    OutputStream.command, OutputStream.goes_on = called(name), lost_output is not None
    OutputStream.status = not_done(name)
    if sys.stdout is None and lost_output is None:  # closed: >&-
        print(f"{called(name)}: standard output is closed: redirect it, > FILE or > /dev/null", file=sys.stderr)
        return not_done(name)
    open_streams()
    try:
        status = main()
    except SystemExit:  # of argparse, also after --help
        sys.stdout.flush()
        raise
    except BaseException as error:  # noqa: BLE001 - the status of a bug, too, is the command's own
        explained = _explain(error, name)
        if explained is None:
            sys.__excepthook__(type(error), error, error.__traceback__)
            return not_done(name)
        status = explained
    sys.stdout.flush()
    return status or (OutputStream.lost and lost_output) or 0


PIPE_WIDTH = 100
"""Width of text that goes to a pipe or a file."""
MIN_WIDTH = 60
"""Text is made for this many cells at least, however narrow the terminal."""


def text_width(*, to_file: bool = False) -> int:
    """The room for text in cells: COLUMNS, else the terminal's, else that of a pipe or a file."""
    import shutil

    if to_file and not os.environ.get("COLUMNS"):
        return PIPE_WIDTH
    return max(MIN_WIDTH, shutil.get_terminal_size((PIPE_WIDTH, 0)).columns)


def open_streams() -> None:
    """Makes standard output and error an OutputStream each; other streams than Python's own are unchanged. What is
    written to a closed one is lost."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - as long as the process
            OutputStream.lost |= name == "stdout"
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper:
            by_line, through = stream.line_buffering, stream.write_through
            new = OutputStream(
                stream.buffer, stream.encoding, "backslashreplace", line_buffering=by_line, write_through=through
            )
            setattr(sys, name, new)


class OutputStream(io.TextIOWrapper):
    """A standard stream that ends the process with `status` where it cannot be written, or drops the text (`goes_on`).

    The error is no OSError, which a command would take for one of its own files.
    """

    command = ""
    goes_on = False
    status = NOT_DONE
    lost = False
    """Whether any text could not be written."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Drops unwritten and later output, so that Python does not try to write it again at its end."""
        OutputStream.lost = True
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)
        if self is sys.stdout and not isinstance(error, BrokenPipeError):
            print(f"{self.command}: standard output cannot be written: {error.strerror}", file=sys.stderr)
        if not self.goes_on:
            raise SystemExit(self.status) from None


def _explain(error: BaseException, name: str) -> int | None:
    """Prints the line of an error that is no bug and returns the exit status; None for a bug."""
    if isinstance(error, KeyboardInterrupt):
        print(f"{called(name)}: interrupted", file=sys.stderr)
        return INTERRUPTED
    missing = error.name if isinstance(error, ModuleNotFoundError) else ""
    if missing in REQUIREMENTS:
        print(f"{called(name)}: {_not_installed(missing)}", file=sys.stderr)
        return not_done(name)
    return None


def _not_installed(package: str) -> str:
    from shlex import quote

    from hpc.system.import_guard import install_command

    install = f"-m {install_command()}"
    return (
        f"{package} is not installed for {sys.executable}: run `{quote(sys.executable)} {install}`, or activate the "
        "environment that has it"
    )


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Explains errors before `run`: those of the imports of a command."""
    status = _explain(error, _command)
    if status is not None:
        raise SystemExit(status)
    sys.__excepthook__(kind, error, trace)
