"""`rankwise watch`: running runs by the copies of their journals."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hpc.model.outcome import BeginRecord
from hpc.model.timestamps import ABSENT, STAMPS
from hpc.model.trace import Trace
from hpc.recovery.journal import SCHEMA, SCHEMA_VERSION, read_window
from hpc.recovery.recover import recent_trace
from parse.live.recent import LiveRun, RunLook, openmetrics, why_not_compared
from parse.watch import Watching, main, watch
from tests.truth.equal_looks import looked_at
from tests.unit.simulated import MS, draw_clocks, equal_ranks, simulate
from tests.unit.traces import make_ranks, make_run, make_trace, put


def delayed(ranks: int = 4, steps: int = 400, since: int = 200) -> Trace:
    """A run whose rank 3 waits 4 ms longer for its data from that step on."""
    generator = np.random.default_rng(7)
    run = make_run(nodes=2, ranks_per_node=ranks // 2, measured_steps=steps)
    late = np.zeros((ranks, run.steps), np.bool_)
    late[3, since:] = True
    durations = equal_ranks(generator, ranks, run.steps).longer("data", late, 4 * MS)
    return simulate(run, durations, draw_clocks(generator, 2), generator).trace


def copy(traces: Path, trace: Trace, completed: int, *, resolved: int | None = None) -> Path:
    """The copies of the journals of a run that has completed so many steps, of which so many have their stamps."""
    partial = traces / f"{trace.run_id}.1.partial"
    partial.mkdir(parents=True, exist_ok=True)
    BeginRecord(run_id=trace.run_id, attempt=1, job_id="77", begin_unix_s=0).take(traces)
    resolved = completed if resolved is None else resolved
    for rank in range(len(trace.stamps)):
        stamps, samples = trace.stamps[rank].copy(), trace.samples[rank].astype(np.int64)
        stamps[resolved:], samples[completed:] = ABSENT, ABSENT
        (partial / f"rank{rank}.stamps").write_bytes(stamps.tobytes() + samples.tobytes())
        points = np.stack([trace.clock_local_ns[rank], trace.clock_offset_ns[rank], trace.clock_bound_ns[rank]], axis=1)
        clock = {
            "domain": trace.clock_domains[rank], "points": points.tolist(),
            "barrier_exits_ns": trace.barrier_exits_ns[rank].tolist(),
            "unix_offsets_ns": [[0, 0]] * len(trace.clock_local_ns[rank]),
        }  # fmt: skip
        header = {
            "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "rank": rank, "steps": trace.run.steps,
            "byteorder": sys.byteorder, "run": trace.run.to_json(), "attempt": 1, "clock": clock,
            "facts": trace.ranks[rank],
        }  # fmt: skip
        (partial / f"rank{rank}.json").write_text(json.dumps(header))
    (partial / "n0.beat").write_text("10")
    return partial


def looks(traces: Path, trace: Trace, *completed: int) -> list[RunLook]:
    """The run looked at after so many steps each."""
    copy(traces, trace, completed[0])
    (run,) = (LiveRun(each.files) for each in _runs(traces))
    seen = []
    for steps in completed:
        copy(traces, trace, steps)
        seen.append(run.look())
    return seen


def _runs(traces: Path) -> list[LiveRun]:
    watching = Watching(traces)
    watching.look()
    return [*watching._runs.values()]


def test_a_late_rank_is_named_by_the_second_look_at_it(tmp_path: Path) -> None:
    before, first, second = looks(tmp_path, delayed(), 190, 300, 350)
    assert before.delay is None and first.delay is None and second.delay is not None
    assert second.delay.ranks == (3,) and second.delay.cause == "data"
    assert re.fullmatch(r"rank 3 \(n1\) waits [34]\.\d\d ms longer for its data", second.delay.text)
    assert second.delay.late_ms == pytest.approx(4, abs=0.5) and second.delay.last_step == 350
    assert (second.step, second.steps) == (350, 405) and second.remaining_s and second.speed


def test_equal_ranks_are_not_named() -> None:
    for seed, ranks in ((0, 2), (1, 4), (2, 8)):
        looked = looked_at(seed, ranks, 120.0)
        assert looked.looks >= 10 and not looked.named


def test_what_has_been_copied_long_ago_is_not_told(tmp_path: Path) -> None:
    partial = copy(tmp_path, delayed(), 350)
    (partial / "n1.beat").write_text("10")
    os.utime(partial / "n1.beat", times=(time.time() - 75,) * 2)  # the helper of one node is gone
    (look,) = Watching(tmp_path).look()
    assert 70 < look.age_s < 90 and look.run is None and look.delay is None


def test_the_window_has_the_last_steps_with_stamps_alone(tmp_path: Path) -> None:
    trace = delayed()
    partial = copy(tmp_path, trace, 300, resolved=222)
    progress, journals = read_window(partial, 41, {})
    recent = recent_trace(partial, journals)
    assert {each.completed for each in progress.values()} == {300} and recent.stamps.shape == (4, 41, len(STAMPS))
    assert (recent.stamps == trace.stamps[:, 181:222]).all() and recent.blocks.tolist() == [[1, 41]]
    (partial / "rank2.stamps").unlink()
    _, journals = read_window(partial, 41, progress)
    with pytest.raises(Exception, match="nothing is here of rank 2"):
        recent_trace(partial, journals)


def test_a_window_over_two_blocks_leaves_out_what_is_between(tmp_path: Path) -> None:
    run = make_run(measured_steps=40, block_steps=20)
    partial = copy(tmp_path, make_trace(run), 40)
    recent = recent_trace(partial, read_window(partial, 31, {})[1])
    assert [[first + 9, stop + 9] for first, stop in recent.blocks.tolist()] == [[10, 25], [30, 40]]


REFERENCE = """title = "a machine"
source = "here"
[[point]]
speed = 1000
settings = {backend = "mpi", case = "2n2g"}
"""


def test_the_speed_is_beside_that_of_earlier_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = delayed()
    copy(tmp_path, trace, 150)
    repeat = dataclasses.replace(trace.run, repeat=2)
    put(tmp_path, dataclasses.replace(trace, run=repeat, run_id=repeat.run_id, point_id=repeat.point_id))
    metrics = tmp_path / "rankwise.prom"
    watch(Watching(tmp_path, job="77"), metrics, Console(force_terminal=False), looks=1)
    shown = capsys.readouterr().out
    assert re.search(
        r"step 150 of 405; [\d,.]+ samples/s \(\d+ % of [\d,.]+, the median of 1 run of its point\)", shown
    )
    assert not Watching(tmp_path, job="78").look()
    reference = tmp_path / "machine.toml"
    reference.write_text(REFERENCE)
    watching = Watching(tmp_path, against=reference)
    assert watching.expected(watching.look()[0]) == (1000.0, "a machine")
    reference.write_text(REFERENCE.replace("2n2g", "1n2g"))
    watching = Watching(tmp_path, against=reference)
    assert watching.expected(watching.look()[0]) == (None, "a machine has no speed of its point")


METRIC = re.compile(r'rankwise_[a-z_]+\{([a-z]+="(?:[^"\\\n]|\\[\\"n])*"(?:,(?!\})|(?=\})))+\} -?[0-9.e+-]+')
"""A sample of OpenMetrics and of Prometheus' text format."""


