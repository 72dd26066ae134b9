"""A finding: the result of a preflight check, an item of the doctor's advice, an alarm, a broken rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from hpc.system.command_line import PIPE_WIDTH
from hpc.system.sanitize import plain
from hpc.system.text import filled

FigureValue: TypeAlias = "float | str | Sequence[FigureValue] | Mapping[str, FigureValue]"
Figures = Mapping[str, FigureValue]
_IN_FILE = " = "
"""In a fix that is a line of the site file, to be copied whole."""


class State(StrEnum):
    """Whether something is as it should be; `unknown`: it could not be determined."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """The severity of a failure. `note`: nothing need change; `alarm`: a number is in doubt or a setting should change;
    `fatal`: the run is invalid."""

    NOTE = "note"
    ALARM = "alarm"
    FATAL = "fatal"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`figures` are the numbers and names that `text` is made of; `fix` is the action to take, empty if none."""

    name: str
    text: str
    state: State = State.FAILED
    severity: Severity = Severity.ALARM
    figures: Figures = field(default_factory=dict)
    fix: str = ""

    @property
    def fatal(self) -> bool:
        """Whether the run must not go on."""
        return self.state is State.FAILED and self.severity is Severity.FATAL

    @property
    def label(self) -> str:
        """`ok`, `unknown`, or the severity of the failure."""
        return self.severity if self.state is State.FAILED else self.state

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.name, self.text, self.fix)))

    def to_json(self) -> dict[str, Any]:
        """The finding as written to traces and reports."""
        return asdict(self)


def read_finding(values: Mapping[str, Any]) -> Finding:
    """Reads what `to_json` wrote. Raises ValueError if a key is missing or a value unknown."""
    try:
        return Finding(
            name=str(values["name"]),
            text=str(values["text"]),
            state=State(values["state"]),
            severity=Severity(values["severity"]),
            figures=dict(values["figures"]),
            fix=str(values["fix"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a finding ({error})") from None


def as_text(findings: Sequence[Finding], labels: Mapping[str, str] | None = None, width: int = PIPE_WIDTH) -> list[str]:
    """Lines in columns: label, name, text; below each the lines of its fix. `labels` replaces labels by other words."""
    rows = [((labels or {}).get(finding.label, finding.label), finding) for finding in findings]
    widths = [max(map(len, column), default=0) for column in ([label for label, _ in rows], [f.name for f in findings])]
    lines = []
    for label, finding in rows:
        head = f"{label:<{widths[0]}}  {plain(finding.name):<{widths[1]}}  "
        lines += filled(f"{head}{plain(finding.text)}", width, len(head))
        for line in finding.fix.splitlines():
            fix = f"{'':<{len(head)}}→ {plain(line)}"
            lines += [fix] if _IN_FILE in fix else filled(fix, width)
    return lines
