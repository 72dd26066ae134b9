"""parse.compare: two measurements matched and judged, references, every format, hostile input."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from hpc.model.recipe import known_recipes
from parse import compare
from parse.attempt import Attempt
from parse.comparison.acceptance import compare_with_reference
from parse.comparison.pairs import compare_measurements
from parse.comparison.reference import FOLDER, known_references, read_reference, read_share
from parse.comparison.types import Comparison, ComparisonError, Reason
from parse.comparison.verdict import Verdict
from parse.load import Loaded
from parse.result import Result, results
from tests.unit.comparisons import FIVE, SIZES, folder, measured, times
from tests.unit.traces import attempt, make_run, make_trace, put_exit_record, put_plan, repeats, requested_run

ONE, TWO, FOUR = SIZES["1n1g"], SIZES["1n2g"], SIZES["1n4g"]
OTHER = {"software": {"numpy": "2.0", "torch": "2.14"}, "backend": {"transport": "nccl"}}


def compared(base: tuple[Result, ...], new: tuple[Result, ...], **more: Any) -> Comparison:
    return compare_measurements(base, new, ("a", "b"), more.pop("threshold", 0.03), **more)


def with_speeds(*speeds: float) -> tuple[Result, ...]:
    """A point with speeds that no trace could have."""
    run = make_run()
    attempts: list[Attempt] = []
    for repeat, speed in zip(repeats(run, len(speeds)), speeds, strict=True):
        one = attempt(make_trace(repeat))
        assert one.measured is not None
        attempts.append(dataclasses.replace(one, measured=dataclasses.replace(one.measured, throughput=speed)))
    requested = tuple(requested_run(repeat) for repeat in repeats(run, len(speeds)))
    return results(Loaded(attempts=tuple(attempts), requested=requested, reduced=(), refusals=(), remarks=()))


def only(comparison: Comparison) -> Any:
    (point,) = comparison.points
    return point


# Matching and verdicts


@pytest.mark.parametrize(
    ("factor", "verdict", "status"),
    [(0.95, Verdict.SLOWER, 1), (1.0, Verdict.SAME, 0), (1.05, Verdict.FASTER, 0), (0.985, Verdict.CANNOT_TELL, 2)],
)
def test_a_point_of_both_sides_is_judged(factor, verdict, status):
    speeds = FIVE if verdict is not Verdict.CANNOT_TELL else times(1, (100, 103, 97, 101, 99))
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


def test_an_ignored_setting_may_differ_and_is_a_difference():
    base, new = measured((make_run(container="a.sif"), FIVE)), measured((make_run(container="b.sif"), FIVE))
    apart = compared(base, new)
    assert apart.points == () and apart.status == 2
    assert apart.near_misses[0].settings == ("container (a.sif, b.sif)",)
    joined = compared(base, new, ignored=["container"])
    assert only(joined).verdict is Verdict.SAME
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


def test_options_and_variables_can_be_ignored():
    for name, values in (("env.A", {"env": {"A": "1"}}), ("option.x", {"options": {"x": "1"}})):
        other = {key: dict.fromkeys(value, "2") for key, value in values.items()}
        base, new = measured((make_run(**values), FIVE)), measured((make_run(**other), FIVE))
        assert only(compared(base, new, ignored=[name])).verdict is Verdict.SAME


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


# What cannot be told


@pytest.mark.parametrize(("base", "new", "needed"), [(1, 1, 4), (3, 3, 4), (1, 5, 5)])
def test_too_few_runs_say_how_many_it_takes(base, new, needed):
    point = only(compared(measured((ONE, FIVE[:base])), measured((ONE, FIVE[:new]))))
    assert (point.verdict, point.reason, point.interval) == (Verdict.CANNOT_TELL, Reason.FEW_RUNS, None)
    assert point.runs_needed == needed and point.ratio is not None


def test_scattered_runs_say_how_many_it_takes():
    speeds = times(1, (100, 104, 96, 102, 98))
    point = only(compared(measured((ONE, speeds)), measured((ONE, speeds))))
    assert (point.verdict, point.reason) == (Verdict.CANNOT_TELL, Reason.SCATTER)
    assert 5 < point.runs_needed <= 100


@pytest.mark.parametrize("speed", [0.0, float("nan"), float("inf"), -1.0])
def test_what_is_no_speed_is_named_and_not_left_out(speed):
    point = only(compared(with_speeds(*FIVE), with_speeds(*FIVE[:4], speed)))
    assert (point.verdict, point.reason, point.detail) == (Verdict.CANNOT_TELL, Reason.NO_SPEED, f"NEW: run 5: {speed}")
    assert point.new.median is None and point.interval is None


def test_an_outlying_run_is_named_and_counted():
    point = only(compared(measured((ONE, FIVE)), measured((ONE, [*FIVE[:4], 60.0]))))
    assert point.new.outlying == (5,) and len(point.new.speeds) == 5 and point.base.outlying == ()


# References


def toml(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


POINT = """
title = "machine"
tolerance = "5%"
[[point]]
speed = 100
source = "measured here"
settings = { case = "1n1g", backend = "mpi" }
"""


@pytest.mark.parametrize(
    ("factor", "verdict", "status"),
    [
        (1.0, Verdict.SAME, 0),
        (0.97, Verdict.SAME, 0),
        (0.9, Verdict.SLOWER, 1),
        (1.2, Verdict.FASTER, 0),
        (0.95, Verdict.CANNOT_TELL, 2),
    ],
)
def test_a_reference_is_the_acceptance_test_of_a_machine(tmp_path, factor, verdict, status):
    path = toml(tmp_path / "r.toml", POINT)
    comparison = compare_with_reference(str(path), measured((ONE, times(factor)), (TWO, FIVE)), "new", 0.03)
    assert (only(comparison).verdict, comparison.status) == (verdict, status)
    assert only(comparison).threshold == 0.05 and only(comparison).source == "measured here"
    assert comparison.only_new == ("1n2g",)


def test_a_point_of_a_reference_that_was_not_measured_or_is_several(tmp_path):
    path = toml(tmp_path / "r.toml", POINT)
    nothing = compare_with_reference(str(path), measured((TWO, FIVE)), "new", 0.03)
    assert (only(nothing).reason, nothing.status) == (Reason.NOT_MEASURED, 2)
    several = measured((ONE, FIVE), (make_run(batch_size=8), FIVE))
    assert only(compare_with_reference(str(path), several, "new", 0.03)).reason is Reason.SEVERAL


def test_four_runs_are_too_few_for_a_reference(tmp_path):
    path = toml(tmp_path / "r.toml", POINT)
    point = only(compare_with_reference(str(path), measured((ONE, FIVE[:4])), "new", 0.03))
    assert (point.reason, point.runs_needed) == (Reason.FEW_RUNS, 5)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("speed =", "sped =", "point 1: sped is no key of a point.*Did you mean speed"),
        ("tolerance =", "tolerence =", "tolerence is no key of a reference.*Did you mean tolerance"),
        ("backend =", "backed =", "point 1: backed is no setting.*Did you mean backend"),
        ("speed = 100", "speed = -1", "speed must be a positive number"),
        ("speed = 100", "speed = nan", "speed must be a positive number"),
        ("speed = 100", 'speed = "100"', "speed must be a positive number"),
        ('"5%"', '"500%"', "not between 0 and 100 %"),
        ('"5%"', '"five"', "neither a percentage"),
        ('source = "measured here"', "", "source is missing"),
        ('title = "machine"', "", "title is missing"),
        ("[[point]]", "[[points]]", "Did you mean point"),
        ('{ case = "1n1g", backend = "mpi" }', "{}", "it has no settings"),
        ('speed = 100', 'speed = 100\nunit = "sample/s"', "Did you mean samples/s"),
        ("speed = 100", "speed = ", "Invalid value"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_reference_is_named(tmp_path, old, new, words):
    assert old in POINT
    path = toml(tmp_path / "r.toml", POINT.replace(old, new))
    with pytest.raises(ComparisonError, match=rf"(?s)r\.toml: .*{words}"):
        read_reference(path, 0.03)


def test_a_reference_with_a_point_twice_or_that_is_no_text(tmp_path):
    twice = toml(tmp_path / "r.toml", POINT + POINT.split('tolerance = "5%"')[1])
    with pytest.raises(ComparisonError, match="points 1 and 2 have the same settings"):
        read_reference(twice, 0.03)
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ComparisonError, match=r"b\.toml"):
        read_reference(tmp_path / "b.toml", 0.03)
    with pytest.raises(ComparisonError, match="Did you mean nvidia-dgxc"):
        compare_with_reference("nvidia-dgx", (), "new", 0.03)


@pytest.mark.parametrize(("text", "share"), [("3%", 0.03), ("0.03", 0.03), (" 2.5% ", 0.025)])
def test_a_share(text, share):
    assert read_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "0", "3", "100%", "nan", "-1%", "inf", "1e400"])
def test_no_share(text):
    with pytest.raises(ValueError, match=r"neither|between"):
        read_share(text)


@pytest.mark.parametrize("name", known_references())
def test_references_of_the_project_have_a_line_as_source_of_every_point(name):
    reference = read_reference(FOLDER / f"{name}.toml", 0.03)
    assert len(reference.points) == {"llm-foundry": 44, "nvidia-dgxc": 64, "torchtitan": 6}[name]
    assert all(re.search(r"@\w.*, line \d+: ", point.source) for point in reference.points)
    assert all(point.tolerance == 0.05 and "devices" in point.settings for point in reference.points)


def test_of_references_of_the_project_only_what_was_measured_is_judged():
    run = requested_run(make_run()).run
    sizes = {"devices": 8, "nodes": 1, "gpus_per_node": 8, "ranks_per_node": None, "batch_size": 6}
    fields = dataclasses.replace(run, backend="composer", **sizes)
    (result,) = measured((ONE, times(0.4)))
    requested = dataclasses.replace(result.requested, run=fields, extra={"name": "mpt-7b"})
    result = dataclasses.replace(result, requested=requested)
    comparison = compare_with_reference("llm-foundry", [result], "new", 0.03)
    assert only(comparison).base.median == pytest.approx(85144 / 2048, abs=1e-3)
    assert "line 118" in only(comparison).source and len(comparison.only_base) == 43


def test_recipes_are_references_as_they_are():
    run = make_run(
        backend="torch-ddp", workload="resnet50", batch_size=128, gpus_per_node=1, warmup_steps=20, measured_steps=100,
        timing="step", options={"recipe": "ngc", "image_size": "224"},
    )  # fmt: skip
    same = compare_with_reference("ngc-pytorch-resnet50", measured((run, times(3.6614))), "new", 0.03)
    assert (
        only(same).base.median == 366.14 and only(same).verdict is Verdict.SAME and "line 166, 191" in only(same).source
    )
    assert len(same.only_base) == 2 and same.status == 0
    other = dataclasses.replace(run, batch_size=64)
    apart = compare_with_reference("ngc-pytorch-resnet50", measured((other, times(3.6614))), "new", 0.03)
    assert only(apart).reason is Reason.OTHER_SETTINGS and "batch_size 64, not 128" in only(apart).detail
    assert "ngc-pytorch-resnet50" in known_recipes()


# The command and its formats

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


def test_the_text_says_the_result_first_and_fits_the_page(sides, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run(capsys, *sides)
    lines = out.splitlines()
    assert status == 1 and lines[0] == "4 points compared: 1 slower, 2 same, 1 cannot tell"
    assert lines.index("torch: 2.13 → 2.14") < next(at for at, line in enumerate(lines) if line.startswith("slower"))
    assert "\x1b" not in out and "too few runs for an interval of 95 %: 5 and 1 here" in " ".join(out.split())
    status, out, _ = run(capsys, *sides, "--where", "case=1n2g")
    assert status == 0 and out.splitlines()[0] == "1 point compared: 1 same"


def test_markdown_has_one_cell_per_column(sides, capsys):
    _, out, _ = run(capsys, *sides, "--format", "markdown")
    rows = [line for line in out.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows[-5:]} == {10}
    assert "\n|" in out and not re.search(r"(?<!\\)<script", out) and "\\<script" in out


def test_json_is_whole(sides, capsys):
    status, out, _ = run(capsys, *sides, "--format", "json")
    page = json.loads(out)
    assert (page["schema"], page["schema_version"], page["status"]) == ("rankwise-comparison", 1, status)
    verdicts = {point["name"].split()[0]: point["verdict"] for point in page["points"]}
    assert verdicts["1n2g"] == "same" and verdicts["1n4g"] == "cannot tell"
    assert next(point for point in page["points"] if point["name"].startswith("1n4g"))["reason"] == "few_runs"


def test_what_is_no_number_is_null_in_json():
    from parse.comparison.export import as_json

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


METRIC = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\} (-?\d[\d.]*(?:e[+-]\d+)?)')


def test_openmetrics_are_as_their_specification_says(sides, capsys):
    """OpenMetrics 1.0: families whole and in one place, TYPE before UNIT before HELP, the unit as suffix of the name,
    samples with distinct labels, `# EOF` as the last line."""
    _, out, _ = run(capsys, *sides, "--format", "openmetrics")
    assert out.endswith("\n# EOF\n") and out.count("# EOF") == 1
    families: list[str] = []
    samples = set()
    for line in out.splitlines()[:-1]:
        if line.startswith("# "):
            _, kind, name, *rest = line.split(" ", 3)
            if kind == "TYPE":
                families.append(name)
                assert rest in (["gauge"], ["stateset"])
            assert name == families[-1] and (kind != "UNIT" or name.endswith(f"_{rest[0]}"))
            continue
        match = METRIC.fullmatch(line)
        assert match and match[1] == families[-1], line[:200]
        assert (match[1], match[2]) not in samples
        samples.add((match[1], match[2]))
    assert len({*families}) == len(families) >= 4
    assert 'rankwise_compare_verdict{point="1n2g' in out


def test_the_exit_status_is_two_where_nothing_can_be_compared(tmp_path, capsys):
    empty, one = tmp_path / "empty", folder(tmp_path / "one", (ONE, FIVE))
    empty.mkdir()
    for words in ([empty, one], [one, empty], [tmp_path / "none", one]):
        status, out, err = run(capsys, *words)
        assert (status, out) == (2, "") and "no point to compare" in err
    other = folder(tmp_path / "other", (TWO, FIVE))
    status, out, _ = run(capsys, one, other)
    assert status == 2 and out.startswith("nothing could be compared") and "only in BASE: " in out


@pytest.mark.parametrize("nested", [False, True])
def test_a_measurement_is_not_compared_with_itself(tmp_path, capsys, nested):
    one = folder(tmp_path / "all" / "one", (ONE, FIVE))
    status, _, err = run(capsys, tmp_path / "all" if nested else one, one)
    assert status == 2 and "belongs to both sides (5 of the 5 files of NEW)" in err


def test_failed_runs_alone_cannot_be_told(tmp_path, capsys):
    base, new = folder(tmp_path / "a", (ONE, FIVE)), tmp_path / "b"
    new.mkdir()
    put_plan(new, repeats(ONE, 5))
    for repeat in repeats(ONE, 5):
        put_exit_record(new, repeat, Outcome.OOM)
    status, out, _ = run(capsys, base, new)
    assert status == 2 and "no run ended ok (NEW: 5 oom)" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a"], "BASE and NEW"),
        (["a", "b", "c"], "BASE and NEW"),
        (["a", "b", "--reference", "r.toml"], "one measurement"),
        (["a", "b", "--threshold", "5"], "between 0 and 100 %"),
        (["a", "b", "--where", "case"], "not of the form"),
        (["a", "--reference", "r.toml", "--ignore", "x"], "for two measurements"),
    ],
)
def test_wrong_usage(words, text, capsys):
    status, _, err = run(capsys, *words)
    assert status == 2 and text in err


def test_two_measurements_in_one_folder_are_refused(tmp_path, capsys):
    both = tmp_path / "both"
    for name, factor in (("x", 1.0), ("y", 1.1)):
        folder(both / name, (ONE, times(factor)))
        put_plan(both / name, repeats(ONE, 5))
    status, _, err = run(capsys, both, folder(tmp_path / "new", (ONE, FIVE)))
    assert status == 2 and "more than once" in err


def test_out_writes_a_file(sides, tmp_path, capsys):
    out = tmp_path / "result.xml"
    assert run(capsys, *sides, "--format", "junit", "--out", out)[:2] == (1, "")
    hold_junit(out.read_text())
    status, _, err = run(capsys, *sides, "--out", tmp_path / "none" / "x")
    assert status == 2 and "cannot be written" in err


def test_random_speeds_never_fail_and_never_call_both():
    generator = np.random.default_rng(0)
    for _ in range(8):
        counts = generator.integers(1, 8, 2)
        pair = [generator.lognormal(3, 0.3, count).tolist() for count in counts]
        there, back = (compared(with_speeds(*a), with_speeds(*b)) for a, b in (pair, pair[::-1]))
        flipped = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
        assert only(back).verdict == flipped.get(only(there).verdict, only(there).verdict)
