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

import numpy as np
import numpy.typing as npt

from hpc.measure.world import LaunchError
from hpc.model.timestamps import ABSENT
from hpc.model.verdict import WHO_KILLS
from hpc.run.script_signals import ScriptSignals

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
    """A running script. `alive_ns` is when it was last seen to run, `ended_ns` when its end was noticed
    (perf_counter_ns), `status` as of subprocess. Waiting for it hands `signals` on to it."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], signals: ScriptSignals | None = None
    ) -> None:
        starter = [sys.executable, "-I", "-S", "-c", _START, str(os.getpid())]
        self.alive_ns, self.ended_ns = time.perf_counter_ns(), 0
        self._process = subprocess.Popen([*starter, *command], env=dict(environment), process_group=0)
        self._signals = signals

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None while it runs; -N where signal N ended it."""
        before_ns = time.perf_counter_ns()
        status = self._process.poll()
        if status is None:
            self.alive_ns = before_ns
        elif not self.ended_ns:
            self.ended_ns = time.perf_counter_ns()
        return status

    def wait(self, seconds: float) -> None:
        """Returns when the script has ended, or after that time."""
        limit = time.monotonic() + seconds
        while True:
            if self.status is None and self._signals is not None:
                self._signals.hand_on(self.pid)
            if self.status is not None or (remaining_s := limit - time.monotonic()) <= 0:
                return
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


DYING_NS = 100_000_000
"""A process may be seen to run for so long after its connections have closed: its threads end one by one."""


def first_to_fail(ends: npt.NDArray[np.int64]) -> int:
    """The rank whose script failed first, of `ends` int64 [rank, 4]: failed (0 or 1), when the script said that it ends
    or ABSENT, last seen to run, seen to have ended (ns, one clock).

    A script says so before its connections close. One that ends without a word (a signal, os._exit) does so at some
    time after it was last seen, and what others say after that may come of it. At least one has failed.
    """
    failed, says_ns, alive_ns, ended_ns = ends.T
    silent = (failed > 0) & (says_ns == ABSENT)
    speaks = (failed > 0) & (says_ns != ABSENT)
    if speaks.any():
        silent &= alive_ns <= says_ns[speaks].min() + DYING_NS
    ranks, moments = (silent, ended_ns) if silent.any() else (speaks, says_ns)
    return int(min(ranks.nonzero()[0], key=lambda rank: moments[rank]))


def describe_status(status: int) -> str:
    """`exit status 7`, `signal 6 (SIGABRT)`; of SIGKILL also who may have sent it."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name}){WHO_KILLS if status == -signal.SIGKILL else ''}"
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
