"""Weights & Biases: an offline run with figures of every point, the tables, and page and summary as an artifact."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

from parse.export.content import PAGE, SUMMARY, ExportContent, ExportError


def write(content: ExportContent, out: str) -> list[str]:
    """Writes the run. Raises ExportError where the same content is there."""
    import wandb

    run_id = content.digest[:12]
    folder = Path(out) if Path(out).name == "wandb" else Path(out) / "wandb"  # where W&B writes it
    if present := [*folder.glob(f"offline-run-*-{run_id}")]:
        raise ExportError(f"{present[0]} has it already: wandb sync {present[0]}")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_DATA_DIR", str(folder.absolute()))  # of artifacts, else in the home folder
    settings = wandb.Settings(
        console="off",
        silent=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_save_requirements=False,
        disable_git=True,
    )
    try:
        _fill(wandb, content, run_id, folder, settings)
    except BaseException:
        for half in folder.glob(f"offline-run-*-{run_id}"):
            rmtree(half)
        raise
    (written,) = folder.glob(f"offline-run-*-{run_id}")
    return [f"{written}: wandb sync {written} uploads it"]


def _fill(wandb: Any, content: ExportContent, run_id: str, folder: Path, settings: Any) -> None:
    with wandb.init(
        project=content.name, name=content.title, id=run_id, dir=str(folder.parent), mode="offline", settings=settings,
        config={point.name: dict(point.result["requested"]) for point in content.points},
    ) as run:  # fmt: skip
        for name, rows in content.tables.items():
            columns = dict.fromkeys(column for row in rows for column in row)
            run.log({name: wandb.Table(columns=[*columns], data=[[row.get(each) for each in columns] for row in rows])})
        for point in content.points:
            run.summary.update({f"{point.name}/{name}": value for name, value in point.figures.items()})
        artifact = wandb.Artifact("report", "report")
        with TemporaryDirectory() as files:
            for name, text in ((PAGE, content.html()), (SUMMARY, content.text)):
                (Path(files) / name).write_text(text)
                artifact.add_file(str(Path(files) / name))
            run.log_artifact(artifact)
