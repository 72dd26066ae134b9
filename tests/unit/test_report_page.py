"""The page of `rankwise report`: its verdict, what it says of little input, and that nothing in it is run."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc.model.findings import CheckFinding
from hpc.model.outcome import Outcome
from parse.ledger.finding import CoreLack, Finding
from parse.page.build import build_page
from parse.page.figures import Bars, HtmlPage, Paragraph, Section, Statement, Table, shareable
from parse.page.html import draw, render, style
from parse.page.scaling import verdict
from parse.page.svg import COLOURS, GREY, TERM_COLOURS
from parse.report.__main__ import main
from parse.report.summary import Summary, read_ledgers, read_summary
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.ledgers import around, two_nodes
from tests.unit.page_folders import (
    ENDLESS,
    INPUTS,
    MARKUP,
    put_hostile,
    put_sweep,
    put_together,
    put_two_bases,
)
from tests.unit.pages import Elements, charts, lines_of, page_lines, says_something
from tests.unit.traces import make_ranks, make_run, make_trace, put, put_exit_record, put_plan, repeats

FIGURE = re.compile(r"(?<![\w.,-])[+-]?\d[\d,.]*\d(?=[ %\]),.;:]|$)")
"""A figure of two digits and more, which is in no name."""


def repeated(statement: Statement) -> set[str]:
    """The figures that a card states more than once."""
    figures = FIGURE.findall(" ".join([statement.figure, statement.of, *statement.sentences]))
    return {figure for figure in figures if figures.count(figure) > 1}


def summary_of(folder: Path) -> Summary:
    summary, _ = read_summary([folder])
    return read_ledgers(summary, summary.results)


def written(folder: Path, *arguments: str) -> str:
    out = folder.with_name("page.html")
    assert main([str(folder), "--out", str(out), *arguments]) == (0 if any(folder.iterdir()) else 1)
    return out.read_text()


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    folder = tmp_path_factory.mktemp("swept")
    put_sweep(folder)
    return summary_of(folder)


@pytest.fixture(scope="module")
def page_of_sweep(swept: Summary) -> HtmlPage:
    return build_page(swept, "traces")


@pytest.fixture(scope="module", params=INPUTS)
def page_of_input(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Each input's name, and its page."""
    folder = tmp_path_factory.mktemp("input") / "traces"
    folder.mkdir()
    INPUTS[request.param](folder)
    return request.param, written(folder)


# The verdict


def test_the_verdict_names_the_straggler_and_what_would_be_without_it(swept: Summary):
    scaling, loss, trust = verdict(swept)
    assert scaling.figure.endswith(" %") and "on 2n2g" in scaling.of and scaling.link == "scaling"
    assert "of the loss is the straggler (" in loss.of and not loss.doubt and loss.link == "ledger"
    assert any("Rank 3 (n1) computes" in sentence for sentence in loss.sentences)
    assert trust.figure.endswith("warnings") or trust.figure == "1 warning"
    assert trust.of.startswith("5 of 6 runs ok, 1 oom")


def test_the_verdict_names_the_term_that_loses_most_and_the_step_without_it(tmp_path: Path):
    put_longer_compute(tmp_path)
    statement = verdict(summary_of(tmp_path))[1]
    assert "of the loss is compute: without it a step would take" in statement.of
    without, step = re.search(r"take ([\d.]+) ms", statement.of), re.search(r"\(([\d.]+) inst", statement.sentences[0])
    assert without and step and float(step[1]) - float(without[1]) == pytest.approx(5.0, abs=0.1)


def test_a_single_point_of_simulated_nodes_says_on_its_card_that_it_is_no_result(tmp_path: Path):
    run = make_run(nodes=2)
    ranks = [{**facts, "nodes_simulated": True} for facts in make_ranks(run)]
    put(tmp_path, make_trace(run, ranks=ranks))
    (scaling, *_) = verdict(summary_of(tmp_path))
    assert scaling.doubt and scaling.sentences[0] == "Not a scaling result (simulated nodes)."


def test_no_cause_is_named_where_the_loss_is_within_the_scatter(tmp_path: Path):
    put_scattering(tmp_path)
    statement = verdict(summary_of(tmp_path))[1]
    assert statement.figure == "no cause" and "within the scatter of the runs" in statement.of and statement.doubt


