"""Where lines begin in a buffer of text, and which are equally long."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from parse.logs.engine.fields import WORD
from parse.logs.engine.log_format import Integers
from parse.logs.engine.shapes import WordColumns

MAX_LINE = 1 << 14
"""Of longer lines only the beginning is read: patterns take their time with what has no end."""
MAX_SHAPED = 1 << 10
"""Lines up to here are taken in bulk."""
LINE_END = b"\n"


class Lines:
    """Where the lines of a buffer are."""

    def __init__(self, buffer: bytearray, letters: npt.NDArray[np.uint8], starts: Integers, lengths: Integers) -> None:
        self.buffer, self.letters, self.starts, self.lengths = buffer, letters, starts, lengths

    def rows(self, which: Integers, length: int) -> WordColumns:
        """Lines of that length as columns of words."""
        wide = -(-length // WORD) * WORD
        every = np.ndarray((len(self.letters) - wide + 1, wide), np.uint8, self.letters, strides=(1, 1))
        return np.ascontiguousarray(every[self.starts[which]].view(np.uint64).T)

    def texts(self, which: Integers) -> Iterator[tuple[int, bytes]]:
        """Lines as texts, each with where it begins."""
        for start, length in zip(self.starts[which].tolist(), self.lengths[which].tolist(), strict=True):
            yield start, bytes(self.buffer[start : start + length])


def line_starts(letters: npt.NDArray[np.uint8]) -> tuple[Integers, Integers]:
    """Where lines begin, and how long they are."""
    ends = np.flatnonzero(letters == LINE_END[0])
    if not len(ends) or ends[-1] != len(letters) - 1:
        ends = np.append(ends, len(letters))
    starts = np.concatenate([[0], ends[:-1] + 1])
    return starts, ends - starts


def without_repeats(ordered: Integers) -> Integers:
    """The numbers, each once."""
    return ordered[np.flatnonzero(np.diff(ordered, prepend=-1))]


def by_length(lengths: Integers, among: Integers) -> Iterator[tuple[int, Integers]]:
    """Lengths, each with the lines among these that have it, in the order of the file."""
    small = np.minimum(lengths[among], MAX_SHAPED + 1).astype(np.uint16)
    order = np.argsort(small, kind="stable")
    ordered, which = small[order], among[order]
    for group in np.split(np.arange(len(which)), np.flatnonzero(np.diff(ordered)) + 1):
        if len(group):
            yield int(ordered[group[0]]), which[group]
