"""What every target of an export is given: points with their figures, rows of tables, the page; and where it goes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from parse.page.figures import shareable
from parse.report.export import finding_rows, point_row, rows_of, term_rows

FIGURES = (
    "nodes", "devices", "runs_ok", "median_speed", "average_speed", "interval_low", "interval_high", "cv", "speedup",
    "scaling_efficiency", "node_hours_per_million", "joules_per_sample",
)  # fmt: skip
"""Columns of a point that are its figures, beside its step times."""
PAGE, SUMMARY, FINDINGS = "report.html", "summary.json", "findings.txt"
"""Names of artifacts."""


class ExportError(ValueError):
    """It cannot be exported; the text says why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class PointContent:
    """A point of the JSON page, its `name` in the scaling table, its `setting`, and its ledger; None without one."""

    name: str
    setting: str
    result: Mapping[str, Any]
    ledger: Mapping[str, Any] | None

    @cached_property
    def figures(self) -> dict[str, float]:
        """Its numbers: speeds in its unit, shares 0 to 1, times in ms. Of a kind of findings that which costs most."""
        row = point_row({**self.result, "unit": "samples/s"})  # under the same names for tokens
        named = {name: row[name] for name in row if name in FIGURES or name.startswith("step_time_ms_")}
        named["alarms"] = len(self.result["alarms"])
        for term in term_rows(self.ledger) if self.ledger else ():
            name = term["term"].replace("+", "_and_")
            named |= {f"ledger/{name}_ms": term["mean"], f"loss/{name}_ms": term["loss"]}
        for finding in reversed([*finding_rows(self.ledger)] if self.ledger else []):
            named[f"finding/{finding['kind'].replace(' ', '_')}_ms"] = finding["costs"]
        return {name: float(value) for name, value in named.items() if value not in (None, "")}

    @property
    def findings(self) -> list[str]:
        """A line for each finding, what costs most first, and for what is wrong with the point, as the page has them:
        no path of a machine, no process of others."""
        of_steps = self.ledger["findings"] if self.ledger else []
        texts = [" ".join(each["sentences"]) for each in of_steps] + [each["text"] for each in self.result["alarms"]]
        return [*map(shareable, texts)]


@dataclass(frozen=True, kw_only=True)
class ExportContent:
    """How the settings scale, a sentence each, the points, the whole JSON page with ledgers, and what makes the HTML
    page. `name` is that of the experiment or project."""

    title: str
    name: str
    conclusion: Sequence[str]
    points: Sequence[PointContent]
    summary: Mapping[str, Any]
    html: Callable[[], str]

    @cached_property
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Rows by the name of their table."""
        results, ledgers = self.summary["results"], self.summary["ledgers"]
        of = {"points": results, "runs": results, "terms": ledgers, "findings": ledgers}
        return {name: rows_of(name, records) for name, records in of.items()}

    @property
    def text(self) -> str:
        """The JSON page."""
        return json.dumps(self.summary, indent=1, allow_nan=False) + "\n"

    @cached_property
    def digest(self) -> str:
        """By which the same content is known again."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ExportTarget:
    """Where an export goes: the module of this package whose `write(content, out)` puts it there and returns lines that
    say what was written; the usual `out`; and the optional group of pyproject.toml that it needs, empty for none."""

    module: str
    out: str
    extra: str
    meaning: str


TARGETS = {
    "csv": ExportTarget(module="tables", out="export", extra="", meaning="points, runs, terms and findings as tables"),
    "parquet": ExportTarget(module="parquet", out="export", extra="parquet", meaning="the same"),
    "openmetrics": ExportTarget(module="openmetrics", out="rankwise.prom", extra="", meaning="gauges as a text file"),
    "mlflow": ExportTarget(
        module="mlflow", out=os.environ.get("MLFLOW_TRACKING_URI") or "mlruns", extra="mlflow",
        meaning="a run, and one in it for each point",
    ),
    "wandb": ExportTarget(module="wandb", out="wandb", extra="wandb", meaning="an offline run; wandb sync uploads it"),
    "tensorboard": ExportTarget(module="tensorboard", out="runs", extra="tensorboard", meaning="figures over devices"),
}  # fmt: skip
