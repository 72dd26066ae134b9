"""PLSC 1 and 2: global rates, headers, verification that stands in the way."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from parse.logs.formats import format_named
from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import facts, values

read = partial(text_logs.read, "plsc")


V1 = "INFO 2021-03-12 17:14:55,123 entry.py:1022] Pass:{epoch} batch:{step} lr:0.10000000 loss:44.123456 qps:{rate:.2f}"
V1_ACCURACY = V1 + " acc1:0.000000 acc5:0.007812"
V1_LINE = "[INFO 2021-03-12 17:14:55,123 line:997] Pass:{epoch} batch:{step} lr:0.1 loss:44.1 qps:{rate:.2f}"
V1_DASHES = "2021-03-12 17:14:55,123 - INFO - Pass:{epoch} batch:{step} lr:0.10000000 loss:44.123456 qps:{rate:.2f}"
V2 = (
    "Training: 2021-03-12 17:14:55,123 - loss 43.9714, lr: 0.200000, epoch: {epoch}, step: {step}, eta: 7.52 hours, "
    "throughput: {rate:.2f} imgs/sec"
)


@pytest.mark.parametrize("form", [V1, V1_ACCURACY, V1_LINE, V1_DASHES, V2])
@pytest.mark.parametrize("front", ["", "[1,5]<stdout>:", "5: "])
def test_a_step(tmp_path, form, front):
    lines = [
        front + form.format(epoch=1, step=step, rate=rate) for step, rate in ((0, 12.5), (50, 2536.04), (150, 99.99))
    ]
    steps, records = read(tmp_path, "\n".join(lines) + "\n")
    assert (steps.epoch.tolist(), steps.step.tolist()) == ([1, 1, 1], [0, 50, 150])
    assert steps.rate.tolist() == [12.5, 2536.04, 99.99]
    assert steps.time_s.tolist() == pytest.approx([1615569295.123] * 3)
    assert set(steps.rank.tolist()) == ({5} if front else {-1})
    assert not records


def test_without_a_time_stamp(tmp_path):
    steps, _ = read(tmp_path, "Pass:0 batch:50 lr:0.100000 loss:44.123456 qps:2536.04\n")
    assert steps.rate.tolist() == [2536.04]
    assert np.isnan(steps.time_s).all()


@pytest.mark.parametrize("line", [
    "INFO 2021-03-12 17:14:55,123 entry.py:1022] Pass:0 batch:50 lr:0.10000000 loss:44.123456 qps:253",
    "INFO 2021-03-12 17:14:55,123 entry.py:1022] Pass:0 batch:50 lr:0.10000000 loss:44.123456 qps:2536.0",
    "Training: 2021-10-03 21:10:05,877 - loss 43.9, lr: 0.2, epoch: 0, step: 200, eta: 7.52 hours, throughput: 6374.5",
    "Training: 2021-10-03 21:10:05,877 - loss 43.9, lr: 0.2, epoch: 0, step: 200, eta: 7.5 hours, throughput: inf imgs",
    "Train-Pass:0 Batch:29 Cost:73.14286 Accuracy:0.2857143",
])  # fmt: skip
def test_other_lines_are_no_steps(tmp_path, line):
    steps, _ = read(tmp_path, line)
    assert not len(steps.step)


HEADER_1 = """\
INFO 2021-03-12 17:14:50,123 entry.py:154] Default configuration:
INFO 2021-03-12 17:14:50,123 entry.py:156] \ttrain_batch_size: 256
INFO 2021-03-12 17:14:50,123 entry.py:156] \ttest_batch_size: 120
INFO 2021-03-12 17:14:50,123 entry.py:156] \tmodel_name: ResNet50
INFO 2021-03-12 17:14:50,123 entry.py:156] \ttrain_epochs: None
INFO 2021-03-12 17:14:50,123 entry.py:156] \tnum_classes: 85742
INFO 2021-03-12 17:14:50,123 entry.py:157] trainer_id: 3, num_trainers: 8
INFO 2021-03-12 17:14:50,123 entry.py:161] default log period: 200
INFO 2021-03-12 17:14:50,123 entry.py:213] Set train batch size per trainer to 128, global train batch size to 1024.
INFO 2021-03-12 17:14:50,123 entry.py:219] Set log period to 10.
INFO 2021-03-12 17:14:50,123 entry.py:219] Set sample_ratio to 0.1.
INFO 2021-03-12 17:14:50,123 entry.py:219] Set loss_type to arcface, margin1 = 1.0, margin2 = 0.5, margin3 = 0.0.
INFO 2021-03-12 17:14:50,123 entry.py:256] Use mixed precision training: True.
INFO 2021-03-12 17:14:50,123 entry.py:258] Set init_loss_scaling to 128.0.
"""


def test_header_of_version_1(tmp_path):
    """The defaults that it prints first tell nothing: they may be set otherwise afterwards."""
    _, records = read(tmp_path, HEADER_1)
    assert facts(records) == {
        "batch_size": "128", "world_size": "8", "print_every": "10", "sample_ratio": "0.1", "loss": "arcface",
        "precision": "amp-fp16",
    }  # fmt: skip
    assert all("256" not in record.values.values() for record in records)


@pytest.mark.parametrize(("line", "expected"), [
    ("Set train batch size to 64.", {"batch_size": "64"}),
    ("Set train batch size to 64 by user.", {"batch_size": "64"}),
    ("Set test batch size to 64.", {}),
    ("Set num_classes to 85742 by user.", {"classes": "85742"}),
    ("Set model_name to ResNet101.", {"model": "ResNet101"}),
    ("Set train_epochs to None.", {}),
    ("Set model to <plsc.models.resnet.ResNet object at 0x7f01>.", {"model": "ResNet"}),
    ("Use mixed precision training: False.", {"precision": "fp32"}),
])  # fmt: skip
def test_settings_of_version_1(tmp_path, line, expected):
    assert facts(read(tmp_path, f"INFO 2021-03-12 17:14:50,123 entry.py:1] {line}\n")[1]) == expected


ARGUMENTS = {
    "is_static": False, "backbone": "FresResNet50", "sample_ratio": 1.0, "model_parallel": True, "loss": "ArcFace",
    "dropout": 0.0, "fp16": True, "lr": 0.1, "seed": None, "use_synthetic_dataset": False, "dataset": "MS1M_v3",
    "num_classes": 93431, "batch_size": 128, "log_interval_step": 100, "world_size": 8, "total_batch_size": 1024,
    "steps_per_epoch": 5058, "total_epoch": 25,
}  # fmt: skip


def header_2(**changed):
    front = "Training: 2021-11-07 01:36:32,354 - "
    return "".join(f"{front}{name}: {value}\n" for name, value in (ARGUMENTS | changed).items())


def test_header_of_version_2(tmp_path):
    text = header_2() + "Training: 2021-11-07 01:36:54,870 - read label file finished, total num: 5179510\n"
    assert facts(read(tmp_path, text)[1]) == {
        "is_static": "False", "model": "ResNet50", "sample_ratio": "1.0", "model_parallel": "True", "loss": "ArcFace",
        "precision": "amp-fp16", "data": "real", "dataset": "MS1M_v3", "classes": "93431", "batch_size": "128",
        "print_every": "100", "world_size": "8", "global_batch_size": "1024", "steps_per_epoch": "5058", "epochs": "25",
        "samples_per_epoch": "5179510",
    }  # fmt: skip


def test_single_precision_and_synthetic_data_of_version_2(tmp_path):
    header = facts(read(tmp_path, header_2(fp16=False, use_synthetic_dataset=True, backbone="MobileFaceNet_128"))[1])
    assert (header["precision"], header["data"], header["model"]) == ("fp32", "synthetic", "MobileFaceNet_128")


OTHERS = """\
Training: 2021-11-07 01:42:32,847 - [lfw][2000]XNorm: 6.088824
Training: 2021-11-07 01:42:32,847 - [lfw][2000]Accuracy-Flip: 0.97667+-0.00577
Training: 2021-11-07 01:42:32,847 - [lfw][2000]Accuracy-Highest: 0.97667
Training: 2021-11-07 01:42:32,847 - test time: 13.0922
Training: 2021-11-07 07:26:27,928 - Save model to MS1M_v3_arcface_dynamic_1.0/FresResNet50/24.
INFO 2021-03-12 17:14:55,123 entry.py:1158] End pass 0, train_loss 44.123456
INFO 2021-03-12 17:14:55,123 entry.py:1032] [agedb_30][0][4000]Accuracy-Flip: 0.50000+-0.01000
"""


def test_pauses_and_verification(tmp_path):
    steps, records = read(tmp_path, OTHERS)
    assert not len(steps.step)
    pauses = [record for record in records if record.kind == "pause"]
    assert [record.values["reason"] for record in pauses] == ["verification", "test", "Save model", "End pass"]
    assert pauses[0].time_s == pytest.approx(1636249352.847)
    assert values(records, "evaluation") == [
        {"set": "lfw", "step": "2000", "verification": "97.667"},
        {"set": "agedb_30", "step": "4000", "verification": "50.000"},
    ]


def test_numbering_and_protocol():
    log_format = format_named("plsc")
    protocol = (log_format.numbered, log_format.warmup, log_format.total, log_format.rates, log_format.task)
    assert protocol == ("run", 50, 150, "all", "arcface")
