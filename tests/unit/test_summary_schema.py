"""The JSON page by docs/summary.schema.json, docs/formats.md on how to read it, the CSV page as pandas reads it."""

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
from parse.report.against import against
from parse.report.export import CSV_COLUMNS, as_json, comma_separated
from parse.report.summary import Summary
from parse.summarize import main
from tests.unit.ledgers import in_groups, strong, weak
from tests.unit.logs import made
from tests.unit.logs.nccl_lines import ONE_NODE
from tests.unit.simulated_graph import Delay, Mesh, Model, simulate_graph
from tests.unit.test_table import laptop, reference
from tests.unit.test_trainings import trained
from tests.unit.traces import judged, make_run, make_trace, put, put_exit_record, put_plan, repeats

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
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
    assert ledger["verdict"]["ranks"] == [6] and ledger["verdict"]["chain"][0]["ranks"] == [7]
    assert ledger["graph"]["stages"]["slowest"] == 1
    assert {"dp", "tp", "pp"} <= {each.get("dimension") for each in ledger["what_ifs"]}


def test_a_golden_trace(capsys: pytest.CaptureFixture[str]) -> None:
    name = "trace_v2.h5"
    page = printed(capsys, GOLDEN / name, "--ledger")
    (result,) = [*page["results"], *page["diagnostics"]]
    assert result["runs"][0]["trace"].endswith(name)


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


def test_nothing() -> None:
    assert hold(as_json(Summary(results=())))["results"] == []


def test_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in "ab":
        made.put(tmp_path / folder, "1n1g/r50_b128_fp32_1.log", made.ngc_pytorch(made.steps(350, 128), batch=128))
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


def test_two_measurements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    for name, begin_unix_s in (("may", 1_778_760_000), ("june", 1_781_352_000)):
        (tmp_path / name).mkdir()
        put(tmp_path / name, make_trace(run, speed=begin_unix_s % 97 + 1.0))
        began(begin_unix_s, run).write(tmp_path / name)
    page = printed(capsys, tmp_path / "may", tmp_path / "june", "--ledger")
    assert [each["folder"] for each in page["results"]] == ["may", "june"]
    assert [each["date"] for each in page["results"]] == ["2026-05-14", "2026-06-13"]
    assert [each["folder"] for each in page["ledgers"]] == ["may", "june"]
    assert len({each["point_id"] for each in page["results"]}) == 1


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


def test_pandas_reads_both_pages(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is no requirement of ours")
    table = pandas.read_csv(io.StringIO(comma_separated(laptop())))
    assert len(table) == 6 and table["median_speed"].dtype == float and table["versions"][0] == "numpy 2.0; torch 2.13"
    assert len(pandas.read_csv(io.StringIO(comma_separated(Summary(results=()))))) == 0
    page = json.loads(as_json(laptop()))
    assert pandas.json_normalize(page["results"])["median_speed"].tolist() == table["median_speed"].tolist()
    assert len(pandas.json_normalize(page["results"], "runs", ["point_id"], record_prefix="run.")) == 18


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
    text = DOCUMENT.partition("## The summary as JSON and CSV")[2]
    named = {*re.findall(r"`([a-z_]+)`", text)}
    known = {name for name, _ in members(SCHEMA)} | {*CSV_COLUMNS}
    assert {*SCHEMA["properties"]} <= named | {"cost", "network_tests", "reduced"}
    assert named - known == {"null", "median_speed_tokens", "gpt"}
