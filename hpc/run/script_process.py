"""The process of a script: started with torchrun's variables and the hooks, handed its signals, ended with all that it
has started; and the ranks that it starts itself, as torch.multiprocessing.spawn does: one launch, each a rank."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hpc.backends.addresses import endpoint_of_first, requested_interface
from hpc.measure.connections import ConnectionLost, Connections
from hpc.measure.world import LaunchError, World
from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT
from hpc.model.verdict import WHO_KILLS
from hpc.observe.events import EventFileError, read_facts, steps_counted
from hpc.workloads.user_code import imported_packages

if TYPE_CHECKING:
    from mpi4py.MPI import Request

    from hpc.measure.connections import Communicator, Maximum


CHECKOUT = Path(__file__).resolve().parents[2]
SITE = CHECKOUT / "hpc" / "observe" / "site"
"""The folder of the sitecustomize that hooks torch once that is imported."""
EVENTS_VARIABLE = "RANKWISE_OBSERVE"
"""Names the folder for the events of every process that the script starts."""
END_PATIENCE_S = 10.0
"""Seconds between SIGTERM and SIGKILL for a script that is to end."""
_WAKE_S = 0.3
"""Seconds between looks while a signal is to be handed on; a new one, and the script's end, wake this at once."""
# Ends with the rank that started it, whatever ends that. The script takes the place of this interpreter.
_START = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class ScriptProcess:
    """A running script. `alive_ns` is until when it is known to have run, `ended_ns` when its end was noticed
    (perf_counter_ns), `status` as of subprocess. Waiting for it hands `signals` on to it."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], signals: ScriptSignals | None = None
    ) -> None:
        starter = [sys.executable, "-I", "-S", "-c", _START, str(os.getpid())]
        self.alive_ns, self.ended_ns = time.perf_counter_ns(), 0
        self._process = subprocess.Popen([*starter, *command], env=dict(environment), process_group=0)
        self._signals = signals
        self._wakes, self._wake_s, self._end = select.poll(), math.inf, -1
        if signals is not None:
            self._wakes.register(signals.wake, select.POLLIN)
        try:
            self._end = os.pidfd_open(self._process.pid)
            self._wakes.register(self._end, select.POLLIN)
        except OSError:  # a kernel before 5.3 has none
            self._wake_s = POLL_S

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
            is_pending = self._signals is not None and self._signals.is_pending
            wake_s = min(self._wake_s, _WAKE_S if is_pending else math.inf)
            if any(file == self._end for file, _ in self._wakes.poll(1e3 * min(wake_s, remaining_s))):
                self.alive_ns = time.perf_counter_ns()  # the kernel wakes this process when the script ends

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


def first_to_fail(ends: npt.ArrayLike) -> int:
    """The rank whose script failed first, of `ends` int64 [rank, 4]: failed (0 or 1), when the script said that it ends
    or ABSENT, last seen to run, seen to have ended (ns, one clock).

    A script says so before its connections close. One that ends without a word (a signal, os._exit) does so at some
    time after it was last seen, and what others say after that may come of it. At least one has failed.
    """
    failed, says_ns, alive_ns, ended_ns = np.asarray(ends, np.int64).T
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


_OWN_LAUNCHERS = {"lightning", "pytorch_lightning"}


def starts_ranks(workload: str) -> bool:
    """Whether the script imports what starts its other ranks, unless variables say that torchrun has."""
    return bool(_OWN_LAUNCHERS & imported_packages(workload))


def torchrun_variables(world: World, comm: Communicator, run: RunSpec) -> dict[str, str]:
    """Those that torchrun sets for this rank. Collective."""
    address, port = endpoint_of_first(comm, requested_interface(run.gpus_per_node > 0))
    # Simulated nodes are one machine, whose devices all ranks share.
    local = (comm.rank, comm.size) if world.nodes_simulated else (world.local_rank, world.local_size)
    group = (0, 1) if world.nodes_simulated else (world.node_rank, world.nodes)
    return {
        "RANK": str(comm.rank), "WORLD_SIZE": str(comm.size), "LOCAL_RANK": str(local[0]),
        "LOCAL_WORLD_SIZE": str(local[1]), "GROUP_RANK": str(group[0]), "GROUP_WORLD_SIZE": str(group[1]),
        "MASTER_ADDR": address, "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": run.run_id,
    }  # fmt: skip


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


# The signals of a script: noted when they come, and handed on unless the script has them too.

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""The signals by which a sender asks a process to end."""
_PAUSING = (signal.SIGTSTP, signal.SIGCONT)
HANDED_ON = (*ENDING, *_PAUSING, signal.SIGUSR1, signal.SIGUSR2)
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_SETTLE_S, _FORGOTTEN_S = 0.3, 10.0
"""Seconds for a sender that signals one process after another, and until one that came without the other is passed."""
# In the place of a script, and with its words in the command line: receives what the script receives, and writes it.
_WITNESS = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "numbers = [int(each) for each in sys.argv[2].split(',')]\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, numbers)\n"
    "os.write(1, b'\\0')\n"
    "while True: os.write(1, bytes([signal.sigwait(numbers)]))\n"
)


