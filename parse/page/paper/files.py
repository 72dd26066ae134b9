"""The section and its figure as files beside one another."""

from __future__ import annotations

from pathlib import Path

from hpc.system.atomic import open_output, write_output
from parse.page.paper.content import content
from parse.page.paper.drawing import DrawingError, draw
from parse.page.paper.latex import latex
from parse.page.paper.markdown import markdown
from parse.report.summary import Summary

WRITERS = {"latex": latex, "markdown-report": markdown}
SECTIONS = {"latex": "scaling.tex", "markdown-report": "scaling.md"}
"""Names of the section by format."""
FIGURES = {"latex": "scaling.pdf", "markdown-report": "scaling.svg"}
NO_CURVES = "no figure: no point has a speedup against another case"


def section_path(out: Path, form: str) -> Path:
    """The file of the section: `out`, or the usual name in it where it is a folder or has no ending."""
    is_folder = out.is_dir() or (not out.suffix and not out.exists())
    return out / SECTIONS[form] if is_folder else out


def write_section(summary: Summary, path: Path, form: str) -> list[str]:
    """Writes the section and beside it its figure; returns a line for each file, and one where there is no figure.

    The section has no figure where none can be drawn. Raises OSError with the file that cannot be written.
    """
    section = content(summary)
    drawn, reason = None, NO_CURVES
    if path.exists() and not path.is_file():
        reason = f"no figure: {path} is no regular file, so none can lie beside it"
    elif section.curves is not None:
        try:
            drawn = draw(section.curves, Path(FIGURES[form]).suffix.removeprefix("."))
        except DrawingError as error:
            reason = f"no figure: {error}"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{path}: written"]
    if drawn is None:
        lines.append(reason)
    else:
        figure = path.with_name(FIGURES[form])
        with open_output(figure) as file:
            file.write(drawn)
        lines.append(f"{figure}: written")
    write_output(path, WRITERS[form](section, FIGURES[form] if drawn else ""))
    return lines
