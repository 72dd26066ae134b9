"""The pages that parse.summarize writes, read again: by compare, history and forecast."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from parse.compare import main as compare
from parse.forecast import main as forecast
from parse.history import main as history
from parse.runs.load import load
from parse.runs.result import results
from parse.summarize import main as summarize
from tests.unit.comparisons import FIVE, FOUR, ONE, OTHER, TWO, folder, times
from tests.unit.traces import make_run, put_exit_record, put_plan


def page(traces: Path, form: str = "json") -> Path:
    out = traces.with_suffix(f".{form}")
    assert summarize([str(traces), "--format", form, "--out", str(out)]) == 0
    return out


def sides(tmp_path: Path) -> tuple[Path, Path]:
    run = dataclasses.replace(TWO, env={"NCCL_ALGO": "Ring"})
    base = folder(tmp_path / "base", (ONE, FIVE), (run, times(1.9)), (FOUR, FIVE[:3]))
    return base, folder(tmp_path / "new", (ONE, times(0.95)), (run, times(1.9)), (FOUR, FIVE[:3]), environment=OTHER)


def test_a_comparison_of_pages_is_that_of_their_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two pages, and of a page with traces."""
    base, new = sides(tmp_path)
    pages, shown = (page(base), page(new)), []
    for pair in ((base, new), pages, (pages[0], new), (base, pages[1])):
        assert compare([*map(str, pair), "--format", "json"]) == 1
        content = json.loads(capsys.readouterr().out)
        shown.append({name: content[name] for name in ("points", "differences", "only_base", "only_new")})
    assert {each["verdict"] for each in shown[0]["points"]} == {"slower", "same", "cannot tell"}
    names = ("name", "verdict", "reason", "runs_needed")
    exact = [[[point[name] for name in names] for point in each["points"]] for each in shown]
    assert all(each == exact[0] for each in exact)
    ratios = [[point["ratio"] for point in each["points"]] for each in shown]
    assert all(each == pytest.approx(ratios[0]) for each in ratios)  # a page has nine digits
    assert shown[1]["differences"] == shown[0]["differences"] and shown[2]["only_new"] == []


def test_a_page_and_its_own_traces_are_one_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, _ = sides(tmp_path)
    assert compare([str(page(base)), str(base)]) == 2
    assert "belongs to both sides" in capsys.readouterr().err


def test_runs_without_a_number_and_their_plan_are_in_the_page_too(tmp_path: Path) -> None:
    run, missing = (make_run(ranks_per_node=2, repeat=repeat) for repeat in (2, 3))
    traces = folder(tmp_path / "traces", (TWO, FIVE[:1]))
    put_exit_record(traces, run, "oom")
    put_plan(traces, [dataclasses.replace(TWO, repeat=1), run, missing])
    read = [results(load([path])) for path in (traces, page(traces))]
    assert [[each.outcome_text for each in result.runs] for result in read[0]] == [["ok", "oom", "missing"]]
    for before, after in zip(*read, strict=True):
        assert [each.outcome_text for each in after.runs] == [each.outcome_text for each in before.runs]
        assert (after.planned_runs, after.requested.point) == (before.planned_runs, before.requested.point)
        assert (after.median_speed, after.requested.setting) == (before.median_speed, before.requested.setting)


def test_a_forecast_from_a_page_is_that_from_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = tmp_path / "traces"
    speeds = {1: 100.0, 2: 196.0, 4: 384.0}
    folder(traces, *((make_run(nodes=nodes, ranks_per_node=1), times(speed / 100)) for nodes, speed in speeds.items()))
    sizes: list[Any] = []
    for path in (traces, page(traces)):
        assert forecast([str(path), "--nodes", "8,16", "--format", "json"]) == 0
        (series,) = json.loads(capsys.readouterr().out)["series"]
        sizes.append([(each["devices"], each["basis"], each["speed"]["value"]) for each in series["sizes"]])
    assert sizes[0] == sizes[1]


def test_a_history_of_pages_has_their_dates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for night in (1, 2):
        traces = folder(tmp_path / f"n{night}", (ONE, FIVE))
        written = page(traces)
        content = json.loads(written.read_text())
        for run in content["results"][0]["runs"]:
            run |= {"begin_unix_s": 1_770_000_000 + 86_400 * night, "trace": f"/gone/{night}/{run['repeat']}.h5"}
        written.write_text(json.dumps(content))
    assert history([*(str(tmp_path / f"n{night}.json") for night in (1, 2)), "--format", "json"]) == 2
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert [each["begin"][:10] for each in point["measurements"]] == ["2026-02-03", "2026-02-04"]


def test_a_page_in_a_folder_of_traces_is_no_measurement(tmp_path: Path) -> None:
    base, _ = sides(tmp_path)
    before = [len(result.runs) for result in results(load([base]))]
    (base / "summary.json").write_text(page(base).read_text())
    assert [len(result.runs) for result in results(load([base]))] == before


def test_a_page_of_the_version_before_is_read_too(tmp_path: Path) -> None:
    written = page(sides(tmp_path)[0])
    content = json.loads(written.read_text())
    assert content["schema_version"] == 3
    written.write_text(json.dumps(content | {"schema_version": 2, "comparisons": [], "largest": [], "drifts": []}))
    assert load([written]).attempts and not load([written]).refusals


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content["results"][0].pop("identity"), "written by an older version"),
        (lambda content: content.update(schema_version=1), "no summary of schema 2 or 3"),
        (lambda content: content.pop("results"), "'results' is missing"),
        (lambda content: content["results"][0].update(published={}), "name the document itself"),
        (lambda content: content["results"][0]["identity"]["run"].update(nodes=0), "nodes of a run is 0"),
        (lambda content: content["results"][0]["identity"]["run"].update(nodes="1"), "nodes of a run is '1'"),
        (lambda content: content["results"][0]["identity"]["run"].update(options={"a": 1}), "options of a run is"),
        (lambda content: content["results"][0]["identity"]["run"].update(surprise=1), "surprise of a run is 1"),
        (lambda content: content["results"][0]["identity"]["run"].update(backend="simulated"), "not measured"),
        (lambda content: content["results"][0]["runs"][0].update(throughput="fast"), "'fast' is no number"),
        (lambda content: content["results"][0]["runs"][0].update(mean_of_rates="fast"), "'fast' is no number"),
        (lambda content: content["results"][0]["runs"][0].update(begin_unix_s=10**18), "is no number of it"),
        (lambda content: content["results"][0].update(runs=7), "cannot be read"),
    ],
)
def test_a_page_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path, change: Any, reason: str) -> None:
    written = page(sides(tmp_path)[0])
    content = json.loads(written.read_text())
    change(content)
    written.write_text(json.dumps(content))
    loaded = load([written])
    assert not loaded.attempts and reason in "".join(loaded.refusals)