def test_ranks_that_lack_cores_are_the_cause_where_the_loss_is_within_the_scatter(tmp_path: Path):
    put_scattering(tmp_path)
    summary = summary_of(tmp_path)
    wait = CoreLack(ms=66.4, base_ms=1.0)
    findings = (Finding(what=wait, costs=65.4),)
    ledgers = [dataclasses.replace(ledger, findings=findings) for ledger in summary.ledgers or ()]
    statement = verdict(dataclasses.replace(summary, ledgers=ledgers))[1]
    assert statement.of.startswith("of a step is waiting for a core")
    assert "Ranks wait 66.4 ms a step for a core (1.00 ms at 1n1g)" in statement.sentences[0]


def test_no_term_within_its_own_scatter_is_the_cause():
    ledger = two_nodes()
    sure = verdict(Summary(results=(ledger.result,), ledgers=(ledger,)))[1]
    assert "of the loss is wait" in sure.of and not sure.doubt
    terms = tuple(dataclasses.replace(each, loss=around(each.loss.value, 30.0)) for each in ledger.terms if each.loss)
    unsure = dataclasses.replace(ledger, terms=terms)
    statement = verdict(Summary(results=(ledger.result,), ledgers=(unsure,)))[1]
    assert statement.figure == "no cause" and "wait loses most, within the scatter" in statement.of


def test_no_chart_has_two_bases(tmp_path: Path):
    put_two_bases(tmp_path)
    built = build_page(summary_of(tmp_path), "traces")
    page = charts(built)
    tables = [block for section in built.sections for block in section.blocks if isinstance(block, Table)]
    backends = [table.rows[0][2] for table in tables if table.id in ("points", "points-1")]
    assert backends == ["paddle-fleet", "torch-ddp"]
    first, second = page["chart-speedup"], page["chart-speedup-base-1"]
    assert (first.title, second.title) == ("Speedup against 1n2g", "Speedup against 2n2g")
    colours = {name: line.number for name, line in lines_of(page["chart-speed"]).items()}
    assert {*colours.values()} == {0, 1}
    for chart, devices in ((first, [2, 4, 8]), (second, [4, 8, 16])):
        ideal, curve = lines_of(chart).values()
        assert (ideal.x, ideal.y, curve.y[0]) == (devices, [1, 2, 4], pytest.approx(1))
        assert curve.number == colours[curve.name]
    for suffix in ("", "-base-1"):
        assert [*lines_of(page[f"chart-efficiency{suffix}"]).values()][1].y[0] == pytest.approx(100)
    assert isinstance(terms := page["chart-terms"].figure, Bars) and terms.lost == "lost"


def test_without_a_baseline_the_verdict_compares_with_nothing(tmp_path: Path):
    for run in repeats(run_of(nodes=2), 2):
        put(tmp_path, trace_of(run))
    scaling, loss, _ = verdict(summary_of(tmp_path))
    assert scaling.doubt and "samples/s on 2n2g" in scaling.of
    assert any("no other case" in sentence for sentence in (*scaling.sentences, *loss.sentences))


def put_longer_compute(folder: Path) -> None:
    """A sweep that loses by its compute."""
    for run in (*repeats(run_of(nodes=1, ranks_per_node=1), 3), *repeats(run_of(nodes=2), 3)):
        longer = {"forward": on(*range(4), ms=5.0)} if run.nodes > 1 else {}
        put(folder, trace_of(run, noise=0.02, seed=run.repeat, **longer))


def put_scattering(folder: Path) -> None:
    """A sweep whose loss is within the scatter of its runs."""
    for run in (*repeats(run_of(nodes=1, ranks_per_node=1), 3), *repeats(run_of(nodes=1, ranks_per_node=2), 3)):
        slower = {1: 0.0, 2: 4.0, 3: 9.0}[run.repeat]
        put(folder, trace_of(run, forward=on(0, 1, ms=slower + (run.ranks > 1))))


def put_versions(folder: Path) -> None:
    """Two runs that differ in a version."""
    for run, version in zip(repeats(make_run(), 2), ("2.12", "2.13"), strict=True):
        put(folder, make_trace(run, environment={"software": {"torch": version, "numpy": "2"}}))


def put_clean(folder: Path) -> None:
    """A sweep without a warning."""
    plan = [*repeats(make_run(), 3), *repeats(make_run(nodes=2), 3)]
    put_plan(folder, plan)
    for run in plan:
        put(folder, make_trace(run, step_s=0.1 if run.nodes == 1 else 0.11))
        put_exit_record(folder, run, Outcome.OK)


WITHOUT_LEDGERS: dict[str, Callable[[Path], object]] = {
    "empty": lambda folder: None, "versions": put_versions, "clean": put_clean, "together": put_together,
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_LEDGERS)
def test_the_page_is_as_in_the_golden_file(tmp_path: Path, name: str, golden: Callable[[str, str], None]) -> None:
    """Pages without ledgers, whose sentences have golden files of their own."""
    WITHOUT_LEDGERS[name](tmp_path)
    documents = sorted(tmp_path.glob("*.md"))
    page = build_page(read_summary([tmp_path], documents=documents)[0], "traces")
    golden(f"pages/report_{name}.txt", "\n".join(page_lines(page)).replace(f"{tmp_path}/", "") + "\n")


