"""Time to train, throughput, accuracy and speedup, from marks, MLPerf's lines and a program's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parse.logs.formats.mllog import IMAGENET
from parse.published.training import named_devices, read_training
from parse.published.training_result import (
    ACCURACY,
    THROUGHPUT,
    TIME_TO_TRAIN,
    RuleSettings,
    numbers,
    training_results,
)
from tests.unit.airank_logs import BEGIN_S, SAMPLES, marks, submission, text

LOGS = Path(__file__).parents[3] / "shared" / "logs"
NEEDS_LOGS = pytest.mark.skipif(not LOGS.is_dir(), reason="needs ../shared/logs")


def training(tmp_path, written, name="GPUx8.log", log_format=None):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(written)
    return read_training(path, log_format)


def numbers_of(tmp_path, written, **settings):
    return numbers(training(tmp_path, written), RuleSettings(**settings))


def delayed(seconds, after_s):
    """The usual marks; those after `after_s` from the beginning are later by so many seconds."""
    late = BEGIN_S + after_s
    return text({name: (time_s + seconds * (time_s > late), mark) for name, (time_s, mark) in marks().items()})


def without(name):
    return text({other: mark for other, mark in marks().items() if other != name})


def test_the_numbers_of_marks(tmp_path):
    result = numbers_of(tmp_path, text(marks()))
    assert result.time_to_train_s == pytest.approx(300)
    assert (result.reached.accuracy, result.reached.epochs) == (75.9, 3)
    assert (result.whole_s, result.whole_until) == (400, "test_finish")
    assert (result.throughput, result.epochs, result.samples_from) == (SAMPLES / 100, 4, "as the log says")
    assert (result.accuracy, result.reasons) == (77, {})


def test_the_clock_does_not_pause(tmp_path):
    """A pause of 1000 s before the evaluation that reaches the target is in the time to train and in the throughput."""
    late = numbers_of(tmp_path, delayed(1000, after_s=299))
    assert late.time_to_train_s == pytest.approx(1300)
    assert late.throughput == pytest.approx(4 * SAMPLES / 1400)


def test_warmup_epochs_are_left_out_of_the_throughput_alone(tmp_path):
    slow_start = numbers_of(tmp_path, delayed(50, after_s=0), warmup_epochs=1)
    assert (slow_start.throughput, slow_start.epochs) == (pytest.approx(SAMPLES / 100), 3)
    assert slow_start.time_to_train_s == pytest.approx(350)


def test_accuracies_in_percent(tmp_path):
    assert numbers_of(tmp_path, text(marks(accuracies=(0.5, 40.0, 75.91)))).accuracy == 75.91


def test_without_test_finish_a_training_ends_with_the_last_evaluation(tmp_path):
    assert numbers_of(tmp_path, without("test_finish")).whole_until == "the last evaluation"


@pytest.mark.parametrize(
    ("written", "settings", "reasons"),
    [
        (without("test_begin"), {},
         dict.fromkeys((TIME_TO_TRAIN, THROUGHPUT), "nothing says when it began (no test_begin)")),
        (text(marks()), {"warmup_epochs": 4}, {THROUGHPUT: "only 4 epochs are there, 4 of them warm-up"}),
        (text(marks()), {"target": 78},
         {TIME_TO_TRAIN: "the target of 78 % is not reached: 77.000 % at best in 4 evaluations, "
                         "400.00 s from test_begin to test_finish"}),
    ],
)  # fmt: skip
def test_reasons_for_absent_numbers(tmp_path, written, settings, reasons):
    result = numbers_of(tmp_path, written, **settings)
    assert result.reasons == reasons
    assert [result.time_to_train_s is None, result.throughput is None] == [
        name in reasons for name in (TIME_TO_TRAIN, THROUGHPUT)
    ]


def test_samples_of_an_epoch_that_no_log_prints(tmp_path):
    unknown = text(marks()).replace("train_samples", "other_samples")
    assert THROUGHPUT in numbers_of(tmp_path, unknown).reasons
    assert numbers_of(tmp_path, unknown, samples_per_epoch=1000).throughput == 10
    for folder, samples in (("resnet50", IMAGENET), ("tsm_resnet50", None)):
        assert numbers(training(tmp_path, unknown, f"{folder}/GPUx8.log"), RuleSettings()).samples_per_epoch == samples


def mllog(key, value=None, time_s=0, **metadata):
    return ":::MLLOG " + json.dumps(
        {"time_ms": int((BEGIN_S + time_s) * 1000), "key": key, "value": value, "metadata": metadata}
    )


MLPERF = "\n".join([
    mllog("train_samples", SAMPLES),
    mllog("eval_target", 0.759),
    mllog("run_start", time_s=10),
    mllog("eval_accuracy", 0.5, 110, epoch_num=1),
    mllog("eval_accuracy", 0.5, 111, epoch_num=1),
    mllog("eval_accuracy", 0.76, 510, epoch_num=5),
    mllog("run_stop", None, 520, status="success"),
    "",
])  # fmt: skip


def test_the_numbers_of_mlperf(tmp_path):
    log = training(tmp_path, MLPERF)
    assert (log.source, log.begin.what, log.remarks) == ("mllog", "run_start", ())
    assert [evaluation.epochs for evaluation in log.evaluations] == [1, 5]  # each rank's line counts once
    result = numbers(log, RuleSettings())
    assert (result.time_to_train_s, result.whole_s) == (500, 510)
    assert result.throughput == pytest.approx(5 * SAMPLES / 510)


def test_a_run_that_was_aborted_is_remarked(tmp_path):
    assert training(tmp_path, MLPERF.replace("success", "aborted")).remarks == ("run_stop says 'aborted'",)


def test_marks_stand_before_mlperf(tmp_path):
    assert training(tmp_path, MLPERF + text(marks())).source == "marks"


def dll(time, message):
    return f"DLL 2021-03-23 {time}.000000 - {message}"


NGC = "\n".join([
    dll("09:00:00", "PARAMETER arch : resnet50  num_classes : 1000  batch_size : 256  world_size : 8"),
    dll("09:01:00", "Epoch: 0 Iteration: 10  train.loss : 7.0  train.total_ips : 800.00 img/s"),
    dll("09:04:00", "Epoch: 0 Iteration: 626 Validation Iteration: 10  val.top1 : 80.00 %"),
    dll("09:05:00", "Epoch: 0  train.loss : 6.5  train.total_ips : 857.51 img/s val.top1 : 4.79 % val.top5 : 14.45 %"),
    dll("09:10:00", "Epoch: 1  train.loss : 1.5  train.total_ips : 857.51 img/s val.top1 : 75.90 % val.top5 : 92.00 %"),
    dll("09:15:00", "Epoch: 2  train.loss : 1.5  train.total_ips : 857.51 img/s val.top1 : 76.63 % val.top5 : 93.00 %"),
    dll("09:15:01", "Summary: train.loss : 6.5  train.total_ips : 854.37 img/s val.top1 : 76.63 %"),
    "",
])  # fmt: skip


def test_the_numbers_of_a_program_s_own_lines(tmp_path):
    log = training(tmp_path, NGC)
    assert (log.log_format, log.source, log.counted_from, log.devices) == ("ngc-pytorch", "lines", 0, 8)
    assert log.begin.what == "the first time stamp"
    result = numbers(log, RuleSettings())
    assert (result.time_to_train_s, result.reached.epochs) == (600, 2)
    assert (result.throughput, result.accuracy) == (3 * IMAGENET / 900, 76.63)
    assert log.summaries == (("train.total_ips", 854.37),)


def test_a_training_that_goes_on_has_no_time_to_train(tmp_path):
    later = NGC.replace("Epoch: 2", "Epoch: 7").replace("Epoch: 1", "Epoch: 6").replace("Epoch: 0", "Epoch: 5")
    log = training(tmp_path, later)
    assert log.counted_from is None
    result = numbers(log, RuleSettings())
    assert result.accuracy == 76.63
    assert set(result.reasons) == {TIME_TO_TRAIN, THROUGHPUT}


def test_a_launcher_s_clock_that_is_ahead_is_not_taken(tmp_path):
    launched = "Tue Mar 23 17:00:00 2021[1,0]<stdout>:===>--nnodes 1 --node_rank 0\n" + NGC
    log = training(tmp_path, launched)
    assert log.begin.what == "the first step's time stamp"
    assert log.remarks == ("the launcher's clock is ahead of the program's, so time is counted from the first step",)
    assert numbers(log, RuleSettings()).time_to_train_s == 540


def test_marks_without_evaluations_leave_the_program_s_lines(tmp_path):
    log = training(tmp_path, NGC + "- AI-Rank-log 1616491482.127 test_begin\n")
    assert log.source == "lines"
    assert log.remarks == (
        "its marks hold no evaluation, so all times are those of the program's own lines",
    )  # fmt: skip


def test_a_log_without_evaluations(tmp_path):
    log = training(tmp_path, "\n".join(NGC.split("\n")[:3]))
    assert log.source == ""
    assert set(numbers(log, RuleSettings()).reasons) == {TIME_TO_TRAIN, THROUGHPUT, ACCURACY}


def speedups(folder):
    """By the log's name the speedup, or the reason why there is none."""
    results = training_results([read_training(path) for path in sorted(folder.rglob("*.log"))], RuleSettings())
    return {result.training.path.name: result.speedup or result.reason for result in results}


