"""The doctor's findings: how they are made, and their text and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from hpc.model import findings
from hpc.model.findings import FigureValue, Finding, Severity, State
from hpc.system.command_line import PIPE_WIDTH
from hpc.system.text import first_of, plural

_MAX_HOSTS = 8
_LABELS: dict[str, str] = {Severity.ALARM: "CHANGE", Severity.FATAL: "CHANGE"}


def ok(name: str, text: str, **figures: FigureValue) -> Finding:
    return Finding(name=name, text=text, state=State.OK, severity=Severity.NOTE, figures=figures)


def change(name: str, text: str, fix: str = "", **figures: FigureValue) -> Finding:
    """Something to do; `fix` is the text for the site file or the command to run."""
    return Finding(name=name, text=text, fix=fix, figures=figures)


def note(name: str, text: str, fix: str = "", **figures: FigureValue) -> Finding:
    """Only administrators can change it, or it is optional."""
    return Finding(name=name, text=text, severity=Severity.NOTE, fix=fix, figures=figures)


def unknown(name: str, text: str) -> Finding:
    return Finding(name=name, text=text, state=State.UNKNOWN, severity=Severity.NOTE)


def to_change(finding: Finding) -> bool:
    """Whether the finding requires a change."""
    return finding.label in _LABELS


def hosts(names: Iterable[str]) -> str:
    """The first names, and the number of the others."""
    return first_of(list(names), _MAX_HOSTS)


def as_text(results: Sequence[Finding], width: int = PIPE_WIDTH) -> str:
    """A line for each finding, its fix below it, and how many of them must be changed, and may be."""
    changes = sum(map(to_change, results))
    advice = sum(bool(finding.fix) and not to_change(finding) for finding in results)
    summary = f"{changes} to change" if changes else "nothing must be changed" if advice else "nothing to change"
    advised = f"; {plural(advice, 'note')} with advice" if advice else ""
    return "\n".join([*findings.as_text(results, _LABELS, width), f"{summary}{advised}"])


def as_json(results: Sequence[Finding]) -> str:
    return json.dumps({"findings": [finding.to_json() for finding in results]}, indent=1)
