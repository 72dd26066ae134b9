"""Epochs, samples and rates of MLPerf's trainings; a sample's log is named beside it as in test_airank_mlperf.py."""

from __future__ import annotations

import pytest

from parse.published.training import read_training
from parse.published.training_result import THROUGHPUT, RuleSettings, numbers
from tests.unit.mlperf_logs import (
    Y2020,
    Y2021,
    Y2022,
    Y2023,
    Y2025,
    by_samples,
    evaluated,
    log,
    numbers_of,
    started,
    trained,
)

EPOCHS = [
    # Numbers from 1, evaluated every 4 epochs: v0.7 DellEMC/results/2xC4140/resnet/result_0.txt
    ([*started((3.5, 1, 4)), *evaluated((0.4, 464.2, 4)), *started((464.3, 5, 4)), *evaluated((0.76, 923.4, 8))],
     [4, 8]),
    # Numbers from 0, the evaluation of the first epoch has number 0: v0.6 Google/results/tpu-v3-128/mask/result_0.txt
    ([*started((0, 0, 1)), *evaluated((0.3, 352.3, 0)), *started((352.4, 1, 1)), *evaluated((0.76, 582.8, 1))], [1, 2]),
    # Numbers from 0, but evaluations count epochs done: v0.7 Google/results/tpu-v3-1024-TF/maskrcnn/result_0.txt
    ([*started((0, 0, 1)), *evaluated((0.3, 51.9, 1)), *started((52, 1, 1)), *evaluated((0.76, 81.0, 2))], [1, 2]),
    # The same by epoch_start: v3.1 Ailiverse/results/8xA100_40GB_open/resnet/result_0.txt
    ([("epoch_start", None, 4.0, {"epoch_num": 0}), ("epoch_start", None, 74.3, {"epoch_num": 1}),
      ("epoch_start", None, 140.0, {"epoch_num": 2}), *evaluated((0.76, 201.4, 3))], [3]),
    # An evaluation bears the number of the next epoch: v0.6 Google/results/tpu-v3-1024/ssd/result_0.txt
    ([*started((0.7, 1.0, 32.0)), *evaluated((0.13, 34.2, 33)), *started((34.3, 33.0, 11.0)),
      *evaluated((0.76, 51.6, 44))], [32, 43]),
    # Blocks are named by their last epoch: v0.6 Google/results/tpu-v3-1024/resnet/result_0.txt
    ([*started((0, 4, 4)), *evaluated((0.05, 12, 4)), *started((12, 8, 4)), *evaluated((0.76, 18.9, 8))], [4, 8]),
    # An evaluation before training is no epoch.
    ([*evaluated((0.001, 5, 0)), *started((6, 1, 1)), *evaluated((0.3, 100, 1)), *started((101, 2, 1)),
      *evaluated((0.76, 200, 2))], [0, 1, 2]),
    # The same where the numbers are of epochs from 0.
    ([*evaluated((0.001, 5, 0)), *started((6, 0, 1)), *evaluated((0.3, 100, 0)), *started((101, 1, 1)),
      *evaluated((0.76, 200, 1))], [0, 1, 2]),
    # The next epoch begins before the evaluation ends: v5.1 Cisco/results/1xC885A_M8-8xH200-SXM-141GB/retinanet
    ([("epoch_start", None, 0, {"epoch_num": 0}), ("eval_start", None, 495, {"epoch_num": 1}),
      ("epoch_start", None, 496, {"epoch_num": 1}), *evaluated((0.228, 505.8, 1)),
      ("eval_start", None, 990, {"epoch_num": 2}), ("epoch_start", None, 991, {"epoch_num": 2}),
      *evaluated((0.294, 999.8, 2))], [1, 2]),
    # Training goes on while an evaluation runs: v1.0 Google/results/tpu-v4-128-TF/ssd/result_0.txt
    ([*started((0.1, 0, 5)), ("eval_start", None, 9.6, {"epoch_num": 5}), *started((9.7, 5, 5)),
      *evaluated((0.03, 12.3, 5)), ("eval_start", None, 19, {"epoch_num": 10}), *evaluated((0.76, 20.5, 10))], [5, 10]),
]  # fmt: skip


