"""TensorBoard: a folder for each setting, whose figures stand over the number of devices; the findings as text."""

from __future__ import annotations

import re
from pathlib import Path

from tensorboardX import SummaryWriter

from hpc.system.text import grouped, plural
from parse.export.content import ExportContent, ExportError
from parse.text import markdown_list


def write(content: ExportContent, out: str) -> list[str]:
    """Writes the event files; a point of an unknown number of devices is at 0. Raises ExportError where a folder has
    events already, and OSError."""
    settings = grouped((point.setting, point) for point in content.points)
    folders = {name: Path(out) / re.sub(r"[^\w.=-]", "_", f"{at}_{name}")[:80] for at, name in enumerate(settings)}
    if present := [str(folder) for folder in folders.values() if any(folder.glob("*.tfevents.*"))]:
        raise ExportError(f"{', '.join(present)}: events are there already: name another place with --out")
    for name, points in settings.items():
        with SummaryWriter(str(folders[name])) as writer:
            for point in points:
                devices = point.result["devices"] or 0
                for figure, value in point.figures.items():
                    writer.add_scalar(figure, value, devices)
                writer.add_text("findings", f"{point.name}\n\n{markdown_list(point.findings)}", devices)
    return [f"{folders[name]}: {plural(len(points), 'point')} of {name}" for name, points in settings.items()]
