"""The door for files that others may have written: regular files alone, of bounded size, depth and numbers."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 22
"""Of a file that is read as a whole: more than any record, note, site, recipe or sweep has."""
MAX_DEPTH = 64
"""Lists and tables inside one another; beyond it functions that call themselves end in a RecursionError."""
MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 64) - 1
MAX_EXPONENT = 400
"""Of a decimal number; a float has 308."""
_NESTED = frozenset({dict, list})
TOO_MUCH = (MemoryError, OverflowError, RecursionError)
"""What numbers, sizes and depths of a file raise where no check foresaw them: the file's fault, not the program's."""


class NotRegularError(OSError):
    """A file is a pipe, a socket or a device."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "no regular file", str(path))


class TooLargeError(OSError):
    """A file has more bytes than its kind ever has."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(errno.EFBIG, f"more than {max_bytes} bytes", str(path))


class NotUtf8Error(UnicodeDecodeError):
    """A text has bytes that are no UTF-8; its text says where, and what to do."""

    def __str__(self) -> str:
        *before, line = self.object[: self.start].split(b"\n")
        encoding = "utf-16" if self.object[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin1"
        is_text = encoding == "utf-16" or b"\0" not in self.object
        remedy = f"store it as UTF-8 (iconv -f {encoding} -t utf-8)" if is_text else "it is damaged, or no text"
        return f"byte {len(line) + 1} of line {len(before) + 1}, 0x{self.object[self.start]:02x}, is no UTF-8: {remedy}"


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


def read_whole(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """All bytes of the file. Raises OSError as open_regular, and TooLargeError for more than `max_bytes`."""
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise TooLargeError(path, max_bytes)
    return content


def read_text(path: Path, max_bytes: int = MAX_BYTES, errors: str = "strict") -> str:
    """The file as UTF-8 text without a byte order mark, with `\\n` for every end of line; `errors` as in bytes.decode.
    Raises as read_whole, and NotUtf8Error."""
    try:
        text = read_whole(path, max_bytes).decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        raise NotUtf8Error(*error.args) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_json(
    text: str | bytes, parse_float: Callable[[str], Any] | None = None, parse_int: Callable[[str], Any] | None = None
) -> Any:
    """The value of a JSON text. Raises ValueError where it is none, deeper or of larger numbers than ours."""
    import json

    try:
        return _bounded(json.loads(text, parse_float=parse_float, parse_int=parse_int))
    except UnicodeDecodeError as error:
        raise NotUtf8Error(*error.args) from None
    except RecursionError:
        raise ValueError(f"lists and tables more than {MAX_DEPTH} deep") from None


def parse_toml(text: str, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """The tables of a TOML text. Raises ValueError as parse_json; tomllib.TOMLDecodeError is one."""
    import tomllib

    try:
        values: dict[str, Any] = _bounded(tomllib.loads(text, parse_float=parse_float))
    except RecursionError:
        raise ValueError(f"lists and tables more than {MAX_DEPTH} deep") from None
    return values


def too_much(error: BaseException) -> str:
    """The reason for one of TOO_MUCH."""
    what = "memory" if isinstance(error, MemoryError) else "depth" if isinstance(error, RecursionError) else "range"
    text = " ".join(str(error).split())[:200]
    return f"its content goes beyond all {what} ({text or type(error).__name__})"


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


def _bounded(value: Any) -> Any:
    """The value itself. Raises ValueError for depths and numbers that what reads it could not bear.

    Goes through it level by level, in a third of the time of parsing.
    """
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        values = [*chain.from_iterable(each.values() if type(each) is dict else each for each in level)]
        kinds = set(map(type, values))
        integers = [each for each in values if type(each) is int] if int in kinds else [0]
        if min(integers) < MIN_INTEGER or max(integers) > MAX_INTEGER:
            raise ValueError("an integer of more than 64 bits")
        if Decimal in kinds and any(type(each) is Decimal and abs(each.adjusted()) > MAX_EXPONENT for each in values):
            raise ValueError(f"a number with more than {MAX_EXPONENT} digits before or behind the point")
        if kinds.isdisjoint(_NESTED):
            return value
        level = [each for each in values if type(each) in _NESTED]
    raise ValueError(f"lists and tables more than {MAX_DEPTH} deep")


def _require_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(path)


def files_of(paths: Iterable[Path], wanted: Callable[[Path], bool]) -> Iterator[Path]:
    """Yields the named files, and the wanted files in named folders, each file once; these may be pipes or devices."""
    seen: set[str] = set()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if (file == path or (wanted(file) and not file.is_dir())) and (real := os.path.realpath(file)) not in seen:
                seen.add(real)
                yield file