@pytest.mark.parametrize(("events", "epochs"), EPOCHS)
def test_epochs_are_counted_from_the_log_s_origin(tmp_path, events, epochs):
    assert [item.epochs for item in trained(tmp_path, log(*events)).evaluations] == epochs


@pytest.mark.parametrize(
    ("benchmark", "begin_s", "events", "reason"),
    [
        # v0.7 Google/results/gpu-v100-8-TF2.0/bert/result_0.txt: steps
        ("bert", Y2020, [*started((0, 0, 1137)), *evaluated((0.7121, 11712.7, 6))],
         "its first evaluation is numbered 6 after 1137 epochs had begun: these are no epochs"),
        # v0.7 Google/results/tpu-v4-128-TF/dlrm/result_0.txt: twentieths of an epoch
        ("dlrm", Y2020, [*started((0, 1, 1)), *evaluated((0.7775, 8.2, 1)), *started((8.3, 2, 1)),
                         *evaluated((0.786, 12.0, 2))],
         "its evaluations are numbered up to 2: in dlrm they are no passes over the data set"),
        # v1.0 Dell/results/DSS8440x8A100-PCIE-40GB-NVBRIDGE/bert/result_0.txt
        ("bert", Y2021, [*started((0, 1, 1)), *evaluated((0.3825, 184.4, 1), (0.442, 363.4, 1))],
         "all its evaluations are numbered 1"),
    ],
)  # fmt: skip
def test_numbers_that_are_no_epochs_give_no_throughput(tmp_path, benchmark, begin_s, events, reason):
    content = log(*events, benchmark=benchmark, begin_s=begin_s, facts=[("train_samples", 4195197692)])
    assert numbers_of(tmp_path, content).reasons[THROUGHPUT] == reason


@pytest.mark.parametrize(
    ("benchmark", "events", "samples", "time_s"),
    [
        # v4.0 ASUSTeK/results/ESC_N8A-E12/llama2_70b_lora/result_0.txt
        ("llama2_70b_lora", by_samples((0.937618, 836.2, 1536), (0.92326, 1773.3, 3072)), 3072, 1773.3),
        # v2.0 Azure/results/ND96amsr_A100_v4_n1_pytorch/bert/result_0.txt: epoch_num counts samples
        ("bert", [*started((0, 1, 1)), *evaluated((0.37313, 64.4, 150080), (0.720046, 1338.7, 3150336))], 3150336,
         1338.7),
        # v3.1 Dell/results/2xXE8640x4H100-SXM-80GB/unet3d/result_0.txt: so do its blocks
        ("unet3d", [*started((3.5, 168, 3360)), *evaluated((0.845, 310.2, 168000), (0.91065, 559.6, 275520))], 275520,
         559.6),
    ],
)  # fmt: skip
def test_evaluations_that_count_samples(tmp_path, benchmark, events, samples, time_s):
    content = log(*events, benchmark=benchmark, begin_s=Y2025, stop_s=time_s, facts=[("train_samples", 168)])
    result = numbers_of(tmp_path, content)
    assert (result.throughput, result.samples, result.epochs) == (pytest.approx(samples / time_s), samples, None)


def test_a_part_of_an_epoch(tmp_path):
    # v1.0 Dell/results/DSS8440x8A100-PCIE-40GB/dlrm/result_0.txt states 664570.98 samples/s; epochs count from 1, and
    # train_samples are those of the run.
    events = [("epoch_start", None, 0.2, {"epoch_num": 1}),
              *evaluated((0.775574, 333.8, 1.0499552), (0.802555, 5991.6, 1.949149)),
              ("tracked_stats", {"throughput": 664570.98}, 5991.6, {"step": 0.949149})]  # fmt: skip
    facts = [("train_samples", 3981920256), ("submission_division", "closed")]
    result = numbers_of(tmp_path, log(*events, benchmark="dlrm", stop_s=5991.6, facts=facts))
    assert result.throughput == pytest.approx(664570.98, rel=1e-4)


def test_a_part_of_an_epoch_that_its_samples_contradict(tmp_path):
    # v2.0 Nettrix/results/X640G40_8xA30_hugectr/dlrm/result_3.txt: half the batch, but the epochs of whole batches
    events = [
        ("epoch_start", None, 0.2, {"epoch_num": 1}),
        *evaluated((0.7767, 18, 1.0499947), (0.8026, 334.8, 1.899905)),
    ]
    facts = [("train_samples", 1887667200), ("submission_division", "closed")]
    result = numbers_of(tmp_path, log(*events, benchmark="dlrm", begin_s=Y2022, stop_s=334.8, facts=facts))
    assert result.throughput is None and "nor the 3,775,279,379 that 0.899905 epochs" in result.reasons[THROUGHPUT]


