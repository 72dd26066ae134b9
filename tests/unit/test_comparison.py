"""parse.compare: two measurements matched and judged, what is unknown; the command, every format, hostile input."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from launch.sweep.spec import SMALL_SIZES
from parse import compare
from parse.comparison.text import as_text, reason_text
from parse.comparison.types import ComparisonError, ComparisonVerdict, Reason, least_runs, runs_to_tell
from parse.runs.result import Result
from tests.unit.comparisons import FIVE, FOUR, ONE, OTHER, TWO, compared, folder, measured, only, times
from tests.unit.histories import with_speeds
from tests.unit.traces import make_run, put_exit_record, put_plan, repeats

# Matching and verdicts


@pytest.mark.parametrize(
    ("factor", "verdict", "status"),
    [
        (0.95, ComparisonVerdict.SLOWER, 1),
        (1.0, ComparisonVerdict.SAME, 0),
        (1.05, ComparisonVerdict.FASTER, 0),
        (0.985, ComparisonVerdict.CANNOT_TELL, 2),
    ],
)
def test_a_point_of_both_sides_is_judged(factor, verdict, status):
    speeds = FIVE if verdict is not ComparisonVerdict.CANNOT_TELL else times(1, (100, 103, 97, 101, 99))
    comparison = compared(measured((ONE, speeds)), measured((ONE, times(factor, speeds))))
    point = only(comparison)
    assert (point.verdict, comparison.status) == (verdict, status)
    assert point.ratio == pytest.approx(factor) and point.interval.low < factor < point.interval.high


def test_points_are_matched_by_all_their_settings_and_the_rest_is_named():
    base = measured((ONE, FIVE), (TWO, FIVE), (make_run(batch_size=8), FIVE))
    new = measured((ONE, FIVE), (FOUR, FIVE), (make_run(env={"NCCL_ALGO": "Ring"}), FIVE))
    comparison = compared(base, new)
    assert [point.name for point in comparison.points] == ["1n1g batch_size=4"]
    assert len(comparison.only_base) == len(comparison.only_new) == 2
    (miss,) = [miss for miss in comparison.near_misses if "env" in miss.settings[-1]]
    assert miss.settings == ("batch_size (8, 4)", "env.NCCL_ALGO (none, Ring)")
    assert "--ignore" not in as_text(comparison, 100)


def test_an_ignored_setting_may_differ_and_is_a_difference():
    base, new = measured((make_run(container="a.sif"), FIVE)), measured((make_run(container="b.sif"), FIVE))
    apart = compared(base, new)
    assert apart.points == () and apart.status == 2
    assert apart.near_misses[0].settings == ("container (a.sif, b.sif)",)
    assert "to compare points that differ in container alone: --ignore container" in as_text(apart, 100)
    joined = compared(base, new, ignored=["container"])
    assert only(joined).verdict is ComparisonVerdict.SAME
    assert [(each.name, each.base, each.new) for each in joined.differences] == [("container", ("a.sif",), ("b.sif",))]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("contianer", "no point has it.*"),
        ("unit", "never compared"),
        ("case", "never compared"),
        ("batchsize", "Did you mean"),
    ],
)
def test_what_cannot_be_ignored(name, words):
    with pytest.raises(ComparisonError, match=words):
        compared(measured((ONE, FIVE)), measured((ONE, FIVE)), ignored=[name])


def test_two_points_of_a_side_that_become_one_are_refused():
    base = measured((make_run(seed=1), FIVE), (make_run(seed=2), FIVE))
    with pytest.raises(ComparisonError, match="more than once"):
        compared(base, base, ignored=["seed"])


def test_different_units_are_never_compared():
    def in_tokens(result: Result) -> Result:
        run = dataclasses.replace(result.requested.run, unit="tokens")
        return dataclasses.replace(result, requested=dataclasses.replace(result.requested, run=run))

    new = tuple(in_tokens(result) for result in measured((ONE, FIVE)))
    comparison = compared(measured((ONE, FIVE)), new)
    assert comparison.points == () and comparison.status == 2
    assert comparison.near_misses[0].settings == ("unit (none, tokens)",)


def test_differences_of_environment_name_the_points_they_concern():
    base = measured((ONE, FIVE), (TWO, FIVE))
    new = (*measured((ONE, FIVE)), *measured((TWO, FIVE), environment=OTHER))
    (difference,) = compared(base, new).differences
    assert (difference.name, difference.base, difference.new) == ("torch", ("2.13",), ("2.14",))
    assert difference.points == ("1n2g",)
    (everywhere,) = compared(base, measured((ONE, FIVE), (TWO, FIVE), environment=OTHER)).differences
    assert everywhere.points == ()
    assert compared(base, base[:0] + measured((ONE, FIVE), (TWO, FIVE))).differences == ()


# What is unknown


@pytest.mark.parametrize(("base", "new", "needed"), [(1, 1, 4), (3, 3, 4), (1, 5, 5)])
def test_too_few_runs_say_how_many_it_takes(base, new, needed):
    point = only(compared(measured((ONE, FIVE[:base])), measured((ONE, FIVE[:new]))))
    assert (point.verdict, point.reason, point.interval) == (ComparisonVerdict.CANNOT_TELL, Reason.FEW_RUNS, None)
    assert point.runs_needed == needed and point.ratio is not None


def test_the_number_of_runs_is_for_the_difference_that_is_seen():
    """Scattered runs that are 30 % slower: for 3 % it would take more than 100 a side."""
    base, new = (100.0, 82.0, 118.0), (70.0, 60.0, 79.0)
    point = only(compared(measured((ONE, base)), measured((ONE, new))))
    assert (point.verdict, point.reason) == (ComparisonVerdict.CANNOT_TELL, Reason.FEW_RUNS)
    assert point.difference == pytest.approx(0.3) and 4 <= point.runs_needed <= 20
    assert runs_to_tell((base, new), 0.03) is None
    assert reason_text(point) == (
        "too few runs for an interval of 95 %: 3 and 3 here; all 3 new runs are below all 3 old ones (30 % slower), "
        "and chance makes such an order in 10 % of the cases: as clear an order of 4 a side would decide; "
        f"{point.runs_needed} runs a side would decide a difference of 30 % in 9 of 10 cases"
    )
    four = only(compared(measured((ONE, (*base, 101.0))), measured((ONE, (*new, 71.0)))))
    assert four.verdict is ComparisonVerdict.SLOWER
    faster = reason_text(only(compared(measured((ONE, new)), measured((ONE, base)))))
    assert "all 3 new runs are above all 3 old ones (42.9 % faster)" in faster and "a difference of 30 %" in faster


def test_an_order_is_named_only_where_the_runs_do_not_overlap_and_there_are_several():
    for base, new in ((100.0, 101.0, 102.0), (99.0, 100.5, 103.0)), ((100.0,), (50.0,)):
        text = reason_text(only(compared(measured((ONE, base)), measured((ONE, new)))))
        assert "chance" not in text and "runs a side would decide a difference of" in text


def test_the_repeats_of_a_small_machine_are_as_many_as_can_decide():
    assert SMALL_SIZES["repeats"] == least_runs() == 4


@pytest.mark.parametrize("speed", [0.0, float("nan"), float("inf"), -1.0])
def test_what_is_no_speed_is_named_and_not_left_out(speed):
    point = only(compared(with_speeds(*FIVE), with_speeds(*FIVE[:4], speed)))
    assert (point.verdict, point.reason, point.detail) == (
        ComparisonVerdict.CANNOT_TELL,
        Reason.NO_SPEED,
        f"NEW: run 5: {speed}",
    )
    assert point.new.median is None and point.interval is None


def test_an_outlying_run_is_named_and_counted():
    point = only(compared(measured((ONE, FIVE)), measured((ONE, [*FIVE[:4], 60.0]))))
    assert point.new.outlying == (5,) and len(point.new.speeds) == 5 and point.base.outlying == ()


# The command


HOSTILE = 'x"<script>&\x1b[31m\\\n|`' + "é" * 10_000


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    return (
        folder(tmp_path / "a", (ONE, FIVE), (TWO, FIVE), (FOUR, FIVE), (make_run(env={"A": HOSTILE}), FIVE)),
        folder(tmp_path / "b", (ONE, times(0.9)), (TWO, FIVE), (FOUR, FIVE[:1]), (make_run(env={"A": HOSTILE}), FIVE),
               (make_run(seed=9), FIVE), environment=OTHER),
    )  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    try:
        status = compare.main([*map(str, words)])
    except SystemExit as ended:
        status = int(ended.code or 0)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_what_is_no_number_is_null_in_json():
    from parse.comparison.text import as_json

    page = json.loads(as_json(compared(with_speeds(*FIVE), with_speeds(*FIVE[:4], float("nan")))))
    assert page["points"][0]["new"]["speeds"][4] is None


CASE_RULES = {"skipped": set(), "error": {"type"}, "failure": {"type"}}
SUITE_RULES = {"name", "timestamp", "hostname", "tests", "failures", "errors", "time", "package", "id"}


def hold_junit(text: str) -> ElementTree.Element:
    """The suite, which keeps the rules of github.com/windyroad/JUnit-Schema (2378e66): elements and their order,
    attributes that are required, kinds of values."""
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.tag == "testsuite" and {*suite.attrib} - {"skipped"} == SUITE_RULES
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    children = [child.tag for child in suite]
    cases = children.count("testcase")
    assert children == ["properties", *["testcase"] * cases, "system-out", "system-err"]
    assert {(entry.tag, *sorted(entry.attrib)) for entry in suite[0]} == {("property", "name", "value")}
    counts = dict.fromkeys(CASE_RULES, 0)
    for case in suite.iter("testcase"):
        assert {*case.attrib} == {"name", "classname", "time"} and float(case.attrib["time"]) >= 0 and len(case) <= 1
        for child in case:
            assert {*child.attrib} - {"message"} == CASE_RULES[child.tag]
            counts[child.tag] += 1
    names = {"tests": cases, "failures": counts["failure"], "errors": counts["error"], "skipped": counts["skipped"]}
    assert {name: int(suite.attrib[name]) for name in names} == names
    return suite


def test_junit_is_as_its_schema_says(sides, capsys):
    _, out, _ = run(capsys, *sides, "--format", "junit")
    suite = hold_junit(out)
    assert {name: suite.attrib[name] for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5", "failures": "1", "errors": "1", "skipped": "1"}  # fmt: skip
    assert any('x"<script>&\\x1b[31m' in case.attrib["name"] for case in suite.iter("testcase"))


@pytest.mark.parametrize("nested", [False, True])
def test_a_measurement_is_not_compared_with_itself(tmp_path, capsys, nested):
    single = folder(tmp_path / "all" / "one", (ONE, FIVE))
    status, _, err = run(capsys, tmp_path / "all" if nested else single, single)
    assert status == 2 and "belongs to both sides (5 of the 5 files of NEW)" in err


def test_failed_runs_alone_have_no_verdict(tmp_path, capsys):
    base, new = folder(tmp_path / "a", (ONE, FIVE)), tmp_path / "b"
    new.mkdir()
    put_plan(new, repeats(ONE, 5))
    for repeat in repeats(ONE, 5):
        put_exit_record(new, repeat, Outcome.OOM)
    status, out, _ = run(capsys, base, new)
    assert status == 2 and "no run ended ok (NEW: 5 oom)" in " ".join(out.split())


def test_two_measurements_in_one_folder_are_refused(tmp_path, capsys):
    both = tmp_path / "both"
    for name, factor in (("x", 1.0), ("y", 1.1)):
        folder(both / name, (ONE, times(factor)))
        put_plan(both / name, repeats(ONE, 5))
    status, _, err = run(capsys, both, folder(tmp_path / "new", (ONE, FIVE)))
    assert status == 2 and "more than once" in err


def test_random_speeds_never_fail_and_never_call_both():
    generator = np.random.default_rng(0)
    for _ in range(8):
        counts = generator.integers(1, 8, 2)
        pair = [generator.lognormal(3, 0.3, count).tolist() for count in counts]
        forward, back = (compared(with_speeds(*a), with_speeds(*b)) for a, b in (pair, pair[::-1]))
        flipped = {
            ComparisonVerdict.FASTER: ComparisonVerdict.SLOWER,
            ComparisonVerdict.SLOWER: ComparisonVerdict.FASTER,
        }
        assert only(back).verdict == flipped.get(only(forward).verdict, only(forward).verdict)


def test_options_and_variables_can_be_ignored():
    for name, values in (("env.A", {"env": {"A": "1"}}), ("option.x", {"options": {"x": "1"}})):
        other = {key: dict.fromkeys(value, "2") for key, value in values.items()}
        base, new = measured((make_run(**values), FIVE)), measured((make_run(**other), FIVE))
        assert only(compared(base, new, ignored=[name])).verdict is ComparisonVerdict.SAME


def test_markdown_has_one_cell_per_column(sides, capsys):
    _, out, _ = run(capsys, *sides, "--format", "markdown")
    rows = [line for line in out.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows[-5:]} == {10}
    assert "\n|" in out and not re.search(r"(?<!\\)<script", out) and "\\<script" in out
