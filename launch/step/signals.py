"""A log of received signals, and sleeps that signals end."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType


class SignalLog:
    """Notes the first and the last signal of these names. SIGCHLD ends a pause and is not noted."""

    def __init__(self, names: Sequence[str]) -> None:
        self.first = self.last = ""
        self.orphaned = False
        """Whether the parent has died, for which the kernel sends SIGTERM: that is no request to end."""
        self._parent = os.getppid()
        self._note: Path | None = None
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._reading = reading
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for name in names:
            signal.signal(signal.Signals[f"SIG{name}"], self._received)

    def note_in(self, path: Path) -> None:
        """From now on writes the first signal to this file at once, with the time: this process may be killed soon
        after."""
        self._note = path
        if self.first:
            self._write()

    def add(self, name: str) -> None:
        """Notes a signal that another process has received for this one."""
        self.first, self.last = self.first or name, name

    def sleep(self, seconds: float) -> None:
        """Sleeps `seconds`; a signal of the log ends it early."""
        until_s, before = time.monotonic() + seconds, self.last
        while self.last == before and (remaining_s := until_s - time.monotonic()) > 0:
            self.pause(remaining_s)

    def pause(self, seconds: float) -> None:
        """Sleeps `seconds` at most: a signal ends it, or a child that ends or ended shortly before."""
        with suppress(InterruptedError):
            select.select([self._reading], [], [], max(0.0, seconds))
        with suppress(BlockingIOError):
            while os.read(self._reading, 512):
                pass

    def _received(self, number: int, _: FrameType | None) -> None:
        is_first = not self.first
        self.add(signal.Signals(number).name)
        if os.getppid() != self._parent:
            self.orphaned = True
        elif is_first:
            self._write()

    def _write(self) -> None:
        if self._note is not None and not self._note.exists():
            with suppress(OSError):  # the record will have it where it can be written
                self._note.write_text(f"{self.first} at {time.strftime('%F %T')}\n")
