"""The JSON page by docs/summary.schema.json, docs/formats.md on how to read it, the CSV page, both read again."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.reference import read_recipe
from hpc.model.spec import RunSpec
from parse.alarms.table import RULES
from parse.compare import main as compare
from parse.forecast import main as forecast
from parse.history import main as history
from parse.report.against import against
from parse.report.export import CSV_COLUMNS, as_json, comma_separated
from parse.report.summary import Summary
from parse.runs.load import load
from parse.runs.result import results
from parse.summarize import main
from parse.summarize import main as summarize
from tests.unit.comparisons import FIVE, FOUR, ONE, OTHER, TWO, folder, times
from tests.unit.ledgers import in_groups, strong, weak
from tests.unit.logs import made
from tests.unit.logs.nccl_lines import ONE_NODE
from tests.unit.simulated_graph import Delay, Mesh, Model, simulate_graph
from tests.unit.test_table import laptop, reference
from tests.unit.test_trainings import trained
from tests.unit.traces import judged, make_run, make_trace, put, put_exit_record, put_plan, repeats

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "summary.schema.json").read_text())
DOCUMENT = (ROOT / "docs" / "formats.md").read_text()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def hold(page: str) -> dict[str, Any]:
    """The page, which has every member that the schema requires and no other one."""
    content = json.loads(page)
    errors = [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in VALIDATOR.iter_errors(content)]
    assert errors == []
    return content


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main([*map(str, words), "--format", "json"]) == 0
    return hold(capsys.readouterr().out)


def began(unix_s: int, run: RunSpec) -> ExitRecord:
    """The record of an attempt that began then and ended ok."""
    return ExitRecord(
        run_id=run.run_id, attempt=1, outcome=Outcome.OK, exit_status=0, job_id="1", begin_unix_s=unix_s,
        end_unix_s=unix_s + 60,
    )  # fmt: skip


# The schema holds


def test_the_schema_is_one_and_strict() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    page = json.loads(as_json(reference()))
    for place in (page, page["results"][0], page["results"][0]["runs"][0]):
        place["another"] = 1
        assert not VALIDATOR.is_valid(page)
        del place["another"]
        name = next(iter(place))
        value = place.pop(name)
        assert not VALIDATOR.is_valid(page)
        place[name] = value
    page["results"][0]["alarms"].append({"name": "unsteady", "text": "", "figures": {"drift": 1.0}})
    assert VALIDATOR.is_valid(page)
    page["results"][0]["alarms"][-1]["figures"]["another"] = 1
    assert not VALIDATOR.is_valid(page)


def test_every_object_of_the_schema_is_closed() -> None:
    def objects(part: Any) -> Iterator[Mapping[str, Any]]:
        if isinstance(part, dict):
            if "properties" in part and "type" in part:
                yield part
            for value in part.values():
                yield from objects(value)
        elif isinstance(part, list):
            for value in part:
                yield from objects(value)

    closed = list(objects(SCHEMA))
    assert len(closed) > 40
    for each in closed:  # a result and a diagnostic one share their members, and are closed where they are listed
        assert each.get("additionalProperties") is False or each is SCHEMA["$defs"]["result"]
    for name in ("results", "diagnostics"):
        assert SCHEMA["properties"][name]["items"]["unevaluatedProperties"] is False


def test_every_alarm_is_in_the_schema() -> None:
    assert {*SCHEMA["$defs"]["figures"]} == {*RULES} == {*SCHEMA["$defs"]["alarm"]["properties"]["name"]["enum"]}


@pytest.mark.parametrize("summary", [reference, laptop, weak, strong, in_groups])
def test_summaries_of_traces(summary: Any) -> None:
    assert hold(as_json(summary()))["results"]


def test_traces_of_ranks_in_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(nodes=2, ranks_per_node=4, measured_steps=60)
    late = Delay(ranks=(6,), phase="forward", ns=8_000_000)
    model = Model(stages=(1.0, 1.3))
    put(tmp_path, simulate_graph(Mesh(pp=2, dp=2, tp=2), model, np.random.default_rng(0), run=run, delays=[late]).trace)
    (ledger,) = printed(capsys, tmp_path, "--ledger", "--what-if")["ledgers"]
    waits = {term["name"]: term["mean"]["value"] for term in ledger["terms"]}
    for term in ("wait", "communication"):
        assert sum(each[term]["value"] for each in ledger["dimensions"]) == pytest.approx(waits[term])
    assert [role["ranks"] for role in ledger["roles"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for role in ledger["roles"]:
        of_ranks = [place["terms"] for place in ledger["ranks"] if place["ranks"][0] in role["ranks"]]
        assert role["terms"] == pytest.approx([sum(terms) / 4 for terms in zip(*of_ranks, strict=True)])
    assert main([str(tmp_path), "--ledger", "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  by role{more}, ms:\n" in shown for more in ("", " and groups")) and "    role 2  4 to 7" in shown
    assert ledger["verdict"]["ranks"] == [6] and ledger["verdict"]["chain"][0]["ranks"] == [7]
    (stages,) = [each["what"] for each in ledger["findings"] if each["kind"] == "stage imbalance"]
    assert stages["slowest"] == 1
    assert {"dp", "tp", "pp"} <= {each.get("dimension") for each in ledger["what_ifs"]}


def test_a_sweep_with_alarms_diagnostics_trainings_and_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(nodes=2, workload="resnet50", placement="nested")
    plan = [*repeats(run, 4), dataclasses.replace(run, reduction="off"), dataclasses.replace(run, search="batch-size")]
    put_plan(tmp_path, plan)
    for repeat, step_s in zip(plan[:2], ((*[0.1] * 12, 0.4, 0.4, 0.4), 0.2), strict=True):
        put(tmp_path, dataclasses.replace(make_trace(repeat, step_s=step_s), evidence="odd"))
        put_exit_record(tmp_path, repeat, Outcome.OK)
    put_exit_record(tmp_path, plan[2], Outcome.OOM)
    put_exit_record(tmp_path, plan[5], Outcome.OOM)
    put(tmp_path, make_trace(plan[4]))
    put(tmp_path, trained(1, 1.0))
    (tmp_path / "broken.h5").write_text("step time")
    page = printed(capsys, tmp_path, "--what-if")
    assert any(ledger["what_ifs"] for ledger in page["ledgers"])
    assert page["diagnostics"] and page["trainings"] and page["refusals"] and page["ledgers"]
    names = {alarm["name"] for result in page["results"] for alarm in result["alarms"]}
    assert {"fewer_runs", "noted"} <= names


def test_failed_runs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    put_plan(tmp_path, repeats(run, 2))
    put_exit_record(tmp_path, run, Outcome.RANK_FAIL)
    (result,) = printed(capsys, tmp_path)["results"]
    assert (result["median_speed"], result["device"], result["versions"]) == (None, [], {})
    assert [run["outcome"] for run in result["runs"]] == ["rank_fail", "missing"]


def test_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        made.put(tmp_path / name, "1n1g/r50_b128_fp32_1.log", made.ngc_pytorch(made.steps(350, 128), batch=128))
    made.put(tmp_path, "1n8g/r50_b128_fp32_1.log", "Epoch: 0 Iteration: 1\n")
    results = printed(capsys, tmp_path)["results"]
    assert {result["folder"] for result in results if result["median_speed"]} == {"a", "b"}
    assert {result["date"] for result in results} == {None}
    assert all(run["family"] == "ngc-pytorch" for result in results for run in result["runs"] if "log" in run)


def test_a_protocols_mean_of_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step_s = [128 / 350 if number % 10 else 128 / 152 for number in range(1, 141)]
    made.put(tmp_path, "1n1g/r50_b128_fp32_1.log", made.paddle(step_s, batch=128))
    (result,) = printed(capsys, tmp_path, "--speed", "protocol")["results"]
    assert "protocol" in {alarm["figures"].get("source") for alarm in result["alarms"]}


def test_outputs_of_nccl_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, made.put(tmp_path, "1n8g/all_reduce.log", ONE_NODE))
    assert page["nccl_tests"][0]["rows"] and page["results"] == []


def test_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["## ResNet50 batch_size=128 FP32", "", "| node_num | gpu_num | samples/s | speedup |", "| --- " * 4 + "|"]
    lines += ["| 1 | 1 | 366.1 | 1 |", "| 1 | 8 | OOM | - |"]
    (tmp_path / "report.md").write_text("\n".join(lines))
    results = printed(capsys, tmp_path / "report.md", "--kind", "table")["results"]
    assert results and all(result["published"]["document"].endswith("report.md") for result in results)


def test_published_figures_beside() -> None:
    results = judged([make_trace(make_run(backend="torch-ddp", workload="resnet50", gpus_per_node=1, batch_size=128))])
    recipe = read_recipe("ngc-pytorch-resnet50")
    page = hold(as_json(Summary(results=results, against=against(recipe, results))))
    assert page["against"]["name"] == "ngc-pytorch-resnet50" and page["results"][0]["against"]["ratio"] > 0


# What traces recorded


def test_json_and_csv_carry_what_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = {
        "software": {"torch": "2.10", "nccl": None}, "backend": {"transport": "nccl"},
        "project": {"commit": "0a1b", "dirty": True},
    }  # fmt: skip
    run = make_run(gpus_per_node=1)
    put(tmp_path, make_trace(run, environment=environment))
    put_exit_record(tmp_path, run, Outcome.OK)
    (result,) = printed(capsys, tmp_path)["results"]
    expected = {
        "date": "2023-11-14", "device": ["H200"], "driver": ["570.1"], "cpu": ["Xeon"], "transport": ["nccl"],
        "commit": ["0a1b with changes"], "versions": {"torch": ["2.10"]}, "header": {},
    }  # fmt: skip
    assert {name: result[name] for name in expected} == expected
    assert {name: result["runs"][0][name] for name in expected} == expected
    assert result["runs"][0]["begin_unix_s"] == 1_700_000_000
    assert main([str(tmp_path), "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    texts = {name: row[name] for name in expected}
    assert texts == {
        "date": "2023-11-14", "device": "H200", "driver": "570.1", "cpu": "Xeon", "transport": "nccl",
        "commit": "0a1b with changes", "versions": "torch 2.10", "header": "",
    }  # fmt: skip


def test_the_day_of_a_whole_training_is_its_traces_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = trained(1, 1.0)
    put(tmp_path, trace)
    began(1_700_090_000, trace.run).write(tmp_path)
    (run,) = printed(capsys, tmp_path)["results"][0]["runs"]
    assert (run["begin_unix_s"], run["date"]) == (1_700_000_000, "2023-11-14")


# CSV


@pytest.mark.parametrize("summary", [reference, laptop, lambda: Summary(results=())])
def test_every_row_of_the_csv_has_every_column(summary: Any) -> None:
    header, *rows = csv.reader(io.StringIO(comma_separated(summary())))
    assert {*CSV_COLUMNS} <= {*header} and len({*header}) == len(header)
    assert len(rows) == len(summary().results) and all(len(row) == len(header) for row in rows)
    for name in ("median_speed", "interval_low", "speedup", "nodes", "runs_ok"):
        for row in rows:
            float(row[header.index(name)] or "nan")


# The document


def members(part: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every member of the schema by its name, those of members below it too."""
    if isinstance(part, dict):
        if "type" in part and "properties" in part:
            yield from part["properties"].items()
        for value in part.values():
            yield from members(value)
    elif isinstance(part, list):
        for value in part:
            yield from members(value)


