"""Ways in which a log goes wrong on its way: each takes a text and a source of randomness, and gives a text."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Callable

Mutation = Callable[[bytes, random.Random], bytes]

NUMBERS = (
    b"", b"0", b"-1", b"nan", b"inf", b"-inf", b"NaN", b"1e308", b"1e999", b"-0.0", b"1.2.3", b"0x10", b"9" * 400,
    b"99999999999999999999", b"9223372036854775807", b"18446744073709551616", b"1e-320", b"0.0000", b"00", b"1_0",
    b"\xd9\xa3", b"1,5", b"4294967296", b".", b"..", b"5.", b".5", b"2e5",
)  # fmt: skip
TEXTS = (
    b"\r", b"\r\n", b"\0", b"\x1b[32m", b"\x1b[0m", b"\x1b[", b"\x1b]0;title", b"\x1b]0;title\x07", b"\x07",
    b"\xff\xfe", b"\xef\xbb\xbf", b"\t", b"[1,3]<stdout>:", b"12: ", b"[0] ", b"::::",
    b"Fri Apr  9 10:16:49 2021[1,0]<stdout>:", b"\xe2\x80\xa8", b"\x85", b"\x0b\x0c", b"%s%n{}", b":::MLLOG ",
    b"DLLL {", b'"step": ', b"Epoch: [", b" - PARAMETER ", b"AI-Rank-log ", b"<script>", b"\\", b"'", b'"',
)  # fmt: skip
FRONTS = (
    b':::MLLOG {"key": "eval_accuracy", "value": ', b"DLLL ", b"",
)  # fmt: skip
STAMP = re.compile(rb"\d\d:\d\d:\d\d")
DIGITS = re.compile(rb"\d+(?:\.\d+)?")


def _place(text: bytes, rng: random.Random) -> int:
    return rng.randint(0, len(text))


def flip(text: bytes, rng: random.Random) -> bytes:
    """A few bytes become others."""
    changed = bytearray(text)
    for _ in range(rng.randint(1, 8)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def cut(text: bytes, rng: random.Random) -> bytes:
    """The text ends early, begins late, or lacks a piece."""
    first, stop = sorted((_place(text, rng), _place(text, rng)))
    return rng.choice((text[:stop], text[first:], text[:first] + text[min(first + 40, stop) :]))


def _lines(text: bytes, rng: random.Random, change: Callable[[list[bytes]], None]) -> bytes:
    lines = text.split(b"\n")
    change(lines)
    return b"\n".join(lines)


def swap(text: bytes, rng: random.Random) -> bytes:
    """Lines change places; sometimes all of them."""

    def change(lines: list[bytes]) -> None:
        if rng.random() < 0.2:
            rng.shuffle(lines)
        for _ in range(3):
            first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[first], lines[second] = lines[second], lines[first]

    return _lines(text, rng, change)


def repeat(text: bytes, rng: random.Random) -> bytes:
    """A line comes again, or the whole text does."""
    if rng.random() < 0.2 and len(text) < 1 << 16:
        return text * rng.randint(2, 3)

    def change(lines: list[bytes]) -> None:
        lines[rng.randrange(len(lines)) : 0] = [rng.choice(lines)] * rng.randint(1, 20)

    return _lines(text, rng, change)


def glue(text: bytes, rng: random.Random) -> bytes:
    """Line ends are lost."""
    places = [at for at, letter in enumerate(text) if letter == 10]
    lost = set(rng.sample(places, min(len(places), rng.choice((1, 3, len(places))))))
    return bytes(letter for at, letter in enumerate(text) if at not in lost)


def number(text: bytes, rng: random.Random) -> bytes:
    """Numbers become what no number should be; one of them, or the one that stands there in every line."""
    digits = list(DIGITS.finditer(text))
    if not digits:
        return text
    other = rng.choice(NUMBERS)
    if rng.random() < 0.3:
        column = rng.randrange(12)
        return b"\n".join(_other_number(line, column, other) for line in text.split(b"\n"))
    for match in sorted(rng.sample(digits, min(len(digits), rng.randint(1, 4))), key=lambda match: -match.start()):
        text = text[: match.start()] + rng.choice((other, rng.choice(NUMBERS))) + text[match.end() :]
    return text


def _other_number(line: bytes, column: int, other: bytes) -> bytes:
    numbers = list(DIGITS.finditer(line))
    return line if column >= len(numbers) else line[: numbers[column].start()] + other + line[numbers[column].end() :]


def clock(text: bytes, rng: random.Random) -> bytes:
    """Time goes backwards, stands still, jumps, or is none."""
    wrong = [b"%02d:%02d:%02d" % (rng.randrange(30), rng.randrange(70), rng.randrange(70)) for _ in range(5)]
    wrong += [b"00:00:00", b"23:59:59", b"99:99:99"]
    share = rng.choice((0.02, 0.5, 1.0))
    return STAMP.sub(lambda match: rng.choice(wrong) if rng.random() < share else match[0], text)


def insert(text: bytes, rng: random.Random) -> bytes:
    """Something stands where nothing should."""
    for _ in range(rng.randint(1, 5)):
        at = _place(text, rng)
        text = text[:at] + rng.choice(TEXTS) + text[at:]
    return text


def prefix(text: bytes, rng: random.Random) -> bytes:
    """Every line gets something in front of it, or in place of its end."""
    if rng.random() < 0.3:
        return text.replace(b"\n", rng.choice((b"\r", b"\r\n", b"\n\n", b"\x1b[0m\n", b"\0\n", b"\n\xff\xfe", b" ")))
    front = rng.choice(TEXTS)
    return b"\n".join(
        (front if rng.random() < 0.9 else b"[1,%d]<stdout>:" % rng.randrange(4)) + line for line in text.split(b"\n")
    )


def lengthen(text: bytes, rng: random.Random) -> bytes:
    """A line becomes very long."""
    at, what = (
        _place(text, rng),
        rng.choice((b"x", b"ab ", b"0", b"[", b'{"a":', b"( ", b"Epoch: [0][1/5] ", b"\t", b": ")),
    )
    return text[:at] + what * rng.choice((300, 1100, 9000, 70000 // len(what))) + text[at:]


def nest(text: bytes, rng: random.Random) -> bytes:
    """Objects in objects in objects, where JSON is read."""
    depth = rng.choice((50, 2000, 60000))
    inner = rng.choice((b'{"key":', b"[", b'{"metadata":{'))
    closed = b"1" + (b"}" if inner[:1] == b"{" else b"]") * depth
    at = text.find(b"\n", _place(text, rng)) + 1
    return text[:at] + rng.choice(FRONTS) + inner * depth + rng.choice((b"", closed)) + b"\n" + text[at:]


def encode(text: bytes, rng: random.Random) -> bytes:
    """Another encoding than the one that is read."""
    return text.decode("latin-1").encode(rng.choice(("utf-16", "utf-32-le", "utf-8-sig", "utf-16-be")))


def pack(text: bytes, rng: random.Random) -> bytes:
    """Packed; whole, cut off, or damaged."""
    packed = gzip.compress(text, 1, mtime=0)
    how = rng.randrange(4)
    if how == 0:
        return packed
    return packed[: _place(packed, rng)] if how == 1 else flip(packed, rng) if how == 2 else packed + text[:50]


def blind(text: bytes, rng: random.Random) -> bytes:
    """A stretch of bytes of any kind."""
    at = _place(text, rng)
    return text[:at] + rng.randbytes(rng.choice((3, 200, 5000))) + text[at:]


def empty(text: bytes, rng: random.Random) -> bytes:
    """Next to nothing is left."""
    return rng.choice((b"", b"\n", b"\0", b"\r", b" ", b"\x1f\x8b", b"{}", text[:1], text.split(b"\n")[0]))


MUTATIONS: tuple[Mutation, ...] = (
    flip, flip, cut, cut, swap, repeat, glue, number, number, number, clock, clock, insert, insert, prefix, lengthen,
    nest, encode, pack, blind, empty,
)  # fmt: skip


def mutated(text: bytes, rng: random.Random) -> bytes:
    """The text after a few mutations; sometimes after none, so that what is right is tried as well."""
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        text = rng.choice(MUTATIONS)(text, rng)[: 1 << 20]
    return text
