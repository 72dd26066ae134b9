"""The figure of the section of a paper."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from parse.page.figures import Line
from parse.page.paper import write
from parse.page.paper.content import SpeedupPanel
from parse.page.paper.write import draw
from tests.unit.page_folders import put_sweep
from tests.unit.papers import curves, written

pytestmark = pytest.mark.usefixtures("font_cache")


@pytest.mark.parametrize(("form", "head"), [("pdf", b"%PDF-"), ("svg", b"<?xml ")])
def test_the_same_figure_is_the_same_bytes_at_any_time(monkeypatch: pytest.MonkeyPatch, form: str, head: bytes) -> None:
    first = draw(curves(), form)
    assert first.startswith(head)
    assert b"/Type3" not in first  # publishers refuse such fonts
    assert b"CreationDate" not in first and b"<dc:date>" not in first
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    monkeypatch.setattr("time.time", lambda: 1e9)
    assert draw(curves(), form) == first
    assert draw(curves(cases=[(1, "1n1g"), (2, "1n2g"), (16, "2n8g")]), form) != first


def test_a_panel_for_each_base_has_its_own_axis_and_ideal() -> None:
    series = Line(name="b", x=[8, 16, 32], y=[1.0, 1.9, 3.1], intervals=[None, None, None])
    panel = SpeedupPanel(base="1n8g", base_devices=8, series=[series], cases=[(8, "1n8g"), (16, "2n8g"), (32, "4n8g")])
    first = curves()
    drawn = draw(dataclasses.replace(first, panels=[*first.panels, panel]), "svg").decode()
    assert "<!-- speedup against 1n1g -->" in drawn and "<!-- speedup against 1n8g -->" in drawn
    single = draw(dataclasses.replace(first, panels=[panel]), "svg").decode()
    assert re.findall(r"<!-- (\d+) -->", single) == ["8", "16", "32", "1", "2", "4"]


@pytest.mark.parametrize("name", ["$$", "$x_1$", "\\input{a}", "_hidden", "中文", "n" * 10_000, "<script>--></script>"])
def test_hostile_names_are_drawn_as_they_are(name: str) -> None:
    series = [dataclasses.replace(each, name=name) for each in curves().panels[0].series]
    drawn = draw(curves(series=series), "svg").decode()
    assert "<script" not in drawn
    if name.isascii() and len(name) < 20 and "<" not in name:
        assert f"<!-- {name} -->" in drawn


def test_settings_of_the_person_do_not_reach_the_figure() -> None:
    import matplotlib as mpl

    expected = draw(curves(), "pdf")
    with mpl.rc_context({"text.usetex": True, "lines.linewidth": 9}):
        assert draw(curves(), "pdf") == expected
        assert mpl.rcParams["text.usetex"] is True


def test_every_point_with_a_speedup_has_a_mark() -> None:
    def marks(*values: float | None) -> int:
        series = Line(name="a", x=[1, 2, 8], y=values, intervals=[None, None, None])
        return draw(curves(series=[series]), "svg").count(b"<use ")

    assert marks(1.0, None, 6.5) < marks(1.0, 1.5, 6.5)
    assert marks(None, None, None) < marks(1.0, None, None)


def test_bars_reach_as_far_as_the_intervals() -> None:
    (series,) = curves().panels[0].series
    below, above = write._errors(series)
    assert below == pytest.approx([0.01, 0, 0.4]) and above == pytest.approx([0.01, 0, 0.1])


def test_an_axis_of_many_sizes_has_the_powers_of_two() -> None:
    assert write._marks([1, 3, 8]) == [1, 3, 8]
    assert write._marks([*range(2, 21)]) == [2, 4, 8, 16]


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
