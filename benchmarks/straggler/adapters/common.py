"""What adapters share: the answer's form."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


def named(findings: list[dict[str, Any]], text: str = "") -> Answer:
    """`none` where nobody is named."""
    return {"verdict": "named" if findings else "none", "findings": findings, "text": text}


def cannot_tell(text: str) -> Answer:
    return {"verdict": "cannot tell", "findings": [], "text": text}


def finding(who: list[int], phase: str | None, ms: float | None, kind: str | None = None) -> dict[str, Any]:
    """One of the answer's findings; ms a step of each rank."""
    return {"who": who, "phase": phase, "ms_per_step": ms, "kind": kind}


def print_answer(tool: str, version: Callable[[], str], answer: Callable[[Path, int], Answer]) -> None:
    """The answer for `FOLDER RANKS` of the command line."""
    its = answer(Path(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps({"tool": tool, "version": version(), **its}))
