"""The section as Markdown; every text in it is escaped by parse.text."""

from __future__ import annotations

from parse.page.paper.content import Content
from parse.text import markdown_list, markdown_table, markdown_text, with_units


def markdown(content: Content, figure: str = "") -> str:
    """The section; `figure` is the file name of its figure, empty where there is none."""
    parts = [f"## {markdown_text(content.title)}", markdown_text(" ".join(content.opening))]
    for marked in content.tables:
        rows = [
            [f"{first} [{', '.join(marks)}]" if marks else first, *cells]
            for (first, *cells), marks in zip(marked.table.rows, marked.marks, strict=True)
        ]
        parts += [f"{markdown_text(marked.table.caption)}:", markdown_table(with_units(marked.table.heads), rows)]
    if content.remarks:
        lines = (f"[{remark.mark}] {remark.text}" if remark.mark else remark.text for remark in content.remarks)
        parts.append(markdown_list(lines))
    if figure and content.curves:
        parts += [f"![Speedup by devices]({figure})", markdown_text(content.curves.caption)]
    if content.method:
        parts += ["### Method", markdown_text(" ".join(content.method))]
    return "\n\n".join(parts) + "\n"
