"""parse.tables: tables whose columns are named, and those that are known, as points."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator
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


# The columns


def test_columns_that_are_no_table_s_have_a_reason(cases) -> None:
    def outcomes(lines: list[str]) -> Iterator[str]:
        with pytest.raises(ColumnsError) as refused:
            read_columns(lines)
        yield str(refused.value)

    cases("columns.txt", outcomes)


def test_columns_may_be_named_in_several_options_and_have_commas() -> None:
    columns = read_columns(["gpus=GPUs", '"speed=Throughput, img/s"', "setting=Model", "setting=Precision"])
    assert columns.heads == {"gpus": "GPUs", "speed": "Throughput, img/s"}
    assert columns.settings == ("Model", "Precision")


# Sizes and speeds


def test_what_is_read_of_tables(tmp_path: Path, cases) -> None:
    """The first line is the file's name and the columns; each point, what it is printed as, what is odd, a refusal."""

    def outcomes(lines: list[str]) -> Iterator[str]:
        name, _, columns = lines[0].partition(" ")
        document = read(tmp_path, "\n".join(lines[1:]) + "\n", columns or None, name)
        for result in document.results:
            run, extra = result.run, result.requested.extra
            requested = {"backend": run.backend, "batch_size": run.batch_size, "precision": run.precision,
                         "scaling": run.scaling, **run.options, "printed_at": extra.get("printed_at")}  # fmt: skip
            its = {
                "median": result.median_speed, "speedup": result.speedup and round(result.speedup, 4),
                "no_speedup": result.no_speedup and result.no_speedup.name.lower(),
                "interval": result.interval and dataclasses.astuple(result.interval),
                "runs": [run.outcome_text for run in result.runs],
                "printed": [(each.what, each.text, each.line) for each in result.published.figures],
            }  # fmt: skip
            shown = {name: value for name, value in {**requested, **its}.items() if value}
            yield f"{result.requested.case} {result.unit} {json.dumps(shown)}"
        yield from (line.replace(f"{tmp_path}/", "") for line in (*document.remarks, *document.refusals))

    cases("tables.txt", outcomes)


def test_memory_that_ran_out_is_known_to_forecasts(tmp_path: Path) -> None:
    document = read(tmp_path, table("| GPUs | img/s |", "| 1 | 100 |", "| 8 | OOM |", "| 16 | 95k |"))
    assert no_speedup_text(document.results[1]) == "its document prints 'OOM' for 8g"
    (series,) = series_of_results(document.results)
    assert series.out_of_memory == {8}


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
    assert "a.csv, from 1n1g, 8g" in text and "<title>Scaling of a.csv, 1n1g to 8g</title>" in out.read_text()
    assert summarize([str(tmp_path), "--kind", "table", "--columns", SIZED]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("document=b.csv: 8g runs")


# The tables of a document


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
