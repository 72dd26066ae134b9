"""What was trained in which time by MLPerf's lines: excerpts of public result logs, each with its place in
mlcommons/training_results_<round>; the expected figures are computed by hand from the lines that are here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parse.logs.path_facts import place_of
from parse.report.summary import read_summary
from parse.runs.attempt import Attempt
from parse.runs.load_logs import HowToRead, _read
from tests.unit.logs.nccl_lines import ONE_NODE
from tests.unit.logs.text_logs import read

T0_MS = 1_745_912_296_000
Event = tuple[str, float, object, dict[str, object]]


def at(key: str, at_s: float, value: object = None, **metadata: object) -> Event:
    return key, at_s, value, metadata


def samples(key: str, at_s: float, count: float, value: object = None) -> Event:
    return at(key, at_s, value, samples_count=count)


def epoch(key: str, at_s: float, number: float, value: object = None) -> Event:
    return at(key, at_s, value, epoch_num=number)


def stop(at_s: float) -> Event:
    return at("run_stop", at_s, status="success")


def write(path: Path, benchmark: str, *events: Event, platform: str = "1xMACHINE", **facts: Any) -> Path:
    head = {"submission_benchmark": benchmark, "submission_platform": platform, "submission_division": "closed"} | facts
    lines = [at(key, -1, value) for key, value in head.items()] + [*events]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(
            ":::MLLOG "
            + json.dumps({"time_ms": T0_MS + round(at_s * 1000), "key": key, "value": value, "metadata": metadata})
            + "\n"
            for key, at_s, value, metadata in lines
        )
    )
    return path


def attempt_of(path: Path) -> Attempt:
    return _read(path, place_of(path), HowToRead())[1]


RUNS = [
    # v5.0 AMD/results/MI325X_EPYC_9575F_pytorch/llama2_70b_lora/result_0.txt
    ("llama2_70b_lora", {"train_samples": 3901}, [
        at("run_start", 0), samples("block_start", 0, 0), at("tracked_stats", 575.52, {"throughput": 2.7344}),
        samples("block_stop", 575.52, 1536), samples("eval_start", 575.52, 1536),
        samples("eval_accuracy", 603.74, 1536, 0.9409), samples("eval_stop", 603.74, 1536),
        samples("block_start", 603.74, 1536), at("tracked_stats", 744.36, {"throughput": 2.7314}),
        samples("block_stop", 744.36, 1920), samples("eval_start", 744.36, 1920),
        samples("eval_accuracy", 772.57, 1920, 0.9234), samples("eval_stop", 772.57, 1920), stop(772.58)],
     1920 / 744.36, 772.58, 2.7329),
    # v5.0 Dell/results/8xXE9712x4GB200/llama2_70b_lora/result_0.txt: block_stop says 0
    ("llama2_70b_lora", {}, [
        at("run_start", 0), samples("block_start", 0, 0), samples("block_stop", 82.82, 0),
        samples("eval_start", 82.82, 1536), samples("eval_accuracy", 87.25, 1536, 0.92),
        samples("eval_stop", 87.25, 1536), stop(87.26)],
     1536 / 82.82, 87.26, None),
    # v0.7 Google/results/v100x8-cluster: epochs of train_samples, numbered by evaluations
    ("resnet", {"train_samples": 1281167}, [
        at("run_start", 0), at("block_start", 0, first_epoch_num=1, epoch_count=3), epoch("eval_start", 400, 3),
        epoch("eval_accuracy", 428, 3, 0.25), at("block_stop", 429, first_epoch_num=1),
        at("block_start", 429, first_epoch_num=4, epoch_count=4), epoch("eval_start", 940, 7),
        epoch("eval_accuracy", 960, 7, 0.38), at("block_stop", 961, first_epoch_num=4), stop(961)],
     7 * 1281167 / 961, 961, None),
    # A last epoch that does not end is none; those of epoch_start count where there are no blocks
    ("oc20", {"train_samples": 2_000_000, "number_of_nodes": 4, "accelerators_per_node": 8}, [
        at("run_start", 0), epoch("epoch_start", 0, 1), epoch("eval_start", 19, 1), epoch("epoch_start", 20, 2),
        epoch("eval_error", 28, 1, 0.05), epoch("epoch_stop", 28, 1), epoch("eval_start", 39, 2),
        epoch("epoch_start", 40, 3), epoch("eval_error", 48, 2, 0.04), epoch("epoch_stop", 48, 2), stop(49)],
     2 * 2_000_000 / 48, 49, None),
    # Tokens in tracked_stats, 2048 a sample: the rate that the log states counts where samples are not stated
    ("gpt3", {}, [at("run_start", 0), at("tracked_stats", 9, {"throughput": 4096.0}), stop(18.6)], 2.0, 18.6, 2.0),
]  # fmt: skip


@pytest.mark.parametrize(("benchmark", "facts", "events", "rate", "run_s", "stated"), RUNS)
def test_samples_and_seconds_of_training(
    tmp_path: Path, benchmark: str, facts: dict[str, Any], events: list[Event], rate: float, run_s: float,
    stated: float | None,
) -> None:  # fmt: skip
    path = write(tmp_path / "result_0.txt", benchmark, *events, **facts)
    attempt = attempt_of(path)
    assert attempt.measured is not None and attempt.log is not None
    assert attempt.measured.throughput == pytest.approx(rate, rel=1e-6)
    assert attempt.log.mlperf_s == pytest.approx(run_s, abs=1e-3)
    assert attempt.log.stated == (None if stated is None else pytest.approx(stated, rel=1e-3))


BLOCK = [at("block_start", 0, first_epoch_num=1, epoch_count=4), epoch("eval_start", 90, 4)]
REASONS = [
    ("bert", {}, [at("block_start", 0, first_epoch_num=1, epoch_count=1), epoch("eval_accuracy", 5, 150_000, 0.3)],
     "it has no block_start with a block_stop, nor an epoch_start with an epoch_stop"),
    ("rgat", {}, [*BLOCK, epoch("eval_accuracy", 95, 4, 0.7), at("block_stop", 96, first_epoch_num=1)],
     "no evaluation counts samples, and it has no train_samples with numbered epochs"),
    # A block_start of each epoch, a block_stop of four
    ("resnet", {"train_samples": 1281167}, [
        at("block_start", 0, first_epoch_num=1, epoch_count=1), epoch("eval_accuracy", 95, 4, 0.7),
        at("block_stop", 96, first_epoch_num=1), at("block_start", 97, first_epoch_num=5, epoch_count=1),
        epoch("eval_accuracy", 195, 8, 0.7), at("block_stop", 196, first_epoch_num=5)],
     "its blocks have 2 epochs, and its evaluations are of 5"),
    ("retinanet", {"train_samples": 4572}, [*BLOCK, epoch("eval_accuracy", 95, 4, 0.3), at("block_stop", 96)],
     "its train_samples 4,572 are not the 1,170,301 samples of MLPerf's data set"),
]  # fmt: skip


@pytest.mark.parametrize(("benchmark", "facts", "events", "reason"), REASONS)
def test_no_speed_has_its_reason(
    tmp_path: Path, benchmark: str, facts: dict[str, Any], events: list[Event], reason: str
) -> None:
    attempt = attempt_of(write(tmp_path / "a.txt", benchmark, at("run_start", 0), *events, stop(200), **facts))
    assert attempt.measured is None and f"no speed of the whole training: {reason}" in attempt.problem


def test_devices_and_nodes_are_those_of_explicit_keys(tmp_path: Path) -> None:
    """Not those of the platform, of which a run may have a part, nor of folders' names."""
    path = write(
        tmp_path / "8xH100_n2" / "a.txt", "bert", stop(1), platform="256xDGX H100",
        number_of_nodes=4, accelerators_per_node=8,
    )  # fmt: skip
    attempt = attempt_of(path)
    assert attempt.requested is not None and attempt.requested.case == "4n8g"
    attempt = attempt_of(write(tmp_path / "8xH100_n2" / "b.txt", "bert", stop(1), platform="256xDGX H100"))
    assert attempt.requested is not None and attempt.requested.case == "?"


