"""The traces folder of an attempt: the one that was there when the attempt began, and never another of the same name.

A mount that is lost or a folder that is moved leaves a path that does not exist or names another folder. What is
written there would be lost to every reader, so nothing here makes a folder that was there at the start.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hpc.model.outcome import BEGIN


class FolderReplaced(OSError):
    """Another folder is at the path of the traces folder; errno is ESTALE: the right one may come back."""


@dataclass(frozen=True)
class TracesFolder:
    """The traces folder at `path` for the attempt `stem`; `identity` is its (st_dev, st_ino) at the start, None where
    nobody noted it."""

    path: Path
    stem: str
    identity: tuple[int, int] | None = None

    @classmethod
    def at_start(cls, path: Path, stem: str) -> Self:
        """The folder as it is now, when the attempt begins. Raises OSError where there is none."""
        status = path.stat()
        return cls(path, stem, (status.st_dev, status.st_ino))

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the folder. Raises OSError where it cannot be reached, FolderReplaced where another one is at
        its path.

        A network file system that is mounted anew has another st_dev: there the attempt's begin record identifies it.
        """
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if self.identity not in (None, (status.st_dev, status.st_ino)) and not self._has_begin_record(descriptor):
                reason = "not the folder that was there when the attempt began; is its file system mounted?"
                raise FolderReplaced(errno.ESTALE, reason, str(self.path))
            yield descriptor
        finally:
            os.close(descriptor)

    def require(self) -> None:
        """Raises as `opened`."""
        with self.opened():
            pass

    def make(self, name: str) -> Path:
        """Makes a folder in it where it is not there yet; returns its path. Raises as `opened`."""
        with self.opened() as descriptor:
            try:
                os.mkdir(name, dir_fd=descriptor)  # relative to this very folder, not to its path
            except FileExistsError:
                if not (self.path / name).is_dir():
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path / name)) from None
        return self.path / name

    def _has_begin_record(self, descriptor: int) -> bool:
        try:
            os.stat(f"{self.stem}{BEGIN}", dir_fd=descriptor)
        except FileNotFoundError:
            return False
        return True
