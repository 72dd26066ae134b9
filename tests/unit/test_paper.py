"""The section of a paper or a proposal: text, method, command, escaping, figure, and the recommended size."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.outcome import Outcome
from hpc.model.reference import read_recipe
from hpc.system.tool import run_tool
from parse.page import paper
from parse.page.figures import Line, Listing, PageBlock, Paragraph, Section, Table
from parse.page.paper import (
    FIGURES,
    MAX_ROWS,
    SECTIONS,
    Content,
    ProposedWork,
    SpeedupPanel,
    content,
    draw,
    method,
    outputs,
    proposals,
    rendered,
)
from parse.report.__main__ import main
from parse.report.against import against
from parse.report.summary import Summary
from parse.text import latex_text
from tests.unit.ledger_traces import run_of, trace_of
from tests.unit.logs import made
from tests.unit.page_folders import put_document, put_failed, put_hostile, put_sweep, put_two_bases
from tests.unit.papers import INPUTS, PROPOSAL, panels, put_sizes, section_of, summary_of, words_of, written
from tests.unit.traces import judged, make_run, make_trace, point, put, put_exit_record, put_plan, repeats
from tests.waiting import LIMIT_S

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


def published(folder: Path) -> Content:
    """Beside published figures."""
    run = make_run(
        backend="torch-ddp", workload="resnet50", batch_size=128, warmup_steps=20, measured_steps=100, timing="step",
        options={"recipe": "ngc", "image_size": "224"}, gpus_per_node=1,
    )  # fmt: skip
    results = judged(point(run, [732.28]))
    return content(Summary(results=results, against=against(read_recipe("ngc-pytorch-resnet50"), results)))


def one_machine(folder: Path) -> Content:
    """Facts that all runs have."""
    for run in repeats(make_run(), 2):
        trace = make_trace(run)
        project = {"commit": "abc123", "dirty": True}
        ranks = [{**rank, "device": {"name": "NVIDIA H100"}, "nvidia_driver": "570.1"} for rank in trace.ranks]
        put(folder, dataclasses.replace(trace, ranks=ranks, environment={**trace.environment, "project": project}))
    return content(summary_of(folder))


def logs(folder: Path) -> Content:
    made.put(folder, "1n1g/r50_b128_1.log", made.ngc_pytorch(made.steps(360.0, 128), batch=128))
    return content(summary_of(folder))


def two_bases(folder: Path) -> Content:
    put_two_bases(folder)
    return content(summary_of(folder))


def inside_node(folder: Path) -> Content:
    for ranks, speed in {1: 100.0, 2: 190.0}.items():
        put(folder, make_trace(make_run(ranks_per_node=ranks), speed=speed))
    return content(summary_of(folder), request=ProposedWork(work=0.5))


def proposal(folder: Path) -> Content:
    """With a point without a speed, and one that ran out of memory."""
    put_sizes(folder, SMOOTH)
    for run in repeats(make_run(nodes=1, ranks_per_node=2), 2):
        put_exit_record(folder, run, Outcome.OK)
    larger = make_run(nodes=16, ranks_per_node=2)
    put_plan(folder, [larger])
    put_exit_record(folder, larger, Outcome.OOM)
    return content(summary_of(folder), request=ProposedWork(work=WORK))


def proposed(speeds: Mapping[int, tuple[float, ...]]) -> Callable[[Path], Content]:
    return lambda folder: content(put_sizes(folder, speeds), request=ProposedWork(work=WORK))


WORK = 3.6e6
SMOOTH = {nodes: (100 * nodes / (1 + 0.2 * doublings),) * 2 for doublings, nodes in enumerate((1, 2, 4, 8))}
"""Speeds that the rule of forecasts fits, so that larger sizes have an interval below 50 %."""
CONTENTS: dict[str, Callable[[Path], Content]] = {
    "published": published, "two_bases": two_bases, "one_machine": one_machine, "logs": logs,
    "document": lambda folder: content(summary_of(documents=(put_document(folder / "README.md"),))),
    "inside_node": inside_node, "proposal": proposal, "single_size": proposed({2: (100.0,)}),
    "rising": proposed({1: (100.0,), 2: (150.0,), 4: (900.0,)}), "two_sizes": proposed({1: (100.0,), 2: (190.0,)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTENTS)
def test_sections_are_as_in_their_golden_files(tmp_path: Path, golden: Callable[[str, str], None], name: str) -> None:
    golden(f"pages/section_{name}.md", rendered(CONTENTS[name](tmp_path), "markdown-report", "scaling.svg"))


def test_without_a_speed_there_is_no_method(tmp_path: Path) -> None:
    put_failed(tmp_path)
    assert method(summary_of(tmp_path)) == []


def test_a_long_table_goes_on_in_further_ones() -> None:
    results = judged(
        [trace for nodes in range(1, MAX_ROWS + 3) for trace in point(make_run(nodes=nodes), [100.0 * nodes])]
    )
    section = section_of(Summary(results=results))
    assert section.count(r"\begin{table}") == 3 and section.count("(continued).") == 1
    assert all(f"    {result.requested.case}" in section for result in results)


def test_warnings_beyond_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_hostile(tmp_path)
    summary = summary_of(tmp_path)
    assert "further remark" not in words_of(content(summary))
    monkeypatch.setattr(paper, "MAX_REMARKS", 1)
    assert "further remarks: rankwise summarize --verbose has them." in words_of(content(summary))


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


# Escaping: no text from outside is a command of LaTeX or a tag


HOSTILE = r"""\input{/etc/passwd} $$ a_b^c & 100% #1 ~ {x} <script>alert("1")</script> | `id` -- [b] * µ × ± … é 中"""
SHOWN = re.compile(
    r"""(?: [A-Za-z0-9 !'()+,\-./:;=?@]                     # characters that LaTeX shows as they are
        | \\[{}$&\#_%]                                      # the specials, escaped
        | \\(?:textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar|char34|textasciigrave)\{\}
        | \\(?:dots|textmu|textdegree|ss|o|O|ae|AE|l|L|textregistered|texttrademark|textcopyright)\{\}
        | \{(?:\[|\]|\*|`|'|``|''|)\}
        | \$(?:-|\\(?:times|pm|cdot|leq|geq|approx|rightarrow|Sigma|Delta|sigma)|\^[23])\$
        | \\[`'^~=."urHvc]\{(?:[A-Za-z]|\\[ij])\}           # accents
    )*""",
    re.VERBOSE,
)
"""All that the escaping may write. A command with an argument from outside, a lone special or a line's end is none."""


