"""parse.published: documents with tables, printed results and lines of runs, as points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse.published.columns import claims
from parse.published.points import Published, published
from parse.published.tables import tables
from parse.report.summary import no_speedup_text
from parse.runs.result import NoSpeedup, Result

TITLE = "# NVIDIA PyTorch ResNet50 v1.5\n\nmeasured on four nodes\n"
RUNS = """
logs/ngc/pytorch/1n1g/r50_b128_fp32_2.log {2: 100.2}
logs/ngc/pytorch/1n1g/r50_b128_fp32_1.log {2: 100.2, 1: 100.0}
logs/ngc/pytorch/1n1g/r50_b128_fp32_3.log {2: 100.2, 1: 100.0, 3: 100.1}
logs/ngc/pytorch/1n8g/r50_b128_fp32_4_6.log {4: 200.5}
logs/ngc/pytorch/1n8g/r50_b128_fp32_1.log {4: 200.5, 1: 790.0}
logs/ngc/pytorch/1n8g/r50_b128_fp32_4.log {4: 780.0, 1: 790.0}
"""
BLOCK = """{'r50': {'1n1g': {'average_speed': 100.1,
                  'batch_size_per_device': 128,
                  'median_speed': 100.1,
                  'speedup': 1.0},
         '1n8g': {'average_speed': 590.17,
                  'batch_size_per_device': 128,
                  'median_speed': 780.0,
                  'speedup': 7.79}}}
Saving result to ./result/_result.json
"""
TABLE = """## FP32
### batch_size = 128

