"""Times to train of MLPerf's benchmarks: each log's own target, epochs, samples and end.

The numbers of each sample are those of a public result log, named beside it by the round of its repository
(mlcommons/training_results_<round>) and its path; its lines are cut to the few that decide.
"""

from __future__ import annotations

import json
import time

import pytest

from parse.logs.mlperf import BENCHMARKS
from parse.published.airank_report import as_json, read, text
from parse.published.training_result import TIME_TO_TRAIN, RuleSettings
from tests.unit.mlperf_logs import (
    Y2019,
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


def image(metric, at_s, value, samples):
    return ("eval_accuracy", value, at_s, {"samples_count": samples, "metric": metric})


REACHED = [
    # v0.7 NVIDIA/results/dgx1_ngc20.06_pytorch/bert/result_0.txt
    ("bert", Y2020, evaluated((0.70941, 7980.0, 1), (0.71159, 9309.4, 1), (0.712547, 10699.8, 1)), 10699.8, "71.2 %"),
    # v1.0 Dell/results/DSS8440x8A100-PCIE-40GB-NVBRIDGE/bert/result_0.txt
    ("bert", Y2021, evaluated((0.71992, 3376.3, 1), (0.720446, 3553.3, 1)), 3553.3, "72 %"),
    # v0.7 NVIDIA/results/dgx2h_ngc20.06_merlin_hugectr/dlrm/result_0.txt: above 75.9 % from the first evaluation
    ("dlrm", Y2020, evaluated((0.775935, 16.8, 1.05), (0.802405, 235.9, 1.849), (0.802676, 249.5, 1.899)), 249.5,
     "80.25 %"),
    # v0.7 DellEMC/results/2xC4140/ssd/result_0.txt; v2.0 ASUSTeK/results/ESC8000A-E11-8xA100-PCIE-80GB-NVBridge/ssd
    ("ssd", Y2020, evaluated((0.162336, 1067.6, 40), (0.232281, 1334.9, 50)), 1334.9, "23 %"),
    ("ssd", Y2022, evaluated((0.336021, 7227.6, 4), (0.350031, 9045.4, 5)), 9045.4, "34 %"),
    # v1.0 Dell/results/DSS8440x8A100-PCIE-40GB/rnnt/result_0.txt: word error rates, at first above 1
    ("rnnt", Y2021, evaluated((10.29337, 88.3, 1), (0.058417, 4030.6, 59), (0.057866, 4098.7, 60)), 4098.7,
     "word error rate 5.8 %"),
    # v0.6 Google/results/tpu-v3-1024/gnmt/result_0.txt: in percent; v0.7 dgx1_ngc20.06_pytorch/gnmt: a fraction
    ("gnmt", Y2019, evaluated((12.59, 34.4, 1), (23.92, 111.1, 6), (24.19, 127.4, 7)), 127.4, "24 %"),
    ("gnmt", Y2020, evaluated((0.2318, 831.7, 3), (0.2435, 1111.0, 4)), 1111.0, "24 %"),
    # v3.1 Azure+NVIDIA/results/ND_H100_v5_n1344_pytorch/gpt3/result_0.txt
    ("gpt3", Y2023, evaluated((2.75315, 11.9, 55050240), (2.690598, 229.4, 1156055040), (2.689653, 240.5, 1211105280)),
     240.5, "log perplexity 2.69"),
    # v5.1 AMD/results/MI350X_EPYC_9575F_pytorch/llama31_8b/result_0.txt
    ("llama31_8b", Y2025, by_samples((5.652896, 512.5, 12256), (3.320196, 6561.3, 159712), (3.296673, 7065.0, 172000)),
     7065.0, "loss 3.3"),
    # v0.6 dgx1_n24_ngc19.05_pytorch/maskrcnn and Google tpu-v3-128/mask: SEGM is there first; v0.7 DSS8440/maskrcnn
    ("maskrcnn", Y2019, evaluated(({"accuracy": {"BBOX": 0.374718, "SEGM": 0.340092}}, 1252.8, 15),
                                  ({"accuracy": {"BBOX": 0.378318, "SEGM": 0.343229}}, 1333.1, 16)), 1333.1,
     "BBOX 37.7 % and SEGM 33.9 %"),
    ("mask", Y2019, evaluated(([0.373091, 0.338810], 3362.7, 13), ([0.378326, 0.342222], 3597.7, 14)), 3597.7,
     "BBOX 37.7 % and SEGM 33.9 %"),
    ("maskrcnn", Y2020, evaluated(({"BBOX": 0.373131, "SEGM": 0.340172}, 8425.4, 13),
                                  ({"BBOX": 0.377136, "SEGM": 0.342441}, 9066.8, 14)), 9066.8,
     "BBOX 37.7 % and SEGM 33.9 %"),
    # v4.0 GigaComputing/results/G593-SD1_pytorch/stable_diffusion/result_0.txt, times of both metrics on a line each
    ("stable_diffusion", Y2025, [image("FID", 4694.5, 93.604174, 2048000), image("CLIP", 4761.0, 0.155145, 2048000),
                                 image("FID", 5935.0, 86.133592, 2560000), image("CLIP", 6002.9, 0.176693, 2560000)],
     6002.9, "FID 90 and CLIP 0.15"),
]  # fmt: skip


@pytest.mark.parametrize(("benchmark", "begin_s", "events", "time_s", "target"), REACHED)
def test_each_benchmark_has_its_own_target(tmp_path, benchmark, begin_s, events, time_s, target):
    result = numbers_of(tmp_path, log(*events, benchmark=benchmark, begin_s=begin_s, stop_s=time_s + 0.1))
    assert result.time_to_train_s == pytest.approx(time_s, abs=1e-3)
    assert result.target.text() == target
    assert (result.accuracy is None) == (not result.target.is_accuracy)


@pytest.mark.parametrize(
    ("benchmark", "before", "at", "after"),
    [("resnet", 0.7589, 0.759, 0.76), ("unet3d", 0.907, 0.908, 0.91), ("gnn", 0.7199, 0.72, 0.73),
     ("retinanet", 0.339, 0.34, 0.36), ("dlrm_dcnv2", 0.8027, 0.80275, 0.803), ("flux1", 0.587, 0.586, 0.58),
     ("llama2_70b_lora", 0.926, 0.925, 0.92), ("llama31_405b", 5.61, 5.6, 5.5)],
)  # fmt: skip
def test_a_quality_exactly_at_the_target_reaches_it(tmp_path, benchmark, before, at, after):
    events = by_samples((before, 10, 8), (at, 20, 16), (after, 30, 24))
    assert numbers_of(tmp_path, log(*events, benchmark=benchmark, begin_s=Y2025)).time_to_train_s == pytest.approx(20)


def test_a_large_batch_of_bert_in_round_0_7_had_a_lower_target(tmp_path):
    # training_0.7.0/closed_bert.yaml
    events = evaluated((0.705, 10, 1), (0.7065, 20, 2), (0.713, 30, 3))
    for batch_size, time_s in ((8192, 20), (4096, 30)):
        content = log(*events, benchmark="bert", begin_s=Y2020, facts=[("global_batch_size", batch_size)])
        assert numbers_of(tmp_path, content).time_to_train_s == pytest.approx(time_s)


UNKNOWN = log(*evaluated((0.5, 10, 1), (0.8, 20, 2)), benchmark="some_model")


def test_an_unknown_benchmark_has_no_time_to_train_without_a_target(tmp_path):
    result = numbers_of(tmp_path, UNKNOWN)
    assert (result.time_to_train_s, result.accuracy) == (None, None)
    assert result.reasons[TIME_TO_TRAIN] == "no target is known for 'some_model' (--target)"
    unnamed = numbers_of(tmp_path, UNKNOWN.replace("submission_benchmark", "other"))
    assert unnamed.reasons[TIME_TO_TRAIN] == "its log names neither a target nor a benchmark (--target)"


@pytest.mark.parametrize("target", [0.8, 80])
def test_a_requested_target_may_be_a_fraction(tmp_path, target):
    result = numbers_of(tmp_path, UNKNOWN, target=target)
    assert (result.time_to_train_s, result.target.value, result.accuracy) == (pytest.approx(20), 80, 80)


def test_a_requested_target_is_of_the_benchmark_s_kind(tmp_path):
    events = by_samples((0.93, 10, 8), (0.91, 20, 16), (0.88, 30, 24))
    content = log(*events, benchmark="llama2_70b_lora", begin_s=Y2025)
    assert numbers_of(tmp_path, content, target=0.9).time_to_train_s == pytest.approx(30)


@pytest.mark.parametrize("key", ["quality_target", "eval_target", "target_accuracy"])
def test_the_log_s_own_target_comes_first(tmp_path, key):
    content = log(*evaluated((0.5, 10, 1), (0.7, 20, 2), (0.76, 30, 3)), facts=[(key, 0.7)])
    result = numbers_of(tmp_path, content)
    assert (result.time_to_train_s, result.target.source) == (pytest.approx(20), "as its log says")


def test_the_own_target_of_a_loss(tmp_path):
    # v5.1 NVIDIA/results/hsg_ngpu2560_ngc25.09_nemo/llama31_405b/result_0.txt has both
    events = by_samples((5.726355, 981.0, 288000), (5.653840, 1054.3, 307200), (5.581928, 1127.3, 326400))
    content = log(*events, benchmark="llama31_405b", begin_s=Y2025, facts=[("target_accuracy", 5.6)])
    assert numbers_of(tmp_path, content).time_to_train_s == pytest.approx(1127.3)
    # The same log of a benchmark that is not known: the first loss is above the target.
    unknown = numbers_of(tmp_path, content.replace("llama31_405b", "llama99"))
    assert unknown.time_to_train_s is None and "may be a loss" in unknown.reasons[TIME_TO_TRAIN]
    named = content.replace("llama31_405b", "llama99").replace('"eval_accuracy"', '"eval_loss"')
    assert numbers_of(tmp_path, named).time_to_train_s == pytest.approx(1127.3)


@pytest.mark.parametrize("key", ["eval_error", "eval_loss", "validation_loss"])
def test_less_is_better_by_the_key_s_name(tmp_path, key):
    content = log(*evaluated((0.9, 10, 1), (0.4, 20, 2), (0.2, 30, 3)), benchmark="own").replace("eval_accuracy", key)
    assert numbers_of(tmp_path, content, target=0.4).time_to_train_s == pytest.approx(20)


# v0.7 NVIDIA/results/dgx1_ngc20.06_tensorflow/minigo/result_0.txt: all models are evaluated after the run.
LATE = evaluated((0.4336, 48843.0, 47), (0.543, 48843.0, 48))


def test_an_evaluation_after_the_run_ends_the_time_with_run_stop(tmp_path):
    result = numbers_of(tmp_path, log(*LATE, benchmark="minigo", begin_s=Y2020, stop_s=40308.2))
    assert (result.time_to_train_s, result.until_finish) == (pytest.approx(40308.2), True)
    aborted = numbers_of(tmp_path, log(*LATE, benchmark="minigo", begin_s=Y2020, stop_s=40308.2, status="aborted"))
    assert "is stamped 8534.80 s after run_stop" in aborted.reasons[TIME_TO_TRAIN]


def test_milliseconds_of_any_origin(tmp_path):
    # v0.7 NVIDIA/results/dgx2h_ngc20.06_merlin_hugectr/dlrm/result_0.txt: run_start has "time_ms": 1593049600
    content = log(*evaluated((0.802676, 249.547, 1.899)), benchmark="dlrm", begin_s=1_593_049.6, stop_s=249.547)
    assert numbers_of(tmp_path, content).time_to_train_s == pytest.approx(249.547)


def test_a_run_that_goes_on_has_no_time_to_train(tmp_path):
    content = log(*started((0, 5, 4)), *evaluated((0.76, 100, 8)), stop_s=100)
    assert (
        numbers_of(tmp_path, content).reasons[TIME_TO_TRAIN] == "the log goes on with a training that began before it"
    )


def report_of(tmp_path, content, name="result_0.txt"):
    path = tmp_path / name
    path.write_text(content)
    return read([path], [], RuleSettings())


def stating(rate, key="tracked_stats"):
    value = {"loss": "x" * 300, "throughput": rate} if key == "tracked_stats" else rate
    return [("block_start", None, 0, {"first_epoch_num": 1, "epoch_count": 1}), (key, value, 90, {"step": 1}),
            ("eval_start", None, 90, {"epoch_num": 1}), *evaluated((0.76, 100, 1)),
            ("block_stop", None, 100, {"first_epoch_num": 1})]  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "key", "words"),
    [
        (14_000.0, "tracked_stats", "it states a throughput of 14000.00 (median of 1), -1.7% from 14235.19"),
        (14_000.0, "throughput", "it states a throughput of 14000.00"),
        # v2.0 ASUSTeK ssd states an eighth: one rank's rate
        (1_779.0, "tracked_stats", "warning: it states a throughput of 1779.00 (median of 1), -87.5%"),
        (99_646.0, "tracked_stats", "warning: it states a throughput of 99646.00 (median of 1), +600.0%"),
    ],
)  # fmt: skip
def test_stated_rates_stand_beside_the_own_figure(tmp_path, rate, key, words):
    report = report_of(tmp_path, log(*stating(rate, key), stop_s=100, facts=[("train_samples", 1_281_167)]))
    page = " ".join(text(report, 500).split())
    assert words in page and ("warning" in words) == ("warning" in page)
    assert json.loads(as_json(report))["logs"][0]["stated_throughput"] == rate