def test_a_point_of_a_document_or_a_log_names_its_source(tmp_path: Path) -> None:
    _, logs, documents = put_together(tmp_path)
    of_document = verdict(read_summary([], documents=documents[:1])[0])[0]
    of_log = verdict(read_summary([logs])[0])[0]
    assert "Not measured here: one.md prints it." in of_document.sentences
    assert "Read from logs of ngc-pytorch." in of_log.sentences


# The page


def test_every_input_gives_a_page_whose_links_lead_somewhere(page_of_input: tuple[str, str]):
    page = Elements(page_of_input[1])
    ids = [value for _, attributes in page.elements if (value := attributes.get("id"))]
    assert len(ids) == len({*ids})
    assert {str(link["href"]).removeprefix("#") for link in page.all("a")} <= {*ids}
    described = [attributes.get("aria-describedby") for attributes in page.all("div")]
    assert {each for each in described if each} <= {*ids}


def test_nothing_is_loaded_and_no_script_runs_but_those_of_the_page(page_of_input: tuple[str, str]):
    page = Elements(page_of_input[1])
    assert len(page.all("script")) == 1
    policy = next(str(meta["content"]) for meta in page.all("meta") if meta.get("http-equiv"))
    assert policy.startswith("default-src 'none'; ")
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.scripts}
    assert {*re.findall(r"'sha256-([^']+)'", policy)} == hashes and "unsafe-inline'; script" not in policy
    attributes = [name for _, names in page.elements for name in names]
    assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "action")]
    assert not [element for element in page.elements if element[0] in ("img", "link", "iframe", "object", "base")]
    assert all(str(link["href"]).startswith("#") for link in page.all("a"))


def test_hostile_names_are_shown_as_they_are_and_not_endless(tmp_path: Path):
    put_hostile(tmp_path / "traces")
    text = written(tmp_path / "traces")
    page = Elements(text)
    assert "<script>alert(1)</script>" in page.text and "\u202e" not in text and "\u2028" not in text
    assert ENDLESS[:150] in page.text and ENDLESS[:201] not in page.text
    assert len(text) < 7e5


def test_the_title_and_every_text_are_escaped():
    statement = Statement(question=MARKUP, figure=MARKUP, of=MARKUP, sentences=[MARKUP], link="x", link_text=MARKUP)
    section = Section(id="x", title=MARKUP, blocks=[Paragraph(text=MARKUP)])
    page = Elements(
        render(
            HtmlPage(
                title=MARKUP, subtitle=MARKUP, source=MARKUP, command=MARKUP, verdict=[statement], sections=[section]
            )
        )
    )
    assert len(page.all("script")) == 1 and not page.all("img")
    assert page.text.count("<script>alert(1)</script>") >= 8


def test_a_sweep_has_every_chart_with_marks(page_of_sweep: HtmlPage):
    drawn = charts(page_of_sweep)
    wanted = ("chart-speed", "chart-speedup", "chart-efficiency", "chart-terms", "chart-steps-0",
              "chart-delays-0", "chart-telemetry-0-0", "chart-steps-1")  # fmt: skip
    assert {*wanted} <= {*drawn}
    for chart in drawn.values():
        assert chart.text and draw(chart).count("<title>") > 1


@pytest.mark.parametrize("name", [*INPUTS, "larger sweep"])
def test_no_chart_has_a_single_point_bar_or_flat_line(tmp_path: Path, name: str):
    folder = tmp_path / "traces"
    folder.mkdir()
    if name == "larger sweep":
        put_sweep(folder, nodes=(1, 2, 4))
    else:
        INPUTS[name](folder)
    drawn = charts(build_page(summary_of(folder), "traces"))
    assert not [chart.id for chart in drawn.values() if not says_something(chart)]
    assert ("chart-terms" in drawn) == ("chart-speed" in drawn) == ("sweep" in name)


def test_the_browser_of_this_machine_shows_it_where_requested(tmp_path, monkeypatch, capsys):
    shown, answers = [], iter([True, False])
    monkeypatch.setattr("webbrowser.open", lambda address: shown.append(address) or next(answers))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main([])
    assert "PATH is missing, and no folder traces is here" in capsys.readouterr().err
    (tmp_path / "traces").mkdir()
    put_longer_compute(tmp_path / "traces")
    assert main(["--open"]) == 0 and capsys.readouterr().err == ""
    assert shown == [(tmp_path / "report.html").as_uri()]
    assert main(["--open"]) == 0 and capsys.readouterr().err == "--open: no browser is here\n"


