"""Scripts measured by hand: which runs are of one setting, what their headline says, why one has no speed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from hpc import script
from hpc.model.spec import SCRIPT, UNKNOWN
from hpc.observe.recording import indices_given
from parse.page.scaling import verdict
from parse.report.notices import conclusion
from parse.report.summary import Summary, read_summary
from parse.report.table import text
from parse.summarize import main
from parse.text import Page
from tests.unit.traces import make_ranks, make_run, make_trace, put


def measured(
    folder: Path, ranks: int, speed: float, *, cpus: int, decided: bool, path: str = "/here/train.py", **facts: Any
) -> None:
    """Puts a trace of a script on so many ranks; `decided`: a launcher decided its `cpus`."""
    run = make_run(ranks_per_node=ranks, cpus_per_rank=cpus)
    its = make_trace(run, speed=speed)
    run = dataclasses.replace(run, backend=SCRIPT, workload=path, batch_size=0, precision=UNKNOWN)
    described = {"cpus_decided": decided, **facts}
    put(
        folder,
        dataclasses.replace(
            its, run=run, run_id="", point_id="", ranks=[{**each, "script": described} for each in make_ranks(run)],
            samples=its.samples * (0 if "data_replicas" in facts else 1),
        ),
    )  # fmt: skip


def summary(folder: Path) -> Summary:
    return read_summary([folder])[0]


def first_line(folder: Path) -> str:
    return conclusion(summary(folder), [], 200)[0]


def test_threads_that_a_launcher_decided_are_no_setting_and_a_remark(tmp_path: Path) -> None:
    measured(tmp_path, 1, 100, cpus=2, decided=True)
    measured(tmp_path, 2, 150, cpus=1, decided=True)
    assert first_line(tmp_path) == "script train.py: 1n2g runs 1.50 × as fast as 1n1g (75 % of ideal)"
    written = " ".join(text(summary(tmp_path), Page(width=80)).split())  # whole on a narrow screen
    assert (
        "1n2g cpus_per_rank=1: each rank has 1 thread, on 1n1g 2: not requested (torchrun sets OMP_NUM_THREADS=1 for "
        "several ranks alone), and it changes the speed; to compare the scale alone, give both one --cpus-per-rank or "
        "OMP_NUM_THREADS"
    ) in written


def test_threads_that_a_person_requested_are_a_setting_and_the_advice_is_whole(tmp_path: Path) -> None:
    measured(tmp_path, 1, 100, cpus=2, decided=False)
    measured(tmp_path, 2, 150, cpus=1, decided=False)
    assert "no speedup" in first_line(tmp_path)
    written = " ".join(text(summary(tmp_path), Page(width=80)).split())
    assert "cpus_per_rank is 2 there and 1 here; measure both with one --cpus-per-rank" in written


def test_threads_that_a_launcher_decided_and_another_run_requested_are_one_setting(tmp_path: Path) -> None:
    measured(tmp_path, 1, 100, cpus=1, decided=False)
    measured(tmp_path, 2, 150, cpus=1, decided=True)
    assert "1n2g runs 1.50 × as fast as 1n1g" in first_line(tmp_path)


def test_a_script_is_one_whatever_path_led_to_it(tmp_path: Path) -> None:
    measured(tmp_path, 1, 100, cpus=1, decided=True)
    measured(tmp_path, 2, 150, cpus=1, decided=True, path="/here/sub/../train.py")
    assert "1n2g runs 1.50 × as fast as 1n1g" in first_line(tmp_path)


def test_files_of_one_name_in_two_folders_are_named_with_their_paths(tmp_path: Path) -> None:
    measured(tmp_path, 1, 100, cpus=1, decided=False)
    measured(tmp_path, 2, 150, cpus=1, decided=False, path="/there/train.py")
    written = " ".join(text(summary(tmp_path), Page(width=80)).split())
    assert "no baseline in common with 1n1g: workload is /here/train.py there and /there/train.py here" in written


@pytest.mark.parametrize(("speed", "flagged"), [(208, False), (298, True)])
def test_more_than_linear_is_in_the_first_line_and_on_the_card(tmp_path: Path, speed: float, flagged: bool) -> None:
    measured(tmp_path, 1, 100, cpus=2, decided=True)
    measured(tmp_path, 2, speed, cpus=1, decided=True)
    sentence = "more than linear: more differs than the devices (a rank has 1 thread, on 1n1g 2)"
    card = verdict(summary(tmp_path))[0]
    assert (sentence in first_line(tmp_path)) is flagged
    assert (f"{sentence.capitalize()}." in card.sentences, card.doubt) == (flagged, flagged)


def test_a_run_without_a_speed_has_its_true_reason_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reason = "which ranks read the same batch is not known; nothing says what these groups are for: all-to-all"
    measured(tmp_path, 2, 100, cpus=1, decided=True, data_replicas={"replicas": [], "reason": reason})
    assert main([str(tmp_path), "--format", "json"]) == 0
    [point] = json.loads(capsys.readouterr().out)["results"]
    assert point["median_speed"] is None
    assert point["no_speedup"].startswith("no run has a speed: ") and point["no_speedup"].endswith(reason)


@pytest.mark.parametrize(
    ("variables", "agent", "decided"),
    [
        pytest.param({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}, {}, True, id="torchrun has set it"),
        pytest.param({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "1"}, False, id="a person has"),
        pytest.param({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}, None, True, id="not known, as torchrun does"),
        pytest.param({"OMP_NUM_THREADS": "4", "LOCAL_WORLD_SIZE": "2"}, None, False, id="not known, another value"),
        pytest.param({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "1"}, None, False, id="not known, one rank"),
    ],
)
def test_who_set_the_threads_is_read_from_the_agent(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], agent: dict[str, str] | None, decided: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # None: between the agent and this process is a script, which has torchrun's variables itself
    started_with = {"TORCHELASTIC_RUN_ID": "none"} if agent is None else agent
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=started_with) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        assert script._by_torchrun(os.environ["OMP_NUM_THREADS"], process.pid) is decided
        process.stdin.close()


def test_the_last_batch_of_a_sampler_has_the_rest() -> None:
    def given(batches: Any, yielded: int) -> int:
        return indices_given(SimpleNamespace(_index_sampler=batches, _num_yielded=yielded))

    batches = BatchSampler(SequentialSampler(range(10)), 4, drop_last=False)
    assert [given(batches, yielded) for yielded in (1, 2, 3)] == [4, 4, 2]
    assert given(SimpleNamespace(batch_size=4), 1) == 0  # another kind, which may give parts
    loader: DataLoader[Any] = DataLoader(TensorDataset(torch.ones(10, 3)), batch_size=4)
    iterator = iter(loader)
    assert [(next(iterator), indices_given(iterator))[1] for _ in range(3)] == [4, 4, 2]
