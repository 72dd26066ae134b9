"""Signals to a rank that its script is to have: noted when they come, and handed on unless the script has them too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType

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
        for number in HANDED_ON:
            if number != signal.SIGUSR2 and signal.getsignal(number) is not signal.SIG_IGN:  # nohup: the script's, too
                signal.signal(number, self._note)

    def note(self, number: int) -> None:
        """Notes a signal that this process has received."""
        self._received.append((time.monotonic(), number))
        if number not in _PAUSING:
            self.last, self.is_new = number, True

    def hand_on(self, pid: int) -> None:
        """Sends what is due to the script, which leads a process group. A terminal's key is for all processes in it;
        one that stops also stops this process."""
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
