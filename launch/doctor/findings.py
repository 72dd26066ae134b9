"""The doctor's findings as text and JSON, and how they are made."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hpc.system.sanitize import plain
from hpc.system.text import first_of

_MAX_HOSTS = 8


class Severity(StrEnum):
    """`note`: only administrators can change it, or it is optional; `unknown`: it could not be read."""

    OK = "ok"
    CHANGE = "change"
    NOTE = "note"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check; `fix` is the text for the site file or the command to run, empty if there is none."""

    name: str
    severity: Severity
    text: str
    fix: str = ""


def ok(name: str, text: str) -> Finding:
    return Finding(name=name, severity=Severity.OK, text=text)


def change(name: str, text: str, fix: str = "") -> Finding:
    return Finding(name=name, severity=Severity.CHANGE, text=text, fix=fix)


def note(name: str, text: str, fix: str = "") -> Finding:
    return Finding(name=name, severity=Severity.NOTE, text=text, fix=fix)


def unknown(name: str, text: str) -> Finding:
    return Finding(name=name, severity=Severity.UNKNOWN, text=text)


def hosts(names: Iterable[str]) -> str:
    """The first names, and the number of the others."""
    return first_of(list(names), _MAX_HOSTS)


def as_text(findings: Sequence[Finding]) -> str:
    """A line for each finding, its fix below it, and the number of changes."""
    width, names = max(map(len, Severity)), max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        severity = finding.severity.upper() if finding.severity is Severity.CHANGE else finding.severity
        lines.append(f"{severity:<{width}}  {plain(finding.name):<{names}}  {plain(finding.text)}")
        lines += [f"{'':<{width}}  {'':<{names}}  → {plain(line)}" for line in finding.fix.splitlines()]
    changes = sum(finding.severity is Severity.CHANGE for finding in findings)
    return "\n".join([*lines, f"{changes} to change" if changes else "nothing to change"])


def as_json(findings: Sequence[Finding]) -> str:
    return json.dumps({"findings": [dataclasses.asdict(finding) for finding in findings]}, indent=1)
