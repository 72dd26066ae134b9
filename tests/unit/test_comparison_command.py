"""parse.compare: the command, every format, hostile input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from parse import compare
from parse.comparison.types import ComparisonVerdict
from tests.unit.comparisons import FIVE, FOUR, ONE, OTHER, TWO, compared, folder, only, times
from tests.unit.histories import with_speeds
from tests.unit.traces import make_run, put_exit_record, put_plan, repeats

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


def test_the_exit_status_is_two_where_nothing_can_be_compared(tmp_path, capsys):
    empty, single = tmp_path / "empty", folder(tmp_path / "one", (ONE, FIVE))
    empty.mkdir()
    for words in ([empty, single], [single, empty], [tmp_path / "none", single]):
        status, out, err = run(capsys, *words)
        assert (status, out) == (2, "") and "no point to compare" in err
    other = folder(tmp_path / "other", (TWO, FIVE))
    status, out, _ = run(capsys, single, other)
    assert status == 2 and out.startswith("nothing could be compared") and "only in BASE: " in out


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
        forward, back = (compared(with_speeds(*a), with_speeds(*b)) for a, b in (pair, pair[::-1]))
        flipped = {
            ComparisonVerdict.FASTER: ComparisonVerdict.SLOWER,
            ComparisonVerdict.SLOWER: ComparisonVerdict.FASTER,
        }
        assert only(back).verdict == flipped.get(only(forward).verdict, only(forward).verdict)
