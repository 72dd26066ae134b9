"""Reads the journals in the `.partial` folder of an attempt: collected ones, or copies of them."""

from __future__ import annotations

import os
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc.model.timestamps import ABSENT, END, STAMPS
from hpc.recovery.folders import WHOLE, JournalError
from hpc.recovery.journal import ROW_BYTES, SCHEMA, SCHEMA_VERSION, completed_in, journal_bytes
from hpc.system.regular_file import open_regular, parse_json, read_whole

_HEADER_BYTES = 1 << 24
_MAX_SAMPLES = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class RankJournal:
    """A rank's facts, `stamps` [steps × 6] and `samples` [steps], ABSENT where not reached; shorter where the file is.

    `whole` is False for a copy made while the rank lived: it may have completed more steps.
    """

    facts: dict[str, Any]
    stamps: array[int]
    samples: array[int]
    whole: bool = True

    @property
    def steps_completed(self) -> int:
        """The number of steps that this rank completed, from the first on."""
        return completed_in(self.samples)


def read_journals(partial: Path, broken: list[str] | None = None) -> list[RankJournal]:
    """The journals in a `.partial` folder, by rank.

    A power cut can leave half of a copy: a file that is cut short is read as far as it goes. The error of an unreadable
    journal is added to `broken`; without that list JournalError is raised.
    """
    journals = []
    for path in partial.glob("rank*.stamps"):
        try:
            journals.append(_read(path))
        except JournalError as error:
            if broken is None:
                raise
            broken.append(str(error))
    return sorted(journals, key=lambda journal: int(journal.facts["rank"]))


def _read(path: Path) -> RankJournal:
    facts = _header(path)
    steps = facts["steps"]
    try:
        with open_regular(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > journal_bytes(steps):
                raise JournalError(f"{path}: {size_bytes} bytes are more than {steps} steps make")
            # A file that ends before the samples has no completed step, whatever size its header claims.
            stored = file.read(size_bytes) if size_bytes > steps * ROW_BYTES else b""
    except OSError as error:
        raise JournalError(f"{path}: cannot be read ({error.strerror})") from None
    numbers = array("q", stored[: len(stored) // 8 * 8])
    if facts["byteorder"] != sys.byteorder:
        numbers.byteswap()
    at = steps * len(STAMPS)
    samples = _without_holes(numbers[:at], numbers[at:])
    return RankJournal(facts=facts, stamps=numbers[:at], samples=samples, whole=path.with_suffix(WHOLE).exists())


def _header(path: Path) -> dict[str, Any]:
    header = path.with_suffix(".json")
    try:
        facts = parse_json(read_whole(header, _HEADER_BYTES))
    except OSError as error:
        raise JournalError(f"{path}: its header {header.name} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise JournalError(f"{path}: its header {header.name} cannot be read ({error})") from None
    ours = isinstance(facts, dict) and (facts.get("schema"), facts.get("schema_version")) == (SCHEMA, SCHEMA_VERSION)
    if not isinstance(facts, dict) or not ours or not facts.keys() >= {"rank", "steps", "byteorder"}:
        raise JournalError(f"{path}: its header is of no journal known here")
    whole = type(facts["steps"]) is type(facts["rank"]) is int
    if facts["byteorder"] not in ("little", "big"):
        raise JournalError(f"{path}: its header has the byte order {facts['byteorder']!r:.20}")
    if not whole or facts["steps"] < 0 or path.stem != f"rank{facts['rank']}":
        raise JournalError(f"{path}: its header is of rank {facts['rank']!r:.20} with {facts['steps']!r:.20} steps")
    return facts


def _without_holes(stamps: array[int], samples: array[int]) -> array[int]:
    """The samples up to the first step that a power cut has zeroed, or whose values are impossible."""
    width, done = len(STAMPS), completed_in(samples)
    counts = samples[:done]
    if 0 not in stamps and (not counts or (min(counts) > 0 and max(counts) <= _MAX_SAMPLES)):
        return samples
    rows = (stamps[width * step : width * step + width] for step in range(done))
    hole = next((step for step, row in enumerate(rows) if _is_hole(row, counts[step])), done)
    return samples[:hole] + array("q", [ABSENT]) * (len(samples) - hole)


def _is_hole(row: array[int], count: int) -> bool:
    unwritten = not any(row) or (count == 0 and row[END] == ABSENT)
    return unwritten or not 0 <= count <= _MAX_SAMPLES