def test_a_log_that_begins_with_nccl_tests_is_a_training_too(tmp_path: Path) -> None:
    # v5.0 Google/results/h200_n8_nemo/stable_diffusion/result_8.txt
    events = [at("run_start", 0), samples("block_start", 0, 0), samples("eval_loss", 100, 6400, 0.9),
              samples("block_stop", 100, 0), stop(100)]  # fmt: skip
    path = write(tmp_path / "result_0.txt", "llama2_70b_lora", *events)
    path.write_text(ONE_NODE + path.read_text())
    summary, _ = read_summary([path], "logs")
    assert [result.median_speed for result in summary.results] == [64.0] and summary.benchmarks.nccl_tests


def test_a_run_that_did_not_succeed_has_no_time_to_train(tmp_path: Path) -> None:
    events = [at("run_start", 0), samples("block_start", 0, 0), samples("block_stop", 100, 1600),
              samples("eval_accuracy", 110, 1600, 0.95), at("run_stop", 111, status="aborted")]  # fmt: skip
    attempt = attempt_of(write(tmp_path / "a.txt", "llama2_70b_lora", *events))
    assert attempt.log is not None and attempt.log.mlperf_s is None


@pytest.mark.parametrize(
    "garbage",
    ['{"key": "eval_accuracy", "value": 1' + "0" * 5000 + "}",
     '{"key": "a", "value": ' + "[" * 20_000 + "]" * 20_000 + "}"],
    ids=["digits", "depth"],
)  # fmt: skip
def test_endless_garbage_is_no_record(tmp_path: Path, garbage: str) -> None:
    assert read("mllog", tmp_path, f":::MLLOG {garbage}")[1] == ()


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    (record,) = read("mllog", tmp_path, ':::MLLOG {"time_ms": 1, "key": "note", "value": "' + "x" * 9999 + '"}')[1]
    assert len(record.values["value"]) == 200
