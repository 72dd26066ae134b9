"""Runs external programs (nvidia-smi, git, mpiexec …) and classifies their failures.

Every short call of an external tool goes through `run_tool`. It raises nothing: `Answer.failure` distinguishes an
absent, forbidden, hanging or failing tool, and the caller decides what that means.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

TIMEOUT_S = 60.0
MAX_OUTPUT = 300


class Failure(StrEnum):
    """The ways in which a tool can fail to give an answer."""

    ABSENT = "absent"
    """No folder of PATH that may be searched has a file of that name."""
    FORBIDDEN = "forbidden"
    """The file is there and may not be executed."""
    HANGING = "hanging"
    """No answer within the timeout; the tool was killed."""
    FAILING = "failing"
    """It ended with a status that is not 0, or could not be started at all."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The output and the end of a tool.

    `exit_status` is None where it did not end by itself, negative where a signal ended it. `reason` is the operating
    system's text where the tool could not be started; for an absent tool it names folders of PATH without access.
    """

    argv: tuple[str, ...]
    stdout: str = ""
    stderr: str = ""
    exit_status: int | None = None
    failure: Failure | None = None
    reason: str = ""
    timeout_s: float = TIMEOUT_S

    @property
    def ok(self) -> bool:
        """Whether the tool ended with status 0."""
        return self.failure is None

    @property
    def last_line(self) -> str:
        """The last line of standard error that is not empty, without the tool's own name before it."""
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        return lines[-1].strip().removeprefix(f"{self.name}: ") if lines else ""

    @property
    def name(self) -> str:
        """The tool's file name."""
        return Path(self.argv[0]).name

    @property
    def output(self) -> str:
        """Standard error, or standard output where that is empty, as one line of at most MAX_OUTPUT characters."""
        text = " ".join((self.stderr.strip() or self.stdout).split())
        return text if len(text) <= MAX_OUTPUT else f"{text[: MAX_OUTPUT - 1]}…"

    def describe(self) -> str:
        """The failure as one phrase that names the tool and quotes it; empty where it did not fail.

        Quoted is the last line of standard error; where that is empty all of standard output, as nvidia-smi reports its
        failures there.
        """
        match self.failure:
            case None:
                return ""
            case Failure.ABSENT:
                return f"{self.name} is not installed here{f' ({self.reason})' if self.reason else ''}"
            case Failure.FORBIDDEN:
                return f"{self.name} cannot be run: {self.reason}"
            case Failure.HANGING:
                return f"{self.name}: no answer within {self.timeout_s:g} s"
            case Failure.FAILING:
                status = "could not be started" if self.exit_status is None else f"exit status {self.exit_status}"
                return f"{self.name}: {self.last_line or self.output or self.reason or status}"


def run_tool(
    argv: Sequence[str], *, timeout_s: float = TIMEOUT_S, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Answer:
    """Runs a tool to its end, with no standard input, and returns what it printed.

    After `timeout_s` seconds its whole process group is killed. Bytes that are not UTF-8 are replaced. Never raises
    OSError: the failure is in the answer.
    """
    command = tuple(argv)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            encoding="utf-8", errors="replace", env=env, cwd=cwd, start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        return _not_started(command, error, env, cwd)
    with process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            return Answer(argv=command, failure=Failure.HANGING, timeout_s=timeout_s)
        except BaseException:
            _kill_group(process)
            raise
    status = process.returncode
    ended = None if status == 0 else Failure.FAILING
    return Answer(argv=command, stdout=stdout, stderr=stderr, exit_status=status, failure=ended)


def find_tool(name: str, env: Mapping[str, str] | None = None) -> Path | None:
    """The file that `run_tool` would run: the first executable one on PATH, else the first that is not executable.

    None where no folder of PATH that may be searched has a file of that name.
    """
    if os.sep in name:
        return Path(name) if _is_file(Path(name)) else None
    paths = [Path(folder or ".") / name for folder in os.get_exec_path(env)]
    files = [path for path in paths if _is_file(path)]
    return next((path for path in files if os.access(path, os.X_OK)), files[0] if files else None)


def _not_started(
    command: tuple[str, ...], error: OSError | ValueError, env: Mapping[str, str] | None, cwd: Path | None
) -> Answer:
    """The answer where execvp failed.

    execvp reports EACCES where a folder of PATH may not be searched and no other folder has the tool. Such a tool
    counts as absent: this user cannot find it there.
    """
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    failing = Answer(argv=command, failure=Failure.FAILING, reason=reason)
    if isinstance(error, OSError) and cwd is not None and str(error.filename) == str(cwd):
        return replace(failing, reason=f"{cwd}: {reason}")
    if not isinstance(error, FileNotFoundError | PermissionError):
        return failing
    if path := find_tool(command[0], env):
        if isinstance(error, FileNotFoundError):
            return replace(failing, reason=f"{path}: the interpreter that its first line names is not there")
        return Answer(argv=command, failure=Failure.FORBIDDEN, reason=f"{path}: {reason}")
    if os.sep in command[0]:
        failure = Failure.ABSENT if isinstance(error, FileNotFoundError) else Failure.FORBIDDEN
        return Answer(argv=command, failure=failure, reason=f"{command[0]}: {reason}")
    closed = [folder for folder in os.get_exec_path(env) if _is_closed(Path(folder))]
    unsearched = f"folders of PATH that may not be searched: {', '.join(closed)}" if closed else ""
    return Answer(argv=command, failure=Failure.ABSENT, reason=unsearched)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # in a folder that may not be searched
        return False


def _is_closed(folder: Path) -> bool:
    """Whether this user may not search the folder, or one above it."""
    try:
        return folder.is_dir() and not os.access(folder, os.X_OK)
    except PermissionError:
        return True


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kills the tool with its children, which would hold its pipes open; then waits for it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
