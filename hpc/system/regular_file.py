"""Opens files of others for reading: pipes, sockets and devices, whose reading may never end, are refused."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterable
from pathlib import Path


class NotRegularError(OSError):
    """A file is a pipe, a socket or a device."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "no regular file", str(path))


def open_regular(path: Path, buffer_bytes: int = io.DEFAULT_BUFFER_SIZE) -> io.BufferedReader:
    """The file for reading bytes. Raises NotRegularError for a pipe, a socket or a device, OSError as `open` else.

    The kind is checked before the file is opened, which would wake the writer of a pipe, and of what has been opened,
    as another file may have taken its place. Neither waits: open(2) with O_NONBLOCK returns at once.
    """
    _require_regular(path.stat(), path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _require_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return io.BufferedReader(io.FileIO(descriptor), buffer_bytes)


def existing(paths: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """Those of the paths that are there, and a line for each of the others with the reason."""
    usable: list[Path] = []
    refusals: list[str] = []
    for path in paths:
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            refusals.append(f"{path}: no such file or folder")
        except OSError as error:  # a name that is too long, a loop of links, a folder that may not be entered
            refusals.append(f"{path}: cannot be read ({error.strerror})")
        else:
            usable.append(path)
    return usable, refusals


def _require_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(path)