class ScriptSignals:
    """The signals that this process receives for its script. `last` is the last one that ends or warns, 0 before, and
    `is_new` is set with it.

    A sender may signal this process alone (kill, srun, torchrun) or all that the launch has started (a control group,
    a tree of processes). A second process like the script, which does nothing, tells the two apart: what reaches it has
    reached the script. `once`: each signal is handed on once, as several senders ask for the same.
    """

    def __init__(self, command: Sequence[str], *, once: bool) -> None:
        self.last, self.is_new = 0, False
        self._once, self._sent = once, set[int]()
        self._received: list[tuple[float, int]] = []
        self._witnessed: list[tuple[float, int]] = []
        numbers = ",".join(str(int(number)) for number in HANDED_ON)
        argv = [sys.executable, "-I", "-S", "-c", _WITNESS, str(os.getpid()), numbers, *command]
        self._witness = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0, bufsize=0
        )
        assert self._witness.stdout is not None
        self._seen = self._witness.stdout
        self._seen.read(1)  # it is ready
        os.set_blocking(self._seen.fileno(), False)
        self.wake, self._write = os.pipe()
        os.set_blocking(self.wake, False)
        for number in HANDED_ON:
            if number != signal.SIGUSR2 and signal.getsignal(number) is not signal.SIG_IGN:  # nohup: the script's, too
                signal.signal(number, self._note)

    @property
    def is_pending(self) -> bool:
        """Whether one is to be handed on, if the script has not had it by then."""
        return bool(self._received)

    def note(self, number: int) -> None:
        """Notes a signal that this process has received."""
        self._received.append((time.monotonic(), number))
        os.write(self._write, b"\0")  # wakes what waits for the script's end
        if number not in _PAUSING:
            self.last, self.is_new = number, True

    def hand_on(self, pid: int) -> None:
        """Sends what is due to the script, which leads a process group. A terminal's key is for all processes in it;
        one that stops also stops this process."""
        with suppress(BlockingIOError):
            os.read(self.wake, 1 << 12)
        for number in self._due():
            with suppress(ProcessLookupError):
                if number == signal.SIGTSTP or (number in _OF_TERMINAL and _has_terminal()):
                    os.killpg(pid, number)
                else:
                    os.kill(pid, number)
            if number == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)

    def _due(self) -> list[int]:
        now_s = time.monotonic()
        self._witnessed += [(now_s, number) for number in self._seen.read() or b""]
        send = []
        for at_s, number in [each for each in self._received if each[0] <= now_s - _SETTLE_S]:
            self._received.remove((at_s, number))
            same = [each for each in self._witnessed if each[1] == number and abs(each[0] - at_s) < _FORGOTTEN_S]
            if same:
                self._witnessed.remove(same[0])
            elif not (self._once and number in self._sent):
                send.append(number)
            self._sent.add(number)
        self._witnessed = [each for each in self._witnessed if each[0] > now_s - _FORGOTTEN_S]
        return send

    def end(self, terminated: Callable[[int, FrameType | None], None]) -> None:
        """From now on, with the script at its end, warnings have no effect, and the others call `terminated`."""
        self._witness.kill()
        self._witness.wait()
        for number in ENDING:
            if signal.getsignal(number) == self._note:
                signal.signal(number, terminated)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.note(number)


