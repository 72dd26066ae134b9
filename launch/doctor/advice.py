"""The doctor's advice: the name of a setting, its level, a text, and the line to write where it should change."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hpc.system.sanitize import plain
from hpc.system.text import first_of

_NAMED = 8


class AdviceLevel(StrEnum):
    """The level of an item of advice. `note`: only administrators can change it, or it is optional; `unknown`: it could
    not be read."""

    OK = "ok"
    CHANGE = "change"
    NOTE = "note"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One item; `write` is the text for the site file or the command to run, empty if there is nothing to change."""

    name: str
    word: AdviceLevel
    text: str
    write: str = ""


def ok(name: str, text: str) -> Advice:
    """Nothing to do."""
    return Advice(name=name, word=AdviceLevel.OK, text=text)


def change(name: str, text: str, write: str = "") -> Advice:
    """Something to do; `write` is what."""
    return Advice(name=name, word=AdviceLevel.CHANGE, text=text, write=write)


def note(name: str, text: str, write: str = "") -> Advice:
    """Something to know."""
    return Advice(name=name, word=AdviceLevel.NOTE, text=text, write=write)


def unknown(name: str, text: str) -> Advice:
    """Something that could not be read."""
    return Advice(name=name, word=AdviceLevel.UNKNOWN, text=text)


def hosts(names: Iterable[str]) -> str:
    """The first names, and the number of the others."""
    return first_of(list(names), _NAMED)


def as_text(advice: Sequence[Advice]) -> str:
    """The advice as text: a line for each item, below it what to write, and the number of changes."""
    names, width = max(len(item.name) for item in advice), max(len(level) for level in AdviceLevel)
    lines = []
    for item in advice:
        level = item.word.upper() if item.word is AdviceLevel.CHANGE else item.word
        lines.append(f"{level:<{width}}  {plain(item.name):<{names}}  {plain(item.text)}")
        lines += [f"{'':<{width}}  {'':<{names}}  → {plain(line)}" for line in item.write.splitlines()]
    changes = sum(item.word is AdviceLevel.CHANGE for item in advice)
    return "\n".join([*lines, f"{changes} to change" if changes else "nothing to change"])


def as_json(advice: Sequence[Advice]) -> str:
    """The advice as JSON."""
    return json.dumps({"advice": [dataclasses.asdict(item) for item in advice]}, indent=1)
