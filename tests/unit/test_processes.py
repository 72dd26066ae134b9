"""A function over many traces in several processes: the same results in the same order, and what goes wrong in them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import parse.runs.processes
from parse.page.build import build_page
from parse.page.html import render
from parse.runs.processes import ProcessEnded, each_in_processes, processes_for
from tests.unit.page_folders import put_sweep
from tests.unit.test_report_page import summary_of


def _process(item: int) -> tuple[int, int]:
    return item * item, os.getpid()


def _refuse(item: int) -> int:
    if item == 2:
        raise ValueError("two")
    return item


def _end(item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_results_are_in_the_order_of_the_items_and_come_from_other_processes():
    results = [*each_in_processes(_process, range(20), 2)]
    assert [square for square, _ in results] == [item * item for item in range(20)]
    assert os.getpid() not in {process for _, process in results}


@pytest.mark.parametrize(("items", "processes"), [(range(5), 1), (range(1), 4)])
def test_little_is_done_in_this_process(items, processes):
    assert {process for _, process in each_in_processes(_process, items, processes)} == {os.getpid()}


def test_an_error_comes_to_the_caller():
    with pytest.raises(ValueError, match="two"):
        list(each_in_processes(_refuse, range(5), 2))


def test_a_killed_process_is_named():
    with pytest.raises(ProcessEnded, match="killed"):
        list(each_in_processes(_end, range(5), 2))


def test_processes_are_for_large_traces(tmp_path: Path, monkeypatch):
    (tmp_path / "a").write_bytes(b"12345")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    assert processes_for([tmp_path / "a", tmp_path / "absent"]) == 1
    monkeypatch.setattr(parse.runs.processes, "WORTH_BYTES", 5)
    assert processes_for([tmp_path / "a", tmp_path / "absent"]) == 3


def test_a_page_made_in_several_processes_is_the_same(tmp_path: Path, monkeypatch):
    put_sweep(tmp_path / "traces")
    (tmp_path / "traces" / "broken.h5").write_bytes(b"none")
    sequential = render(build_page(summary_of(tmp_path / "traces"), "traces"))
    monkeypatch.setattr(parse.runs.processes, "WORTH_BYTES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert render(build_page(summary_of(tmp_path / "traces"), "traces")) == sequential
    assert "broken.h5" in sequential
