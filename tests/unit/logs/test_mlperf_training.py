"""What was trained in which time by MLPerf's lines: excerpts of public result logs, each with its place in
mlcommons/training_results_<round>; the expected figures are computed by hand from the lines that are here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parse.logs.mlperf import BENCHMARKS, Clock
from parse.logs.mlperf_training import samples_of_epoch
from parse.logs.path_facts import place_of
from parse.report.reading import read_summary
from parse.runs.attempt import Attempt
from parse.runs.load_logs import HowToRead, _read
from tests.unit.logs.nccl_lines import ONE_NODE

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
     1920 / (575.52 + 140.62), 772.58, 2.7329),
    # v5.0 Dell/results/8xXE9712x4GB200/llama2_70b_lora/result_0.txt: block_stop says 0
    ("llama2_70b_lora", {}, [
        at("run_start", 0), samples("block_start", 0, 0), samples("block_stop", 82.82, 0),
        samples("eval_start", 82.82, 1536), samples("eval_accuracy", 87.25, 1536, 0.92),
        samples("eval_stop", 87.25, 1536), stop(87.26)],
     1536 / 82.82, 87.26, None),
    # v4.0 Intel-HabanaLabs/results/HLS-Gaudi2-PT/llama2_70b_lora: no first block_start, later ones in steps
    ("llama2_70b_lora", {}, [
        at("run_start", 0), samples("block_stop", 2164.28, 1536), samples("eval_accuracy", 2164.28, 1536, 0.94),
        samples("block_start", 2164.28, 192), samples("block_stop", 2754.68, 1920),
        samples("eval_accuracy", 2754.68, 1920, 0.92), stop(2754.69)],
     1920 / 2754.68, 2754.69, None),
    # v3.1 Dell/results/XE9680x8H100-SXM-80GB/stable_diffusion/result_0.txt: steps of 512; evaluated after the run
    ("stable_diffusion", {"global_batch_size": 512}, [
        at("run_start", 0), at("block_start", 0.67, step_num=0), at("block_stop", 59.52, step_num=100),
        at("block_start", 59.6, step_num=100), at("block_stop", 113.43, step_num=200), stop(113.5),
        at("eval_start", 900, step_num=200), at("eval_accuracy", 999, 88.0, step_num=200, metric="FID"),
        at("eval_accuracy", 1000, 0.16, step_num=200, metric="CLIP")],
     200 * 512 / (58.85 + 53.83), 113.5, None),
    # v4.0 NVIDIA/results/eos-dfw_n1452_ngc24.04_nemo/gpt3/result_0.txt: tokens, 2048 a sample
    ("gpt3", {"global_batch_size": 2904}, [
        at("run_start", 0), at("block_start", 0.12, first_epoch_num=0, epoch_count=53526528),
        at("block_stop", 8.85, first_epoch_num=0), epoch("eval_start", 8.85, 53526528),
        epoch("eval_accuracy", 9.55, 53526528, 2.7535), epoch("eval_stop", 9.55, 53526528),
        at("block_start", 9.55, first_epoch_num=53526528), at("block_stop", 17.82, first_epoch_num=53526528),
        epoch("eval_start", 17.82, 107053056), epoch("eval_accuracy", 18.5, 107053056, 2.68), stop(18.6)],
     107053056 / 2048 / (8.73 + 8.27), 18.6, None),
    # v3.1 ASUSTeK/results/ESC-N8-E11/dlrm_dcnv2/result_0.txt: twentieths of one pass
    ("dlrm_dcnv2", {"train_samples": 4195197692}, [
        at("run_start", 0), epoch("epoch_start", 0, 0), epoch("eval_start", 14.26, 0.05),
        epoch("eval_accuracy", 17.69, 0.05, 0.7897), epoch("eval_stop", 17.69, 0.05), epoch("eval_start", 31.62, 0.1),
        epoch("eval_accuracy", 35.05, 0.1, 0.8033), epoch("eval_stop", 35.05, 0.1), stop(35.1)],
     0.1 * 4195197692 / (14.26 + 13.93), 35.1, None),
    # v3.1 ASUSTeK/results/ESC-N8-E11/bert/result_0.txt: one block, samples in the place of epochs
    ("bert", {}, [
        at("run_start", 0), epoch("epoch_start", 0.03, 0), at("block_start", 0.03, first_epoch_num=1, epoch_count=1),
        epoch("eval_start", 19.01, 150635), epoch("eval_stop", 21.24, 150635),
        epoch("eval_accuracy", 21.24, 150635, 0.376),
        epoch("eval_start", 39.65, 300217), epoch("eval_stop", 40.76, 300217),
        epoch("eval_accuracy", 40.76, 300217, 0.72), stop(40.8)],
     300217 / (18.98 + 18.41), 40.8, None),
    # v4.0 NVIDIA/results/eos_n96_ngc23.09_mxnet/unet3d/result_00.txt: other nodes evaluate while a block goes on
    ("unet3d", {"train_samples": 168}, [
        at("run_start", 0), at("block_start", 0.66, first_epoch_num=0, epoch_count=3360),
        at("block_stop", 1.75, first_epoch_num=0), at("block_start", 1.75, first_epoch_num=453600),
        at("eval_start", 2.0, epoch_num=453600), at("block_stop", 2.13, first_epoch_num=453600),
        epoch("eval_accuracy", 2.14, 453600, 0.89), epoch("eval_stop", 2.14, 453600),
        at("block_start", 2.18, first_epoch_num=456960), epoch("eval_start", 2.19, 456960),
        at("block_stop", 2.49, first_epoch_num=456960), epoch("eval_accuracy", 2.49, 456960, 0.91), stop(2.5)],
     456960 / (1.09 + 0.38), 2.5, None),
    # v5.0 ASUSTeK/results/ESC_N8_E11/retinanet/result_1.txt: an epoch is begun until the last evaluation is done
    ("retinanet", {"train_samples": 1170301}, [
        at("run_start", 0), epoch("epoch_start", 0, 0), epoch("epoch_stop", 477.78, 0), epoch("eval_start", 477.78, 1),
        epoch("epoch_start", 506.79, 1), epoch("eval_accuracy", 516.17, 1, 0.24), epoch("eval_stop", 516.17, 1),
        epoch("epoch_stop", 981.54, 1), epoch("eval_start", 981.54, 2), epoch("epoch_start", 1008.95, 2),
        epoch("eval_accuracy", 1014.09, 2, 0.341), epoch("eval_stop", 1014.09, 2), epoch("epoch_stop", 1014.95, 2),
        stop(1015)],
     2 * 1170301 / (477.78 + 474.75), 1015, None),
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


REASONS = [
    # v2.0 ASUSTeK/results/ESC8000A-E11-8xA100-PCIE-80GB-NVBridge/minigo/result_0.txt: games
    ("minigo", [at("run_start", 0), epoch("epoch_start", 0, 1), epoch("epoch_stop", 42.4, 1),
                epoch("eval_accuracy", 43, 1, 0.5), stop(44)], "in minigo they are no passes over the data set"),
    # v2.0 Samsung/results/samsung_supercomputer21_dgxa100_n171_pytorch/bert/result_0.txt
    ("bert", [at("run_start", 0), epoch("epoch_start", 0, 1), epoch("eval_accuracy", 5, 1, 0.3),
              epoch("eval_accuracy", 9, 1, 0.73), stop(9.1)], "all its evaluations are numbered 1"),
    # Models that were stored, evaluated one after another at the end of the run: which was the last to be trained?
    ("llama31_8b", [at("run_start", 0), samples("block_start", 0, 0), samples("block_stop", 100, 0),
                    samples("eval_accuracy", 110, 1000, 5.0), samples("eval_accuracy", 120, 2000, 3.2), stop(121)],
     "its evaluations follow one another without training in between"),
]  # fmt: skip


@pytest.mark.parametrize(("benchmark", "events", "reason"), REASONS)
def test_no_speed_has_its_reason(tmp_path: Path, benchmark: str, events: list[Event], reason: str) -> None:
    attempt = attempt_of(write(tmp_path / "a.txt", benchmark, *events))
    assert attempt.measured is None and reason in attempt.problem


@pytest.mark.parametrize(
    ("count", "division", "each", "source"),
    [
        (4572, "closed", 1_170_301, "MLPerf's data set of retinanet: train_samples 4,572 fit 1/256 of the 1,170,301"),
        (4572, "open", None, "train_samples 4,572 fit 1/256 of the 1,170,301 samples of MLPerf's data set"),
        (900_000, "", None, "train_samples 900,000 are not the 1,170,301 samples of MLPerf's data set of retinanet"),
        (900_000, "open", 900_000, "as the log says, but train_samples 900,000 are not"),
        (1_166_000, "", 1_166_000, "as the log says"),
    ],
)
def test_samples_of_an_epoch(count: int, division: str, each: int | None, source: str) -> None:
    clock = Clock(source="mllog", benchmark_name="retinanet", benchmark=BENCHMARKS["retinanet"])
    samples_each, text_of = samples_of_epoch({"samples_per_epoch": str(count), "division": division}, clock, None)
    assert samples_each == each and text_of.startswith(source)


def test_a_stated_rate_of_one_device_is_named(tmp_path: Path) -> None:
    events = [at("run_start", 0), samples("block_start", 0, 0), at("tracked_stats", 100, {"throughput": 2.0}),
              samples("block_stop", 100, 1600), samples("eval_accuracy", 110, 1600, 0.92), stop(111)]  # fmt: skip
    attempt = attempt_of(write(tmp_path / "8xH100" / "a.txt", "llama2_70b_lora", *events))
    assert attempt.log is not None and attempt.requested is not None
    assert attempt.requested.case == "1n8g"
    assert "it states 2.00 samples/s in tracked_stats (median), -87.5% from 16.00: that of one of its 8 devices" in (
        attempt.log.remarks
    )
    assert "8 devices: by its folder 8xH100" in attempt.log.remarks


def test_a_bert_that_numbers_its_evaluations_alike_has_the_samples_that_it_prints_at_its_end(tmp_path: Path) -> None:
    # v1.0 Dell/results/DSS8440x8A100-PCIE-40GB/bert/result_8.txt, 3 of its 21 evaluations
    def of(count: int) -> Attempt:
        events = [at("run_start", 0), at("block_start", 0, first_epoch_num=1, epoch_count=1),
                  epoch("eval_accuracy", 202.6, 1, 0.38), epoch("eval_accuracy", 400.1, 1, 0.40),
                  epoch("eval_accuracy", 597.5, 1, 0.53), at("train_samples", 597.5, count), stop(597.5)]  # fmt: skip
        return attempt_of(write(tmp_path / "b" / "result_0.txt", "bert", *events, global_batch_size=256))

    trained = of(450_240)
    assert trained.measured and trained.measured.throughput == pytest.approx(450_240 / 597.5)
    assert trained.log and any("with its evaluations, as no line says when" in text for text in trained.log.remarks)
    assert of(100_000).measured is None


def test_a_log_that_begins_with_nccl_tests_is_a_training_too(tmp_path: Path) -> None:
    # v5.0 Google/results/h200_n8_nemo/stable_diffusion/result_8.txt
    events = [at("run_start", 0), samples("block_start", 0, 0), samples("eval_loss", 100, 6400, 0.9), stop(100)]
    path = write(tmp_path / "result_0.txt", "llama2_70b_lora", *events)
    path.write_text(ONE_NODE + path.read_text())
    summary, _ = read_summary([path], "logs")
    assert [result.median_speed for result in summary.results] == [64.0] and summary.benchmarks.nccl_tests


def test_blocks_that_differ_many_times_are_doubted(tmp_path: Path) -> None:
    """v2.0 Google/results/cloud-tpu-v4-2048-TF/maskrcnn/result_0.txt: its blocks end before their training does."""
    events = [at("run_start", 0)]
    for number, (begin, end) in enumerate([(0, 11.7), (18, 21), (28, 31), (38, 38.3), (45, 48)]):
        events += [at("block_start", begin, first_epoch_num=number, epoch_count=1),
                   at("block_stop", end, first_epoch_num=number), epoch("eval_start", end + 1, number + 1),
                   epoch("eval_accuracy", end + 6, number + 1, {"BBOX": 0.1 * number, "SEGM": 0.1}),
                   epoch("eval_stop", end + 6, number + 1)]  # fmt: skip
    path = write(tmp_path / "a.txt", "maskrcnn", *events, stop(60), train_samples=117266)
    attempt = attempt_of(path)
    assert attempt.log is not None
    assert "it trains 10 times as fast as usually, by its blocks" in " ".join(attempt.log.remarks)


def test_a_run_that_did_not_succeed_has_no_time_to_train(tmp_path: Path) -> None:
    events = [at("run_start", 0), samples("block_start", 0, 0), samples("block_stop", 100, 1600),
              samples("eval_accuracy", 110, 1600, 0.95), at("run_stop", 111, status="aborted")]  # fmt: skip
    attempt = attempt_of(write(tmp_path / "a.txt", "llama2_70b_lora", *events))
    assert attempt.log is not None and attempt.log.mlperf_s is None
