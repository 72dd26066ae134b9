"""Summaries and panels for the section of a paper, and the section of a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parse.page.figures import Line, Listing, Paragraph
from parse.page.paper import SECTIONS, Content, SpeedupPanel, content, rendered
from parse.report.__main__ import main
from parse.report.summary import Summary, read_summary
from tests.unit import page_folders
from tests.unit.logs import made
from tests.unit.traces import make_run, make_trace, put, repeats

PROPOSAL = ("--samples", "9e9", "--forecast", "16")
"""Options of what a proposal asks."""
INPUTS: dict[str, Callable[[Path], object]] = {
    **page_folders.INPUTS,
    "logs": lambda folder: made.put(folder, "1n1g/r50_b128_1.log", made.ngc_pytorch(made.steps(360.0, 128), batch=128)),
}


def summary_of(*folders: Path, documents: tuple[Path, ...] = ()) -> Summary:
    return read_summary([*folders], documents=documents)[0]


def put_sizes(folder: Path, speeds: Mapping[int, Sequence[float]]) -> Summary:
    """Nodes of two devices, with the speeds of their runs."""
    folder.mkdir(exist_ok=True)
    for nodes, of_runs in speeds.items():
        for repeat, speed in zip(repeats(make_run(nodes=nodes, ranks_per_node=2), len(of_runs)), of_runs, strict=True):
            put(folder, make_trace(repeat, speed=speed))
    return summary_of(folder)


def words_of(whole: Content) -> str:
    """All sentences below the title."""
    blocks = [block for part in whole.parts for block in part.blocks]
    texts = [block.text for block in blocks if isinstance(block, Paragraph)]
    return " ".join([*texts, *(line for block in blocks if isinstance(block, Listing) for line in block.lines)])


def section_of(summary: Summary) -> str:
    return rendered(content(summary), "latex", "scaling.pdf")


def written(folder: Path, form: str, *arguments: str) -> str:
    out = folder.with_name("out")
    status = main([str(folder), "--format", form, "--out", str(out), *arguments])
    assert status == (0 if any(folder.iterdir()) else 1)  # nothing to report in an empty one
    return (out / SECTIONS[form]).read_text()


def panels(**changes: Any) -> list[SpeedupPanel]:
    series = Line(name="torch", x=[1, 2, 8], y=[1.0, 1.9, 6.5], intervals=[(0.99, 1.01), None, (6.1, 6.6)])
    cases = [(1, "1n1g"), (2, "1n2g"), (8, "1n8g")]
    panel: dict[str, Any] = {"base": "1n1g", "base_devices": 1, "series": [series], "cases": cases}
    return [SpeedupPanel(**(panel | changes))]
