"""The entry of every command: `python -m` of a module, Ctrl-C, missing packages, unwritable standard output.

Each package calls `start` when it is imported, before a command imports anything that takes time. Each command ends
with `sys.exit(run(main, "hpc.sweep"))`. Both import as little as they can.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # typing itself takes longer to import than all else here
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import TextIO

SUBCOMMANDS = {
    "sweep": "hpc.sweep", "summarize": "parse.summarize", "report": "parse.report", "observe": "hpc.observe",
    "doctor": "launch.doctor", "collectives": "hpc.collectives", "compare": "parse.compare",
    "history": "parse.history", "timeline": "parse.timeline", "forecast": "parse.forecast",
    "collective-trace": "parse.collective_trace", "data": "hpc.data", "devcluster": "launch.devcluster",
}  # fmt: skip
"""The commands of `rankwise`, each with the module behind it."""
COMMANDS = tuple(sorted({*SUBCOMMANDS.values(), "hpc.preflight", "hpc.recovery"}))
"""Modules that people run; each ends with `run`."""
PROGRAMS = ("hpc.node_agent", "hpc.rank", "launch.step")
"""Modules that job scripts, ranks and nodes run. They have their own exit statuses and signals."""
REQUIREMENTS = ("h5py", "jinja2", "numpy", "rich", "submitit")
"""Packages that every command may import, as setup.py requires them."""
_ENCODING = "rankwise_encoding"
"""The option of Python (-X) that holds the encoding of output of a command that was restarted."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
NOT_DONE = 1
"""Exit status of a command that could not do what was requested."""
VERDICTS = ("hpc.sweep accept", "parse.compare", "parse.history")
"""Commands whose exit status is a verdict: 1 is "slower", so that 2 has to say that there is none."""

_command = ""
"""The command that this process is; empty where it is none, as in a test."""
_subcommand = ""
"""The command of `rankwise` that this process is; empty where `python -m` runs the module."""


def start() -> None:
    """Prepares the process for the module that `python -m` names, while its package is being imported.

    A module that is no command ends the process with 2: Python would import it, do nothing and exit with 0. Ctrl-C
    during a command's imports and a missing package become one line each. Has no effect in other processes.
    """
    name = module_run().removesuffix(".__main__")
    if name.partition(".")[0] not in ("hpc", "launch", "parse"):
        return
    if name in PROGRAMS:
        sys.excepthook = lambda kind, error, trace: _excepthook(kind, error, trace, name)
        return
    if name not in COMMANDS:
        print(_no_command(name), file=sys.stderr)
        raise SystemExit(2)
    _prepare(name)


def begin(subcommand: str) -> None:
    """Prepares the process for this command of `rankwise`, as `start` does for a module."""
    global _subcommand  # noqa: PLW0603  # a process is one command
    _subcommand = subcommand
    _prepare(SUBCOMMANDS.get(subcommand, subcommand))


def called(module: str) -> str:
    """The name of the command in messages: `rankwise sweep` where it was started so, else its module."""
    return f"rankwise {_subcommand}" if _subcommand else module


def as_called(text: str) -> str:
    """The text with its command lines as this process was started: `rankwise sweep` for `python -m hpc.sweep`.

    Columns behind a command keep their place.
    """
    if not _subcommand:
        return text
    import re

    modules = {module: subcommand for subcommand, module in SUBCOMMANDS.items()}
    modules |= {module: module for module in COMMANDS if module not in modules}
    names = sorted(((f"python -m {module}", f"rankwise {name}") for module, name in modules.items()), reverse=True)
    lines = []
    for line in text.split("\n"):
        new = line
        for old, short in names:
            new = re.sub(rf"{re.escape(old)}(?![\w.])", short, new)
        if new != line and (column := re.search(r"(?<=\S)  +(?=\S)", new)):
            new = f"{new[: column.end()]}{' ' * (len(line) - len(new))}{new[column.end() :]}"
        lines.append(new)
    return "\n".join(lines)


def _prepare(name: str) -> None:
    global _command  # noqa: PLW0603
    _command = name
    sys.excepthook = _excepthook
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_at_once)


def module_run() -> str:
    """The module that `python -m` names, until Python runs it; else an empty text.

    Python sets sys.argv[0] to "-m" while it looks for the module, and to its path afterwards.
    """
    argv = getattr(sys, "argv", [])
    if argv[:1] != ["-m"] or len(sys.orig_argv) < len(argv):
        return ""
    argument = sys.orig_argv[-len(argv)]
    return argument.partition("m")[2] if argument.startswith("-") else argument


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
    import signal

    _read_names_as_utf8()
    OutputStream.command, OutputStream.goes_on = called(name), lost_output is not None
    OutputStream.status = not_done(name)
    open_streams()
    if signal.getsignal(signal.SIGINT) is _exit_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = main()
    except SystemExit as ended:  # of argparse, also after --help
        sys.stdout.flush()
        if OutputStream.lost and not ended.code:
            return lost_output or 0
        raise
    except BaseException as error:  # noqa: BLE001 - the status of a bug, too, is the command's own
        explained = _explain(error, name)
        if explained is None:  # a bug: its traceback matters more than the output
            with suppress(SystemExit):
                sys.stdout.flush()
            sys.__excepthook__(type(error), error, error.__traceback__)
            return not_done(name)
        status = explained
    sys.stdout.flush()
    return status or (OutputStream.lost and lost_output) or 0