| node_num | gpu_num | samples/s | speedup |
| -------- | ------- | --------- | ------- |
| 1        | 1       | 100.1     | 1       |
| 1        | 8       | 780.0     | 7.79    |
| 2        | 16      | 1,500.50  | 14.99   |
"""


def read(folder: Path, text: str, name: str = "report.md") -> Published:
    (folder / name).write_text(text, encoding="utf-8")
    return published([folder / name])


def by_case(document: Published) -> dict[str, Result]:
    assert len({result.requested.case for result in document.results}) == len(document.results)
    return {result.requested.case: result for result in document.results}


def table(heads: str, *rows: str) -> str:
    return "\n".join([heads, "|".join(["---"] * (heads.count("|") + 1)), *rows])


# Tables


def test_a_table_with_nodes_and_all_devices(tmp_path):
    document = by_case(read(tmp_path, TITLE + TABLE))
    assert {name: result.median_speed for name, result in document.items()} == {
        "1n1g": 100.1, "1n8g": 780.0, "2n8g": 1500.5
    }  # fmt: skip
    point = document["2n8g"]
    assert (point.run.backend, point.run.workload) == ("ngc-pytorch", "resnet50")
    assert (point.run.batch_size, point.run.precision) == (128, "fp32")
    assert point.speedup == pytest.approx(14.99, abs=0.005)
    assert point.published and point.published.document == tmp_path / "report.md"
    assert [(result.what, result.text, result.line) for result in point.published.figures] == [
        ("median", "1500.50", 11), ("speedup", "14.99", 11)
    ]  # fmt: skip
    assert (point.interval, point.average_speed, point.ok) == (None, None, ())
    assert None not in (point.run.batch_size, point.run.precision, point.run.workload, point.run.nodes)


def test_a_table_without_pipes_at_its_ends_right_below_another(tmp_path):
    rows = table("node_num | gpu_num_per_node | samples/s |", "1 | 1 | 10 |", "2 | 8 | 100 |")
    document = read(tmp_path, f"{rows}\n{rows.replace('| 10 |', '| 20 |').replace('100', '200')}\n")
    assert [(result.requested.case, result.median_speed) for result in document.results] == [
        ("1n1g", 10), ("2n8g", 100), ("1n1g", 20), ("2n8g", 200)
    ]  # fmt: skip
    assert {result.requested.extra["printed_at"] for result in document.results} == {"line 1", "line 5"}
    run = document.results[0].run
    assert (run.batch_size, run.precision, run.workload) == (None, None, None)


def test_a_table_with_several_systems_side_by_side(tmp_path):
    text = "# Comparison\n## ResNet50 bsz = 64\n" + table(
        "| Node num | GPU num | [OneFlow](x) | NGC<br>TensorFlow 1.x<br>bsz=32 | MxNet |",
        "| 1 | 1 | 380.5 | 270 | TODO |",
        "| 2 | 16 | 5839.054 | OOM | TODO |",
    )
    document = read(tmp_path, text)
    points = {(result.run.backend, result.run.batch_size, result.requested.case): result for result in document.results}
    assert {name: result.median_speed for name, result in points.items()} == {
        ("oneflow", 64, "1n1g"): 380.5, ("oneflow", 64, "2n8g"): 5839.054,
        ("ngc-tensorflow", 32, "1n1g"): 270, ("ngc-tensorflow", 32, "2n8g"): None,
        ("mxnet", 64, "1n1g"): None, ("mxnet", 64, "2n8g"): None,
    }  # fmt: skip
    assert [run.outcome_text for run in points["ngc-tensorflow", 32, "2n8g"].runs] == ["OOM"]
    assert [run.outcome_text for run in points["mxnet", 64, "1n1g"].runs] == ["TODO"]
    without = points["mxnet", 64, "2n8g"]
    assert (without.no_speedup, without.placeholders) == (NoSpeedup.PLACEHOLDER, ("TODO",))
    assert no_speedup_text(without) == "its document prints 'TODO' for 2n8g"
    assert points["oneflow", 64, "2n8g"].speedup == pytest.approx(15.346, abs=0.001)


def test_two_columns_of_one_system_are_two_points(tmp_path):
    heads = "| node num | device num | TensorFlow 1.x | TensorFlow 1.x<br>w/XLA |"
    document = read(tmp_path, table(heads, "| 1 | 1 | 10 | 12 |"))
    assert {result.requested.extra["printed_at"]: result.median_speed for result in document.results} == {
        "line 1 TensorFlow 1.x": 10, "line 1 TensorFlow 1.x w/XLA": 12
    }  # fmt: skip


def test_two_columns_of_one_name_are_two_points(tmp_path):
    document = read(tmp_path, table("| nodes | gpus | MXNet | MXNet |", "| 1 | 1 | 10 | 12 |"))
    assert {result.requested.extra["printed_at"]: result.median_speed for result in document.results} == {
        "line 1 MXNet 1": 10, "line 1 MXNet 2": 12
    }  # fmt: skip


def test_a_case_of_devices_alone(tmp_path):
    document = read(tmp_path, table("| | Time2train(sec) | 吞吐(images/sec) | 准确率(%) | 加速比 |",
                                 "| 1卡 | 1,000 | 50.25 | 76.1 | 1 |", "| 8卡 | - | - | - | 7 |"))  # fmt: skip
    cases = by_case(document)
    assert cases["1n1g"].median_speed == 50.25
    assert cases["8g"].median_speed is None
    assert [run.outcome_text for run in cases["8g"].runs] == ["-"]
    assert cases["8g"].run.nodes is None
    # Beside times to train a speedup is one of times.
    assert all(result.published and result.published.speedup is None for result in document.results)


def test_rows_of_one_case_are_its_runs(tmp_path):
    rows = [f"| 1 | 8 | {speed} |" for speed in (10, 11, 12)]
    (result,) = read(tmp_path, table("| num_nodes | gpu_num_per_node | throughput |", *rows)).results
    assert (result.median_speed, result.average_speed, len(result.ok)) == (11, 11, 3)
    assert result.interval and (result.interval.low, result.interval.high) == (10, 12)


def test_a_batch_size_in_a_column_makes_points(tmp_path):
    heads = "| num_nodes | gpu_num_per_node | batch_size_per_device | precision | samples/s |"
    document = read(tmp_path, table(heads, "| 1 | 1 | 64 | fp32 | 10 |", "| 1 | 1 | 128 | amp | 20 |"))
    assert [(result.run.batch_size, result.run.precision) for result in document.results] == [
        (64, "fp32"),
        (128, "amp-fp16"),
    ]


def test_a_speed_of_zero_is_none(tmp_path):
    (result,) = read(tmp_path, table("| case | samples/s |", "| 1n8g | 0 |")).results
    assert result.median_speed is None
    assert [run.outcome_text for run in result.runs] == ["0"]


def test_a_ratio_between_precisions_is_no_speed_and_a_cell_may_carry_its_unit(tmp_path):
    text = table(
        "GPUs | Throughput - TF32 | Throughput - mixed precision | Throughput speedup (TF32 to mixed precision) | "
        "TF32 Strong Scaling",
        "1 | 400 img/s | 1000 img/s | 2.50 x | 1.0 x",
        "8 | 3,000 img/s | 6600 images/sec | 2.20 x | 7.5 x",
    )
    document = read(tmp_path, text)
    speeds = {(result.run.precision, result.run.devices): result.median_speed for result in document.results}
    assert speeds == {("tf32", 1): 400, ("tf32", 8): 3000, ("amp-fp16", 1): 1000, ("amp-fp16", 8): 6600}


@pytest.mark.parametrize("cell", ["2.65 x", "2.65×", "77 %"])
def test_a_ratio_in_a_column_of_speeds_is_none(tmp_path, cell):
    document = by_case(read(tmp_path, table("case | samples/s", "1n1g | 100", f"1n8g | {cell}")))
    assert document["1n1g"].median_speed == 100 and document["1n8g"].median_speed is None


@pytest.mark.parametrize("head", ["Batch size / GPU", "batch size/device", "Batch Size per GPU", "bs"])
def test_a_batch_size_of_each_device_makes_points(tmp_path, head):
    rows = ("1 | 2 | 13.0", "1 | 4 | 18.0", "8 | 2 | 84.0", "8 | 4 | 104.0")
    document = read(tmp_path, table(f"GPUs | {head} | Throughput [img/s]", *rows))
    speeds = {(result.run.batch_size, result.run.devices): result.median_speed for result in document.results}
    assert speeds == {(2, 1): 13.0, (4, 1): 18.0, (2, 8): 84.0, (4, 8): 104.0}


def test_speeds_of_each_device_by_nodes(tmp_path):
    rows = table("NUM_NODES | TPS/GPU | Memory(GiB)", "4 | 10900 | 48.0", "8 | 10700 | 47.0")
    document = read(tmp_path, f"# 8 GPUs in each node\n\n{rows}")
    speeds = {result.requested.case: result.median_speed for result in document.results}
    assert speeds == {"4n8g": 348_800, "8n8g": 684_800}
    assert {result.unit for result in document.results} == {"tokens/s"}
    assert document.remarks == (
        f"{tmp_path / 'report.md'}: line 3: TPS/GPU is of one device: multiplied by their number",
    )
    (refusal,) = read(tmp_path, rows).refusals
    assert "by nodes, and neither a column nor a heading says how many devices a node has" in refusal


def test_the_speed_of_all_counts_where_a_table_has_both(tmp_path):
    rows = table("Nodes | GPUs | Tokens/sec | Tokens/sec per GPU", "1 | 8 | 4000 | 500", "2 | 16 | 7600 | 475")
    document = read(tmp_path, rows)
    assert [(result.requested.case, result.median_speed, result.unit) for result in document.results] == [
        ("1n8g", 4000, "tokens/s"), ("2n8g", 7600, "tokens/s")
    ]  # fmt: skip


def test_a_column_of_cases_with_another_word_in_it(tmp_path):
    document = read(tmp_path, table("case | samples/s", "1n1g | 100", "all | 7"))
    assert [result.requested.case for result in document.results] == ["1n1g"]
    assert "no case is to be read in all | 7" in document.remarks[0]
    (refusal,) = read(tmp_path, table("case | samples/s", "small | 100")).refusals
    assert "whose column of cases has none like 1n8g" in refusal


def test_headings_in_code_and_tables_without_results_are_not_read(tmp_path):
    text = "# T\n### batch size = 64\n```\n# batch_size = 1\n```\n" + table("| Feature | Paddle |", "| FP32 | Yes |")
    text += "\n\n" + table("| case | samples/s |", "| 1n1g | 5 |")
    document = read(tmp_path, text)
    assert [(result.run.batch_size, result.median_speed) for result in document.results] == [(64, 5)]
    assert document.remarks == ()


def test_an_unreadable_part_of_a_table_is_remarked(tmp_path):
    speeds = table("| node_num | gpu_num | samples/s |", "| 1 | 1 | 5 |", "| 3 | 16 | 50 |", "| two | 16 | 70 |")
    document = read(tmp_path, f"{speeds}\n\n{table('| case | throughput |', '| r50 | 7 |')}\n")
    assert [result.median_speed for result in document.results] == [5]
    report = tmp_path / "report.md"
    assert document.remarks == (
        f"{report}: line 4: no case is to be read in 3 | 16 | 50; the row is left out",
        f"{report}: line 5: no case is to be read in two | 16 | 70; the row is left out",
        f"{report}: line 7: a table of speeds, whose column of cases has none like 1n8g; not read",
    )


# Printed results


def test_runs_beside_a_printed_result_and_its_table(tmp_path):
    document = by_case(read(tmp_path, TITLE + RUNS + BLOCK + TABLE))
    assert [*document] == ["1n1g", "1n8g", "2n8g"]
    single, eight, sixteen = document.values()
    assert {(r.run.backend, r.run.workload, r.run.batch_size, r.run.precision) for r in document.values()} == {
        ("ngc-pytorch", "resnet50", 128, "fp32")
    }
    assert [(run.requested.run.repeat, run.measured.throughput) for run in single.runs if run.measured] == [
        (1, 100.0), (2, 100.2), (3, 100.1)
    ]  # fmt: skip
    assert [run.attempt.log.path.name for run in single.ok if run.attempt and run.attempt.log] == [
        "r50_b128_fp32_1.log", "r50_b128_fp32_2.log", "r50_b128_fp32_3.log"
    ]  # fmt: skip
    assert (eight.median_speed, eight.average_speed, len(eight.ok)) == (785, 785, 2)
    assert eight.speedup == pytest.approx(785 / 100.1)
    assert eight.published
    assert (eight.published.median, eight.published.average, eight.published.speedup) == (780, 590.17, 7.79)
    assert eight.published.packed == (("r50_b128_fp32_4_6.log", 200.5),)
    assert [figure.line for figure in eight.published.all("median")] == [17, 26]
    # Only the table has 2n8g: a single figure beside the runs.
    assert (sixteen.median_speed, sixteen.ok) == (1500.5, ())


def test_a_table_of_other_speeds_is_another_setting(tmp_path):
    document = read(tmp_path, TITLE + RUNS + BLOCK + TABLE.replace("100.1", "200.2").replace("780.0", "880.0"))
    assert len(document.results) == 5
    assert sorted({result.requested.extra["printed_at"] for result in document.results}) == ["line 11", "line 23"]
    table_of_fp16 = TABLE.replace("FP32", "AMP")
    assert len(read(tmp_path, TITLE + RUNS + BLOCK + table_of_fp16).results) == 5


def test_a_table_that_repeats_a_column_is_of_its_setting(tmp_path):
    """As reference 001 does: cases and speedups first, then the same speeds under their batch size."""
    speeds = table("| 节点-GPU | samples/s | 加速比 |", "| 1机1卡 | 347.12 | 1 |", "| 1机2卡 | 604.11 | 1.74 |",
                   "| 2机16卡 | 2384.3 | 6.87 |")  # fmt: skip
    both = table("| Node num | GPU num | Paddle | PyTorch |", "| 1 | 1 | 353.66 | 347.12 |",
                 "| 1 | 2 | 681.4 | 604.11 |", "| 2 | 16 | 5161 | 2384.3 |")  # fmt: skip
    document = read(tmp_path, f"# Pytorch\n\n{speeds}\n\n### ResNet50 bsz = 128\n\n{both}\n")
    assert {(result.run.backend, result.run.workload, result.run.batch_size) for result in document.results} == {
        ("paddle", "resnet50", 128), ("pytorch", "resnet50", 128)
    }  # fmt: skip
    last = document.results[-1].published
    assert last and [(result.what, result.text, result.line) for result in last.figures] == [
        ("median", "2384.3", 7), ("speedup", "6.87", 7), ("median", "2384.3", 15)
    ]  # fmt: skip
    other = read(tmp_path, f"# Pytorch\n\n{speeds}\n\n### ResNet50 bsz = 128\n\n{both.replace('604.11', '604.12')}\n")
    assert len(other.results) == 9
    assert [result.run.workload for result in other.results if result.run.batch_size is None] == [None] * 3


def test_a_packed_log_whose_number_another_log_takes_over_later(tmp_path):
    # Line by line the extractor's dict has 4: 200.5 of the packed log, then 4: 780.0 of the run.
    (result,) = (result for result in read(tmp_path, RUNS).results if result.requested.case == "1n8g")
    assert {run.requested.run.repeat: run.measured.throughput for run in result.runs if run.measured} == {
        1: 790,
        4: 780,
    }


def test_a_result_without_runs_and_one_in_json(tmp_path):
    for text in (BLOCK, json.dumps({"r50": {"1n8g": {"median_speed": 780.0, "speedup": None}}}, indent=4)):
        document = [result for result in read(tmp_path, text).results if result.requested.case == "1n8g"]
        assert [(result.median_speed, result.run.workload, result.ok) for result in document] == [(780, "resnet50", ())]
        assert document[0].run.precision is None


def test_one_result_for_runs_of_two_precisions_is_kept_with_none(tmp_path):
    # Mistake 2: both are run 1 of 1n1g to the extractor.
    text = RUNS.replace("1n1g/r50_b128_fp32_3", "1n1g/r50_b128_fp16_3") + BLOCK.replace("100.1", "99.0")
    document = read(tmp_path, text)
    points = [result for result in document.results if result.requested.case == "1n1g"]
    assert sorted((point.run.precision, len(point.ok)) for point in points) == [("amp-fp16", 1), ("fp32", 2)]
    assert any(
        "one result is printed for the r50 runs of 2 settings (amp-fp16, fp32)" in remark for remark in document.remarks
    )


@pytest.mark.parametrize(
    ("line", "remark"),
    [
        ("a/1n1g/r50_b1_fp32_1.log {1: 'fast'}", "no run and its speed"),
        ("a/1n1g/r50_b1_fp32_1.log {1: -5.0}", "no run and its speed"),
        ("a/1n1g/r50_b1_fp32_1.log {True: 5.0}", "no run and its speed"),
        ("a/1n1g/r50_b1_fp32_1.log {1: __import__('os')}", "no run and its speed"),
        ("a/1n1g/r50_b1_fp32_0.log {0: 5.0}", "none is the run of"),
        ("a/1n1g/odd.log {3: 5.0, 4: 6.0}", "none is the run of"),
        ("a/b/r50_b1_fp32_1.log {1: 5.0}", "name no case like 1n8g"),
        ("{'r50': {'1n1g': {'median_speed': 5.0 + open}}}", "a printed result that cannot be read"),
        ("{'r50': {'all': {'median_speed': 5.0}}}", "'all' is no case like 1n8g"),
    ],
)
def test_an_unreadable_part_of_a_printed_result_is_remarked(tmp_path, line, remark):
    document = read(tmp_path, f"{RUNS}\n{line}\n")
    assert [result.median_speed for result in document.results] == [100.1, 785]
    assert len(document.remarks) == 1
    assert remark in document.remarks[0]


def test_a_run_that_is_printed_by_two_logs_counts_once(tmp_path):
    document = read(tmp_path, "a/1n1g/r50_b1_fp32_1.log {1: 5.0}\na/1n1g/r50_b1_fp32_1.log {1: 6.0}\n")
    assert [result.median_speed for result in document.results] == [5]
    assert "is run 1 again" in document.remarks[0]


# Documents


def test_points_of_two_documents_are_never_the_same(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "README.md").write_text(TITLE + TABLE)
    document = published([tmp_path])
    assert len(document.results) == 6
    assert {result.requested.extra["document"] for result in document.results} == {
        str(tmp_path / folder / "README.md") for folder in ("a", "b")
    }
    assert document == published([tmp_path, tmp_path / "a"])


def test_other_files_are_refused_with_the_reason(tmp_path):
    (tmp_path / "none.md").write_text("# Nothing\nno | table\n")
    (tmp_path / "binary.txt").write_bytes(b"a\0b")
    (tmp_path / "only.md").write_text(table("| case | throughput |", "| r50 | 7 |"))
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    document = published([tmp_path, tmp_path / "gone.md"])
    assert document.results == ()
    assert document.refusals == (
        f"{tmp_path / 'gone.md'}: no such file or folder",
        f"{tmp_path / 'binary.txt'}: not a text (it has zero bytes)",
        f"{tmp_path / 'none.md'}: no table of speeds or times by case and no printed result is in it",
        f"{tmp_path / 'only.md'}: no table of speeds or times by case and no printed result is in it; "
        "line 1: a table of speeds, whose column of cases has none like 1n8g; not read",
    )


def test_a_byte_order_mark_is_no_column(tmp_path):
    for text in ("GPUs,samples/s\n1,100\n2,190\n", table("| GPUs | samples/s |", "| 1 | 100 |", "| 2 | 190 |")):
        document = by_case(read(tmp_path, f"\ufeff{text}"))
        assert {case: result.median_speed for case, result in document.items()} == {"1n1g": 100, "2g": 190}


def test_a_file_too_large_for_a_document(tmp_path, monkeypatch):
    monkeypatch.setattr("parse.published.files.MAX_BYTES", 100)
    assert "too large for a document" in read(tmp_path, TITLE + TABLE).refusals[0]
    monkeypatch.undo()
    monkeypatch.setattr("parse.published.files.MAX_LINES", 5)
    assert read(tmp_path, TITLE + TABLE).refusals[0].endswith(": 11 lines, more than the 5 of a document")
    monkeypatch.undo()
    monkeypatch.setattr("parse.published.points.MAX_COLUMNS", 1)
    twice = read(tmp_path, TITLE + TABLE + "\n" + TABLE.replace("100.1", "200.2"))
    assert len(twice.results) == 3
    assert "the rest is not read" in twice.remarks[0]
    of_rows = read(tmp_path, table("GPUs|samples/s|algorithm", "1|5|ring", "1|6|tree", "1|7|both"))
    assert len(of_rows.results) == 1 and "the rest is not read" in of_rows.remarks[0]
    assert not read(tmp_path, table("GPUs|samples/s", "1|5", "2|9")).remarks
    wide = read(tmp_path, table("case" + "|samples/s" * 100, "1n1g" + "|5" * 100))
    assert wide.refusals[0].endswith("line 1: a table of 101 columns is no report; not read")


PIECES = st.sampled_from(
    [*"|{}:-#`'\" \n\t0123456789.,", "---|---", "\n| 1n1g | ", "samples/s", "| case | samples/s |\n|---|---|\n", "TODO",
     "{'r50': {'1n1g': {'median_speed': ", "a/1n1g/r50_b1_fp32_1.log {1: ", "5.0}", "}}}", "```\n", "2机16卡", "加速比"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=200))
def test_no_text_raises_or_makes_a_number_of_nothing(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("documents") / "report.md"
    path.write_bytes(text.encode("utf-8", "replace"))
    document = published([path])
    assert all(row.devices > 0 for grid in tables(text.splitlines()) for row in claims(grid))
    for result in document.results:
        assert result.median_speed is None or result.median_speed > 0
        assert result.median_speed is not None or result.runs


JUBE = {
    "pretty": """result:
| jobid | nodes | gpus | imagespersec_avg | imagespersec_std | imagespersec_max | runtime[s] |
|-------|-------|------|------------------|------------------|------------------|------------|
| 94807 |     1 |    4 |          10916.5 |             31.2 |          10999.0 |     110.49 |
| 94808 |     4 |   16 |          42000.0 |             12.7 |          43000.0 |      30.00 |
""",
    "pluses": """result:
| nodes | gpus | imagespersec_avg |
|-------+------+------------------|
|     1 |    4 |          10916.5 |
|     4 |   16 |          42000.0 |
""",
    "without borders": """result:
nodes | gpus | imagespersec_avg[img/s]
------+------+------------------------
    1 |    4 |                 10916.5
    4 |   16 |                 42000.0
""",
    "csv": """
nodes,gpus,model,throughput_avg,total_time_secs
1,4,"ViT-L-14, small",10916.5,1744.8599999999974
4,16,"ViT-L-14, small",42000.0,569.2310000000002 \

""",
    "aligned": "nodes;gpus;throughput_avg\n    1;   4;       10916.5\n    4;  16;       42000.0\n",
}


@pytest.mark.parametrize("style", JUBE)
@pytest.mark.parametrize("block", ["{}", "## JUBE\n\n```\njube result -a run\n{}```\n"], ids=["file", "document"])
def test_results_of_jube(tmp_path, style, block):
    document = read(tmp_path, block.format(JUBE[style]), "result.txt")
    results = by_case(document)
    assert {case: result.median_speed for case, result in results.items()} == {"1n4g": 10916.5, "4n4g": 42000.0}
    assert results["4n4g"].speedup == pytest.approx(42000 / 10916.5)
    assert not document.remarks


def test_lines_with_commas_are_no_table(tmp_path):
    for text in ("nodes,gpus,model\n1,4,a\n", "nodes,throughput\nmany,12\n", "gpus, throughput, 12\n8, 100, 12\n"):
        assert not list(tables(text.splitlines()))
    (result,) = read(tmp_path, "gpus,tokens_per_second\n8,190\n", "result.csv").results
    assert (result.requested.run.unit, result.median_speed) == ("tokens", 190)
    by_nodes = read(tmp_path, "nodes,tokens_per_second\n1,100\n2,190\n", "result.csv")
    assert "neither a column nor a heading says how many devices a node has" in by_nodes.refusals[0]