def _has_terminal() -> bool:
    """Whether the keys of a terminal signal this process."""
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


# Ranks that a script starts itself.


def spawned_ranks(folder: Path) -> Sequence[Path]:
    """The files of events of the processes that train, in the order of their ranks, where these are several and all of
    one process group; empty where they are not."""
    training = [path for path in folder.glob("*.events") if _trains(path)]
    if len(training) < 2:
        return ()
    by_rank: dict[int, Path] = {}
    groups: set[tuple[int, str]] = set()
    for path in training:
        with suppress(OSError, EventFileError):
            facts = read_facts(path)
            if facts.get("joined"):
                by_rank[int(facts["rank"])] = path
                groups.add((int(facts["size"]), str(facts["rendezvous"])))
    size = len(training)
    if len(groups) != 1 or sorted(by_rank) != [*range(size)] or groups.pop()[0] != size:
        return ()
    return [by_rank[rank] for rank in sorted(by_rank)]


def _trains(path: Path) -> bool:
    try:
        return steps_counted(path) > 0
    except OSError:  # it is being made
        return False


def own_folder(path: Path, rank: int) -> Path:
    """Moves a file of events, and what has its name, to a folder of this rank; returns that."""
    folder = path.parent / f"rank{rank}"
    folder.mkdir(mode=0o700)
    for each in path.parent.glob(f"{path.stem}.*"):
        each.rename(folder / each.name)
    return folder


def as_ranks(size: int, call: Callable[[Connections], None]) -> None:
    """Has so many threads call this, each as a rank that is connected with the others. Raises what the first of them
    raised; the others have lost their connections by then."""
    links: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for rank in range(1, size):
        links[0][rank], links[rank][0] = socket.socketpair()

    def as_rank(rank: int) -> None:
        with socket.socket() as nobody:  # connects later
            try:
                call(Connections(rank, size, links[rank], nobody, b""))
            finally:
                for link in links[rank].values():
                    link.close()

    with ThreadPoolExecutor(size) as pool:
        ended = [pool.submit(as_rank, rank) for rank in range(size)]
    errors = [error for future in ended if (error := future.exception()) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, ConnectionLost)), errors[0])


# How ranks exchange numbers without waiting busily.


POLL_S = 0.05


class Agreement:
    """Exchanges over a communicator of its own. A rank that waits for others sleeps: MPI's own waits are busy loops."""

    def __init__(self, comm: Communicator, pause: Callable[[float], object] = time.sleep) -> None:
        self._comm, self._pause = comm.Dup(), pause

    def largest(self, *values: int, limit_s: float = math.inf) -> Sequence[int]:
        """The largest of all ranks' values, of each: however many ranks there are, each sends little. Collective.
        Raises TimeoutError where it takes longer."""
        mine, largest = np.array(values, np.int64), np.empty(len(values), np.int64)
        request: Request | Maximum
        if isinstance(self._comm, Connections):
            request = self._comm.Imaximum(mine, largest)
        else:
            from mpi4py import MPI

            request = self._comm.Iallreduce(mine, largest, op=MPI.MAX)
        end_s = time.monotonic() + limit_s
        while not request.Test():
            if time.monotonic() > end_s:
                raise TimeoutError
            self._pause(POLL_S)
        maximum: list[int] = largest.tolist()
        return maximum
