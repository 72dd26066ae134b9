"""Figures as OpenMetrics text, for a textfile collector or a scrape: a gauge for each, labelled by the point."""

from __future__ import annotations

from pathlib import Path

from hpc.system.atomic import write_output
from hpc.system.text import plural
from parse.export.content import ExportContent
from parse.export.tables import require_free
from parse.text import gauge_text

MEANINGS = {
    "ledger": "mean time of a term in a step",
    "loss": "time lost against the base",
    "finding": "cost of a finding",
}
LABELS = ("point_id", "case", "backend", "workload", "precision", "unit", "folder")


def write(content: ExportContent, out: str) -> list[str]:
    """Writes the file. Raises ExportError where it is there already, and OSError."""
    path = Path(out)
    require_free([path])
    gauges: dict[str, list[tuple[dict[str, str], float]]] = {}
    for point in content.points:
        labels = {name: str(point.result[name]) for name in LABELS if point.result[name] is not None}
        for name, value in point.figures.items():
            group, _, of = name.rpartition("/")
            more = {"finding" if group == "finding" else "term": of.removesuffix("_ms")} if group else {}
            gauges.setdefault(f"rankwise_{group}_ms" if group else f"rankwise_{name}", []).append(
                (labels | more, value)
            )
    written = [gauge_text(name, _meaning(name), samples) for name, samples in gauges.items()]
    write_output(path, "".join([*written, "# EOF\n"]))
    return [f"{path}: {plural(len(gauges), 'gauge')} of {plural(len(content.points), 'point')}"]


def _meaning(gauge: str) -> str:
    name = gauge.removeprefix("rankwise_")
    return MEANINGS.get(name.removesuffix("_ms"), f"{name} of a point, as in the JSON summary")
