"""TraceML: `traceml serve` beside the ranks, `traceml.trace_step` around each step; final_summary.json is read.

Both are as its documentation has them for a direct launch. `traceml run` starts the same and torchrun, and gives up
where its aggregator is not there after 15 s, which a busy machine needs.

All issues of the section `step_time` count, not the first alone. A kind with STRAGGLER names the rank of its
evidence, in phase `data` for INPUT_STRAGGLER, `forward` for COMPUTE_STRAGGLER (its policy compares that), else none.
ms is the visible cost: what the victim waits longer. Where there are issues of other kinds only (BALANCED, a bound of
all ranks) it names nobody; without enough or complete data it cannot tell.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from benchmarks.straggler.adapters.common import Answer, cannot_tell, finding, named, print_answer
from benchmarks.straggler.hooks import Hooks

PHASES = {"INPUT_STRAGGLER": "data", "COMPUTE_STRAGGLER": "forward"}
RUN = "benchmark"
NO_DATA = {"NO_DATA", "WARMUP", "INCOMPLETE_DATA"}


def beside(python: str, ranks: int, folder: Path, port: str) -> list[str]:
    """Its aggregator, which writes the summary when it is ended."""
    return [
        str(Path(python).parent / "traceml"), "serve", "--aggregator-port", str(int(port) - 1), "--nnodes", "1",
        "--nproc-per-node", str(ranks), "--logs-dir", str(folder / "logs"), "--run-name", RUN,
    ]  # fmt: skip


class ToolHooks(Hooks):
    """The step boundary."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder, rank)
        import traceml_ai

        self.traceml: Any = traceml_ai
        self.traceml.init(
            mode="auto", session_id=RUN, logs_dir=str(folder / "logs"), aggregator_host="127.0.0.1",
            aggregator_port=int(os.environ["MASTER_PORT"]) - 1, connect_timeout_sec=90, on_missing_aggregator="raise",
        )  # fmt: skip

    def step(self, model: Any) -> AbstractContextManager[object]:
        boundary: AbstractContextManager[object] = self.traceml.trace_step(model)
        return boundary


def answer(folder: Path, ranks: int) -> Answer:
    path = folder / "logs" / RUN / "final_summary.json"
    if not path.exists():
        return cannot_tell("no final_summary.json was written")
    section = json.loads(path.read_text())["step_time"]
    issues = section["issues"] or [section["diagnosis"]]
    findings = [
        finding([issue["evidence"]["culprit_rank"]], PHASES.get(issue["kind"]), issue["evidence"]["visible_cost_ms"])
        for issue in issues
        if "STRAGGLER" in issue["kind"]
    ]
    text = "; ".join(f"{issue['kind']}: {issue['summary']}" for issue in issues)
    if not findings and {issue["kind"] for issue in issues} <= NO_DATA:
        return cannot_tell(text)
    return named(findings, text)


def version() -> str:
    from importlib.metadata import version

    return version("traceml-ai")


if __name__ == "__main__":
    print_answer("TraceML", version, answer)
