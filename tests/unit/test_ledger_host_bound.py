"""How far devices wait for their hosts, in a ledger: its table, its sentence, its JSON."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.model.timestamps import ABSENT, DEVICE_PHASES
from hpc.model.trace import Trace
from parse.ledger.host_bound import reduce_host_bound
from parse.ledger.point import ledgers
from parse.ledger.types import Ledger
from parse.report.export import as_json
from parse.report.ledger import HOST_BOUND, ledger_markdown
from parse.report.summary import Summary, read_ledgers, read_summary
from parse.runs.load import load
from parse.runs.result import results
from tests.unit.ledgers import whole_text
from tests.unit.test_summary_schema import hold
from tests.unit.traces import make_run, make_trace, put

FOUR = make_run(nodes=2, ranks_per_node=2)
MS = 1_000_000


def with_host_bound(
    compute_ms: Sequence[float], *, syncs: Sequence[object] = (), at_most: Sequence[object] = ()
) -> Trace:
    """A trace whose ranks have so much of compute host-bound, and a quarter of a millisecond of the optimizer."""
    trace = make_trace(FOUR, step_s=0.02)
    paced = np.zeros((*trace.stamps.shape[:2], len(DEVICE_PHASES)), np.int64)
    paced[:, :, 1] = np.array(compute_ms)[:, None] * MS
    paced[:, :, 3] = MS // 4
    records = [{"syncs": its} for its in syncs] + [{}] * (len(trace.ranks) - len(syncs))
    records = [
        {**its, "idle_ms": its_most} for its, its_most in zip(records, [*at_most, *[None] * len(records)], strict=False)
    ]
    ranks = [{**report, "script": {"host_bound": its}} for report, its in zip(trace.ranks, records, strict=True)]
    return dataclasses.replace(trace, host_bound_ns=paced, host_bound_phases=DEVICE_PHASES, ranks=ranks)


def ledger_of(folder: Path, *traces: Trace) -> Ledger:
    for repeat, trace in enumerate(traces, 1):
        run = dataclasses.replace(trace.run, repeat=repeat)
        put(folder, dataclasses.replace(trace, run=run, run_id="", point_id=""))
    (ledger,) = ledgers(results(load([folder])))
    return ledger


def words(ledger: Ledger) -> list[str]:
    """The sentences about hosts."""
    return re.findall(r"\b(?:Each|The) GPU .*? behind.*? kernels.*?\.(?= |$)", whole_text(ledger))


def test_the_rank_whose_host_is_behind_is_named(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, with_host_bound((2, 4, 0, 0), syncs=(0, 1, 0, 0)))
    assert words(ledger) == [
        "The GPU of rank 1 (n0) idles in 21 % of the step: its host is behind. This costs 4.00 ms of compute, 0.25 ms "
        "of the update. To do: CUDA graphs or torch.compile, fewer small kernels, no .item() in every step (the "
        "script waits for its device once in each)."
    ]
    assert ledger.host_bound is not None and ledger.host_bound.mean.compute == 1.5
    assert [pace and pace.compute for pace in ledger.host_bound.ranks] == [2, 4, 0, 0]


def test_waits_that_are_not_counted_are_no_advice(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, with_host_bound((4, 4.2, 4, 4), syncs=(0.1, 0.1)))
    assert words(ledger) == [
        "Each GPU idles in 22 % of the step: the hosts are behind. This costs 4.05 ms of compute, 0.25 ms of the "
        "update. To do: CUDA graphs or torch.compile, fewer small kernels."
    ]


def test_what_events_leave_open_is_said_as_that(tmp_path: Path) -> None:
    open_ms = dict(zip(DEVICE_PHASES, (3.0, 9.0, 0.0, 1.0), strict=True))
    ledger = ledger_of(tmp_path, with_host_bound((0, 0.1, 0, 0), at_most=(None, open_ms)))
    assert words(ledger) == [
        "The GPU of rank 1 (n0) may idle in up to 50 % of the step, if its host is behind: its events leave that "
        "open. This may cost up to 9.00 ms of compute, up to 1.00 ms of the update. To do: CUDA graphs or "
        "torch.compile, fewer small kernels."
    ]
    open_ms["compute"] = 2.5
    (tmp_path / "less").mkdir()
    assert words(ledger_of(tmp_path / "less", with_host_bound((0, 0.1, 0, 0), at_most=(None, open_ms)))) == []


def test_what_is_little_is_in_the_table_alone(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, with_host_bound((0.5, 0.5, 0, 0)))
    assert words(ledger) == [] and ledger.host_bound is not None


def test_the_mean_is_over_runs_and_steps_in_which_it_is_known(tmp_path: Path) -> None:
    first, second = with_host_bound((2, 2, 2, 2), syncs=(1, "?", -1)), with_host_bound((4, 4, 4, 4))
    assert first.host_bound_ns is not None and second.host_bound_ns is not None
    first.host_bound_ns[0, ::2] = ABSENT
    first.host_bound_ns[1, FOUR.warmup_steps :] = ABSENT
    first.host_bound_ns[:, : FOUR.warmup_steps] = 500 * MS
    for trace in (first, second):
        trace.host_bound_ns[3] = ABSENT  # type: ignore[index]
    host_bound = ledger_of(tmp_path, first, second).host_bound
    assert host_bound is not None
    assert [pace and pace.compute for pace in host_bound.ranks] == [3, 4, 3, None]
    assert [pace and pace.syncs for pace in host_bound.ranks] == [1, None, None, None]
    assert host_bound.mean.compute == pytest.approx(10 / 3)
    assert host_bound.compute_of((0, 1)) == (3.5, 3.5) and host_bound.compute_of((2, 3)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"host_bound_ns": None},
        {"host_bound_phases": ("data", "compute", "reduction", "another")},
        {"host_bound_ns": np.full((4, FOUR.steps, len(DEVICE_PHASES)), ABSENT)},
    ],
)
def test_where_no_device_shows_it_there_is_none(changes: dict[str, Any]) -> None:
    assert reduce_host_bound(dataclasses.replace(with_host_bound((4, 4, 4, 4)), **changes)) is None


def test_what_events_leave_open_is_a_range(tmp_path: Path) -> None:
    open_ms = dict(zip(DEVICE_PHASES, (0, 9, 0, 1), strict=True))
    odd = [{"data": 0}, {**open_ms, "compute": "9"}]
    summary = summary_of(tmp_path, with_host_bound((2, 4, 0, 8.8), at_most=(open_ms, *odd, open_ms)))
    rows = [[cell.strip() for cell in line.split("|")] for line in ledger_markdown(summary)[-1].splitlines()]
    place = rows[0].index(f"{HOST_BOUND} (ms)") if f"{HOST_BOUND} (ms)" in rows[0] else rows[0].index(HOST_BOUND)
    assert [row[place] for row in rows[2:]] == ["2.00–9.00", "4.00", "0.00", "8.80"]
    (ledger,) = summary.ledgers or ()
    assert ledger.host_bound is not None and ledger.host_bound.mean.at_most == open_ms


def summary_of(folder: Path, *traces: Trace) -> Summary:
    folder.mkdir(exist_ok=True)
    for trace in traces:
        put(folder, trace)
    summary, _ = read_summary([folder])
    return read_ledgers(summary, summary.results)


def test_tables_and_json_have_it_only_where_there_is_a_device(tmp_path: Path) -> None:
    base = make_run(nodes=1, ranks_per_node=1)
    summary = summary_of(tmp_path, with_host_bound((2, 4, 0, 0)), make_trace(base, step_s=0.01))
    text = "\n".join(ledger_markdown(summary))
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]
    by_case = {row[1]: row for row in rows if "mean" in row}
    place = next(row.index(f"{HOST_BOUND} (ms)") for row in rows if f"{HOST_BOUND} (ms)" in row)
    assert by_case["2n2g"][place] == "1.50" and by_case["1n1g"][place] == ""
    page = hold(as_json(summary))
    with_device, without = sorted(page["ledgers"], key=lambda each: each["case"], reverse=True)
    assert with_device["host_bound"]["ranks"][1] == {
        "data": 0, "compute": 4, "reduction": 0, "optimizer": 0.25, "at_most": None, "syncs": None
    }  # fmt: skip
    assert "host_bound" not in without
    assert HOST_BOUND not in "\n".join(ledger_markdown(summary_of(tmp_path / "without", make_trace(base))))
