"""What the ranks of an attempt left in its `.partial` folder, read: journals that were collected, or copies of them."""

from __future__ import annotations

import json
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc.journal.file import SCHEMA, SCHEMA_VERSION, completed_in, journal_bytes
from hpc.journal.folders import WHOLE, JournalError
from hpc.stamps import ABSENT, STAMPS


@dataclass(frozen=True, kw_only=True)
class RankJournal:
    """What one rank left: its facts, `stamps` [steps × 6] and `samples` [steps], ABSENT where it did not come to.

    `whole` is False for a copy made while the rank lived: it may have come further.
    """

    facts: dict[str, Any]
    stamps: array[int]
    samples: array[int]
    whole: bool = True

    @property
    def steps_completed(self) -> int:
        """How many steps this rank completed, from the first on."""
        return completed_in(self.samples)


def read_journals(partial: Path, broken: list[str] | None = None) -> list[RankJournal]:
    """The journals in a `.partial` folder, by rank.

    A power cut can leave half of a copy: a file that is cut short counts as far as it goes. What cannot be read at all
    is named in `broken`; without such a list it raises JournalError.
    """
    found = []
    for path in partial.glob("rank*.stamps"):
        try:
            found.append(_read(path))
        except JournalError as error:
            if broken is None:
                raise
            broken.append(str(error))
    return sorted(found, key=lambda journal: int(journal.facts["rank"]))


def _read(path: Path) -> RankJournal:
    try:
        facts = json.loads(path.with_suffix(".json").read_text())
        stored = path.read_bytes()
    except (OSError, ValueError) as error:
        raise JournalError(f"{path}: cannot be read ({error})") from None
    known = isinstance(facts, dict) and (facts.get("schema"), facts.get("schema_version")) == (SCHEMA, SCHEMA_VERSION)
    if not known or not facts.keys() >= {"rank", "steps", "byteorder"}:
        raise JournalError(f"{path}: its header is of no journal known here")
    steps = int(facts["steps"])
    if len(stored) > journal_bytes(steps):
        raise JournalError(f"{path}: {len(stored)} bytes are more than {steps} steps make")
    numbers = array("q", stored[: len(stored) // 8 * 8])
    if facts["byteorder"] != sys.byteorder:
        numbers.byteswap()
    numbers.extend(array("q", [ABSENT]) * (steps * (len(STAMPS) + 1) - len(numbers)))
    at = steps * len(STAMPS)
    samples = _without_holes(numbers[:at], numbers[at:])
    return RankJournal(facts=facts, stamps=numbers[:at], samples=samples, whole=path.with_suffix(WHOLE).exists())


def _without_holes(stamps: array[int], samples: array[int]) -> array[int]:
    """The samples up to the first step whose row was never written: a power cut can leave zeros in a file."""
    if 0 not in stamps:
        return samples
    width, done = len(STAMPS), completed_in(samples)
    hole = next((step for step in range(done) if not any(stamps[width * step : width * step + width])), done)
    return samples[:hole] + array("q", [ABSENT]) * (len(samples) - hole)