def test_speedup_is_a_ratio_of_times_to_train(tmp_path):
    folder = submission(tmp_path)
    assert speedups(folder) == pytest.approx({"GPUx1.log": 1, "GPUx8.log": 8, "GPUx32.log": 800 / 30})
    # 8 times the throughput, but the target an epoch later: 8 · 3/4.
    (folder / "GPUx8.log").write_text(text(marks(accuracies=(0.3, 0.5, 0.7, 0.76))))
    assert speedups(folder)["GPUx8.log"] == pytest.approx(6)


def test_a_speedup_needs_a_time_to_train_on_one_device(tmp_path):
    folder = submission(tmp_path)
    (folder / "GPUx1.log").write_text(text(marks(accuracies=(0.3, 0.4))))
    assert speedups(folder) == {"GPUx1.log": "it has no time to train"} | dict.fromkeys(
        ("GPUx8.log", "GPUx32.log"), "GPUx1.log has no time to train"
    )
    (folder / "GPUx1.log").unlink()
    assert set(speedups(folder).values()) == {"there is no log of 1 device beside it"}


def test_logs_of_another_series_are_no_baseline(tmp_path):
    folder = submission(tmp_path)
    (folder / "GPUx1.log").rename(folder / "GPUx1_AMP.log")
    assert speedups(folder)["GPUx8.log"] == "there is no log of 1 device beside it"
    (folder / "GPUx8.log").rename(folder / "GPUx8_AMP.log")
    assert speedups(folder)["GPUx8_AMP.log"] == pytest.approx(8)


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("GPUx32.log", 32),
        ("GPUx8_time2train_ips.log", 8),
        ("16n8g/r50_b128_fp32_1.log", 128),
        ("ngc_4n8g_b256.log", 32),
        ("mlperf_v100x8.log", 8),
        ("training.log", None),
    ],
)
def test_devices_by_name(name, devices):
    assert named_devices(Path("logs") / name) == devices


