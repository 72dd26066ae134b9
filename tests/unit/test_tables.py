"""parse.tables: tables whose columns are named, and those that are known, as points."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse.command_options import QUANTITIES, ColumnsError, read_columns
from parse.compare import main as compare
from parse.extrapolation.rule import series_of_results
from parse.forecast import main as forecast
from parse.report.__main__ import main as report
from parse.report.summary import no_speedup_text
from parse.runs.result import NoSpeedup, Result
from parse.summarize import main as summarize
from parse.tables import Published, published

PUBLIC = Path(__file__).with_name("public_tables.csv")
SIZED = "gpus=GPUs,speed=img/s"


def table(heads: str, *rows: str) -> str:
    return "\n".join([heads, "|".join(["---"] * (heads.count("|") + 1)), *rows, ""])


SPEEDS = table("| GPUs | img/s |", "| 1 | 100 |", "| 8 | 780.0 |", "| 16 | 1,500.50 |")


def read(folder: Path, text: str, columns: str | None = SIZED, name: str = "report.md") -> Published:
    (folder / name).write_text(text, encoding="utf-8")
    return published([folder / name], columns and read_columns([columns]))


def speeds(document: Published) -> dict[str, float | None]:
    assert not document.refusals
    assert len({result.requested.case for result in document.results}) == len(document.results)
    return {result.requested.case: result.median_speed for result in document.results}


def test_rows_that_nobody_measured_are_left_out(tmp_path: Path) -> None:
    rows = table("| GPUs | img/s | by |", "| 1 | 100 | torch-ddp |", "| 8 | 780.0 | simulated |")
    document = read(tmp_path, rows, f"{SIZED},backend=by")
    assert speeds(document) == {"1n1g": 100.0} and "line 4: its steps were drawn" in "".join(document.remarks)


# The columns


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpus", "'gpus': not of the form QUANTITY=COLUMN with one of case, nodes, gpus"),
        ("gpus=GPUs,sped=img/s", "'sped=img/s': not of the form QUANTITY=COLUMN"),
        (
            "gpus=GPUs",
            "one column of speeds is needed (speed, speed_per_gpu, tokens_per_s, tokens_per_s_per_gpu), none",
        ),
        ("gpus=GPUs,speed=a,tokens_per_s=b", "speed, tokens_per_s are named"),
        ("nodes=Nodes,speed=img/s", "the column of sizes is not named: case, gpus, or gpus_per_node with nodes"),
        ("gpus=a,gpus=b,speed=c", "gpus is named twice: 'a' and 'b'"),
    ],
)
def test_columns_that_are_no_table_s_have_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ColumnsError) as refused:
        read_columns([text])
    assert reason in str(refused.value)


def test_columns_may_be_named_in_several_options_and_have_commas() -> None:
    columns = read_columns(["gpus=GPUs", '"speed=Throughput, img/s"', "setting=Model", "setting=Precision"])
    assert columns.heads == {"gpus": "GPUs", "speed": "Throughput, img/s"}
    assert columns.settings == ("Model", "Precision")


# Sizes and speeds


@pytest.mark.parametrize(
    ("columns", "heads", "rows", "expected"),
    [
        ("nodes=node_num,gpus=gpu_num,speed=samples/s", "node_num | gpu_num | samples/s",
         ("1 | 1 | 10", "2 | 16 | 100"), {"1n1g": 10, "2n8g": 100}),
        ("nodes=Nodes,gpus_per_node=each,speed=v", "| Nodes | Each | v |", ("| 1 | 4 | 10 |", "| 2 | 4 | 19 |"),
         {"1n4g": 10, "2n4g": 19}),
        ("gpus_per_node=each,speed=v", "| each | v |", ("| 1 | 10 |", "| 8 | 70 |"), {"1n1g": 10, "1n8g": 70}),
        ("case=case,speed=v", "| Case | v |", ("| 2n8g | 10 |", "| 16g | 70 |", "| 1机8卡 | 5 |", "| 32卡 | 80 |"),
         {"2n8g": 10, "16g": 70, "1n8g": 5, "32g": 80}),
        ("gpus=GPUs,speed_per_gpu=v", "| GPUs | v |", ("| 2 | 10.5 |", "| 8 | 10 |"), {"2g": 21, "8g": 80}),
    ],
)  # fmt: skip
def test_sizes_and_speeds(
    tmp_path: Path, columns: str, heads: str, rows: tuple[str, ...], expected: dict[str, float]
) -> None:
    assert speeds(read(tmp_path, table(heads, *rows), columns)) == expected


def test_a_point_has_what_is_printed_of_it(tmp_path: Path) -> None:
    rows = ("| 1 | 100.1 | 1 | 64 | fp16 | a |", "| 8 | 780.0 | 7.79x | 64 | fp16 | a |")
    text = table("| GPUs | **img/s** | [Speedup](x) | bs | dtype | system |", *rows)
    columns = f"{SIZED},speedup=speedup,batch_size=bs,precision=dtype,backend=system"
    first, point = read(tmp_path, text, columns).results
    assert (point.run.backend, point.run.batch_size, point.run.precision, point.unit) == ("a", 64, "fp16", "samples/s")
    assert point.published and point.published.document == tmp_path / "report.md"
    assert [(figure.what, figure.text, figure.line) for figure in point.published.figures] == [
        ("median", "780.0", 4), ("speedup", "7.79", 4),
    ]  # fmt: skip
    assert (first.speedup, point.speedup) == (1, pytest.approx(7.792, abs=0.001))
    assert (point.interval, point.average_speed, point.ok) == (None, None, ())


def test_tokens(tmp_path: Path) -> None:
    text = table("| GPUs | TGS |", "| 8 | 100 |", "| 16 | 90 |")
    document = read(tmp_path, text, "gpus=GPUs,tokens_per_s_per_gpu=TGS")
    assert speeds(document) == {"8g": 800, "16g": 1440}
    assert {result.unit for result in document.results} == {"tokens/s"}


def test_settings_tell_rows_apart(tmp_path: Path) -> None:
    rows = ("| 1 | 100 | A |", "| 8 | 700 | A |", "| 1 | 10 | B |", "| 8 | 79 | B |")
    document = read(tmp_path, table("| GPUs | img/s | Model |", *rows), f"{SIZED},setting=Model")
    assert {(result.run.options["Model"], result.devices): result.speedup for result in document.results} == {
        ("A", 1): 1, ("A", 8): 7, ("B", 1): 1, ("B", 8): 7.9,
    }  # fmt: skip


@pytest.mark.parametrize(("batches", "batch", "strong"), [((512, 512), 512, True), ((64, 512), 64, False)])
def test_a_batch_of_all_devices(tmp_path: Path, batches: tuple[int, int], batch: int, strong: bool) -> None:
    rows = (f"| 1 | 100 | {batches[0]} |", f"| 8 | 700 | {batches[1]} |")
    document = read(tmp_path, table("| GPUs | img/s | GBS |", *rows), f"{SIZED},global_batch_size=GBS")
    assert {(result.run.batch_size, result.run.scaling == "strong") for result in document.results} == {(batch, strong)}
    assert [result.speedup for result in document.results] == [1, 7]


@pytest.mark.parametrize(
    ("grows", "batch", "strong"), [("strong", 512, True), ("weak", 64, False), ("Strong", 512, True)]
)
def test_a_column_says_how_the_problem_grows(tmp_path: Path, grows: str, batch: int, strong: bool) -> None:
    """One row alone does not show it."""
    columns = f"{SIZED},global_batch_size=GBS,scaling=grows"
    text = table("| GPUs | img/s | GBS | grows |", f"| 8 | 700 | 512 | {grows} |")
    (result,) = read(tmp_path, text, columns).results
    assert (result.run.batch_size, result.run.scaling == "strong") == (batch, strong)


def test_words_in_columns_of_numbers_are_remarked(tmp_path: Path) -> None:
    text = table("| GPUs | img/s | bs | grows |", "| 1 | 100 | large | up |", "| 8 | 700 | 64 | |")
    document = read(tmp_path, text, f"{SIZED},batch_size=bs,scaling=grows")
    assert [(result.run.batch_size, result.run.scaling) for result in document.results] == [(None, None), (64, None)]
    assert [remark.partition(": ")[2] for remark in document.remarks] == [
        "line 3: batch_size 'large' is no whole number: not used",
        "line 3: scaling is 'up', neither weak nor strong: it is not used",
    ]


@pytest.mark.parametrize(
    ("speed", "printed", "interval"),
    [
        ("speed", "690 | 712 | 0.95", (690, 712, 0.95)),
        ("speed_per_gpu", "690 | 712 | 0.95", (5520, 5696, 0.95)),
        ("speed", "712 | 690 | 0.95", None),
        ("speed", "690 | | 0.95", None),
        ("speed", "690 | 712 | 95", None),
    ],
)
def test_a_printed_interval(tmp_path: Path, speed: str, printed: str, interval: tuple[float, ...] | None) -> None:
    columns = f"gpus=GPUs,{speed}=img/s,interval_low=low,interval_high=high,interval_coverage=coverage"
    text = table("| GPUs | img/s | low | high | coverage |", f"| 8 | 700 | {printed} |")
    (result,) = read(tmp_path, text, columns).results
    actual = result.interval and (result.interval.low, result.interval.high, result.interval.coverage)
    assert actual == interval


def test_rows_of_one_size_are_runs(tmp_path: Path) -> None:
    document = read(tmp_path, table("| GPUs | img/s |", "| 8 | 100 |", "| 8 | 102 |", "| 8 | 104 |"))
    (result,) = document.results
    assert (result.median_speed, len(result.ok)) == (102, 3)


def test_a_word_in_the_place_of_a_speed(tmp_path: Path) -> None:
    document = read(tmp_path, table("| GPUs | img/s |", "| 1 | 0 |", "| 8 | OOM |", "| 16 | 95k |", "| 32 | |"))
    assert [run.outcome_text for result in document.results for run in result.runs] == ["0", "OOM", "95k", "nothing"]
    point: Result = document.results[1]
    assert (point.median_speed, point.no_speedup) == (None, NoSpeedup.PLACEHOLDER)
    assert no_speedup_text(point) == "its document prints 'OOM' for 8g"
    (series,) = series_of_results(document.results)
    assert series.out_of_memory == {8}


def test_a_row_without_a_size_is_remarked(tmp_path: Path) -> None:
    rows = ("| 1 | 1 | 100 |", "| mean | 8 | 50 |", "| 3 | 8 | 70 |")
    document = read(tmp_path, table("| Nodes | GPUs | img/s |", *rows), f"nodes=Nodes,{SIZED}")
    assert [result.requested.case for result in document.results] == ["1n1g"]
    path = tmp_path / "report.md"
    assert document.remarks == (
        f"{path}: line 4: {{'nodes': 'mean', 'gpus': '8'}} is no size: the row is left out",
        f"{path}: line 5: {{'nodes': '3', 'gpus': '8'}} is no size: the row is left out",
    )


def test_points_without_a_backend_are_named_by_their_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("GPUs,img/s\n1,100\n8,700\n")
    words = [str(tmp_path / "a.csv"), "--columns", SIZED]
    out = tmp_path / "page.html"
    assert summarize([*words, "--kind", "table"]) == 0 and forecast([*words, "--nodes", "2"]) == 1
    assert report(["--published", *words, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("a.csv: 8g runs 7.00 ×") and "\non GPU, document a.csv\n" in text and "?" not in text
    assert "a.csv, from 1n1g, 8g" in text and "<title>Scaling of a.csv</title>" in out.read_text()
    assert summarize([str(tmp_path), "--kind", "table", "--columns", SIZED]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("document=b.csv: 8g runs")


# The tables of a document


def test_of_several_tables_those_with_all_columns_count(tmp_path: Path) -> None:
    other = table("| GPUs | loss |", "| 1 | 3 |")
    document = read(tmp_path, f"# Title\n\n{SPEEDS}\n{other}\n{SPEEDS.replace('780.0', '640')}")
    at_8 = {
        result.requested.extra["printed_at"]: result.median_speed for result in document.results if result.devices == 8
    }
    assert (len(document.results), at_8) == (6, {"line 3": 780, "line 13": 640})


def test_a_table_right_below_another(tmp_path: Path) -> None:
    document = read(tmp_path, SPEEDS + SPEEDS)
    assert {result.requested.extra["printed_at"] for result in document.results} == {"line 1", "line 6"}


@pytest.mark.parametrize(
    ("text", "columns", "reason"),
    [
        (SPEEDS, "gpus=GPUs,speed=samples/s",
         "no table in it has the column 'samples/s' beside the others; there are line 1: GPUs | img/s"),
        (SPEEDS, None, "no table in it is one of ours: name its columns: --columns 'gpus=COLUMN,speed=COLUMN'; its "
                       "tables have the columns line 1: GPUs | img/s"),
        ("no table\n", SIZED, "no table is in it (Markdown, or a file NAME.csv)"),
        (table("| GPUs | img/s |"), SIZED, "no row of its tables has a size: they have no rows"),
        (table("| GPUs | img/s |", "| few | 8 |"), SIZED,
                       "no row of its tables has a size: line 3: {'gpus': 'few'} is no size"),
        ("a\0b", SIZED, "not a text (it has zero bytes)"),
    ],
)  # fmt: skip
def test_documents_that_are_refused(tmp_path: Path, text: str, columns: str | None, reason: str) -> None:
    document = read(tmp_path, text, columns)
    (refusal,) = document.refusals
    assert refusal.startswith(f"{tmp_path / 'report.md'}: {reason}")
    assert document.results == ()


def test_files_that_cannot_be_read_and_those_of_folders(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(SPEEDS)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.md").write_text(SPEEDS)
    (tmp_path / "b" / "notes.rst").write_text(SPEEDS)
    document = published([tmp_path, tmp_path / "a.md", tmp_path / "none.md"], read_columns([SIZED]))
    assert {result.requested.extra["document"] for result in document.results} == {
        str(tmp_path / "a.md"), str(tmp_path / "b" / "a.md"),
    }  # fmt: skip
    assert len(document.results) == 6 and all(result.base for result in document.results)
    assert document.refusals == (f"{tmp_path / 'none.md'}: no such file or folder",)


def test_a_loop_of_links_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (loop := tmp_path / "a.md").symlink_to(loop)
    assert summarize([str(loop), "--kind", "table"]) == 1
    assert capsys.readouterr().err.startswith(f"not read: {loop}: cannot be read (Too many levels of symbolic links)")
    (tmp_path / "b.md").write_text(SPEEDS)
    document = published([tmp_path], read_columns([SIZED]))
    assert document.refusals == (f"{loop}: cannot be read (Too many levels of symbolic links)",)
    assert len(document.results) == 3


def test_a_file_too_large_for_a_document(tmp_path: Path) -> None:
    assert "cannot be read (more than 4194304 bytes)" in read(tmp_path, "a" * 4194305).refusals[0]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_csv_file(tmp_path: Path, separator: str) -> None:
    rows = ("GPUs,img/s,note", "1,100,", "8,780,good")
    text = "\ufeff\n" + "\n".join(row.replace(",", separator) for row in rows) + "\n"
    document = read(tmp_path, text, name="speeds.csv")
    assert speeds(document) == {"1n1g": 100, "8g": 780}
    assert document.results[1].published and document.results[1].published.figures[0].line == 4


def test_a_quote_that_never_closes(tmp_path: Path) -> None:
    document = read(tmp_path, 'GPUs,img/s\n"' + "1\n" * 200_000, name="speeds.csv")
    assert document.refusals[0].startswith(f"{tmp_path / 'speeds.csv'}: no CSV (field larger than field limit")


@given(st.text(alphabet='|-:\n 0123456789gn,."x\\[]()<>*', max_size=200))
def test_no_text_raises(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("document")
    for name in ("a.md", "a.csv"):
        for columns in (None, "case=,speed=1"):
            document = read(folder, text, columns, name)
            assert not any("bug" in refusal for refusal in document.refusals)
            assert all(result.median_speed is None or result.median_speed > 0 for result in document.results)


# The commands


def printed(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    assert summarize([*map(str, argv)]) == 0
    return capsys.readouterr().out


def test_summaries_of_ours_are_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ("| 1 | 1 | 100.25 | A |", "| 2 | 8 | 740 | A |", "| 1 | 1 | 90 | B |", "| 2 | 8 | 700 | B |")
    (tmp_path / "a.md").write_text(table("| n | GPUs | img/s | Model |", *rows))
    argv = (tmp_path / "a.md", "--columns", f"nodes=n,{SIZED},workload=Model")
    expected = json.loads(printed(capsys, *argv, "--format", "json"))["results"]
    for form, name in (("csv", "back.csv"), ("markdown", "back.md")):
        (tmp_path / name).write_text(printed(capsys, *argv, "--format", form))
        read_back = json.loads(printed(capsys, tmp_path / name, "--kind", "table", "--format", "json"))["results"]
        for quantity in ("case", "workload", "median_speed", "speedup"):
            assert [point[quantity] for point in read_back] == [point[quantity] for point in expected], (form, quantity)


def test_csv_with_samples_and_tokens_is_read_back_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ("resnet50,1,100,", "resnet50,8,780,", "gpt,1,,3000", "gpt,8,,21000")
    (tmp_path / "a.csv").write_text("\n".join(["model,GPUs,img/s", *(row.rpartition(",")[0] for row in rows[:2])]))
    (tmp_path / "b.csv").write_text("\n".join(["model,GPUs,tok/s", *(row.replace(",,", ",") for row in rows[2:])]))
    pages = [
        printed(capsys, tmp_path / name, "--columns", f"gpus=GPUs,workload=model,{speed}", "--format", "csv")
        for name, speed in (("a.csv", "speed=img/s"), ("b.csv", "tokens_per_s=tok/s"))
    ]
    both = [row for page in pages for row in csv.DictReader(page.splitlines())]
    with (tmp_path / "both.csv").open("w") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in both for name in row)))
        writer.writeheader()
        writer.writerows(both)
    results = published([tmp_path / "both.csv"]).results
    assert {
        (each.run.workload, each.requested.case, each.unit): (each.median_speed, each.speedup) for each in results
    } == {
        ("resnet50", "1n1g", "samples/s"): (100, 1), ("resnet50", "8g", "samples/s"): (780, 7.8),
        ("gpt", "1n1g", "tokens/s"): (3000, 1), ("gpt", "8g", "tokens/s"): (21000, 7),
    }  # fmt: skip


def test_every_command_takes_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.md", tmp_path / "after.csv"
    before.write_text(table("| Nodes | GPUs | img/s |", "| 1 | 8 | 800 |", "| 2 | 16 | 1590 |", "| 4 | 32 | 3100 |"))
    after.write_text("Nodes,GPUs,img/s\n1,8,400\n2,16,790\n4,32,1500\n")
    argv = ["--columns", f"nodes=nodes,{SIZED}"]
    assert "4n8g" in printed(capsys, before, *argv)
    assert compare([str(before), str(after), *argv]) in (1, 2)
    assert "4n8g" in capsys.readouterr().out
    forecast([str(before), *argv, "--nodes", "8"])
    assert "from 1n8g, 2n8g, 4n8g" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert report(["--published", str(before), *argv, "--out", str(page)]) == 0
    assert "before.md" in page.read_text()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a.md", "--columns", "gpus=GPUs"], "--columns: one column of speeds is needed"),
        (["a.md", "--columns", SIZED, "--kind", "logs"], "--columns --kind logs: columns are of tables"),
        (["a.md", "--columns", SIZED, "--ledger"], "--ledger --kind table: only traces have the stamps"),
    ],
)
def test_options_that_contradict(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        summarize(argv)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_help_names_every_quantity(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        summarize(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f" {name} (" in shown for name in QUANTITIES)


def test_columns_of_public_tables(tmp_path: Path) -> None:
    """Heads and figures of 118 tables in public repositories, of which the speedups were computed apart."""
    with PUBLIC.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 118
    for row in rows:
        speed, speedup = float(row["speed"]), float(row["speedup"])
        quantity = "tokens_per_s" if row["unit"] == "tokens/s" else "speed"
        cases = (f"| {row['from']} | {speed / speedup!r} |", f"| {row['to']} | {speed!r} |")
        text = table(f"| case | {row['column']} |", *cases)
        columns = f'case=case,"{quantity}={row["column"].replace(chr(34), chr(34) * 2)}"'
        last = read(tmp_path, text, columns).results[-1]
        assert (last.median_speed, last.speedup) == (speed, pytest.approx(speedup, rel=1e-4)), row
