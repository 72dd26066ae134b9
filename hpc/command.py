"""Runs the programs of others (squeue, nvidia-smi, git, mpiexec …): the one place that knows how they can fail.

Every short call of an external tool goes through `run_tool`. It raises nothing: a caller decides what an absent,
forbidden, hanging or failing tool means, and `Answer.failure` tells them apart.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

TIMEOUT_S = 60.0


class Failure(StrEnum):
    """How a tool can fail to give an answer."""

    ABSENT = "absent"
    """No file of that name on PATH."""
    FORBIDDEN = "forbidden"
    """The file, or a folder of PATH, may not be read or executed."""
    HANGING = "hanging"
    """No answer within the timeout; the tool was killed."""
    FAILING = "failing"
    """It ended with a status that is not 0, or could not be started at all."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a tool printed and how it ended.

    `exit_status` is None where it did not end by itself, negative where a signal ended it. `reason` is the operating
    system's text where the tool could not be started.
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
        return lines[-1].strip().removeprefix(f"{Path(self.argv[0]).name}: ") if lines else ""

    def describe(self) -> str:
        """The failure as one phrase that names the tool and quotes its last line; empty where it did not fail."""
        name = Path(self.argv[0]).name
        match self.failure:
            case None:
                return ""
            case Failure.ABSENT:
                return f"{name} is not installed here"
            case Failure.FORBIDDEN:
                return f"{name} cannot be run: {self.reason}"
            case Failure.HANGING:
                return f"{name}: no answer within {self.timeout_s:g} s"
            case Failure.FAILING:
                status = "could not be started" if self.exit_status is None else f"exit status {self.exit_status}"
                return f"{name}: {self.last_line or self.reason or status}"


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
            errors="replace", env=env, cwd=cwd, start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError as error:
        missing_folder = cwd is not None and not cwd.is_dir()
        failure = Failure.FAILING if missing_folder else Failure.ABSENT
        return Answer(argv=command, failure=failure, reason=error.strerror or "")
    except PermissionError as error:
        return _not_started(command, error)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Answer(argv=command, failure=Failure.FAILING, reason=reason)
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


def _not_started(command: tuple[str, ...], error: PermissionError) -> Answer:
    """A folder of PATH that may not be searched makes execvp say EACCES where the tool is simply absent."""
    if os.sep in command[0]:
        return Answer(argv=command, failure=Failure.FORBIDDEN, reason=f"{command[0]}: {error.strerror}")
    folders = [Path(folder or ".") for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    for folder in folders:
        with suppress(OSError):
            (folder / command[0]).lstat()
            return Answer(argv=command, failure=Failure.FORBIDDEN, reason=f"{folder / command[0]}: {error.strerror}")
    closed = [str(folder) for folder in folders if folder.is_dir() and not os.access(folder, os.X_OK)]
    if not closed:
        return Answer(argv=command, failure=Failure.FORBIDDEN, reason=error.strerror or "")
    reason = f"it is in no folder of PATH that can be searched; not searchable: {', '.join(closed)}"
    return Answer(argv=command, failure=Failure.FORBIDDEN, reason=reason)


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kills the tool with its children, which would hold its pipes open; then waits for it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
