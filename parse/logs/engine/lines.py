"""Finds the lines of a text: their beginnings and lengths, and those that may hold one of several markers."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from parse.logs.engine.log_format import Integers

MAX_LINE = 1 << 14
"""Only the beginning of longer lines is read: patterns are slow on lines without an end."""
LINE_END = b"\n"
BLOCK = 1 << 15
"""Pairs of characters processed at a time: the results stay in the processor's cache."""
PAIRS = 4
"""A text is recognized by this many pairs of characters in a row."""
BITS, NAMES = 64, 255


def line_starts(letters: npt.NDArray[np.uint8]) -> tuple[Integers, Integers]:
    """The beginnings and lengths of lines."""
    ends = np.flatnonzero(letters == LINE_END[0])
    if not len(ends) or ends[-1] != len(letters) - 1:
        ends = np.append(ends, len(letters))
    starts = np.concatenate([[0], ends[:-1] + 1])
    return starts, ends - starts


class MarkerIndex:
    """Finds candidates for the places of several texts: all places that have one, and few others.

    The pairs of characters at even places of what is searched are of a text, wherever it begins, one of two rows. Each
    row of each text has a bit; a pair has a name, and by its name in `_bits[i]` the bits of the rows whose i-th it is.
    """

    def __init__(self, texts: tuple[bytes, ...]) -> None:
        self._names = np.zeros(1 << 16, np.uint8)
        self._bits = np.zeros((PAIRS, NAMES + 1), np.uint64)
        names = 0
        for number, text in enumerate(texts):
            for begin in (0, 1):
                row = _row(text, begin)
                bit = np.uint64(1 << (2 * number + begin) % BITS)
                for place in range(PAIRS):
                    if place < len(row):
                        new = row[place][self._names[row[place]] == 0]
                        self._names[new] = 1 + names % NAMES
                        names += bool(len(new))
                        self._bits[place, self._names[row[place]]] |= bit
                    else:
                        self._bits[place] |= bit
        self._begins = self._bits[0][self._names] != 0

    def passes(self, letters: npt.NDArray[np.uint8]) -> Integers:
        """Places in a text, of an even length, near which one may stand; in order."""
        pairs = letters.view(np.uint16)
        blocks = [
            begin + np.flatnonzero(self._begins.take(pairs[begin : begin + BLOCK]))
            for begin in range(0, len(pairs), BLOCK)
        ]
        places = np.concatenate(blocks)
        row_bits = self._bits[0][self._names[pairs[places]]]
        for place in range(1, PAIRS):
            row_bits &= self._bits[place][self._names[pairs[np.minimum(places + place, len(pairs) - 1)]]]
            possible = row_bits != 0
            places, row_bits = places[possible], row_bits[possible]
        return np.asarray(2 * places, np.int64)


@cache
def marker_index(texts: tuple[bytes, ...]) -> MarkerIndex:
    """The index of these texts, made once."""
    return MarkerIndex(texts)


def marked_lines(letters: npt.NDArray[np.uint8], size: int, index: MarkerIndex) -> tuple[Integers, Integers, Integers]:
    """The lines of the first `size` letters, of which there is one more: where they begin and end, at most MAX_LINE
    later, and which of them may hold a text of the index. Where none may, no line is returned."""
    places = index.passes(letters[: size + size % 2]) if size else np.empty(0, np.int64)
    if not len(places):
        return places, places, places
    starts, lengths = line_starts(letters[:size])
    which = np.searchsorted(starts, places, side="right") - 1
    return starts, starts + np.minimum(lengths, MAX_LINE), which[np.flatnonzero(np.diff(which, prepend=-1))]


def _row(text: bytes, begin: int) -> list[npt.NDArray[np.uint16]]:
    """The pairs of a text at even places, of one that begins at an even place or at an odd one: for each place those
    that may stand there. Of a text of two characters at an odd place they are halves of two pairs."""
    if begin == 1 and len(text) == 2:
        any_other = np.arange(1 << 8, dtype=np.uint16)
        return [any_other | np.uint16(text[0] << 8), (any_other << np.uint16(8)) | np.uint16(text[1])]
    pairs = np.frombuffer(text[begin : begin + (len(text) - begin) // 2 * 2], np.uint16)
    return list(_telling(pairs)[:, None])


def _telling(row: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """PAIRS neighbouring pairs of a text, from the rarest one where enough follow it."""
    last = max(len(row) - PAIRS, 0)
    best = max(range(last + 1), key=lambda place: _rarity(row[place : place + 1].tobytes()))
    return row[best : best + PAIRS]


def _rarity(text: bytes) -> int:
    return sum(0 if letter in b" etaoinsr" else 1 if 97 <= letter <= 122 else 2 for letter in text)
