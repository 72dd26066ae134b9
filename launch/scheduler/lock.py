"""The lock of a sweep's folder: one process at a time submits; the kernel drops the lock with its last holder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from hpc.model.outcome import RecordError, read_object
from hpc.model.typed import TypeMismatchError, read_fields

LOCK = ".lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    """The process that took the lock last."""

    user: str
    host: str
    pid: int
    since_unix_s: int


class LockError(RuntimeError):
    """The folder cannot be locked; the text has the reason and what to do."""


class FolderLock:
    """The lock of a folder of jobs. Every process that inherits the descriptor holds the lock.

    It is a `flock`: released when the last process with the descriptor has ended, for whatever reason.
    """

    def __init__(self, jobs: Path) -> None:
        self.path = jobs / LOCK
        self._file: int | None = None
        self._depth = 0

    @property
    def file(self) -> int:
        if self._file is None:
            raise LockError(f"{self.path} is not held")
        return self._file

    @contextlib.contextmanager
    def held(self, waiting: Callable[[str], None], poll_s: float = 0.5) -> Iterator[None]:
        """Holds the lock, after waiting for it; `waiting` is called once with the present holder. May be nested.

        Raises LockError if the file system has no locks or the file cannot be opened.
        """
        if self._depth == 0:
            reported = False
            while not self.take():
                if not reported:
                    waiting(self.holder())
                    reported = True
                time.sleep(poll_s)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.release()

    def take(self) -> bool:
        """Takes the lock, if this process has not; False if another process has it."""
        if self._file is not None:
            return True
        file = self._open()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise LockError(self._describe_error(error)) from None
        self._file = file
        self.sign()
        return True

    def sign(self) -> None:
        """Writes this process into the file as the holder of the lock."""
        holder = LockHolder(
            user=user_name(), host=socket.gethostname(), pid=os.getpid(), since_unix_s=int(time.time())
        )  # fmt: skip
        with contextlib.suppress(OSError):  # another user's file that is read-only for us: only the name is lost
            os.ftruncate(self.file, 0)
            os.pwrite(self.file, json.dumps(asdict(holder)).encode(), 0)

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def signed_by(self) -> LockHolder | None:
        """The last holder; None if it could not write its name."""
        with contextlib.suppress(RecordError, TypeMismatchError):
            return LockHolder(**read_fields(LockHolder, read_object(self.path), later=True))
        return None

    def holder(self) -> str:
        if (by := self.signed_by()) is None:
            return "a process without a name"
        since = time.strftime("%F %T", time.localtime(by.since_unix_s))
        return f"process {by.pid} on {by.host}, of {by.user}, since {since}"

    def process_here(self) -> int | None:
        """The process id on this host that signed the lock and still has it; None if there is none."""
        by = self.signed_by()
        if by is None or by.host != socket.gethostname():
            return None
        with contextlib.suppress(OSError):
            lock = self.path.stat()
            for descriptor in Path(f"/proc/{by.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.path.samestat(descriptor.stat(), lock):
                        return by.pid
        return None

    def _open(self) -> int:
        flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in its place is not waited for
        try:
            try:
                # Group-writable if the umask allows it; never writable for others, whatever the umask.
                return os.open(self.path, os.O_RDWR | os.O_CREAT | flags, 0o664)
            except PermissionError:
                return os.open(self.path, os.O_RDONLY | flags)
        except OSError as error:
            raise LockError(f"{self.path} cannot be opened: {error.strerror}") from None

    def _describe_error(self, error: OSError) -> str:
        if error.errno in _NO_LOCKS:
            return (
                f"the file system of {self.path.parent} has no locks ({error.strerror}), so that two sweeps could "
                "submit the same runs: keep the sweep on one that has them (--out), or have this one mounted with "
                "them (Lustre: -o flock; NFS: without nolock)"
            )
        if error.errno == errno.EBADF:
            return (
                f"{self.path} can be locked by {self._owner()} alone: its owner can share it with the group "
                f"(chmod g+w {self.path}), or use a folder of your own (--out)"
            )
        return f"{self.path} cannot be locked: {error.strerror}"

    def _owner(self) -> str:
        try:
            return self.path.owner()
        except (OSError, KeyError):
            return "its owner"


def user_name() -> str:
    """The user of this process: the name, or the uid if there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
