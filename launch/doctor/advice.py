"""What the doctor says: one thing each, how it stands, and the line to write where it should be otherwise."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hpc.system.sanitize import plain

_NAMED = 8


class Word(StrEnum):
    """How it stands with one thing. `note` is what only administrators could change, or what may be as you want it;
    `unknown` says that nothing told."""

    OK = "ok"
    CHANGE = "change"
    NOTE = "note"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One entry of the list; `write` is what to write into the site file, or to run; empty where nothing is."""

    name: str
    word: Word
    text: str
    write: str = ""


def ok(name: str, text: str) -> Advice:
    """Nothing to do."""
    return Advice(name=name, word=Word.OK, text=text)


def change(name: str, text: str, write: str = "") -> Advice:
    """Something to do; `write` is what."""
    return Advice(name=name, word=Word.CHANGE, text=text, write=write)


def note(name: str, text: str, write: str = "") -> Advice:
    """Something to know."""
    return Advice(name=name, word=Word.NOTE, text=text, write=write)


def unknown(name: str, text: str) -> Advice:
    """Something that nothing told."""
    return Advice(name=name, word=Word.UNKNOWN, text=text)


def hosts(names: Iterable[str]) -> str:
    """The names, so many of them as a line takes."""
    names = list(names)
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def as_text(advice: Sequence[Advice]) -> str:
    """A line each, and under it what to write."""
    names, words = max(len(one.name) for one in advice), max(len(word) for word in Word)
    lines = []
    for one in advice:
        word = one.word.upper() if one.word is Word.CHANGE else one.word
        lines.append(f"{word:<{words}}  {plain(one.name):<{names}}  {plain(one.text)}")
        lines += [f"{'':<{words}}  {'':<{names}}  → {plain(line)}" for line in one.write.splitlines()]
    changes = sum(one.word is Word.CHANGE for one in advice)
    return "\n".join([*lines, f"{changes} to change" if changes else "nothing to change"])


def as_json(advice: Sequence[Advice]) -> str:
    """The same for programs."""
    return json.dumps({"advice": [dataclasses.asdict(one) for one in advice]}, indent=1)
