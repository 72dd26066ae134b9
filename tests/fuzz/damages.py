"""What power cuts, file systems and people do to a file that an attempt left."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Damage = Callable[[Path, random.Random], None]
HUGE_BYTES = 1 << 40
"""As a hole: nobody has the memory to read it."""
PAGE_BYTES = 4096
FUTURE_S = 10**9
VALUES: Sequence[Any] = (
    None, True, -1, 0, 2**63, 1e300, "", "x", [], [1], {}, "../../x", "\x1b[2J", "\ud800", "9" * 5000,
)  # fmt: skip


def empty(path: Path, rng: random.Random) -> None:
    """The name reached the disk, and no content."""
    path.write_bytes(b"")


def zeros(path: Path, rng: random.Random) -> None:
    """The size reached the disk, and no content."""
    path.write_bytes(bytes(path.stat().st_size))


def cut(path: Path, rng: random.Random) -> None:
    """Less of it than was written."""
    os.truncate(path, rng.randrange(max(1, path.stat().st_size)))


def hole(path: Path, rng: random.Random) -> None:
    """A page of it that was never written."""
    size = path.stat().st_size
    page = min(PAGE_BYTES, max(1, size // 4))
    at = rng.randrange(max(1, size - page))
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(min(page, size - at)))


def flip(path: Path, rng: random.Random) -> None:
    """A few bits are others."""
    content = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 4) if content else 0):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))


def append(path: Path, rng: random.Random) -> None:
    """Something stands behind it."""
    with path.open("ab") as file:
        file.write(rng.choice((b"\0" * 99, b"{}", b"\xff\xfe", b"\n", rng.randbytes(200))))


def value(path: Path, rng: random.Random) -> None:
    """One value of the JSON is of another kind, is gone, or is new."""
    values = json.loads(path.read_text())
    key = rng.choice([*values, "new"])
    if rng.random() < 0.3:
        values.pop(key, None)
    else:
        values[key] = rng.choice(VALUES)
    path.write_text(json.dumps(values))


def deep(path: Path, rng: random.Random) -> None:
    """Lists in lists."""
    path.write_bytes(b"[" * 50_000)


def huge(path: Path, rng: random.Random) -> None:
    """Longer than any memory; nothing but zeros behind what is there."""
    os.truncate(path, HUGE_BYTES)


def gone(path: Path, rng: random.Random) -> None:
    """Never reached the disk."""
    path.unlink()


def folder(path: Path, rng: random.Random) -> None:
    """A folder in its place."""
    path.unlink()
    path.mkdir()
    if rng.random() < 0.5:
        (path / "more").touch()


def link(path: Path, rng: random.Random) -> None:
    """A link to nothing, to itself, or to another file."""
    path.unlink()
    others = sorted(each for each in path.parent.iterdir() if each.is_file())
    path.symlink_to(rng.choice(["nowhere", path.name, *map(str, others[:3])]))


def pipe(path: Path, rng: random.Random) -> None:
    """A pipe in its place, to which nobody writes: an ordinary open never returns."""
    path.unlink()
    os.mkfifo(path)


def other_case(path: Path, rng: random.Random) -> None:
    """Brought here by a file system that knows no lower case."""
    path.rename(path.with_name(path.name.upper()))


def second(path: Path, rng: random.Random) -> None:
    """Another version of it under a name of its own."""
    copy = path.with_name(rng.choice((f"copy of {path.name}", f"{path.stem} (1){path.suffix}", f"{path.name}.orig")))
    copy.write_bytes(path.read_bytes())
    if rng.random() < 0.5 and copy.suffix != ".h5":  # of a trace every version is kept, so it stays comparable
        flip(copy, rng)


def exchange(path: Path, rng: random.Random) -> None:
    """Another file's content."""
    others = sorted(each for each in path.parent.iterdir() if each.is_file() and each != path)
    path.write_bytes(rng.choice(others).read_bytes() if others else b"")


def future(path: Path, rng: random.Random) -> None:
    """Written by a clock that was far ahead, or at the beginning of all clocks."""
    os.utime(path, (rng.choice((0, path.stat().st_mtime + FUTURE_S)),) * 2)


OF_ANY: Sequence[Damage] = (
    empty, empty, zeros, zeros, cut, cut, hole, flip, flip, append, huge, gone, folder, link, pipe, other_case, second,
    exchange, future,
)  # fmt: skip
OF_JSON: Sequence[Damage] = (*OF_ANY, value, value, value, value, deep)
ERRORS = (errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOENT)


@contextmanager
def refused(path: Path, number: int) -> Iterator[None]:
    """Within, opening that file fails so, by pathlib or by its descriptor: a mock of what root cannot make."""
    opened, descriptor_of = Path.open, os.open

    def refuse(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self == path:
            raise OSError(number, os.strerror(number), str(self))
        return opened(self, *args, **kwargs)

    def refuse_descriptor(name: Any, *args: Any, **kwargs: Any) -> int:
        if isinstance(name, str | os.PathLike) and Path(name) == path:
            raise OSError(number, os.strerror(number), str(name))
        return descriptor_of(name, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        patch.setattr(os, "open", refuse_descriptor)
        yield
