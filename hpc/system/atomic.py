"""Writes files whole: beside their place, then renamed. Every OSError names the requested file."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes the content, a text as `encoded`: no reader sees half of it, and a failure leaves the old file.

    Raises OSError with `filename` set to `path`, also where the operating system names none or the file beside it.
    """
    _replace(path, content)


def encoded(text: str) -> bytes:
    """The text as UTF-8; of names and values that are none, the bytes that they are."""
    return text.encode(errors="surrogateescape")


def write_durable(path: Path, content: str | bytes) -> None:
    """As `write_atomic`, and on the disk when it returns, its name too: a power cut leaves the old file or the new."""
    _replace(path, content, sync=True)


def create_durable(path: Path, content: bytes) -> bool:
    """Makes a new file that is on the disk, with its name, when this returns; False where the name is taken.

    Of several processes that create the same name at once, one gets True. Raises OSError where the file cannot be
    written; then it is removed.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return False
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise _naming(path, error) from None
    return True


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder to the disk. Raises OSError; not where the file system has no such call for
    folders, as some network file systems, and not where the folder may be written but not read."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_output(path: Path, text: str) -> None:
    """Writes the text to the file named by `--out`, whole as `write_atomic`, and flushes it to the disk.

    A symbolic link stays one and its target is written; an existing file keeps its permissions, and one that may not be
    written is not replaced. Other than regular files (/dev/stdout, a named pipe) are written directly. Characters that
    UTF-8 lacks are escaped. Raises OSError with `filename` set to `path`.
    """
    with open_output(path) as file:
        file.write(text.encode(errors="backslashreplace"))


@contextmanager
def open_output(path: Path) -> Iterator[BinaryIO]:
    """As `write_output`, for what is written piece by piece: the file is there when the `with` ends without an error.

    Every OSError raised inside gets `filename` set to `path`: errors of other files are to be caught inside.
    """
    try:
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:  # of a link too: its target will be there
            with _replacing(path.resolve(), sync=True) as file:
                yield file
            return
        if not stat.S_ISREG(mode):
            with path.open("wb") as file:
                yield file
        elif os.access(path, os.W_OK):
            with _replacing(path.resolve(), mode=stat.S_IMODE(mode), sync=True) as file:
                yield file
        else:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _naming(path, error) from None


def _replace(path: Path, content: str | bytes, *, sync: bool = False) -> None:
    with _replacing(path, sync=sync) as file:
        file.write(encoded(content) if isinstance(content, str) else content)


@contextmanager
def _replacing(path: Path, *, mode: int | None = None, sync: bool = False) -> Iterator[BinaryIO]:
    part = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.part")
    try:
        try:
            with part.open("wb") as file:
                yield file
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            part.replace(path)
            if sync:
                sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):  # the earlier error has the details
                part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _naming(path, error) from None


def _naming(path: Path, error: OSError) -> OSError:
    """The same error of `path`; OSError picks its subclass by the number."""
    return OSError(error.errno, error.strerror or str(error), str(path))
