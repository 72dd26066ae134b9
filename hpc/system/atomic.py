"""Writes files whole: beside their place, then renamed. Every OSError names the requested file."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes the content, a text as UTF-8: no reader sees half of it, and a failure leaves the old file.

    Raises OSError with `filename` set to `path`, also where the operating system names none or the file beside it.
    """
    _replace(path, content.encode() if isinstance(content, str) else content, mode=None)


def write_durable(path: Path, content: bytes) -> None:
    """As `write_atomic`, and on the disk when it returns: a power cut leaves the old file or the new one."""
    _replace(path, content, mode=None, sync=True)


def write_output(path: Path, text: str) -> None:
    """Writes the text to the file named by `--out`, whole as `write_atomic`, and flushes it to the disk.

    A symbolic link stays one and its target is written; an existing file keeps its permissions, and one that may not be
    written is not replaced. Other than regular files (/dev/stdout, a named pipe) are written directly. Characters that
    UTF-8 lacks are escaped. Raises OSError with `filename` set to `path`.
    """
    content = text.encode(errors="backslashreplace")
    try:
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:  # of a link too: its target will be there
            _replace(path.resolve(), content, mode=None, sync=True)
            return
        if not stat.S_ISREG(mode):
            path.write_bytes(content)
        elif os.access(path, os.W_OK):
            _replace(path.resolve(), content, mode=stat.S_IMODE(mode), sync=True)
        else:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _naming(path, error) from None


def _replace(path: Path, content: bytes, *, mode: int | None, sync: bool = False) -> None:
    part = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.part")
    try:
        try:
            with part.open("wb") as file:
                file.write(content)
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with suppress(OSError):  # the earlier error has the details
                part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _naming(path, error) from None


def _naming(path: Path, error: OSError) -> OSError:
    """The same error of `path`; OSError picks its subclass by the number."""
    return OSError(error.errno, error.strerror or str(error), str(path))