@given(st.text(st.characters(codec="utf-8"), max_size=60) | st.text(HOSTILE + "\\{}[]\n\r\t-',", max_size=60))
def test_no_special_character_survives_unescaped(text: str) -> None:
    assert SHOWN.fullmatch(latex_text(text)), latex_text(text)


@given(st.text("-',a`", max_size=20))
def test_no_two_characters_become_another_one(text: str) -> None:
    escaped = latex_text(text)
    assert not any(pair in escaped for pair in ("--", "''", ",,", "?`", "!`"))
    assert escaped.replace("{}", "").replace(r"\textasciigrave", "`") == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b & 50 %", r"a\_b \& 50 \%"),
        ("\\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("3 µs × 2 ± 1…", r"3 \textmu{}s $\times$ 2 $\pm$ 1\dots{}"),
        ("Müller, naïve, Čapek", r"M\"{u}ller, na\"{\i}ve, \v{C}apek"),
        ("中", "U+4E2D"),
        ("--data-cache", "-{}-data-cache"),
        ("a\nb", r"a\textbackslash{}nb"),
        ("[1, 2]", "{[}1, 2{]}"),
    ],
)
def test_texts_as_latex(text: str, expected: str) -> None:
    assert latex_text(text) == expected


PACKAGES = {"booktabs": "toprule midrule bottomrule", "graphicx": "includegraphics resizebox", "textcomp": "textmu"}
KERNEL = """
    begin end caption centering dots else fi ifdim item label linewidth paragraph section small
    subsection textbackslash textasciitilde textasciicircum textless textgreater textbar textasciigrave char
    textsuperscript width pm times cdot leq geq approx rightarrow Sigma Delta sigma
"""
"""Commands that need no package."""


