"""Parts of a log that stand for all of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from parse.logs.engine.reader import last_pieces, opened, pieces

HEAD_BYTES, PART_BYTES, PARTS = 1 << 20, 1 << 17, 6
"""Of a text the first HEAD_BYTES are looked at, PARTS of PART_BYTES between, and its end."""


def sample(path: Path) -> Iterator[bytes]:
    """Parts of the text, each from a line's beginning; of a packed one its head alone."""
    end = 0
    for buffer, size, offset in pieces(path, HEAD_BYTES):
        yield bytes(memoryview(buffer)[:size])
        end = offset + size
        break
    with opened(path) as (_, size_bytes):
        whole = int(size_bytes) if math.isfinite(size_bytes) else end
    step = (whole - end) // PARTS
    if step > PART_BYTES:
        for place in range(1, PARTS):
            with opened(path) as (file, _):
                file.seek(end + place * step)
                yield file.read(PART_BYTES).replace(b"\r", b"\n").partition(b"\n")[2]
    for buffer, size, _ in last_pieces(path, PART_BYTES, end):
        yield bytes(memoryview(buffer)[:size]).partition(b"\n")[2]
