"""OpenMMLab's trainers: mmengine's lines and mmcv's, by epochs and by iterations, and the configurations before them."""
# ruff: noqa: E501 (lines of logs are long)

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from parse.logs.engine.reader import batches
from parse.logs.formats import format_named, recognise
from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import facts, values

read = partial(text_logs.read, "mmengine")

LINES = {
    # open-mmlab/mmengine, its page common_usage/debug_tricks
    "02/20 14:43:11 - mmengine - INFO - Epoch(train)   [1][ 100/3125]  lr: 1.0000e-01  eta: 6:12:01  time: 0.0149  data_time: 0.0003  memory: 214  loss: 2.0611":
        (1, 100, 3125, 0.0149, -2078471809.0),
    # open-mmlab/mmengine, its page advanced_tutorials/logging
    "08/21 02:58:41 - mmengine - INFO - Epoch(train) [1][10/25]  lr: 1.0000e-02  eta: 0:00:00  time: 0.0019  data_time: 0.0004  loss1: 0.8381  loss2: 0.9007  loss: 1.7388":
        (1, 10, 25, 0.0019, -2062702879.0),
    # Of the form that mmengine/logging/logger.py writes to files
    "2022/12/13 19:00:12 - mmengine - INFO - Epoch(train) [1][  50/3104]  base_lr: 1.0000e-02 lr: 1.0000e-02  eta: 0:26:28  time: 0.1285  data_time: 0.0040  memory: 2581  loss: 0.7176":
        (1, 50, 3104, 0.1285, 1670958012.0),
    # InternLM/xtuner, docs/en/training/custom_sft_dataset.rst and others
    "01/29 21:35:34 - mmengine - INFO - Iter(train) [ 10/720]  lr: 9.0001e-05  eta: 0:31:46  time: 2.6851  data_time: 0.0077  memory: 12762  loss: 2.6900":
        (-1, 10, -1, 2.6851, -2080347866.0),
    # PaddlePaddle/Perf, HRNetW18/OtherReports/PyTorch/logs/hrnet_torch_bs8_fp16_gpu8
    "2023-08-03 02:24:23,474 - mmseg - INFO - Iter [8/180]\tlr: 9.653e-03, eta: 0:08:04, time: 1.008, data_time: 0.052, memory: 11439, decode.loss_ce: 2.5":
        (-1, 8, -1, 1.008, 1691029463.474),
    # Of the form of mmcv 1's TextLoggerHook, mmcv/runner/hooks/logger/text.py
    "2021-01-25 19:25:44,459 - mmdet - INFO - Epoch [1][50/5455]\tlr: 4.983e-04, eta: 8:02:25, time: 0.443, data_time: 0.047, memory: 3654, loss_rpn_cls: 0.1925":
        (1, 50, 5455, 0.443, 1611602744.459),
    "2020-02-14 03:22:53,663 - INFO - Epoch [1][50/7330]\tlr: 0.00399, eta: 2 days, 21:25:59, time: 0.947, data_time: 0.116, memory: 7966, loss: 2.6714":
        (1, 50, 7330, 0.947, 1581650573.663),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_step(tmp_path, line):
    steps, records = read(tmp_path, line)
    epoch, step, epoch_steps, duration_s, time_s = LINES[line]
    assert (steps.epoch.tolist(), steps.step.tolist(), steps.epoch_steps.tolist()) == ([epoch], [step], [epoch_steps])
    assert steps.duration_s.tolist() == [duration_s] and steps.time_s[0] == pytest.approx(time_s, abs=1e-3)
    assert np.isnan(steps.rate).all() and not records


@pytest.mark.parametrize("line", LINES)
def test_it_is_recognised(tmp_path, line):
    (path := tmp_path / "x.log").write_text(line + "\n")
    assert recognise(path).name == "mmengine"


def test_a_line_without_a_time_is_a_step_by_its_stamp(tmp_path):
    steps, _ = read(
        tmp_path, "2022/12/13 19:00:12 - mmengine - INFO - Epoch(train) [1][ 50/3104]  lr: 1.0000e-02  loss: 0.71"
    )
    assert steps.step.tolist() == [50] and np.isnan(steps.duration_s).all() and np.isfinite(steps.time_s).all()


@pytest.mark.parametrize("line", [
    "08/21 02:58:41 - mmengine - INFO - Epoch(val) [1][10/25]    eta: 0:00:00  time: 0.0019  data_time: 0.0004",
    "2021-01-25 19:25:44,459 - mmdet - INFO - Epoch(val) [1][625]\tbbox_mAP: 0.1, bbox_mAP_50: 0.2",
    "INFO:root:Epoch[0] Batch [20]\tSpeed: 84.39 samples/sec\taccuracy=0.000000",
])  # fmt: skip
def test_other_lines_are_no_steps(tmp_path, line):
    assert not len(read(tmp_path, line)[0].step)


# A configuration as mmengine prints it (open-mmlab/mmengine, mmengine/config/config.py), shortened.
CONFIG = """\
Runtime environment:
    Distributed training: True
    GPU number: 8
------------------------------------------------------------
2023/11/29 02:18:31 - mmengine - INFO - Config:
auto_scale_lr = dict(base_batch_size=16, enable=False)
optim_wrapper = dict(
{wrapper}    optimizer=dict(lr=0.02, momentum=0.9, type='SGD', weight_decay=0.0001),
    type='{type}')
test_dataloader = dict(
    batch_size=1,
    dataset=dict(
        type='CocoDataset'))
train_dataloader = dict(
{sampler}    batch_size=4,
    dataset=dict(
        batch_size=99,
        type='CocoDataset'))
val_dataloader = dict(
    batch_size=1)
"""


@pytest.mark.parametrize("sampler", ["", "    batch_sampler=dict(type='AspectRatioBatchSampler'),\n"])
@pytest.mark.parametrize(("wrapper", "kind", "precision"), [
    ("", "OptimWrapper", "fp32"), ("    loss_scale='dynamic',\n", "AmpOptimWrapper", "amp-fp16"),
    ("    dtype='bfloat16',\n", "AmpOptimWrapper", "bf16"), ("", "MyWrapper", None),
])  # fmt: skip
def test_the_training_loaders_batch_is_read(tmp_path, sampler, wrapper, kind, precision):
    known = facts(read(tmp_path, CONFIG.format(sampler=sampler, wrapper=wrapper, type=kind))[1])
    assert known == {"world_size": "8", "batch_size": "4"} | ({"precision": precision} if precision else {})


def test_a_training_loader_without_a_batch_takes_no_other_ones(tmp_path):
    text = "train_dataloader = dict(\n    dataset=dict(\n        batch_size=7))\nval_dataloader = dict(\n    batch_size=1)\n"
    assert facts(read(tmp_path, text)[1]) == {}


def test_a_block_is_read_in_part_at_most(tmp_path):
    text = "train_dataloader = dict(\n" + "    x=1,\n" * 2000 + "    batch_size=4)\n"
    assert facts(read(tmp_path, text)[1]) == {}
    (path := tmp_path / "cut.log").write_text("train_dataloader = dict(\n    batch_siz")
    assert not [record for batch in batches(path, format_named("mmengine")) for record in batch.records]


# PaddlePaddle/Perf, HRNetW18/OtherReports/PyTorch/logs/hrnet_torch_bs8_fp16_gpu8
MMCV = "2023-08-03 02:23:36,594 - mmseg - INFO - Distributed training: True\ndata = dict(\n    samples_per_gpu=8,\n    workers_per_gpu=8,\nfp16 = dict()\n"


def test_configuration_of_mmcv(tmp_path):
    assert facts(read(tmp_path, MMCV)[1]) == {"batch_size": "8", "precision": "amp-fp16"}


@pytest.mark.parametrize(("line", "expected"), [
    ("11/29 02:18:31 - mmengine - INFO - LR is set based on batch size of 16 and the current batch size is 64. Scaling the original LR by 4.0.",
     {"global_batch_size": "64"}),
    ("06/16 08:24:58 - mmengine - INFO - Exp name: pspnet-watermelon_20230612_20230616_075443", {"model": "pspnet-watermelon_20230612"}),
    ("2022-05-22 02:50:57,263 - mmseg - INFO - Exp name: bisa_baseline.py", {"model": "bisa_baseline"}),
])  # fmt: skip
def test_other_facts(tmp_path, line, expected):
    assert facts(read(tmp_path, line)[1]) == expected


@pytest.mark.parametrize(("line", "top1"), [
    ("2022/12/13 19:30:00 - mmengine - INFO - Epoch(val) [3][196/196]    accuracy/top1: 76.3400  accuracy/top5: 93.1000  data_time: 0.01", "76.3400"),
    ("2021-12-13 19:30:00,123 - mmcls - INFO - Epoch(val) [3][196]\taccuracy_top-1: 76.3400, accuracy_top-5: 93.1000", "76.3400"),
])  # fmt: skip
def test_accuracy(tmp_path, line, top1):
    records = read(tmp_path, line)[1]
    assert values(records, "evaluation") == [{"epoch": "3", "top1": top1}]
    assert values(records, "pause") == [{"reason": "val"}]
