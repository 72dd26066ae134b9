"""TensorBoard: a folder for each setting, whose figures stand over the number of devices; the findings as text."""

from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar, text

from hpc.system.text import grouped, plural
from parse.export.content import ExportContent, ExportError
from parse.export.tables import all_or_none
from parse.text import markdown_list

VERSION = "brain.Event:2"
"""The first record of a file of events says how the others are to be read."""


def write(content: ExportContent, out: str) -> list[str]:
    """Writes the event files; a point of an unknown number of devices is at 0. Raises ExportError where a folder has
    events already, and OSError."""
    settings = grouped((point.setting, point) for point in content.points)
    folders = {name: Path(out) / re.sub(r"[^\w.=-]", "_", f"{at}_{name}")[:80] for at, name in enumerate(settings)}
    if present := [str(folder) for folder in folders.values() if any(folder.glob("*.tfevents.*"))]:
        raise ExportError(f"{', '.join(present)}: events are there already: name another place with --out")
    now = time.time()
    files = {name: folder / f"events.out.tfevents.{now:.0f}.rankwise" for name, folder in folders.items()}
    with all_or_none([*files.values()]):
        for name, points in settings.items():
            events = [Event(wall_time=now, file_version=VERSION)]
            for point in points:
                shown: list[Any] = [scalar(figure, value) for figure, value in point.figures.items()]
                shown.append(text("findings", f"{point.name}\n\n{markdown_list(point.findings)}"))
                events += [Event(wall_time=now, step=point.result["devices"] or 0, summary=each) for each in shown]
            with closing(RecordWriter(str(files[name]))) as writer:
                for event in events:
                    writer.write(event.SerializeToString())
    return [f"{folders[name]}: {plural(len(points), 'point')} of {name}" for name, points in settings.items()]
