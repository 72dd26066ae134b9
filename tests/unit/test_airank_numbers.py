"""Time to train, accuracy and speedup, from marks and from a program's own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from parse.airank import ACCURACY, TIME_TO_TRAIN, named_devices, read_training, training_result, training_results
from parse.logs.engine.log_format import LogError
from tests.unit.airank_logs import BEGIN_S, marks, submission, text

LOGS = Path(__file__).parents[3] / "shared" / "logs"
NEEDS_LOGS = pytest.mark.skipif(not LOGS.is_dir(), reason="needs ../shared/logs")


def training(tmp_path, written, name="GPUx8.log"):
    path = tmp_path / name
    path.write_text(written)
    return read_training(path)


def numbers_of(tmp_path, written, target=None):
    return training_result(training(tmp_path, written), target)


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
    assert (result.training.whole_s, result.training.end) == (400, "test_finish")
    assert (result.accuracy, result.reasons) == (77, {})


def test_the_clock_does_not_pause(tmp_path):
    """A pause of 1000 s before the evaluation that reaches the target is in the time to train."""
    assert numbers_of(tmp_path, delayed(1000, after_s=299)).time_to_train_s == pytest.approx(1300)


@pytest.mark.parametrize(
    ("written", "target", "reason"),
    [
        (without("test_begin"), None, "nothing says when it began (no test_begin)"),
        (text(marks()), 78, "the target of 78 % is not reached: 77.000 % at best in 4 evaluations, "
                            "400.00 s from test_begin to test_finish"),
    ],
)  # fmt: skip
def test_reasons_for_an_absent_time_to_train(tmp_path, written, target, reason):
    result = numbers_of(tmp_path, written, target)
    assert (result.time_to_train_s, result.reasons) == (None, {TIME_TO_TRAIN: reason})


def test_a_log_that_names_another_model_has_no_target(tmp_path):
    result = training_result(training(tmp_path, text(marks()), "tsm_resnet50_GPUx8.log"), None)
    assert (result.time_to_train_s, result.target, result.accuracy) == (None, None, 77)
    assert result.reasons == {TIME_TO_TRAIN: "no target is known for 'tsm' (--target)"}


@pytest.mark.parametrize("key", ["run_start", "eval_accuracy"])
def test_a_log_of_mlperf_alone_is_refused(tmp_path, key):
    """Also where its beginning is missing."""
    started = f':::MLLOG {{"time_ms": 1558631910000, "key": "{key}", "value": 0.76, "metadata": {{}}}}\n'
    with pytest.raises(LogError, match="a log of MLPerf without AI-Rank's marks"):
        training(tmp_path, started)
    assert training(tmp_path, started + text(marks())).source == "marks"


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
    assert (log.log_format, log.source, log.resumed, log.devices) == ("ngc-pytorch", "lines", False, 8)
    result = training_result(log, None)
    assert (result.time_to_train_s, result.reached.epochs, result.accuracy) == (600, 2, 76.63)


def test_a_training_that_goes_on_has_no_time_to_train(tmp_path):
    later = NGC.replace("Epoch: 2", "Epoch: 7").replace("Epoch: 1", "Epoch: 6").replace("Epoch: 0", "Epoch: 5")
    log = training(tmp_path, later)
    assert log.resumed
    result = training_result(log, None)
    assert result.accuracy == 76.63
    assert result.reasons == {TIME_TO_TRAIN: "the log goes on with a training that began before it"}


def test_a_launcher_s_clock_that_is_ahead_is_not_taken(tmp_path):
    launched = "Tue Mar 23 17:00:00 2021[1,0]<stdout>:===>--nnodes 1 --node_rank 0\n" + NGC
    assert training_result(training(tmp_path, launched), None).time_to_train_s == 600


def test_marks_without_evaluations_leave_the_program_s_lines(tmp_path):
    log = training(tmp_path, NGC + "- AI-Rank-log 1616491482.127 test_begin\n")
    assert log.source == "lines"
    assert log.remarks == (
        "its marks hold no evaluation, so all times are those of the program's own lines",
    )  # fmt: skip


def test_a_log_without_evaluations(tmp_path):
    log = training(tmp_path, "\n".join(NGC.split("\n")[:3]))
    assert log.source == ""
    assert set(training_result(log, None).reasons) == {TIME_TO_TRAIN, ACCURACY}


def speedups(folder):
    """By the log's name the speedup, or the reason why there is none."""
    results = training_results([read_training(path) for path in sorted(folder.rglob("*.log"))])
    return {result.training.path.name: result.speedup or result.reasons["speedup"] for result in results}


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
    ("name", "time_to_train_s", "epochs", "whole_s", "accuracy"),
    [
        ("ngc-pytorch-resnet50_airank_1n1g_b256_amp_time2train.log", 126731.68, 83, 137369.04, 76.63),
        ("ngc-pytorch-resnet50_airank_4n8g_b256_amp_time2train.log", 5142.55, 88, 5259.13, 75.90),
        ("airank-format_tsm_pytorch_1n1g_fp32.log", None, None, 15701.29, 48.436),
    ],
)
def test_real_logs(name, time_to_train_s, epochs, whole_s, accuracy):
    result = training_result(read_training(LOGS / name), None)
    values = (result.time_to_train_s, result.training.whole_s, result.accuracy)
    assert values == pytest.approx((time_to_train_s, whole_s, accuracy), abs=0.006)
    assert (result.reached and result.reached.epochs) == epochs
