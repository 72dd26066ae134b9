"""parse.history: measurements in order of time, their changes, every format, the page, hostile input."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hpc.model.outcome import Outcome
from parse import history
from parse.comparison.types import ComparisonError
from parse.page.figures import HtmlPage, Listing, Table
from parse.page.history import history_page
from parse.page.html import render
from parse.page.points import MAX_PANELS
from parse.runs.result import Result
from parse.trend.series import MIN_MEASUREMENTS, History, Series, Trend, history_of, read_history
from parse.trend.text import as_json, as_junit, as_markdown, as_text
from tests.unit.comparisons import FIVE, ONE, OTHER, TWO, folder, times
from tests.unit.histories import BEGIN, DAY, HOSTILE, SHIFTS, at_day, nights, put_nights
from tests.unit.pages import Elements, charts
from tests.unit.test_report_page import repeated
from tests.unit.traces import make_run, put_exit_record, put_plan, repeats


def only(read: History) -> Series:
    (series,) = read.series
    return series


def hours_later(result: Result, hours: int) -> Result:
    """The result, but for when its runs began."""
    moved = []
    for run in result.runs:
        assert run.attempt and run.attempt.begin_unix_s
        later = dataclasses.replace(run.attempt, begin_unix_s=run.attempt.begin_unix_s + 3600 * hours)
        moved.append(dataclasses.replace(run, attempt=later))
    return dataclasses.replace(result, runs=tuple(moved))


# Changes and the exit status


@pytest.mark.parametrize(
    ("factors", "verdict", "status"),
    [
        ([1.0] * 12, Trend.STEADY, 0),
        ([1.0] * 7 + [0.95] * 5, Trend.SLOWER, 1),
        ([0.95] * 7 + [1.0] * 5, Trend.FASTER, 0),
        ([1.0] * 7 + [0.98] * 5, Trend.STEADY, 0),
        ([1.0] * 6 + [0.9] * 6 + [1.0] * 6, Trend.FASTER, 0),
        ([1.0] * 6 + [0.9] * 6 + [0.905] * 6, Trend.SLOWER, 1),
    ],
)
def test_the_latest_change_decides(factors, verdict, status):
    read = history_of(nights(factors), 0.03)
    assert (only(read).verdict, read.status) == (verdict, status)
    assert len(only(read).samples) == len(factors)


def test_a_change_has_its_date_size_p_value_and_what_differs_there():
    (change,) = only(history_of(nights([1.0] * 7 + [0.95] * 5, newer_from=7), 0.03)).changes
    assert (change.first.folder, change.first.date, change.previous.folder) == ("n07", "2026-01-08", "n06")
    assert change.change.size == pytest.approx(-0.05, abs=0.002) and change.change.p_value < 1e-6
    assert [(each.name, each.base, each.new) for each in change.differences] == [("torch", ("2.13",), ("2.14",))]


def test_only_what_differs_at_the_change_is_named():
    made = nights([1.0] * 7 + [0.95] * 5, newer_from=6)
    (change,) = only(history_of(made, 0.03)).changes
    assert change.first.folder == "n07" and change.differences == ()


def test_measurements_are_in_order_of_time_whatever_their_names():
    made = nights([1.0] * 7 + [0.95] * 5)
    read = only(history_of(dict(sorted(made.items(), key=lambda item: item[0][::-1])), 0.03))
    assert [sample.folder for sample in read.samples] == [*made]
    assert read.changes[0].first.folder == "n07"


def test_the_threshold_is_the_least_size():
    made = nights([1.0] * 7 + [0.98] * 5)
    assert only(history_of(made, 0.03)).changes == ()
    assert only(history_of(made, 0.01)).verdict is Trend.SLOWER


def test_continuous_integration_reads_a_slowdown_as_a_failure():
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    kinds = {}
    for name, factors in (("slower", [1.0] * 6 + [0.9] * 6), ("steady", [1.0] * 12), ("few", [1.0] * 3)):
        (suite,) = ElementTree.fromstring(as_junit(history_of(nights(factors), 0.03), now))
        (case,) = suite.findall("testcase")
        kinds[name] = [element.tag for element in case], [suite.get(key) for key in ("tests", "failures", "skipped")]
    assert kinds == {
        "slower": (["failure"], ["1", "1", "0"]), "steady": ([], ["1", "0", "0"]),
        "few": (["skipped"], ["1", "0", "1"]),
    }  # fmt: skip
    (suite,) = ElementTree.fromstring(as_junit(history_of(nights([1.0] * 6 + [0.9] * 6), 0.03), now))
    failure = suite.find("testcase/failure")
    assert (
        failure is not None
        and "-9.97 % at n06 (2026-01-07)" in failure.get("message", "")
        and failure.get("type") == "slower"
    )


def test_too_few_measurements_have_no_verdict_and_the_text_says_how_many_are_needed():
    read = history_of(nights([1.0] * 4 + [0.5] * (MIN_MEASUREMENTS - 5)), 0.03)
    assert only(read).verdict is Trend.TOO_FEW and only(read).changes == () and read.status == 2
    assert f"9 measurements with a speed and a date; a verdict needs {MIN_MEASUREMENTS}" in as_text(read, 100)
    enough = history_of(nights([1.0] * 5 + [0.5] * (MIN_MEASUREMENTS - 5)), 0.03)
    assert only(enough).verdict is Trend.SLOWER


def test_one_point_with_enough_measurements_decides_for_all():
    made = nights([1.0] * 12)
    made["n00"] += at_day(0, TWO, FIVE)
    read = history_of(made, 0.03)
    assert [(series.name, series.verdict) for series in read.series] == [
        ("1n1g", Trend.STEADY), ("1n2g", Trend.TOO_FEW)
    ]  # fmt: skip
    assert read.status == 0


# Points


def test_points_are_those_of_a_comparison():
    runs = [make_run(container="a.sif")] * 6 + [make_run(container="b.sif")] * 6
    made = {
        f"n{day:02}": at_day(day, run, times(SHIFTS[day % 5] * (1.0 if day < 6 else 0.9)))
        for day, run in enumerate(runs)
    }
    assert len(history_of(made, 0.03).series) == 2
    joined = only(history_of(made, 0.03, ["container"]))
    (change,) = joined.changes
    assert [(each.name, each.base, each.new) for each in change.differences] == [("container", ("a.sif",), ("b.sif",))]
    with pytest.raises(ComparisonError, match="no point has it"):
        history_of(made, 0.03, ["contianer"])
    with pytest.raises(ComparisonError, match="never compared"):
        history_of(made, 0.03, ["unit"])


def test_different_units_are_never_in_one_series():
    def in_tokens(result: Result) -> Result:
        run = dataclasses.replace(result.requested.run, unit="tokens")
        return dataclasses.replace(result, requested=dataclasses.replace(result.requested, run=run))

    made = nights([1.0] * 12)
    made |= {name: (in_tokens(made[name][0]),) for name in [*made][6:]}
    read = history_of(made, 0.03)
    assert sorted((series.unit, len(series.samples)) for series in read.series) == [("samples/s", 6), ("tokens/s", 6)]


def test_a_copy_counts_once():
    made = nights([1.0] * 12)
    read = history_of({**made, "copy": made["n03"]}, 0.03)
    assert len(only(read).samples) == 12
    assert read.remarks == ("copy: 1 point of it are runs that n03 has too: counted once",)
    later = history_of({**made, "later": (hours_later(made["n03"][0], 1),)}, 0.03)
    assert len(only(later).samples) == 13 and later.remarks == ()


def test_a_file_counts_once_whatever_its_record_says(tmp_path):
    made = folder(tmp_path / "a", (ONE, FIVE[:1]))
    other = tmp_path / "b"
    other.mkdir()
    for at, place in enumerate((made, other)):
        for trace in made.glob("*.h5"):
            if place is other:
                (other / trace.name).symlink_to(trace)
            record = put_exit_record(place, ONE, Outcome.OK)
            record.write_text(json.dumps(json.loads(record.read_text()) | {"begin_unix_s": BEGIN + at * DAY}))
    read = read_history([made, other], 0.03)
    assert len(only(read).samples) == 1 and "counted once" in read.remarks[0]


@pytest.mark.parametrize("speed", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_speed_that_is_no_number_is_left_out_with_its_reason(speed):
    made = nights([1.0] * 12)
    read = history_of({**made, "bad": at_day(20, ONE, [*FIVE[:4], speed])}, 0.03)
    assert len(only(read).samples) == 12
    (gap,) = only(read).gaps
    assert gap.folder == "bad" and "no positive number" in gap.reason and str(speed) in gap.reason
    assert json.loads(as_json(read))["points"][0]["left_out"][0]["folder"] == "bad"


def test_a_measurement_without_a_date_is_left_out_with_its_reason():
    made = nights([1.0] * 12)
    read = history_of({**made, "undated": at_day(None, ONE, FIVE), "never": at_day(1e12, ONE, FIVE)}, 0.03)
    assert len(only(read).samples) == 12
    assert [(gap.folder, "has a date" in gap.reason) for gap in only(read).gaps] == [("undated", True), ("never", True)]
    undated = history_of({f"u{at}": at_day(None, ONE, times(1 + at / 1000)) for at in range(12)}, 0.03)
    assert undated.status == 2 and "0 measurements with a speed and a date" in as_text(undated, 100)


def test_a_single_run_has_no_interval():
    read = history_of({f"n{day}": at_day(day, ONE, [100.0]) for day in range(10)}, 0.03)
    assert {sample.interval for sample in only(read).samples} == {None} and read.status == 0


# The command and its formats


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return put_nights(tmp_path_factory.mktemp("slower"), [1.0] * 7 + [0.95] * 5)


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    try:
        status = history.main([*map(str, words)])
    except SystemExit as ended:
        status = int(ended.code or 0)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_the_command_reads_folders(slower, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    status, out, err = run(capsys, *reversed(slower))
    lines = out.splitlines()
    assert (status, err) == (1, "")
    assert lines[0] == "1 point over 12 measurements, 2026-01-01 to 2026-01-12: 1 slower"
    assert re.match(r"slower +1n1g +12 +2026-01-08 +-5\.03 % +< 1e-12 +95\.43 +samples/s$", lines[3])
    flat = re.sub(r"\s+", "", out)
    assert f"-5.03%at{slower[7]}(2026-01-08),from100.28to95.24samples/s,p<1e-12;since{slower[6]}(2026-01-07)" in flat
    assert "nodifferenceofenvironmentisknown" in flat
    assert [line[:10] for line in lines if re.match(r"2026-01-\d\d .*\[", line)] == [
        f"2026-01-{day:02}" for day in range(1, 13)
    ]


def test_the_first_measurements_alone_are_no_regression(slower, capsys):
    assert run(capsys, *slower[2:7])[0] == 2
    status, out, _ = run(capsys, *slower[:7], *slower[:7])
    assert status == 2 and "7 folders named more than once: read once" in out


def test_folders_that_hold_nothing_are_named_and_the_rest_is_judged(slower, tmp_path, capsys):
    empty, failed = tmp_path / "empty", tmp_path / "failed"
    empty.mkdir()
    failed.mkdir()
    put_exit_record(failed, repeats(ONE, 2)[0], Outcome.OOM)
    status, out, _ = run(capsys, *slower, empty, failed, tmp_path / "absent")
    flat = re.sub(r"\s+", "", out)
    assert status == 1 and f"notread:{failed}:nopointtocompare" in flat
    assert f"notread:{empty}:nopointtocompare" in flat and f"notread:{tmp_path}/absent" in flat


def test_paths_that_cannot_be_read_are_named(tmp_path, capsys):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    status, out, err = run(capsys, loop, tmp_path / ("x" * 10_000))
    assert (status, out) == (2, "") and "File name too long" in err and f"{loop}: " in err


def test_a_point_that_a_folder_has_twice_leaves_the_folder_out(slower, tmp_path, capsys):
    twice = tmp_path / "twice"
    for night in put_nights(twice, [1.0, 0.9]):
        put_plan(night, repeats(ONE, 2))
    status, out, _ = run(capsys, *slower, twice)
    assert status == 1 and re.sub(r"\s+", "", f"not read: {twice} has the point 1n1g") in re.sub(r"\s+", "", out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threshold", "0"], "--threshold"),
        (["--threshold", "much"], "neither a percentage"),
    ],
)
def test_wrong_usage_is_2(slower, words, message, capsys):
    status, out, err = run(capsys, slower[0], *words)
    assert (status, out) == (2, "") and message in err


def test_json_and_markdown_have_every_measurement(slower, capsys):
    status, out, _ = run(capsys, *slower, "--format", "json")
    page = json.loads(out)
    assert (page["schema"], page["schema_version"], page["status"]) == ("rankwise-history", 2, status)
    (point,) = page["points"]
    assert (point["verdict"], len(point["measurements"]), page["measurements_needed"]) == ("slower", 12, 10)
    assert point["changes"][0]["folder"] == str(slower[7]) and point["changes"][0]["percent"] < -4.5
    assert point["changes"][0]["begin"].startswith("2026-01-08T00:00:01")
    change = point["changes"][0]
    assert change["low_percent"] < -4.9 and change["high_percent"] > -5.2 and change["coverage"] >= 0.93
    _, out, _ = run(capsys, *slower, "--format", "markdown")
    assert (
        out.startswith("**1 point over") and len([line for line in out.splitlines() if line.startswith("| 2026")]) == 12
    )


def test_a_file_that_cannot_be_written_is_2(slower, tmp_path, capsys):
    status, _, err = run(capsys, *slower, "--out", tmp_path / "absent" / "out.txt")
    assert status == 2 and "cannot be written" in err


def test_hostile_names_do_nothing(capsys):
    made = nights([1.0] * 7 + [0.95] * 5, make_run(env={"A": HOSTILE}))
    made = {HOSTILE + name: results for name, results in made.items()}
    for name in [*made][:6]:
        made[name] += at_day(1, make_run(env={"A": "2"}), FIVE)
    read = history_of(made, 0.03)
    text, markdown = as_text(read, 80), as_markdown(read)
    assert "\x1b" not in text + markdown and "\x00" not in text
    assert not re.search(r"(?<!\\)<script", markdown) and len(text) < 300_000
    assert json.loads(as_json(read))["points"][0]["name"].endswith("é" * 100)


# The page


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


def changes(page: HtmlPage) -> list[str]:
    panels = [panel for section in page.sections for panel in section.panels]
    (listing,) = (block for panel in panels for block in panel.blocks if isinstance(block, Listing))
    return [*listing.lines]


def test_changes_have_size_interval_both_dates_and_what_differs_and_the_latest_is_first():
    latest, first = changes(page_of(nights([1.0] * 7 + [0.9] * 6 + [1.0] * 6, newer_from=7)))
    assert first.startswith("-") and "(2026-01-08)" in first and "(2026-01-07): torch: 2.13 → 2.14. Its" in first
    assert latest.startswith("+") and "(2026-01-14)" in latest and "no difference of environment is known" in latest
    assert re.search(r"within \[-10\.\d+, -9\.\d+\] %, an interval of 9\d", first)


def test_the_size_of_a_change_has_no_interval_where_one_measurement_follows():
    page = page_of(nights([1.0] * 20 + [0.8]))
    (line,) = changes(page)
    assert "within" not in line and len(page.verdict[0].sentences) == 2


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
