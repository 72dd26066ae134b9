"""The process of a script: started with torchrun's variables and the hooks, ended with all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hpc.measure.world import LaunchError

CHECKOUT = Path(__file__).resolve().parents[2]
SITE = CHECKOUT / "hpc" / "observe" / "site"
"""The folder of the sitecustomize that hooks torch once that is imported."""
EVENTS_VARIABLE = "RANKWISE_OBSERVE"
"""Names the folder for the events of every process that the script starts."""
END_PATIENCE_S = 10.0
"""Seconds between SIGTERM and SIGKILL for a script that is to end."""
_POLL_S = 0.02
# Ends with the rank that started it, whatever ends that. The script takes the place of this interpreter.
_START = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class ScriptProcess:
    """A running script. `ended_ns` is when its end was noticed (perf_counter_ns), `status` as of subprocess."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        starter = [sys.executable, "-I", "-S", "-c", _START, str(os.getpid())]
        self._process = subprocess.Popen([*starter, *command], env=dict(environment), process_group=0)
        self.ended_ns = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None while it runs; -N where signal N ended it."""
        status = self._process.poll()
        if status is not None and not self.ended_ns:
            self.ended_ns = time.perf_counter_ns()
        return status

    def wait(self, seconds: float) -> None:
        """Returns when the script has ended, or after that time."""
        limit = time.monotonic() + seconds
        while self.status is None and (remaining_s := limit - time.monotonic()) > 0:
            time.sleep(min(_POLL_S, remaining_s))

    def end(self, patience_s: float = END_PATIENCE_S) -> None:
        """Ends it, and what it has started: by SIGTERM, and after `patience_s` by SIGKILL."""
        if self.status is None:
            self._send(signal.SIGTERM)
            self.wait(patience_s)
        self._send(signal.SIGKILL)
        self._process.wait()

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def describe_status(status: int) -> str:
    """`exit status 7`, `signal 9 (SIGKILL)`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"


def script_environment(
    inherited: Mapping[str, str], place: Mapping[str, str], events: Path, *, in_job: bool
) -> dict[str, str]:
    """The environment of the script: what this process has, torchrun's variables in `place` where they are not set, and
    the way to the hooks.

    The checkout is left out of its import path, which a job script (`in_job`) has put there, and so is PYTHONSAFEPATH:
    the script imports what it imports without us. Raises LaunchError where RANK or WORLD_SIZE are set to others.
    """
    for name in ("RANK", "WORLD_SIZE"):
        if name in place and inherited.get(name, place[name]) != place[name]:
            raise LaunchError(
                f"{name} is {inherited[name]} in the environment and {place[name]} by MPI: start it by srun or mpirun "
                f"without that variable, not by torchrun or accelerate, which have ranks of their own"
            )
    environment = {**place, **inherited}
    if in_job:
        environment.pop("PYTHONSAFEPATH", None)
    paths = [path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path]
    others = [path for path in paths if (Path(path) / "hpc").resolve() != CHECKOUT / "hpc"]
    return {**environment, "PYTHONPATH": os.pathsep.join([str(SITE), *others]), EVENTS_VARIABLE: str(events)}
