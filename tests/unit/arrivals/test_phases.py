"""Who comes last in torchtitan's structured logs: by the phase in which all ranks meet, with what takes it longest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from parse.arrivals.phases import is_phase_log, read_phase_logs
from parse.arrivals.result import ArrivalsResult, RecordingError, arrivals
from parse.arrivals.text import sentence
from parse.collective_trace import main
from parse.logs.path_facts import place_of, run_of_output
from parse.summarize import main as summarize

STEPS, RANKS, STEP_US, OWN_US = 140, 4, 300_000, 5_000
BEGIN_US = 1_787_201_404_773_584
LATE_US = {2: 20_000}


def record(rank: int, step: int, name: str, end_us: int, value: float, event: str | None = None, **more: object) -> str:
    """A line as TraceJsonlFormatter writes it."""
    kind = "instant" if event else "event"
    return json.dumps({
        "delta_ms": 0.1, "tid": 4, "rank": rank, "global_rank": rank, "local_rank": rank, "source": "training",
        "host_name": "node0", "pid": 4000 + rank, "step": step, "relative_step": step, **more, "time": end_us // 10**6,
        "time_ms": end_us // 1000, "time_us": end_us, "log_type": kind, "log_type_name": name, "event_name": event,
        "value": value, "caller": "torchtitan/trainer.py:1033:train", "seq_id": step,
    })  # fmt: skip


def rank_files(folder: Path, late_us: Mapping[int, int] = LATE_US, steps: int = STEPS) -> list[Path]:
    """The files of all ranks, of which some come late from fetching their batches."""
    folder.mkdir(parents=True, exist_ok=True)
    latest_us = max(late_us.values(), default=0)
    paths = []
    for rank in range(RANKS):
        lines, late = [], late_us.get(rank, 0)
        for step in range(1, steps + 1):
            begin = BEGIN_US + step * STEP_US
            end = begin + 270_000 + latest_us + OWN_US
            fetched, wait_us = begin + 1_000 + late, latest_us - late + OWN_US
            lines += [
                record(rank, step, "fetching_batch_end", fetched, (1_000 + late) / 1e3),
                record(rank, step, "fwd_bwd_end", fetched + 200_000, 200.0),
                record(rank, step, "optim_end", fetched + 269_000, 69.0),
                record(rank, step, "metric_value", end, 131072.0, "global_valid_tokens"),
                record(rank, step, "collect_dist_metrics_end", end, wait_us / 1e3),
                record(rank, step, "step_end", begin + STEP_US, STEP_US / 1e3),
            ]
        path = folder / f"training.global_rank_{rank}.20260821-213021-X6XTO{rank}.jsonl"
        path.write_text("\n".join(lines) + "\n")
        paths.append(path)
    return paths


def result_of(paths: list[Path]) -> ArrivalsResult:
    return arrivals(read_phase_logs(paths))


def test_the_late_rank_and_the_phase_that_makes_it_late(tmp_path, capsys):
    paths = rank_files(tmp_path)
    assert all(map(is_phase_log, paths))
    result = result_of(paths)
    assert {rank.rank: rank.last for rank in result.ranks if rank.last} == {"rank 2": STEPS}
    assert (result.ranks[0].wait, result.ranks[0].bound) == pytest.approx((20.0, 0.001))
    assert sentence(result).startswith("rank 2 on node0 comes last to 140 of 140 collectives: the others wait 20.00 ms")
    assert "fetching_batch: 1.00 ms on 4 ranks, 21.00 ms on rank 2" in result.remarks
    assert main([str(tmp_path)]) == 0
    assert "fetching_batch: 1.00 ms on 4 ranks, 21.00 ms on rank 2" in capsys.readouterr().out


def test_ranks_that_come_together_are_not_told_apart(tmp_path):
    result = result_of(rank_files(tmp_path, {}))
    assert not any(rank.last for rank in result.ranks)
    assert sentence(result).startswith("cannot tell who comes last")


def test_the_file_of_a_rank_that_is_missing_is_named(tmp_path):
    first, _, *others = rank_files(tmp_path)
    result = result_of([first, *others])
    assert [(lost.rank, lost.all) for lost in result.lost] == [("its rank 1", True)]


def test_damaged_lines_are_counted_and_logs_without_the_meeting_refused(tmp_path):
    paths = rank_files(tmp_path)
    text = paths[0].read_text()
    paths[0].write_text(text[:-200] + '\n{"log_type_name": "step_end"}\n{"global_rank": "x_end"}\n[1, "_end"]\n')
    result = result_of(paths)
    assert any("no whole record" in remark for remark in result.remarks)
    paths[0].write_text(text.replace("collect_dist_metrics", "other"))
    with pytest.raises(RecordingError, match="collect_dist_metrics"):
        read_phase_logs(paths[:1])


def test_files_of_two_launches_are_refused(tmp_path):
    paths = rank_files(tmp_path)
    second = tmp_path / "training.global_rank_0.20260822-213021-ABCDEF.jsonl"
    second.write_text(paths[0].read_text().replace('"pid": 4000', '"pid": 5000'))
    with pytest.raises(RecordingError, match="two processes"):
        read_phase_logs([*paths, second])


def test_the_files_of_all_ranks_are_one_run_of_as_many_devices(tmp_path, capsys):
    paths = rank_files(tmp_path / "structured_logs")
    assert len({run_of_output(path) for path in paths}) == 1
    assert {place_of(path).devices for path in paths} == {RANKS}
    second = paths[0].with_name("training.global_rank_0.20260822-213021-ABCDEF.jsonl")
    second.write_text("")
    assert run_of_output(second) != run_of_output(paths[0])
    second.unlink()
    assert summarize([str(tmp_path), "--format", "json"]) == 0
    (point,) = json.loads(capsys.readouterr().out)["results"]
    assert (point["devices"], point["median_speed"]) == (RANKS, pytest.approx(131072 / 0.3, rel=1e-6))
