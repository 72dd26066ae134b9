"""`parse.report --format latex|markdown-report`: the section of a paper, its method, and the command."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc.model.reference import read_recipe
from parse.page.paper import content as content_module
from parse.page.paper.content import content, method
from parse.page.paper.write import FIGURES, MAX_ROWS, SECTIONS, outputs, rendered
from parse.report.__main__ import main
from parse.report.against import against
from parse.report.summary import Summary
from tests.unit.ledger_traces import run_of, trace_of
from tests.unit.logs import made
from tests.unit.page_folders import put_document, put_failed, put_hostile, put_sweep, put_two_bases
from tests.unit.papers import section_of, summary_of, tables_of, words_of, written
from tests.unit.traces import judged, make_run, make_trace, point, put, repeats

pytestmark = pytest.mark.usefixtures("font_cache")


def put_two_backends(folder: Path) -> None:
    """Two backends on one and two nodes, a run out of memory, and a run of another version of torch."""
    put_sweep(folder)
    for nodes in (1, 2):
        run = run_of(nodes=nodes, ranks_per_node=nodes, workload="resnet50", backend="paddle-fleet")
        for repeat in repeats(run, 6):
            version = "2.13" if repeat.repeat < 6 else "2.14_rc&1"
            software = {"torch": version, "nccl": "2.27", "mpi": "Open MPI v5.0"}
            trace = trace_of(repeat, noise=0.05, seed=repeat.repeat)
            put(folder, dataclasses.replace(trace, environment={**trace.environment, "software": software}))


# The text


@pytest.mark.parametrize("form", SECTIONS)
def test_the_section_is_as_in_the_golden_file(tmp_path: Path, golden: Callable[[str, str], None], form: str) -> None:
    put_two_backends(tmp_path)
    golden(f"section.{SECTIONS[form][8:]}", rendered(content(summary_of(tmp_path)), form, FIGURES[form]))


def test_published_figures_stand_beside_the_measured_ones() -> None:
    run = make_run(
        backend="torch-ddp", workload="resnet50", batch_size=128, warmup_steps=20, measured_steps=100, timing="step",
        options={"recipe": "ngc", "image_size": "224"}, gpus_per_node=1,
    )  # fmt: skip
    results = judged(point(run, [732.28]))
    summary = Summary(results=results, against=against(read_recipe("ngc-pytorch-resnet50"), results))
    section = section_of(summary)
    assert "published & ratio & published speedup" in section and " & 2.000 & " in section
    assert "published: " in section and r"(recipe ngc-pytorch-resnet50), devices: " in section
    assert "published" not in section_of(dataclasses.replace(summary, against=None))


def test_each_base_has_a_table_and_a_panel(tmp_path: Path) -> None:
    put_two_bases(tmp_path)
    section = content(summary_of(tmp_path))
    tables = tables_of(section, "scaling")
    assert [table.caption.rpartition("speedup ")[2] for table in tables] == [
        "against 2n2g, and efficiency", "against 1n2g, and efficiency",
    ]  # fmt: skip
    assert [[row[:2] for row in table.rows] for table in tables] == [
        [["2n2g", "paddle-fleet"], ["4n2g", "paddle-fleet"], ["8n2g", "paddle-fleet"]],
        [["1n2g", "torch-ddp"], ["2n2g", "torch-ddp"], ["4n2g", "torch-ddp"]],
    ]  # fmt: skip
    assert section.curves is not None
    panels = [(panel.base, panel.base_devices, len(panel.series)) for panel in section.curves.panels]
    assert panels == [("1n2g", 2, 1), ("2n2g", 4, 1)]
    assert section.curves.caption.startswith("Speedup against 1n2g and 2n2g, a panel each, by the number of devices")
    assert (
        "Speedup is the median divided by that of 2n2g or 1n2g, with all else equal; efficiency is speedup divided by "
        "the ratio of the devices."
    ) in method(summary_of(tmp_path))


def test_each_unit_has_a_table(tmp_path: Path) -> None:
    made.put(tmp_path, "1n1g/r50_b128_1.log", made.ngc_pytorch(made.steps(360.0, 128), batch=128))
    summary = summary_of(tmp_path)
    tokens = dataclasses.replace(
        summary.results[0],
        requested=dataclasses.replace(
            summary.results[0].requested, run=dataclasses.replace(summary.results[0].run, unit="tokens")
        ),
    )
    section = section_of(dataclasses.replace(summary, results=(*summary.results, tokens)))
    assert section.count(r"\begin{tabular}") == 2
    assert "(samples/s)," in section and "(tokens/s)," in section
    assert r"\label{tab:scaling}" in section and r"\label{tab:scaling-1}" in section


def test_a_long_table_goes_on_in_further_ones() -> None:
    results = judged(
        [trace for nodes in range(1, MAX_ROWS + 3) for trace in point(make_run(nodes=nodes), [100.0 * nodes])]
    )
    section = section_of(Summary(results=results))
    assert section.count(r"\begin{table}") == 3 and section.count("(continued).") == 1
    assert all(f"    {result.requested.case}" in section for result in results)


def test_a_warning_names_its_point(tmp_path: Path) -> None:
    put_sweep(tmp_path)
    assert r"\item 2n2g: run 3: oom" in section_of(summary_of(tmp_path))


def test_protocols_that_differ_are_all_named(tmp_path: Path) -> None:
    put(tmp_path, make_trace(make_run(warmup_steps=5, measured_steps=10)))
    put(tmp_path, make_trace(make_run(nodes=2, warmup_steps=6, measured_steps=9)))
    text = "with 5 warm-up steps and 10 measured steps or 6 warm-up steps and 9 measured steps"
    assert text in sentences(summary_of(tmp_path))


def test_warnings_beyond_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_hostile(tmp_path)
    summary = summary_of(tmp_path)
    assert "further remark" not in words_of(content(summary))
    monkeypatch.setattr(content_module, "MAX_REMARKS", 1)
    assert "further remarks: python -m parse.summarize --warnings has them." in words_of(content(summary))


# The method


def sentences(summary: Summary) -> str:
    return " ".join(method(summary))


def test_a_fact_that_all_runs_have_is_of_all_runs(tmp_path: Path) -> None:
    for run in repeats(make_run(), 2):
        trace = make_trace(run)
        project = {"commit": "abc123", "dirty": True}
        ranks = [{**rank, "device": {"name": "NVIDIA H100"}, "nvidia_driver": "570.1"} for rank in trace.ranks]
        put(tmp_path, dataclasses.replace(trace, ranks=ranks, environment={**trace.environment, "project": project}))
    (table,) = tables_of(content(summary_of(tmp_path)), "method")
    assert ["device", "NVIDIA H100", "all"] in table.rows and ["driver", "570.1", "all"] in table.rows


def test_speeds_of_logs_have_the_window_they_are_from(tmp_path: Path) -> None:
    made.put(tmp_path, "1n1g/r50_b128_1.log", made.ngc_pytorch(made.steps(360.0, 128), batch=128))
    text = sentences(summary_of(tmp_path))
    assert "The speeds of 1 run are read from logs (ngc-pytorch; steps " in text
    assert "launch of its own" not in text and "A speed is" not in text
    assert "1 point with one run has no interval" in text and "order-statistic" not in text


def test_speeds_of_documents_are_marked_as_printed(tmp_path: Path) -> None:
    document = put_document(tmp_path / "README.md")
    text = sentences(summary_of(documents=(document,)))
    assert "The speeds of 2 points are those that documents print (README.md)." in text
    assert "launch" not in text and "coverage" not in text
    section = section_of(summary_of(documents=(document,)))
    assert r"\includegraphics" in section and "interval" not in section and "Bars" not in section


def test_without_a_speed_there_is_no_method(tmp_path: Path) -> None:
    put_failed(tmp_path)
    assert method(summary_of(tmp_path)) == []


# The command


def test_the_figure_lies_beside_the_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_sweep(tmp_path / "traces")
    assert main([str(tmp_path / "traces"), "--format", "latex", "--out", str(tmp_path / "new" / "my.tex")]) == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["my.tex", "scaling.pdf"]
    assert r"\includegraphics[width=0.7\linewidth]{scaling.pdf}" in (tmp_path / "new" / "my.tex").read_text()
    assert "scaling.pdf: written" in capsys.readouterr().out
    assert "![Speedup by devices](scaling.svg)" in written(tmp_path / "traces", "markdown-report")
    assert (tmp_path / "out" / "scaling.svg").exists()


def test_out_is_a_folder_where_it_is_one_or_has_no_ending(tmp_path: Path) -> None:
    (tmp_path / "with.dot").mkdir()
    (tmp_path / "file").touch()
    assert outputs(tmp_path / "with.dot", "latex")[0] == tmp_path / "with.dot" / "scaling.tex"
    assert outputs(tmp_path / "new", "markdown-report")[0] == tmp_path / "new" / "scaling.md"
    assert outputs(tmp_path / "new.tex", "latex")[0] == tmp_path / "new.tex"
    assert outputs(tmp_path / "file", "latex")[0] == tmp_path / "file"
    assert outputs(Path(), "latex")[0] == Path("scaling.tex")


def test_no_figure_lies_beside_what_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_sweep(tmp_path)
    assert main([str(tmp_path), "--format", "latex", "--out", "/dev/null"]) == 0
    assert "no figure: /dev/null is no regular file" in capsys.readouterr().out
    assert not Path("/dev/scaling.pdf").exists()


def test_where_chooses_the_points(tmp_path: Path) -> None:
    put_two_backends(tmp_path / "traces")
    section = written(tmp_path / "traces", "latex", "--where", "backend=torch-ddp")
    assert "paddle" not in section and r"\section{Scaling of torch-ddp resnet50}" in section


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    put(tmp_path, make_trace())
    assert main([str(tmp_path), "--format", "latex", "--out", str(tmp_path / "file" / "x.tex")]) == 1
    assert "cannot be written" in capsys.readouterr().err