def test_the_point_of_the_verdict_is_first_and_all_are_folded(page_of_sweep: HtmlPage):
    panels = next(section.panels for section in page_of_sweep.sections if section.id == "runs")
    assert [panel.title for panel in panels] == ["2n2g", "1n1g"]
    assert [panel.is_open for panel in panels] == [False, False]


# The command


def test_published_figures_stand_beside_the_points(tmp_path: Path):
    (tmp_path / "traces").mkdir()
    for ranks in (1, 8):
        run = make_run(
            backend="torch-ddp", workload="resnet50", batch_size=128, ranks_per_node=ranks, gpus_per_node=ranks
        )
        for repeat in repeats(run, 2):
            put(tmp_path / "traces", make_trace(repeat))
    page = Elements(written(tmp_path / "traces", "--against", "ngc-pytorch-resnet50"))
    assert "chart-against" in {attributes.get("id") for _, attributes in page.elements}
    assert "Tesla V100" in page.text


# What is handed on


def test_a_page_is_small_and_has_its_charts_without_its_script(page_of_input: tuple[str, str]):
    name, text = page_of_input
    assert ("<figure" in text) == ('<svg class="plot"' in text) == (name not in ("empty", "failed"))
    assert len(text) < (2e5 if "<figure" in text else 4e4) and "plotly" not in text


def test_no_absolute_path_and_no_process_of_others_is_on_the_page(tmp_path: Path):
    folder = tmp_path / "traces"
    folder.mkdir()
    run = make_run(env={"CACHE": "/home/ada/cache"})
    busy = "n0: other processes keep 1.06 cores busy (tmux: server (pid 19841) 0.94, x (pid 7) 0.12)"
    preflight = {"load": CheckFinding(name="load", text=busy).to_json()}
    put(folder, make_trace(run, environment={"preflight": preflight}))
    (folder / "cut.h5").write_text("no trace")
    text = written(folder)
    assert str(tmp_path) not in text and "ada" not in text and "pid" not in text and "tmux" not in text
    shown = Elements(text).text
    assert "Made of traces" in shown and "cut.h5" in shown and "cache" in shown
    assert "keep 1.06 cores busy" in shown and "another process" not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/u/traces/run.h5: cut", "run.h5: cut"), ("~/data is gone", "data is gone"), ("(/a/b-c)", "(b-c)"),
        ("img/s, 5 ms / step, and/or 1/2", "img/s, 5 ms / step, and/or 1/2"), ("/dev/shm is full", "/dev/shm is full"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("in use: pid 12 1 GiB", "in use: another process 1 GiB"),
    ],
)  # fmt: skip
def test_a_path_is_its_last_name(text: str, shown: str):
    assert shareable(text) == shown


# Colours


def themes() -> dict[str, dict[str, str]]:
    """The colours of the stylesheet by theme and name; the dark theme of the system and that of the switch are one."""
    blocks = re.findall(r"(:root[^{]*)\{([^}]*)\}", style())
    colours = {selector.strip(): dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", body)) for selector, body in blocks}
    dark = colours[':root[data-theme="dark"]']
    assert dark == colours[':root:not([data-theme="light"])'] and {*dark} == {*colours[":root"]}
    return {"light": colours[":root"], "dark": dark}


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_lines_have_a_contrast_of_4_5_and_bars_of_3(theme: str):
    colours = themes()[theme]
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    pairs = {
        (name, ground): 4.5 for name in ("ink", "soft", "accent", "doubt") for ground in ("ground", "panel", "mark")
    }
    lines = {*COLOURS, GREY}
    pairs |= {(name.removeprefix("var(--").rstrip(")"), "ground"): 4.5 for name in lines}
    pairs |= {(name, "ground"): 3.0 for name in TERM_COLOURS}
    low = {pair: contrast(*(colours[name] for name in pair)) for pair, least in pairs.items()
           if contrast(*(colours[name] for name in pair)) < least}  # fmt: skip
    assert not low


def test_every_colour_of_a_chart_is_one_of_the_stylesheet(page_of_sweep: HtmlPage):
    drawn = "".join(map(draw, charts(page_of_sweep).values()))
    used = {*re.findall(r"var\(--(\w+)\)", drawn)}
    assert len(used) > 5 and used <= {*themes()["dark"]}
    assert not re.findall(r'(?:fill|stroke)="(?!var|url|none|transparent)([^"]+)"', drawn)