def faults(section: str) -> list[str]:
    """What an engine would stumble over: braces, environments, labels, cells of a row, commands of no declared
    package."""
    bare, wrong, open_ones = re.sub(r"\\[{}]", "", section), list[str](), list[str]()
    if bare.count("{") != bare.count("}"):
        wrong.append("braces")
    for command, name in re.findall(r"\\(begin|end)\{(\w+)", section):
        if command == "begin":
            open_ones.append(name)
        elif not open_ones or open_ones.pop() != name:
            wrong.append(f"end of {name}")
    labels = re.findall(r"\\label\{([^}]*)\}", section)
    wrong += [*open_ones, *{label for label in labels if labels.count(label) > 1}]
    wrong += [f"no label {name}" for name in re.findall(r"\\ref\{([^}]*)\}", section) if name not in labels]
    for columns, body in re.findall(r"\\begin\{tabular\}\{(\w*)\}(.*?)\\end\{tabular\}", section, re.DOTALL):
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        wrong += [row for row in rows if len(re.findall(r"(?<!\\)&", row)) != len(columns) - 1]
    declared = re.findall(r"\\usepackage\{(\w+)\}", section.splitlines()[0])
    known = {"usepackage", *KERNEL.split()}.union(*(PACKAGES[package].split() for package in declared))
    return wrong + sorted({*re.findall(r"\\([A-Za-z]{2,})", section)} - known)


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_gives_a_section_that_an_engine_takes(tmp_path: Path, name: str) -> None:
    (tmp_path / "traces").mkdir()
    INPUTS[name](tmp_path / "traces")
    section = written(tmp_path / "traces", "latex", *PROPOSAL)
    assert section.isascii() and max(map(len, section.splitlines())) < 20_000
    assert not faults(section)


@pytest.mark.skipif(not any(map(shutil.which, ("pdflatex", "tectonic"))), reason="no LaTeX engine is installed here")
@pytest.mark.parametrize("name", INPUTS)
def test_an_engine_takes_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "traces").mkdir()
    INPUTS[name](tmp_path / "traces")
    written(tmp_path / "traces", "latex", *PROPOSAL)
    (tmp_path / "out" / "paper.tex").write_text(
        "\\documentclass{article}\n\\usepackage{booktabs,graphicx,textcomp}\n"
        "\\begin{document}\n\\input{scaling}\n\\end{document}\n"
    )
    engine = shutil.which("pdflatex")
    command = [engine, "-draftmode", "-halt-on-error", "paper.tex"] if engine else ["tectonic", "paper.tex"]
    answer = run_tool(command, timeout_s=LIMIT_S, cwd=tmp_path / "out")
    assert answer.ok, answer.output


def test_a_hostile_text_is_shown_wherever_it_stands() -> None:
    table = Table(id="t", caption=HOSTILE, heads=[(HOSTILE, HOSTILE)], rows=[[HOSTILE]])
    blocks: list[PageBlock] = [Paragraph(text=HOSTILE), Listing(title=HOSTILE, lines=[HOSTILE]), table]
    hostile = Content(
        title=HOSTILE, parts=[Section(id="p", title=HOSTILE, blocks=blocks)],
        panels=panels(), caption=HOSTILE,
    )  # fmt: skip
    section = rendered(hostile, "latex", "scaling.pdf")
    assert section.count(latex_text(HOSTILE)) == 10 and "passwd}" not in section.replace(r"passwd\}", "")
    assert not re.search(r"(?<!\\)[$<]", rendered(hostile, "markdown-report"))


# The figure


@pytest.mark.parametrize(("form", "head"), [("pdf", b"%PDF-"), ("svg", b"<?xml ")])
def test_the_same_figure_is_the_same_bytes_at_any_time(monkeypatch: pytest.MonkeyPatch, form: str, head: bytes) -> None:
    first = draw(panels(), form)
    assert first.startswith(head)
    assert b"/Type3" not in first  # publishers refuse such fonts
    assert b"CreationDate" not in first and b"<dc:date>" not in first
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    monkeypatch.setattr("time.time", lambda: 1e9)
    assert draw(panels(), form) == first
    assert draw(panels(cases=[(1, "1n1g"), (2, "1n2g"), (16, "2n8g")]), form) != first