@NEEDS_LOGS
@pytest.mark.parametrize(
    ("name", "time_to_train_s", "epochs", "whole_s", "throughput", "accuracy"),
    [
        ("ngc-pytorch-resnet50_airank_1n1g_b256_amp_time2train.log", 126731.68, 83, 137369.04, 839.38, 76.63),
        ("ngc-pytorch-resnet50_airank_4n8g_b256_amp_time2train.log", 5142.55, 88, 5259.13, 21924.73, 75.90),
        ("tensorflow2-resnet50_mlperf0.7_google_v100x8.log", 5293.89, 39, 5293.90, 9438.32, 75.952),
        ("nvidia-mxnet-resnet50_mlperf0.7_dgx1_1n8g_slurm.log", None, None, 4290.34, 11048.82, 75.886),
        ("airank-format_tsm_pytorch_1n1g_fp32.log", None, None, 15701.29, None, 48.436),
    ],
)
def test_real_logs(name, time_to_train_s, epochs, whole_s, throughput, accuracy):
    result = numbers(read_training(LOGS / name), RuleSettings())
    values = (result.time_to_train_s, result.whole_s, result.throughput, result.accuracy)
    assert values == pytest.approx((time_to_train_s, whole_s, throughput, accuracy), abs=0.006)
    assert (result.reached and result.reached.epochs) == epochs


@NEEDS_LOGS
def test_the_speedup_of_real_logs():
    paths = sorted(LOGS.glob("ngc-pytorch-resnet50_airank_*.log"))
    results = training_results([read_training(path) for path in paths], RuleSettings())
    assert [(result.training.devices, round(result.speedup, 2)) for result in results] == [(1, 1.0), (32, 24.64)]
