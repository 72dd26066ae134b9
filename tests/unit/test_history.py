"""parse.history: measurements in order of time, their changes, every format, the page, hostile input."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hpc.model.outcome import Outcome
from parse import history
from parse.comparison.types import ComparisonError
from parse.page.figures import HtmlPage, Table
from parse.page.history import history_page
from parse.page.html import render
from parse.page.points import MAX_PANELS
from parse.runs.result import Result
from parse.trend.series import MIN_MEASUREMENTS, History, Series, Trend, history_of, read_history
from parse.trend.text import as_json, as_junit, as_markdown, as_text
from tests.unit.comparisons import FIVE, ONE, TWO, folder, times
from tests.unit.histories import BEGIN, DAY, HOSTILE, SHIFTS, at_day, nights, put_nights
from tests.unit.pages import Elements, page_lines
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


def test_a_point_that_a_folder_has_twice_leaves_the_folder_out(slower, tmp_path, capsys):
    twice = tmp_path / "twice"
    for night in put_nights(twice, [1.0, 0.9]):
        put_plan(night, repeats(ONE, 2))
    status, out, _ = run(capsys, *slower, twice)
    assert status == 1 and re.sub(r"\s+", "", f"not read: {twice} has the point 1n1g") in re.sub(r"\s+", "", out)


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


def page_of(measurements: Any, threshold: float = 0.03) -> HtmlPage:
    return history_page(history_of(measurements, threshold))


def tables(page: HtmlPage) -> dict[str, Table]:
    blocks = [block for section in page.sections for block in section.blocks]
    blocks += [block for section in page.sections for panel in section.panels for block in panel.blocks]
    return {block.id: block for block in blocks if isinstance(block, Table)}


def two_points() -> dict[str, tuple[Result, ...]]:
    """One whose speed rises, and one that gets slower."""
    made = nights([1.0] * 7 + [1.3] * 5)
    for name, results in nights(SLOWER, TWO, newer_from=7).items():
        made[name] += results
    return made


PAGES: dict[str, tuple[dict[str, tuple[Result, ...]], tuple[str, ...]]] = {
    "changes": (nights([1.0] * 7 + [0.9] * 6 + [1.0] * 6, newer_from=7), ()),
    "two_points": (two_points(), ()),
    "steady": (nights([1.0] * 12), ()),
    "left_out": (nights([1.0] * 12) | {"undated": at_day(None, ONE, FIVE)}, ("a: odd",)),
    "unread": (nights([1.0] * 12), ("a: odd", "b: odd")),
    "single": ({"n00": at_day(0, ONE, FIVE[:1])}, ()),
    "undated": ({"undated": at_day(None, ONE, FIVE)}, ()),
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_as_in_the_golden_file(name: str, golden: Callable[[str, str], None]) -> None:
    measurements, refusals = PAGES[name]
    history = dataclasses.replace(history_of(measurements, 0.03), refusals=refusals, remarks=("no plan", "no plan"))
    page = history_page(history)
    golden(f"pages/history_{name}.txt", "\n".join(page_lines(page)) + "\n")
    assert not any(repeated(statement) for statement in page.verdict)


def test_more_points_than_panels_are_counted():
    many = tuple(result for at in range(MAX_PANELS + 3) for result in at_day(0, make_run(batch_size=at + 1), FIVE[:1]))
    page = page_of({"n00": many})
    assert f"Shown are {MAX_PANELS} of {MAX_PANELS + 3} points" in Elements(render(page)).text
    panels = [panel for section in page.sections for panel in section.panels]
    assert len(panels) == MAX_PANELS and len(tables(page)["all-points"].rows) == MAX_PANELS + 3


def test_hostile_names_are_text_and_nothing_else():
    made = {HOSTILE + name: results for name, results in nights(SLOWER, make_run(env={"A": HOSTILE})).items()}
    environment = {"software": {"<img src=x>": "<script>alert(1)</script>"}}
    made["late"] = at_day(30, make_run(env={"A": HOSTILE}), [80.0] * 5, environment=environment)
    page = page_of(made)
    text = render(page)
    elements = Elements(text)
    assert len(elements.all("script")) == 1 and not elements.all("img") and "\x1b" not in text
    assert len(text) < 2e5 and "é" * 250 not in text


def test_the_command_writes_the_page_and_keeps_its_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folders = put_nights(tmp_path / "nightly", SLOWER)
    out = tmp_path / "history.html"
    assert history.main([*map(str, folders), "--format", "html", "--out", str(out)]) == 1
    elements = Elements(out.read_text())
    assert "rankwise history" in elements.text and "-5.03 %" in elements.text
    assert len(elements.all("script")) == 1 and capsys.readouterr().out == ""