def test_metrics_are_openmetrics(tmp_path: Path) -> None:
    seen = looks(tmp_path, delayed(), 300, 350)
    odd = dataclasses.replace(seen[1], stem='a"b\\c\nd', delay=None)
    text = openmetrics([(seen[1], 1000.0), (odd, None)])
    assert text.endswith("\n# EOF\n") and text.count("# EOF") == 1
    blocks = re.split(r"(?m)^# TYPE ", text.removesuffix("# EOF\n"))[1:]
    assert len(blocks) == 7
    for block in blocks:
        kind, meaning, *samples = block.splitlines()
        name = kind.removesuffix(" gauge")
        assert re.fullmatch(r"rankwise_[a-z_]+", name) and meaning.startswith(f"# HELP {name} ")
        assert all(METRIC.fullmatch(sample) and sample.startswith(f"{name}{{") for sample in samples)
    assert ',ranks="3",cause="data"} 0.00' in text and r'run="a\"b\\c\nd"' in text


@pytest.mark.parametrize(
    ("script", "reason"),
    [(None, "not yet known"), ({"meets_as_one": False}, "meet in groups"), ({"meets_as_one": True}, "")],
)
def test_of_a_script_it_must_be_known_how_its_ranks_meet(script: dict[str, bool] | None, reason: str) -> None:
    run = make_run(backend="script", workload="/train.py", nodes=2, precision="unknown")
    trace = make_trace(run, ranks=[{**facts, "script": script} for facts in make_ranks(run)])
    assert reason in why_not_compared(trace) and bool(reason) == bool(why_not_compared(trace))


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--against", str(tmp_path / "no.toml")]) == 1
    assert "no.toml" in capsys.readouterr().err
    assert main([str(tmp_path / "none")]) == 1
    assert "none: No such file or directory" in capsys.readouterr().err
