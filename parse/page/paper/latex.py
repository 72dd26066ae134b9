"""The section as LaTeX that needs plain packages only; it is pure ASCII, and every text in it is escaped."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from hpc.system.sanitize import plain
from parse.page.paper.content import Content, MarkedTable, Remark

PREAMBLE = r"% Needs \usepackage{booktabs}, \usepackage{graphicx} and \usepackage{textcomp}."
NO_WIDER = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
"""Makes a table smaller where it is wider than the lines around it."""
MAX_ROWS = 36
"""Rows of a table that fit on a page; the others follow in further tables."""
COMMANDS = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}", "`": r"\textasciigrave{}",
    **{special: f"\\{special}" for special in "{}$&#_%"},
    # Behind a line's end `[` and `*` would be read as its arguments.
    "[": "{[}", "]": "{]}", "*": "{*}",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "…": r"\dots{}", "–": "--", "—": "---", "−": "$-$",
    "‘": "{`}", "’": "{'}", "“": "{``}", "”": "{''}", "×": r"$\times$", "±": r"$\pm$", "·": r"$\cdot$",
    "µ": r"\textmu{}", "μ": r"\textmu{}", "°": r"\textdegree{}", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$",
    "→": r"$\rightarrow$", "Σ": r"$\Sigma$", "Δ": r"$\Delta$", "σ": r"$\sigma$", "²": r"$^2$", "³": r"$^3$",
    "ß": r"\ss{}", "ø": r"\o{}", "Ø": r"\O{}", "æ": r"\ae{}", "Æ": r"\AE{}", "ł": r"\l{}", "Ł": r"\L{}",
    "®": r"\textregistered{}", "™": r"\texttrademark{}", "©": r"\textcopyright{}",
}  # fmt: skip
"""What a character is written as; a table so that nothing depends on the encoding of the document."""
ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c",
}  # fmt: skip
"""LaTeX's accents by the combining character."""
LIGATURES = "-',"
"""Two of these in a row would become another character."""


def latex_text(text: str) -> str:
    """The text as LaTeX that shows it and does nothing. A character that plain packages lack is written as U+4E2D."""
    parts: list[str] = []
    before = ""
    for character in plain(text):
        if character == before and character in LIGATURES:
            parts.append("{}")
        parts.append(_character(character))
        before = character
    return "".join(parts)


def _character(character: str) -> str:
    if character in COMMANDS:
        return COMMANDS[character]
    if character.isascii():
        return character
    base, accent = unicodedata.normalize("NFD", character)[:1], unicodedata.normalize("NFD", character)[1:]
    if base.isascii() and base.isalpha() and accent in ACCENTS:
        letter = f"\\{base}" if base in "ij" else base  # without its dot
        return f"\\{ACCENTS[accent]}{{{letter}}}"
    return f"U+{ord(character):04X}"


def latex(content: Content, figure: str = "") -> str:
    """The section; `figure` is the file name of its figure, empty where there is none."""
    lines = [PREAMBLE, rf"\section{{{latex_text(content.title)}}}", r"\label{sec:scaling}", ""]
    lines += [latex_text(sentence) for sentence in content.opening]
    for marked in content.tables:
        lines += ["", *_tables(marked, content.remarks)]
    if general := [remark for remark in content.remarks if not remark.mark]:
        lines += ["", r"\paragraph{Remarks.}", *(latex_text(remark.text) for remark in general)]
    if figure and content.curves:
        lines += [
            "",
            r"\begin{figure}[htbp]",
            r"  \centering",
            rf"  \includegraphics[width=0.7\linewidth]{{{figure}}}",
            rf"  \caption{{{latex_text(content.curves.caption)}}}",
            r"  \label{fig:scaling}",
            r"\end{figure}",
        ]
    if content.method:
        lines += ["", r"\paragraph{Method.}", *map(latex_text, content.method)]
    return "\n".join(lines) + "\n"


def _tables(marked: MarkedTable, remarks: Sequence[Remark]) -> Iterator[str]:
    """The table, cut into pieces that fit on a page, each with its remarks below it."""
    table, rows = marked.table, [*zip(marked.table.rows, marked.marks, strict=True)]
    columns = "".join("l" if at in table.word_columns else "r" for at in range(len(table.heads)))
    for first in range(0, len(rows), MAX_ROWS):
        piece = rows[first : first + MAX_ROWS]
        number = first // MAX_ROWS
        caption = f"{latex_text(table.caption)}{' (continued)' if number else ''}."
        yield r"\begin{table}[htbp]"
        yield r"  \centering"
        yield r"  \small"
        yield rf"  \caption{{{caption}}}"
        yield rf"  \label{{tab:{table.id}{f'-part-{number + 1}' if number else ''}}}"
        yield f"  {NO_WIDER}"
        yield rf"  \begin{{tabular}}{{{columns}}}"
        yield r"    \toprule"
        yield _row([latex_text(name) for name, _ in table.heads])
        yield _row([f"({latex_text(unit)})" if unit else "" for _, unit in table.heads])
        yield r"    \midrule"
        for row, marks in piece:
            first_cell, *cells = map(latex_text, row)
            yield _row([first_cell + _superscript(marks), *cells])
        yield r"    \bottomrule"
        yield r"  \end{tabular}}"
        its_marks = {mark for _, marks in piece for mark in marks}
        if its_remarks := [remark for remark in remarks if remark.mark in its_marks]:
            yield r"  \par\smallskip"
            yield r"  \begin{minipage}{\linewidth}\footnotesize\raggedright"
            for remark in its_remarks:
                yield rf"    {_superscript([remark.mark])}{latex_text(remark.text)}\par"
            yield r"  \end{minipage}"
        yield r"\end{table}"


def _row(cells: Sequence[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def _superscript(marks: Sequence[str]) -> str:
    return rf"\textsuperscript{{{','.join(marks)}}}" if marks else ""
