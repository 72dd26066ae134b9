"""Forecasts where what was measured is shown: the charts of the page, its table, and the section of a paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from parse.extrapolation.outlook import SizeRequest
from parse.page.build import build_page
from parse.page.forecast import BAND, Forecasts, forecasts_of
from parse.page.paper.content import content
from parse.page.paper.write import SECTIONS, rendered
from parse.page.types import Chart, HtmlPage, Listing, Section, Table
from parse.report.__main__ import main
from parse.report.summary import Summary
from tests.unit.page_folders import put_failed, put_hostile
from tests.unit.papers import put_sizes, summary_of
from tests.unit.traces import make_run, make_trace, put, repeats


def put_two_smooth(folder: Path) -> Summary:
    """Two settings that scale alike, of other sizes: 4 times the largest of the one is within what is forecast."""
    for backend, sizes in (("torch-ddp", (1, 2, 4)), ("paddle-fleet", (2, 4, 8))):
        for at, nodes in enumerate(sizes):
            run = make_run(backend=backend, workload="resnet50", nodes=nodes, ranks_per_node=2)
            for repeat in repeats(run, 2):
                put(folder, make_trace(repeat, speed=nodes * (100.0 - 2 * at)))
    return summary_of(folder)


def forecast(summary: Summary, *nodes: int) -> Forecasts:
    return forecasts_of(summary, SizeRequest(nodes=nodes))


def charts(page: HtmlPage) -> dict[str, Chart]:
    return {block.id: block for section in page.sections for block in section.blocks if isinstance(block, Chart)}


def section(page: HtmlPage) -> Section:
    return next(section for section in page.sections if section.id == "forecast")


def lines_of(section: Section) -> str:
    return " ".join(line for block in section.blocks if isinstance(block, Listing) for line in block.lines)


def test_charts_go_on_beyond_what_was_measured_apart_from_it(tmp_path: Path) -> None:
    summary = put_two_smooth(tmp_path)
    asked_for = forecast(summary, 4, 8, 16, 512)
    drawn = charts(build_page(summary, "", forecasts=asked_for))
    for name in ("chart-speed", "chart-speedup", "chart-efficiency"):
        traces = {trace["name"]: trace for trace in drawn[name].figure["data"]}
        measured, ahead = traces["torch-ddp resnet50"], traces["torch-ddp resnet50, forecast, not measured"]
        assert ahead["line"]["dash"] == "dash" and "dash" not in measured["line"]
        assert ahead["marker"]["symbol"] == f"{measured['marker']['symbol']}-open"
        assert ahead["x"] == [8, 16, 32] and ahead["y"][0] == measured["y"][-1]
        band = traces[BAND]
        assert band["fill"] == "toself" and 32 in band["x"]
        assert "forecast, not measured: 16 devices" in drawn[name].text
    assert drawn["chart-speedup"].figure["layout"]["xaxis"]["ticktext"][-1] == "16n2g"  # 512 are too far
    wide = charts(build_page(summary, "", forecasts=forecast(summary, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16)))
    names = wide["chart-speedup"].figure["layout"]["xaxis"]["ticktext"]
    assert names[-1] == "16n2g" and "" in names[1:-1] and len([*filter(None, names)]) > 2
    (size,) = (size for size in [*asked_for.outlooks.values()][1].sizes if size.nodes == 8)
    traces = {trace["name"]: trace for trace in drawn["chart-efficiency"].figure["data"]}
    assert size.efficiency is not None and size.efficiency.low is not None
    ahead = traces["torch-ddp resnet50, forecast, not measured"]
    assert ahead["y"][1] == pytest.approx(100 * size.efficiency.value, rel=1e-3)
    plain = charts(build_page(summary, ""))["chart-speed"]
    assert "forecast" not in plain.text and len(plain.figure["data"]) == 2


@pytest.mark.parametrize(
    ("speeds", "sentence"),
    [
        ({2: 100.0}, "Only 2n2g was measured"), ({1: 100.0, 2: 150.0, 4: 900.0}, "A rise is not extrapolated"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_in_words_and_not_drawn(tmp_path: Path, speeds: dict[int, float], sentence: str) -> None:
    summary = put_sizes(tmp_path, {nodes: (speed,) for nodes, speed in speeds.items()})
    page = build_page(summary, "", forecasts=forecast(summary, 16))
    assert sentence in lines_of(section(page))
    (table,) = (block for block in section(page).blocks if isinstance(block, Table))
    assert table.rows[0][-1] == "cannot tell" and table.marked == {0}
    drawn = [trace.get("name", "") for chart in charts(page).values() for trace in chart.figure["data"]]
    assert not any("forecast" in name for name in drawn)


@pytest.mark.parametrize("form", SECTIONS)
def test_the_section_of_a_paper_has_them_too(tmp_path: Path, form: str) -> None:
    summary = put_two_smooth(tmp_path)
    whole = content(summary, forecast(summary, 16, 512))
    assert whole.curves is not None and [len(panel.forecasts) for panel in whole.curves.panels] == [1, 1]
    text = rendered(whole, form, "scaling.pdf")
    assert "Forecast" in text and "U+" not in text and "not measured" in text
    assert "more than 64 times the largest measured size" in text and "erred by" in text
    assert "forecast" not in rendered(content(summary), form, "scaling.pdf").lower()


@pytest.mark.parametrize("put_traces", [put_hostile, put_failed])
@pytest.mark.parametrize("form", ["html", "latex", "markdown-report"])
def test_every_input_has_a_forecast_or_its_reason(
    tmp_path: Path, put_traces: Callable[[Path], object], form: str
) -> None:
    put_traces(tmp_path / "traces")
    out = tmp_path / "out"
    assert main([str(tmp_path / "traces"), "--forecast", "8,1000000", "--format", form, "--out", str(out)]) == 0
    (path,) = [out] if out.is_file() else [path for path in out.iterdir() if path.suffix in (".tex", ".md")]
    text = path.read_text()
    assert "cannot tell" in text and "<img" not in text.replace(r"\<img", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--forecast", "0"), "'0' is no size"), (("--devices-per-node", "2"), "of a forecast, and none is requested"),
        (("--forecast", "8", "--devices-per-node", "2"), "only where no input says it"),
    ],
)  # fmt: skip
def test_wrong_usage_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put_sizes(tmp_path, {2: (100.0,), 4: (200.0,)})
    with pytest.raises(SystemExit):
        main([str(tmp_path), *arguments])
    assert sentence in " ".join(capsys.readouterr().err.split())