def test_a_panel_for_each_base_has_its_own_axis_and_ideal() -> None:
    series = Line(name="b", x=[8, 16, 32], y=[1.0, 1.9, 3.1], intervals=[None, None, None])
    panel = SpeedupPanel(base="1n8g", base_devices=8, series=[series], cases=[(8, "1n8g"), (16, "2n8g"), (32, "4n8g")])
    drawn = draw([*panels(), panel], "svg").decode()
    assert "<!-- speedup against 1n1g -->" in drawn and "<!-- speedup against 1n8g -->" in drawn
    single = draw([panel], "svg").decode()
    assert re.findall(r"<!-- (\d+) -->", single) == ["8", "16", "32", "1", "2", "4"]


@pytest.mark.parametrize("name", ["$$", "$x_1$", "\\input{a}", "_hidden", "中文", "n" * 10_000, "<script>--></script>"])
def test_hostile_names_are_drawn_as_they_are(name: str) -> None:
    series = [dataclasses.replace(each, name=name) for each in panels()[0].series]
    drawn = draw(panels(series=series), "svg").decode()
    assert "<script" not in drawn
    if name.isascii() and len(name) < 20 and "<" not in name:
        assert f"<!-- {name} -->" in drawn


def test_settings_of_the_person_do_not_reach_the_figure() -> None:
    import matplotlib as mpl

    expected = draw(panels(), "pdf")
    with mpl.rc_context({"text.usetex": True, "lines.linewidth": 9}):
        assert draw(panels(), "pdf") == expected
        assert mpl.rcParams["text.usetex"] is True


def test_bars_reach_as_far_as_the_intervals() -> None:
    (series,) = panels()[0].series
    below, above = paper._errors(series)
    assert below == pytest.approx([0.01, 0, 0.4]) and above == pytest.approx([0.01, 0, 0.1])


def test_an_axis_of_many_sizes_has_the_powers_of_two() -> None:
    assert paper._marks([1, 3, 8]) == [1, 3, 8]
    assert paper._marks([*range(2, 21)]) == [2, 4, 8, 16]


def test_without_matplotlib_the_section_has_no_figure_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_sweep(tmp_path / "traces")
    assert r"\includegraphics" in written(tmp_path / "traces", "latex")
    (tmp_path / "out" / "scaling.pdf").unlink()
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert r"\includegraphics" not in written(tmp_path / "traces", "latex")
    assert capsys.readouterr().out.splitlines()[1:] == [
        "no figure: matplotlib, which draws the figure, is not installed here: pip install -e '.[report]'"
    ]
    assert not (tmp_path / "out" / "scaling.pdf").exists()


# What --samples adds: the recommended size, its node hours, and why


FALLING = {1: (100.0, 100.0), 2: (180.0, 180.0), 4: (300.0, 280.0), 8: (400.0, 400.0)}


@pytest.mark.parametrize(("efficiency", "nodes"), [(0.7, 4), (0.71, 2), (0.5, 8), (0.95, 1)])
def test_the_largest_size_whose_lower_end_is_efficient_enough_is_recommended(
    tmp_path: Path, efficiency: float, nodes: int
) -> None:
    summary = put_sizes(tmp_path, FALLING)
    (its,) = proposals(summary, ProposedWork(work=WORK, efficiency=efficiency))
    assert its.recommended is not None and (its.recommended.size, its.unit) == (nodes, "node")
    four = its.measured[2]
    assert four.efficiency.value == pytest.approx(0.725)
    assert four.efficiency.low == pytest.approx(0.7) and four.hours.low == pytest.approx(4 * WORK / 300 / 3600)
    assert four.hours.high == pytest.approx(4 * WORK / 280 / 3600)
    assert its.recommended.wall_hours == pytest.approx(its.recommended.hours.value / nodes)


def test_a_table_in_devices_has_device_hours_until_somebody_says_what_a_node_has(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.write_text(
        "| case | runs (ok/total) | median (samples/s) |\n|---|---|---|\n| 8g | - | 800 |\n| 16g | - | 1500 |\n"
    )
    summary = summary_of(documents=(path,))
    (its,) = proposals(summary, ProposedWork(work=WORK))
    assert its.unit == "device" and its.recommended is not None
    assert its.recommended.hours.value == pytest.approx(16 * WORK / 1500 / 3600)
    (its,) = proposals(summary, ProposedWork(work=WORK, devices_per_node=8))
    assert its.recommended is not None and (its.unit, its.recommended.size) == ("node", 2)
