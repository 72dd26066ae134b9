"""parse.timeline: older, damaged, hostile and missing files, and a file that cannot be written."""

from __future__ import annotations

import dataclasses
import os
import resource
import stat

import numpy as np

from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT
from hpc.model.trace_file import open_trace
from parse.timeline import main
from tests.unit.timelines import ROOT, Drawn, draw, late_trace
from tests.unit.traces import cut_short, make_trace, put


def test_a_golden_trace_is_drawn(tmp_path):
    path = ROOT / "tests/golden/trace_v2.h5"
    assert main([str(path), "--out", str(tmp_path / "t.json")]) == 0
    drawn = Drawn(tmp_path / "t.json")
    with open_trace(path) as trace:
        assert len([event for event in drawn.of("X") if event["name"] == "step 1"]) == len(trace.stamps)


def test_a_failed_run_is_drawn_as_far_as_it_came(tmp_path, capsys):
    trace, _ = late_trace()
    cut = cut_short(trace, 4, Outcome.OOM)
    cut.stamps[2, 2:] = ABSENT
    cut.steps_completed[2] = 2
    drawn = draw(tmp_path, cut)
    counts = [sum(name.startswith("step ") for name, _, _ in drawn.slices(f"rank {rank}")) for rank in range(4)]
    assert counts == [4, 4, 2, 4]
    (about,) = drawn.args(f"{trace.run_id}.1")
    assert (about["steps"], about["steps_compared"]) == (4, 2)
    assert about["steps_without_provable_order"] == 4 - about["steps_with_a_proven_last_rank"]
    assert {args["outcome"] for args in drawn.args(f"{trace.run_id}.1")} == {"oom"}
    after = [name for name, begin, _ in drawn.slices("rank 0") if name in ("wait", "wait+communication")]
    assert after[-2:] == ["wait+communication"] * 2  # nothing is known of rank 2 there
    assert "4 steps" in capsys.readouterr().out


def test_a_run_without_a_step_is_one_line(tmp_path, capsys):
    trace = dataclasses.replace(cut_short(make_trace(), 0, Outcome.OOM), evidence="no room\nat all")
    path = put(tmp_path, trace)
    assert main([str(path), "--out", str(tmp_path / "t.json.gz")]) == 1
    assert capsys.readouterr().err == f"{path}: no rank completed a step (outcome oom: no room at all)\n"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_clocks_that_were_never_compared_are_one_line(tmp_path, capsys):
    trace, _ = late_trace()
    nothing = {"clock_local_ns": np.int64, "clock_offset_ns": np.float64, "clock_bound_ns": np.float64}
    path = put(tmp_path, dataclasses.replace(trace, **{name: np.empty((4, 0), of) for name, of in nothing.items()}))
    assert main([str(path), "--out", str(tmp_path / "t.json.gz")]) == 1
    assert "the ranks' clocks were never synchronised" in capsys.readouterr().err
    assert not (tmp_path / "t.json.gz").exists()


def test_text_that_is_not_utf_8_is_one_line(tmp_path, capsys):
    import h5py

    path = put(tmp_path, make_trace())
    with h5py.File(path, "r+") as file:
        del file.attrs["outcome"]
        file.attrs["outcome"] = np.bytes_(b"\xff\xfeok")
    assert main([str(path), "--out", str(tmp_path / "t.json")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{path}: ") and error.count("\n") == 1


def test_numbers_that_are_none_do_not_reach_the_file(tmp_path):
    trace, _ = late_trace()
    ranks = [{**facts, "stamp_bound_ns": float("nan"), "hostname": "\ud800"} for facts in trace.ranks]
    losses = np.full_like(trace.losses, np.nan)
    drawn = draw(tmp_path, dataclasses.replace(trace, ranks=ranks, losses=losses))  # Drawn fails on NaN
    assert not drawn.of("sf")  # what nothing bounds is not proven


def test_the_file_is_not_writable_by_all_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        drawn = draw(tmp_path, late_trace()[0])
    finally:
        os.umask(before)
    assert not drawn.path.stat().st_mode & stat.S_IWOTH


def test_a_full_disk_is_no_fault_of_the_program_and_leaves_no_file(tmp_path, capsys):
    path, out = put(tmp_path, late_trace()[0]), tmp_path / "t.json"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        assert main([str(path), "--out", str(out)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().err == f"{out}: File too large\n" and not out.exists()
