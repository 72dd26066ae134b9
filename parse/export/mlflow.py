"""MLflow: a run with page, summary and findings, and in it a run for each point with its settings and figures."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc.system.text import plural
from parse.export.content import FINDINGS, PAGE, SUMMARY, ExportContent, ExportError
from parse.text import cut, markdown_list

DIGEST = "rankwise.digest"
"""The tag by which a run of the same content is known again."""
DESCRIPTION = "mlflow.note.content"
"""The tag that MLflow's pages show as the description of a run, in Markdown."""
MAX_VALUE, MAX_DESCRIPTION = 500, 4000
"""Characters that every store takes of a parameter or a tag, and of a description, whose limit is 5,000 bytes."""


def write(content: ExportContent, out: str) -> list[str]:
    """Puts the runs into the store `out`, a folder or a URI. Raises ExportError where the same content is in it, or the
    store refuses it."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would report every use over the network
    if not (is_uri := "://" in out):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow prefers a database, which takes more packages
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    uri = out if is_uri else Path(out).absolute().as_uri()
    try:
        return _write(MlflowClient(tracking_uri=uri), content, out)
    except MlflowException as error:
        raise ExportError(f"{out}: MLflow refuses it: {error.message}") from error


def _write(client: Any, content: ExportContent, out: str) -> list[str]:
    experiment = client.get_experiment_by_name(content.name)
    number = experiment.experiment_id if experiment else client.create_experiment(content.name)
    if same := client.search_runs([number], f"tags.`{DIGEST}` = '{content.digest}'", max_results=1):
        raise ExportError(f"{out}: experiment {content.name} has it already: run {same[0].info.run_id}")
    parent = _run(client, number, content.title, {})
    try:
        _fill(client, content, number, parent)
    except BaseException:
        with suppress(Exception):  # the store may take nothing any more: what hindered it is raised
            client.set_terminated(parent, "FAILED")
        raise
    client.set_tag(parent, DIGEST, content.digest)  # what is whole is known again
    client.set_terminated(parent)
    written = f"{out}: experiment {content.name}, run {parent} with {plural(len(content.points), 'point')}"
    store = f"--backend-store-uri {shlex.quote(out)}"
    return [written if "://" in out else f"{written}: MLFLOW_ALLOW_FILE_STORE=true mlflow ui {store} shows it"]


def _fill(client: Any, content: ExportContent, number: str, parent: str) -> None:
    """Logs the page and, in a run of its own, each point."""
    client.log_text(parent, content.html(), PAGE)
    client.log_text(parent, content.text, SUMMARY)
    lines = [f"{point.name}: {line}" for point in content.points for line in point.findings]
    client.log_text(parent, "\n".join(lines) + "\n", FINDINGS)
    client.set_tag(parent, DESCRIPTION, markdown_list([*content.conclusion, *lines])[:MAX_DESCRIPTION])
    for point in content.points:
        tags = {"mlflow.parentRunId": parent, "point_id": point.result["point_id"], "unit": point.result["unit"]}
        run = _run(client, number, point.name, tags)
        for name, value in point.result["requested"].items():
            client.log_param(run, _name(name), cut(value, MAX_VALUE))
        for name, figure in point.figures.items():
            client.log_metric(run, _name(name), figure)
        client.log_text(run, "\n".join(point.findings) + "\n", FINDINGS)
        client.set_terminated(run)


def _run(client: Any, experiment: str, name: str, tags: Mapping[str, str]) -> str:
    run = client.create_run(experiment, run_name=cut(name, MAX_VALUE), tags=dict(tags))
    return str(run.info.run_id)


def _name(name: str) -> str:
    """The name with the characters that MLflow takes."""
    return re.sub(r"[^\w./ -]", "_", name)
