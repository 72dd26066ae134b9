"""What the doctor says: one thing each, how it stands, and the line to write where it should be otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

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