def _read_names_as_utf8() -> None:
    """Restarts this command in Python's UTF-8 mode where its locale has another encoding.

    Names of files are bytes, and UTF-8 by custom: read by the locale, the same request had another id in each of them,
    and a job script could not hold it. The processes of runs read names alike. Output keeps the locale's encoding.
    """
    if not _command or not sys.executable or sys.flags.utf8_mode or sys.getfilesystemencoding() == "utf-8":
        return
    os.environ["PYTHONUTF8"] = "1"
    encoding = [] if sys.stdout is None else ["-X", f"{_ENCODING}={sys.stdout.encoding}"]
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *encoding, *sys.orig_argv[1:]])


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


@contextmanager
def importing() -> Iterator[None]:
    """Ctrl-C ends the command at once, for imports inside of `main` while there is nothing to clean up.

    An exception in the middle of an import can get lost, or become the ImportError of an extension module.
    """
    import signal

    if not _command or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _exit_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def open_streams() -> None:
    """Makes standard output and error an OutputStream each.

    A closed descriptor is opened on /dev/null, so that no other file gets its number. Standard output that was closed
    cannot be written: output that goes nowhere is no success. Python's own names of the streams are theirs, too: by
    them shutil and rich ask the terminal for its width.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR if descriptor == 2 else os.O_RDONLY)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = _stream(getattr(sys, name), descriptor)
        if getattr(sys, f"__{name}__") is getattr(sys, name):
            setattr(sys, f"__{name}__", stream)
        setattr(sys, name, stream)


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


def _stream(stream: TextIO | None, descriptor: int) -> TextIO:
    """The stream as an OutputStream; other streams than Python's own are unchanged."""
    if stream is None:
        return OutputStream(open(descriptor, "wb", closefd=False), "utf-8", "backslashreplace")
    if type(stream) is not io.TextIOWrapper:
        return stream
    through, by_line = stream.write_through, stream.line_buffering
    encoding = str(sys._xoptions.get(_ENCODING) or stream.encoding)
    return OutputStream(stream.detach(), encoding, "backslashreplace", line_buffering=by_line, write_through=through)


def _explain(error: BaseException, name: str) -> int | None:
    """Prints the line of an error that is no bug and returns the exit status; None for a bug."""
    if isinstance(error, KeyboardInterrupt):
        print(f"{called(name)}: interrupted", file=sys.stderr)
        return INTERRUPTED
    if broken := _describe_broken(error):
        print(f"{called(name)}: {broken}", file=sys.stderr)
        return not_done(name)
    missing = error.name if isinstance(error, ModuleNotFoundError) else ""
    if missing in REQUIREMENTS:
        print(f"{called(name)}: {_not_installed(missing)}", file=sys.stderr)
        return not_done(name)
    return None


def _describe_broken(error: BaseException) -> str:
    """Which required package is there and cannot be imported, where from, why, and what to do; empty for others."""
    trace, place = error.__traceback__, ""
    while trace is not None and not place:
        code, package = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if code.co_name == "<module>" and package in REQUIREMENTS:
            place = code.co_filename.rpartition(f"/{package}")[0]
        trace = trace.tb_next
    if not place or not isinstance(error, Exception):
        return ""
    while (cause := error.__cause__ or error.__context__) is not None:  # numpy's own text is a page
        error = cause
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    version = ".".join(map(str, sys.version_info[:2]))
    fix = f"install it again: `{sys.executable} -m pip install --force-reinstall {package}`"
    if place in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        fix = "that folder is in PYTHONPATH, before this Python's packages: unset it, or unload the module that sets it"
    return f"{package} in {place} cannot be imported by {sys.executable}, Python {version} ({reason}): {fix}"


def _not_installed(package: str) -> str:
    from shlex import quote

    from hpc.system.import_guard import install_command

    install = f"-m {install_command()}"
    if not sys.executable:  # it has no virtual environment either
        return (
            f"{package} is not installed for this Python, which does not know its path (sys.executable is empty: it "
            f"was started by a name that is not on PATH): start it by its path, PYTHON; else run `PYTHON {install}`"
        )
    return (
        f"{package} is not installed for {sys.executable}: run `{quote(sys.executable)} {install}`, or activate the "
        "environment that has it"
    )


def _excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None, program: str = ""
) -> None:
    """Explains errors before `run`: those of the imports of a command, or of this program."""
    status = None if program and isinstance(error, KeyboardInterrupt) else _explain(error, program or _command)
    if status is not None:
        raise SystemExit(status)
    sys.__excepthook__(kind, error, trace)


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, f"{called(_command)}: interrupted\n".encode())
    os._exit(INTERRUPTED)


def _no_command(name: str) -> str:
    from difflib import get_close_matches

    from hpc.system import removed

    if instead := removed.COMMANDS.get(name):
        return f"{name} is no command any more: {instead}"
    nearest = get_close_matches(name, COMMANDS, n=1, cutoff=0.7)
    meant = f"; did you mean python -m {nearest[0]}?" if nearest else ""
    return f"{name} is no command{meant}\ncommands: {', '.join(COMMANDS)}"
