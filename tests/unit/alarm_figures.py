"""The figures of alarms, as tests compare them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from parse.alarms.table import RULES
from parse.runs.result import Result


def figures(judged_results: Sequence[Result], name: str, case: str | None = None) -> list[dict[str, Any]]:
    """The figures of each alarm of that name."""
    assert name in RULES
    alarms = [alarm for result in judged_results if case in (None, result.run.case) for alarm in result.alarms]
    return [dict(alarm.figures) for alarm in alarms if alarm.name == name]


def same(actual: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether `actual` has the expected figures, to half a percent; it may have more."""
    return all(
        actual[name] == (pytest.approx(value, rel=5e-3) if isinstance(value, float) else value)
        for name, value in expected.items()
    )
