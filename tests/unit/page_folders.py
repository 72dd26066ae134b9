"""Folders of traces for the page: a sweep with a straggler, telemetry and a failure; names and texts that attack it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.outcome import Outcome
from hpc.model.spec import RunSpec
from hpc.model.timestamps import END
from hpc.model.trace import Telemetry, Trace
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.logs import made
from tests.unit.traces import make_run, make_trace, put, put_exit_record, put_plan, repeats

LATE_RANK, LATE_MS = 3, 6.0
SERIES = ("gpu0.sm_clock_mhz", "gpu0.power_w")
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'</td>%{y}<b>&amp;\u2028\u202e"
ENDLESS = "n" * 10_000


def with_telemetry(trace: Trace, samples: int = 30) -> Trace:
    """The trace with clocks and power of a GPU on each node; the clock of the second is slower, power rises."""
    ranks = np.arange(0, trace.run.ranks, trace.run.ranks_per_node)
    ends = trace.stamps[ranks, :, END]
    local_ns = np.linspace(ends[:, 0], ends[:, -1], samples, axis=1).astype(np.int64)
    values = np.zeros((len(ranks), samples, len(SERIES)))
    values[:, :, 0], values[:, :, 1] = 1980, np.linspace(480, 510, samples)
    values[1:2, :, 0] = 1500
    return dataclasses.replace(
        trace, telemetry=Telemetry(ranks=ranks.astype(np.int64), local_ns=local_ns, values=values, series=SERIES)
    )


def put_sweep(folder: Path, nodes: tuple[int, ...] = (1, 2), count: int = 3) -> list[RunSpec]:
    """A sweep of one and more nodes; on several, a rank is late. The last run ended for lack of memory. Returns its
    plan."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = []
    for number in nodes:
        ranks = 1 if number == 1 else 2
        for run in repeats(run_of(nodes=number, ranks_per_node=ranks, workload="resnet50", backend="torch-ddp"), count):
            plan.append(run)
            if (number, run.repeat) == (nodes[-1], count) and count > 1:
                put_exit_record(folder, run, Outcome.OOM)
                continue
            longer: dict[str, Any] = {"backward": on(LATE_RANK, ms=LATE_MS)} if number > 1 else {}
            put(folder, with_telemetry(trace_of(run, noise=0.05, seed=run.repeat, **longer)))
    put_plan(folder, plan)
    return plan


def put_two_bases(folder: Path) -> None:
    """A setting whose smallest case is 1n2g, and another whose smallest is 2n2g."""
    for repeat in (1, 2):
        for backend, cases in (("torch-ddp", (1, 2, 4)), ("paddle-fleet", (2, 4, 8))):
            for nodes in cases:
                run = run_of(nodes=nodes, workload="resnet50", backend=backend, repeat=repeat)
                put(folder, trace_of(run, noise=0.05, seed=repeat, communication=1.0 + nodes))


def put_warned(folder: Path) -> None:
    """A sweep whose larger point has warnings of many kinds: scatter, versions, runs that failed."""
    put_sweep(folder, nodes=(1, 2))
    for at, run in enumerate(repeats(run_of(nodes=4, workload="resnet50", backend="torch-ddp"), 4)):
        late: dict[str, Any] = {"backward": on(LATE_RANK, ms=LATE_MS * (1 + 3 * at))}
        software = {"torch": f"2.{at}", "numpy": "2"}
        put(folder, dataclasses.replace(trace_of(run, seed=at, **late), environment={"software": software}))
    failed = [*repeats(run_of(nodes=4, workload="resnet50", backend="torch-ddp"), 6)][4:]
    for run in failed:
        put_exit_record(folder, run, Outcome.RANK_FAIL)


def put_hostile(folder: Path) -> None:
    """As put_sweep with markup in host names and facts, a name of 10,000 characters, and evidence that is markup."""
    folder.mkdir(parents=True, exist_ok=True)
    run = run_of(nodes=2, options={"note": MARKUP, "long": ENDLESS}, site=MARKUP)
    for repeat in repeats(run, 2):
        trace = with_telemetry(trace_of(repeat, backward=on(LATE_RANK, ms=LATE_MS)))
        named = [{**facts, "hostname": MARKUP if rank < 2 else ENDLESS} for rank, facts in enumerate(trace.ranks)]
        software = {"torch": MARKUP, "numpy": ENDLESS, MARKUP: "1"}
        put(folder, dataclasses.replace(trace, ranks=named, environment={**trace.environment, "software": software}))
    failed = make_run(workload="mlp")
    put_plan(folder, [*repeats(run, 2), failed])
    put_exit_record(folder, failed, Outcome.RANK_FAIL)
    note = {"rank": 0, "outcome": "rank_fail", "exception": MARKUP, "message": ENDLESS, "step": 3, "hostname": MARKUP}
    (folder / f"{failed.run_id}.1.rank0.json").write_text(json.dumps(note))
    (folder / "<img src=x onerror=alert(3)>.log").write_text(f"{MARKUP}\n{ENDLESS}\n")


def put_nan(folder: Path) -> None:
    """Runs whose losses and telemetry are NaN."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in repeats(run_of(nodes=2), 2):
        trace = with_telemetry(trace_of(run))
        assert trace.telemetry is not None
        nothing = dataclasses.replace(trace.telemetry, values=np.full_like(trace.telemetry.values, np.nan))
        put(folder, dataclasses.replace(trace, telemetry=nothing, losses=np.full_like(trace.losses, np.nan)))


def put_failed(folder: Path) -> None:
    """A sweep of which no run ended ok."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = repeats(make_run(), 2)
    put_plan(folder, plan)
    for run in plan:
        put_exit_record(folder, run, Outcome.TIMEOUT)


INPUTS: dict[str, Callable[[Path], object]] = {
    "empty": lambda folder: None,
    "one run": lambda folder: put(folder, make_trace()),
    "failed": put_failed,
    "hostile": put_hostile,
    "NaN": put_nan,
    "sweep": put_sweep,
}


def put_document(path: Path) -> Path:
    """A document with a table of ours of two cases."""
    path.write_text(
        "| case | backend | workload | batch_size | runs (ok/total) | median (samples/s) |\n|---|---|---|---|---|---|\n"
        "| 1n1g | pytorch | resnet50 | 32 | - | 100 |\n| 8n8g | pytorch | resnet50 | 32 | - | 6000 |\n"
    )
    return path


def put_together(folder: Path) -> tuple[Path, Path, list[Path]]:
    """A sweep of ours, logs of another system, and two documents of the same work: the folder of traces, that of logs,
    and the documents."""
    for nodes, speed in ((1, 90.0), (2, 170.0)):
        run = make_run(nodes=nodes, backend="torch-ddp", workload="resnet50", batch_size=32, gpus_per_node=1)
        traces = folder / "traces"
        traces.mkdir(parents=True, exist_ok=True)
        for repeat in repeats(run, 2):
            put(traces, make_trace(repeat, speed=speed))
    for case, devices, speed in (("1n1g", 1, 95.0), ("1n8g", 8, 700.0)):
        text = made.ngc_pytorch(made.steps(speed, 32 * devices), batch=32, devices=devices)
        made.put(folder / "logs", f"{case}/r50_b32_1.log", text)
    documents = [folder / name for name in ("one.md", "two.md")]
    for document in documents:
        put_document(document)
    return folder / "traces", folder / "logs", documents