def test_the_evaluation_that_ends_a_run_may_be_stamped_after_run_stop(tmp_path):
    # v1.0 nettrix/results/X660 G45_SXM4-80G-BPS_hugectr/dlrm: a few milliseconds
    result = numbers_of(tmp_path, log(*ABORTED, stop_s=199.99, facts=[("train_samples", 1_281_167)]))
    assert (result.throughput, result.epochs) == (pytest.approx(2 * 1_281_167 / 199.99), 2)


def test_no_other_benchmark_has_imagenet_s_samples(tmp_path):
    path = tmp_path / "resnet50" / "result_0.txt"
    path.parent.mkdir()
    events = [*started((0, 1, 1)), *evaluated((0.2, 10, 1))]
    path.write_text(log(*events, benchmark="rnnt"))
    assert "samples of an epoch are not known" in numbers(read_training(path), RuleSettings()).reasons[THROUGHPUT]
    path.write_text(log(*events, benchmark="resnet", stop_s=10))
    assert numbers(read_training(path), RuleSettings()).throughput == 1_281_167 / 10


ABORTED = [*started((0, 1, 1)), *evaluated((0.3, 100, 1)), *started((100, 2, 1)), *evaluated((0.5, 200, 2))]


def test_epochs_and_seconds_of_an_aborted_run_end_with_one_event(tmp_path):
    facts = [("train_samples", 1_281_167)]
    aborted = numbers_of(tmp_path, log(*ABORTED, stop_s=290, status="aborted", facts=facts))
    assert (aborted.throughput, aborted.whole_s) == (pytest.approx(2 * 1_281_167 / 200), 290)


def test_an_evaluation_after_run_stop_is_not_of_the_throughput(tmp_path):
    # v0.6 Google/results/tpu-v3-1024/ssd/result_0.txt is evaluated once more after run_stop.
    events = [*ABORTED, *started((200, 3, 1)), *evaluated((0.6, 320, 3))]
    result = numbers_of(tmp_path, log(*events, stop_s=201, facts=[("train_samples", 1_281_167)]))
    assert (result.throughput, result.epochs) == (pytest.approx(2 * 1_281_167 / 201), 2)


SHARES = [
    # v3.1 Ailiverse/results/8xA100_40GB_open/resnet/result_0.txt: an eighth of ImageNet
    ("resnet", Y2023, 160_000, "open", None, "160,000 fit 1/8 of the 1,281,167 samples"),
    # v2.0 ASUSTeK/results/ESC8000A-E11-8xA100-PCIE-80GB-NVBridge/ssd/result_0.txt: steps of an epoch
    ("ssd", Y2022, 9_143, "closed", 1_170_301, "9,143 fit 1/128 of the 1,170,301 samples"),
    # v1.0 Dell/results/DSS8440x8A100-PCIE-40GB/maskrcnn/result_0.txt
    ("maskrcnn", Y2021, 40_000, "closed", 117_266, "40,000 are not the 117,266 samples"),
    ("maskrcnn", Y2021, 118_287, "closed", 118_287, "as the log says"),
    ("resnet", Y2021, 1_000_000, "open", 1_000_000, "as the log says, but train_samples 1,000,000 are not"),
]


@pytest.mark.parametrize(("benchmark", "begin_s", "printed", "division", "samples", "words"), SHARES)
def test_train_samples_of_one_rank_s_share(tmp_path, benchmark, begin_s, printed, division, samples, words):
    facts = [("train_samples", printed), ("submission_division", division)]
    quality = {"BBOX": 0.1, "SEGM": 0.1} if benchmark == "maskrcnn" else 0.1
    events = [*started((0, 1, 1)), *evaluated((quality, 100, 1))]
    result = numbers_of(tmp_path, log(*events, benchmark=benchmark, begin_s=begin_s, stop_s=100, facts=facts))
    assert result.throughput == (samples and pytest.approx(samples / 100))
    assert words in result.samples_from