def test_the_schema_says_of_every_member_what_it_is() -> None:
    assert [
        name for name, member in members(SCHEMA) if not member.get("description") and "properties" not in member
    ] == []


def test_the_document_names_every_member_of_the_page_and_no_member_that_is_not_there() -> None:
    text = DOCUMENT.partition("## The summary as JSON and CSV")[2].partition("\n## In Python")[0]
    named = {*re.findall(r"`([a-z_]+)`", text)}
    known = {name for name, _ in members(SCHEMA)} | {*CSV_COLUMNS}
    assert {*SCHEMA["properties"]} <= named | {"cost", "network_tests", "reduced"}
    assert named - known == {"null", "median_speed_tokens", "gpt"}


# Read again: by compare, history and forecast


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


def test_pages_of_the_versions_before_are_read_too(tmp_path: Path) -> None:
    written = page(sides(tmp_path)[0])
    content = json.loads(written.read_text())
    assert content["schema_version"] == 5
    for version, others in ((4, {}), (3, {}), (2, {"comparisons": [], "largest": [], "drifts": []})):
        written.write_text(json.dumps(content | {"schema_version": version} | others))
        assert load([written]).attempts and not load([written]).refusals


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content["results"][0].pop("identity"), "written by an older version"),
        (lambda content: content.update(schema_version=1), "no summary of schema 2 or 3 or 4 or 5"),
        (lambda content: content.pop("results"), "'results' is missing"),
        (lambda content: content["results"][0].update(published={}), "name the document itself"),
        (lambda content: content["results"][0]["identity"]["run"].update(nodes=0), "nodes of a run is 0"),
        (
            lambda content: content["results"][0]["identity"]["run"].update(nodes="1"),
            "nodes is '1', not a whole number",
        ),
        (
            lambda content: content["results"][0]["identity"]["run"].update(options={"a": 1}),
            "options.a is 1, not a text",
        ),
        (lambda content: content["results"][0]["identity"]["run"].update(surprise=1), "unknown key surprise"),
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
