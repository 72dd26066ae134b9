"""The section of a paper: no text from outside is a command of LaTeX or a tag."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse.page.paper.content import Content
from parse.page.paper.write import latex_text, rendered
from parse.page.types import Listing, PageBlock, Paragraph, Section, Table
from tests.unit.papers import INPUTS, PROPOSAL, curves, written

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


pytestmark = pytest.mark.usefixtures("font_cache")


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


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_gives_markdown_without_a_tag(tmp_path: Path, name: str) -> None:
    (tmp_path / "traces").mkdir()
    INPUTS[name](tmp_path / "traces")
    section = written(tmp_path / "traces", "markdown-report")
    assert not re.search(r"(?<!\\)<", section) and max(map(len, section.splitlines())) < 20_000


def test_a_hostile_text_is_shown_wherever_it_stands() -> None:
    table = Table(id="t", caption=HOSTILE, heads=[(HOSTILE, HOSTILE)], rows=[[HOSTILE]])
    blocks: list[PageBlock] = [Paragraph(text=HOSTILE), Listing(title=HOSTILE, lines=[HOSTILE]), table]
    hostile = Content(
        title=HOSTILE, parts=[Section(id="p", title=HOSTILE, blocks=blocks)],
        curves=dataclasses.replace(curves(), caption=HOSTILE),
    )  # fmt: skip
    section = rendered(hostile, "latex", "scaling.pdf")
    assert section.count(latex_text(HOSTILE)) == 10 and "passwd}" not in section.replace(r"passwd\}", "")
    assert not re.search(r"(?<!\\)[$<]", rendered(hostile, "markdown-report"))
