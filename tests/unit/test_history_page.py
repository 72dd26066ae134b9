"""The page of a history: its verdict, its charts with levels and changes, little and hostile input, the command."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from parse import history
from parse.page.history import history_page
from parse.page.html import render
from parse.page.points import MAX_PANELS
from parse.page.types import HtmlPage, Listing, Table
from parse.trend.series import history_of
from tests.unit.comparisons import FIVE, ONE, OTHER, TWO
from tests.unit.histories import BEGIN, DAY, HOSTILE, at_day, nights, put_nights
from tests.unit.pages import Elements, charts
from tests.unit.test_report_page import repeated
from tests.unit.traces import make_run

SLOWER = [1.0] * 7 + [0.95] * 5
MS = 1000


def page_of(measurements: Any, threshold: float = 0.03) -> HtmlPage:
    return history_page(history_of(measurements, threshold))


def tables(page: HtmlPage) -> dict[str, Table]:
    blocks = [block for section in page.sections for block in section.blocks]
    blocks += [block for section in page.sections for panel in section.panels for block in panel.blocks]
    return {block.id: block for block in blocks if isinstance(block, Table)}


def test_the_verdict_names_the_slowdown_with_its_size_interval_and_dates():
    (verdict,) = page_of(nights(SLOWER, newer_from=7)).verdict
    assert (verdict.figure, verdict.doubt) == ("1 of 1", True)
    change, interval, ground = verdict.sentences
    assert change == (
        "1n1g: -5.03 % at n07 (2026-01-08), from 100.03 to 95.00 samples/s, p < 1e-12; since n06 (2026-01-07): "
        "torch: 2.13 → 2.14."
    )
    low, high, coverage = re.findall(r"-?[\d.]+(?= ?[,\]%])", interval)
    assert float(low) < -5.03 < float(high) and float(coverage) >= 93
    assert ground.endswith("needs 10 measurements, which 1 point of 1 has.") and not {*repeated(verdict)}


def test_when_it_was_measured_stands_below_the_title_and_a_remark_once():
    history = history_of(nights(SLOWER), 0.03)
    page = history_page(dataclasses.replace(history, remarks=("no plan", "no plan", "a remark")))
    assert page.subtitle == "2026-01-01 to 2026-01-12 (UTC)"
    (listing,) = (block for block in page.sections[-1].blocks if isinstance(block, Listing))
    assert listing.lines == ["no plan (2 times)", "a remark"]


def test_a_steady_history_has_no_change_and_no_doubt():
    (verdict,) = page_of(nights([1.0] * 12)).verdict
    assert (verdict.figure, verdict.of, verdict.doubt) == ("nothing", "of 1 point with a verdict", False)


@pytest.mark.parametrize(
    ("refusals", "undated", "sentences"),
    [
        (("a: odd", "b: odd"), False, ["2 folders or files could not be read."]),
        ((), True, ["1 measurement of a point was left out, as it has no speed or no date."]),
        (("a: odd",), True, ["1 folder or file could not be read.", "1 measurement of a point was left out, as it has "
                             "no speed or no date."]),
    ],
)  # fmt: skip
def test_what_was_not_read_and_what_was_left_out_make_a_doubt(refusals, undated, sentences):
    made = nights([1.0] * 12) | ({"undated": at_day(None, ONE, FIVE)} if undated else {})
    (verdict,) = history_page(dataclasses.replace(history_of(made, 0.03), refusals=refusals)).verdict
    assert (verdict.figure, verdict.doubt) == ("nothing", True)
    assert verdict.sentences[1:] == sentences and (verdict.link, verdict.link_text) == ("left-out", "What was left out")


def test_the_largest_slowdown_is_named_and_no_increase():
    made = nights([1.0] * 7 + [1.3] * 5)
    for name, results in nights(SLOWER, TWO).items():
        made[name] += results
    (verdict,) = page_of(made).verdict
    assert verdict.figure == "1 of 2" and verdict.sentences[0].startswith("1n2g: -5.03 %")


def test_the_chart_has_every_run_and_median_the_levels_and_the_changes_at_their_dates():
    chart = charts(page_of(nights([1.0] * 7 + [0.9] * 6 + [1.0] * 6)))["chart-0"]
    runs, levels, medians = chart.figure["data"]
    assert (len(runs["x"]), len(medians["x"]), len(medians["customdata"])) == (19 * 5, 19, 19)
    days = [(time // MS - BEGIN) // DAY for time in levels["x"] if time is not None]
    assert days == [0, 6, 7, 12, 13, 18]
    assert levels["y"] == pytest.approx(
        [100.0, 100.0, None, 90.0, 90.0, None, 100.0, 100.0, None], abs=0.1, nan_ok=False
    )
    bands = [((shape["x0"] // MS - BEGIN) // DAY, (shape["x1"] // MS - BEGIN) // DAY) for shape in
             chart.figure["layout"]["shapes"]]  # fmt: skip
    assert bands == [(6, 7), (12, 13)]
    assert [each["text"] for each in chart.figure["layout"]["annotations"]] == ["-10.06 %", "+11.17 %"]
    assert "Levels: 100.0" in chart.text
    low, high = chart.figure["layout"]["yaxis"]["range"]
    rows = [each["y"] for each in chart.figure["layout"]["annotations"]]
    assert low < min(runs["y"]) and max(runs["y"]) < low + (min(rows) - 0.07) * (high - low)


def test_changes_have_size_interval_both_dates_and_what_differs_and_the_latest_is_first():
    table = tables(page_of(nights([1.0] * 7 + [0.9] * 6 + [1.0] * 6, newer_from=7)))["changes-0"]
    heads = [name for name, _ in table.heads]
    latest, first = (dict(zip(heads, row, strict=True)) for row in table.rows)
    assert (first["change"], first["last before"], first["first after"]) == ("slower", "2026-01-07", "2026-01-08")
    assert (latest["change"], latest["first after"]) == ("faster", "2026-01-14")
    assert (
        first["what differs at it"] == "torch: 2.13 → 2.14" and latest["what differs at it"] == "nothing that is known"
    )
    assert re.fullmatch(r"\[-10\.\d+, -9\.\d+\] %", first["interval"])


def test_the_size_of_a_change_has_no_interval_where_one_measurement_follows():
    page = page_of(nights([1.0] * 20 + [0.8]))
    (row,) = tables(page)["changes-0"].rows
    assert row[2:4] == ("-", "-") and len(page.verdict[0].sentences) == 2


def test_slowdowns_come_first_and_only_the_first_panel_is_open():
    made = nights([1.0] * 12)
    for name, results in nights(SLOWER, TWO).items():
        made[name] += results
    page = page_of(made)
    panels = next(section.panels for section in page.sections if section.id == "over-time")
    assert [panel.title.partition(":")[0] for panel in panels] == ["1n2g", "1n1g"]
    assert [panel.is_open for panel in panels] == [True, False]
    assert [row[1] for row in tables(page)["all-points"].rows] == ["1n2g", "1n1g"]


def test_more_points_than_panels_are_counted():
    many = tuple(result for at in range(MAX_PANELS + 3) for result in at_day(0, make_run(batch_size=at + 1), FIVE[:1]))
    page = page_of({"n00": many})
    assert f"Shown are {MAX_PANELS} of {MAX_PANELS + 3} points" in Elements(render(page)).text
    panels = [panel for section in page.sections for panel in section.panels]
    assert len(panels) == MAX_PANELS and len(tables(page)["all-points"].rows) == MAX_PANELS + 3


def test_two_measurements_are_drawn_without_a_level():
    page = page_of({"n00": at_day(0, ONE, FIVE[:1]), "n01": at_day(1, ONE, FIVE[:1])})
    (chart,) = charts(page).values()
    runs, medians = chart.figure["data"]
    assert len(runs["x"]) == len(medians["x"]) == 2 and "error_y" not in medians


def test_one_measurement_is_a_row_without_a_chart_and_without_a_verdict():
    page = page_of({"n00": at_day(0, ONE, FIVE[:1])})
    assert not charts(page) and len(tables(page)["measurements-0"].rows) == 1
    assert [statement.figure for statement in page.verdict] == ["no verdict"]
    assert all(statement.doubt for statement in page.verdict)


def test_measurements_without_a_date_give_a_page_that_names_them():
    page = page_of({"undated": at_day(None, ONE, FIVE)})
    text = Elements(render(page)).text
    assert not charts(page) and "No measurement of it has a speed and a date" in text
    assert "undated: none of its ok runs has a date" in text


def test_hostile_names_are_text_and_nothing_else():
    made = {HOSTILE + name: results for name, results in nights(SLOWER, make_run(env={"A": HOSTILE})).items()}
    environment = {"software": {"<img src=x>": "<script>alert(1)</script>"}}
    made["late"] = at_day(30, make_run(env={"A": HOSTILE}), [80.0] * 5, environment=environment)
    page = page_of(made)
    text = render(page)
    elements = Elements(text)
    assert len(elements.all("script")) == 3 and not elements.all("img") and "\x1b" not in text
    assert len(text) < 1.8e6 and "é" * 250 not in text
    figure = json.dumps([chart.figure for chart in charts(page).values()])
    assert "<script" not in figure and "<img" not in figure


def test_every_link_leads_somewhere():
    undated = {"undated": at_day(None, ONE, FIVE)}
    for made in (nights(SLOWER, environment=OTHER), nights([1.0] * 12) | undated, undated):
        elements = Elements(render(page_of(made)))
        ids = [value for _, attributes in elements.elements if (value := attributes.get("id"))]
        assert len(ids) == len({*ids})
        assert {str(link["href"]).removeprefix("#") for link in elements.all("a")} <= {*ids}


def test_the_command_writes_the_page_and_keeps_its_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folders = put_nights(tmp_path / "nightly", SLOWER)
    out = tmp_path / "history.html"
    assert history.main([*map(str, folders), "--format", "html", "--out", str(out)]) == 1
    elements = Elements(out.read_text())
    assert "python -m parse.history" in elements.text and "-5.03 %" in elements.text
    assert len(elements.all("script")) == 3 and capsys.readouterr().out == ""
