"""python -m parse.summarize: what goes where, and how it ends."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.outcome import Outcome
from parse import summarize, table
from parse.summarize import main
from tests.unit.traces import make_run, make_trace, put, put_exit_record, put_plan, repeats

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def traces(tmp_path):
    """1n1g and 2n1g, two runs each; one run missing, one file broken."""
    folder = tmp_path / "traces"
    folder.mkdir()
    runs = [run for nodes in (1, 2) for run in repeats(make_run(nodes=nodes, workload="resnet50"), 2)]
    put_plan(folder, runs)
    for run in runs[:3]:
        put(folder, make_trace(run))
        put_exit_record(folder, run, Outcome.OK)
    (folder / "broken.h5").write_text("step time")
    return folder


def test_the_table_goes_to_stdout_and_ends_with_0(traces, capsys):
    assert main([str(traces)]) == 0
    out, err = capsys.readouterr()
    assert "2n1g      2        2       1/2" in out
    assert "2n1g: run 2: missing" in out
    assert f"not read: {traces / 'broken.h5'}: not an HDF5 file" in out
    assert err == ""


@pytest.mark.parametrize("form", ["csv", "dlperf"])
def test_machine_output_stands_alone_and_warnings_on_stderr(traces, capsys, form):
    assert main([str(traces), "--format", form]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("point_id,case" if form == "csv" else "{")
    assert "broken.h5" not in out
    assert "2n1g: run 2: missing" in err
    assert "broken.h5: not an HDF5 file" in err


def test_json_carries_its_warnings(traces, capsys):
    assert main([str(traces), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert "broken.h5" in json.loads(out)["refusals"][0]
    assert err == ""


@pytest.mark.parametrize("form", summarize.FORMATS)
def test_out_writes_a_file_and_nothing_to_stdout(traces, tmp_path, capsys, form):
    out = tmp_path / "table.out"
    assert main([str(traces), "--format", form, "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    main([str(traces), "--format", form])
    assert out.read_text() == capsys.readouterr().out


def test_where_chooses_points(traces, capsys):
    assert main([str(traces), "--where", "case=2n1g", "--where", "workload=resnet50"]) == 0
    out = capsys.readouterr().out
    assert "\n2n1g" in out
    assert "\n1n1g" not in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--where", "colour=red"], "no point has colour"),
        (["--where", "case=9n9g"], "no point has all that --where asks for"),
        (["--out", "/no/such/folder/x"], "No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_1(traces, capsys, words, why):
    assert main([str(traces), *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert why in err
    assert err.count("\n") == 1


def test_nothing_readable_is_1_and_every_file_named(tmp_path, capsys):
    (tmp_path / "x.h5").write_text("step time")
    assert main([str(tmp_path), str(tmp_path / "no")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "x.h5: not an HDF5 file" in err
    assert f"{tmp_path / 'no'}: no such file or folder" in err
    assert err.splitlines()[-1] == f"nothing to summarise in {tmp_path}, {tmp_path / 'no'}"


def test_an_empty_folder_is_one_line_and_1(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"nothing to summarise in {tmp_path}\n"


@pytest.mark.parametrize("words", [[], ["x", "--format", "xml"], ["x", "--where", "case"]])
def test_wrong_usage_is_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_plan_alone_is_summarised_as_missing(tmp_path, capsys):
    put_plan(tmp_path, repeats(make_run(nodes=2), 3))
    assert main([str(tmp_path)]) == 0
    assert "2n1g: 0 of 3 runs asked for ended ok; 3 missing" in capsys.readouterr().out


def test_the_formats_offered_are_those_there_are():
    assert set(summarize.FORMATS) == set(table.FORMATS)


# As a command


def command(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "parse.summarize", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_help_imports_nothing_heavy():
    done = command("--help", env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "argparse" in imported
    assert not imported & {"numpy", "h5py", "rich", "json", "hpc.trace", "torch", "mpi4py"}


def test_a_summary_imports_neither_torch_nor_mpi(traces):
    done = command(str(traces), env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "h5py" in imported
    assert not imported & {"torch", "mpi4py", "launch", "submitit", "tensorflow"}


def test_a_reader_that_leaves_early_causes_no_traceback(traces):
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "parse.summarize", str(traces)], cwd=ROOT, stdout=write, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
    finally:
        os.close(write)
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


def test_a_terminal_that_knows_no_umlaut_gets_the_table(tmp_path):
    put(tmp_path, make_trace(make_run(workload="größe.py:Net")))
    done = command(str(tmp_path), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert r"gr\xf6\xdfe.py:Net" in done.stdout


def test_the_module_reads_no_pickle():
    for path in [*(ROOT / "parse").glob("*.py"), ROOT / "hpc" / "trace.py"]:
        names = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not names & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