def test_the_report_names_each_target(tmp_path):
    report = report_of(tmp_path, log(*REACHED[5][2], benchmark="rnnt", stop_s=4098.71))
    page = " ".join(text(report, 500).split())
    assert "the target is word error rate 5.8 % at most, MLPerf's of rnnt" in page
    assert "run_stop - run_start, MLPerf's own result, is 4098.71 s" in page
    (in_json,) = json.loads(as_json(report))["logs"]
    assert (in_json["benchmark"], in_json["target"]["value"], in_json["target"]["lower"]) == ("rnnt", 5.8, True)
    assert in_json["accuracy"] is None and "word error rate 5.787 %" in in_json["reasons"]["accuracy"]


@pytest.mark.parametrize(
    ("begin_s", "target"),
    [(1_541_600_000, 21.2), (Y2019, 23), (Y2021, 23), (Y2022, 34), (9e11, 34), (1_593_049.6, 34), (-5, 34)],
)
def test_the_year_of_a_run_decides_its_round(tmp_path, begin_s, target):
    """A clock that does not count from 1970 gives no year: the last round counts."""
    content = log(*evaluated((0.2, 10, 1)), benchmark="ssd", begin_s=begin_s)
    assert numbers_of(tmp_path, content).target.value == target


def test_a_hostile_log_is_read_in_time(tmp_path):
    """Ten thousand blocks, then as many evaluations: each must not look at all blocks again."""
    blocks = started(*((0.001 * n, n, 1) for n in range(1, 10_000)))
    late = [("eval_accuracy", 0.5, 20 + n / 1000, {"epoch_num": n}) for n in range(9_000)]
    begin = time.process_time()
    trained(tmp_path, log(*blocks, *late, stop_s=40))
    assert time.process_time() - begin < 20


def test_every_target_is_above_what_a_random_model_has():
    """A value typed as a fraction would be below 1 %."""
    for name, benchmark in BENCHMARKS.items():
        assert all(value > 5 for value in benchmark.targets.values()) or not benchmark.percent, name
