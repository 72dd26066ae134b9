"""Paddle's ResNet50: models image_classification from 1.4 on, and PaddleClas."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import facts, values

read = partial(text_logs.read, "paddle-resnet50")

V18 = "[Pass {epoch}, train batch {step}] \tloss 7.10000, acc1 0.00000, acc5 0.00781, lr 0.00100, elapse {time:.4f} sec"
MIXUP = "[Pass {epoch}, train batch {step}] \tloss 7.10000, lr 0.00100, elapse {time:.4f} sec"
FEW_CLASSES = (
    "[Pass {epoch}, train batch {step}]\tloss 1.10000, acc1 0.50000, acc2 1.0, lr 0.00100, elapse {time:.4f} sec"
)
NEWER = (
    "[Pass {epoch}, train batch {step}] \tloss 53.09683, acc1 0.00000, acc5 0.00000, lr 0.10000, "
    "batch_cost {time:.5f} sec, reader_cost 0.00069 sec, ips 976.32917 images/sec"
)
NEWER_MIXUP = (
    "[Pass {epoch}, train batch {step}] \tloss 53.0, lr 0.1, batch_cost {time:.5f} sec, ips 976.32917 images/sec"
)
OLD = (
    "Pass {epoch}, trainbatch {step}, loss 3.83627,                         acc1 0.30469, acc5 0.71094, lr 0.01000, "
    "time {time:.2f} sec"
)
OLD_MIXUP = "Pass {epoch}, trainbatch {step}, loss 3.83627, lr 0.01000, time {time:.2f} sec"
CLAS = (
    "[2021/06/29 10:21:3{step}] root INFO: [Train][Epoch {epoch}/120][Iter: {step}/626]lr: 0.10000, top1: 0.00000, "
    "CELoss: 7.0, loss: 7.0, batch_cost: {time:.5f}s, reader_cost: 3.57217, ips: 40.69624 images/sec, eta: 12:15:30"
)
CLAS_25 = (
    "[2022/07/05 10:38:2{step}] ppcls INFO: [Train][Epoch {epoch}/120][Iter: {step}/626]lr(PiecewiseDecay): 0.1, "
    "top1: 0.00142, batch_cost: {time:.5f}s, reader_cost: 3.57217, ips: 40.69624 samples/s, eta: 43 days, 17:27:58"
)
CLAS_20 = (
    "2021-04-09 11:43:3{step} INFO: epoch:{epoch}  , train step:{step}   , loss: 6.95827, lr: 0.0, "
    "batch_cost: {time:.5f} s, reader_cost: 1.85705 s, ips: 21.57965 images/sec."
)
CLAS_STATIC = (
    "2020-12-30 06:13:3{step} INFO: epoch:{epoch}   train step:{step}   top1: 0.0 loss: 11.5920 lr: 0.1, "
    "batch_cost: {time:.5f} s, ips: 121.41242 images/sec."
)
CLAS_COMMA = (
    "2021-03-19 20:19:4{step},099 - INFO - epoch:{epoch}  , train step:{step}   , top1: 0.0, batch_cost: {time} s"
)


@pytest.mark.parametrize("form", [V18, MIXUP, FEW_CLASSES, NEWER, NEWER_MIXUP, OLD, OLD_MIXUP])
@pytest.mark.parametrize("front", ["", "INFO:utils.utility:", "2020-08-27 14:56:39,654-INFO: ", "[1,0]<stdout>:"])
def test_a_step_of_image_classification(tmp_path, form, front):
    lines = [front + form.format(epoch=1, step=step, time=time) for step, time in ((0, 12.35), (9, 0.36), (10, 0.37))]
    steps, records = read(tmp_path, "\n".join(lines).replace("\t", " ") + "\n")
    assert (steps.epoch.tolist(), steps.step.tolist()) == ([1, 1, 1], [0, 9, 10])
    assert steps.duration_s.tolist() == pytest.approx([12.35, 0.36, 0.37])
    assert np.isnan(steps.time_s).all() == ("2020" not in front)
    assert set(steps.rank.tolist()) == ({0} if "<stdout>" in front else {-1})
    assert np.isnan(steps.rate).all() == ("ips" not in form)
    assert not records


def test_time_stamp_and_ips(tmp_path):
    steps, _ = read(tmp_path, "2020-08-27 14:56:39,654-INFO: " + NEWER.format(epoch=0, step=19, time=0.1311) + "\n")
    assert steps.time_s.tolist() == pytest.approx([1598540199.654])
    assert steps.rate.tolist() == [976.32917]


@pytest.mark.parametrize("form", [CLAS, CLAS_25, CLAS_20, CLAS_STATIC, CLAS_COMMA])
def test_paddleclas_gives_steps_and_time_stamps_but_no_rates(tmp_path, form):
    """Its rates are one rank's mean since the start of the epoch."""
    lines = [form.format(epoch=2, step=step, time=0.5) for step in (0, 5)]
    steps, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert (steps.epoch.tolist(), steps.step.tolist()) == ([2, 2], [0, 5])
    assert np.diff(steps.time_s).tolist() == pytest.approx([5.0])
    assert np.isnan(steps.rate).all() and np.isnan(steps.duration_s).all()
    assert steps.epoch_steps.tolist() == ([626, 626] if "Iter" in form else [-1, -1])


@pytest.mark.parametrize("line", [
    "[Pass 0, train batch 19] \tloss 7.10000, lr 0.00100, elapse 0.36",
    "[Pass 0, train batch 19] \tloss 7.10000, lr 0.10000, batch_cost 0.13110 sec, ips 976.3",
    "[Pass 0, train batch 1", "Pass 0, trainbatch 10, loss 3.8, lr 0.1, time 0.9",
    "[2022/10/01 10:00:00] plsc INFO: [Train][Epoch 0/25][Iter: 10/5058]lr: 0.1, batch_cost: 0.1s, ips: 1.0 images/sec",
    "[08/16 14:42:12] epoch:[  1/60 ] train step:0    loss: 3.18299 batch_cost: 1.91478 sec, ips: 33.4 instance/sec.",
])  # fmt: skip
def test_other_lines_are_not_steps(tmp_path, line):
    steps, _ = read(tmp_path, line)
    assert not len(steps.step)


OTHERS = """\
INFO:utils.utility:[Pass 0, test  batch 10] \tloss 6.80000, acc1 0.01000, acc5 0.03000, elapse 0.1200 sec
INFO:utils.utility:[End pass 0]\ttrain_loss 6.9, train_acc1 0.00200, train_acc5 0.01,test_loss 6.8, test_acc1 0.75900, \
test_acc5 0.92800
INFO:utils.utility:Already save model in output/ResNet50/0
INFO:utils.utility:ExponentialMovingAverage validate start...
Pass 1,testbatch 0,loss 6.78550,                        acc1 0.00000,acc5 0.01,time 0.31 sec
End pass 1, train_loss 6.9, train_acc1 0.002, train_acc5 0.01, test_loss 6.8, test_acc1 0.76100, test_acc5 0.93000
[2021/06/29 11:00:00] root INFO: [Eval][Epoch 1][Iter: 0/98]CELoss: 6.9, loss: 6.9, top1: 0.1, ips: 99.1 images/sec
[2021/06/29 11:00:10] root INFO: [Eval][Epoch 1][Avg]CELoss: 6.9, loss: 6.9, top1: 0.76200, top5: 0.93000
[2021/06/29 11:00:20] root INFO: Already save model in ./output/ResNet50/latest
2020-12-30 06:13:38 INFO: END epoch:0   train top1: 0.0071 loss:  9.4002  batch_cost: 0.26346 s, ips: 121.4 images/sec.
2020-12-30 06:13:39 INFO: valid step:10   top1: 0.0625 top5: 0.0625 loss: 5481.1924
2020-12-30 06:13:41 INFO: END valid top1: 0.76300 top5: 0.0569 loss: 8773.9191  batch_cost: 0.09155 s
2020-10-30 06:13:41 INFO: END epoch:4   valid top1_avg: 0.76400, loss_avg: 1.0
"""


def test_pauses_and_evaluations(tmp_path):
    steps, records = read(tmp_path, OTHERS)
    assert not len(steps.step)
    assert [record.values["reason"] for record in records if record.kind == "pause"] == [
        "test", "End pass", "save model", "validate", "test", "End pass", "Eval", "Eval", "save model", "END epoch",
        "valid", "END epoch",
    ]  # fmt: skip
    assert values(records, "evaluation") == [
        {"epoch": "0", "top1": "75.900"}, {"epoch": "1", "top1": "76.100"}, {"epoch": "1", "top1": "76.200"},
        {"top1": "76.300"}, {"epoch": "4", "top1": "76.400"},
    ]  # fmt: skip


def printed(arguments, front="INFO:utils.utility:"):
    return "".join(f"{front}{name:>25} : {value}\n" for name, value in sorted(arguments.items()))


ARGUMENTS = {
    "batch_size": 1024, "test_batch_size": 8, "class_dim": 1000, "model": "ResNet50", "model_save_dir": "output/",
    "num_epochs": 120, "print_step": 1, "random_seed": None, "total_images": 1281167, "use_dali": False,
}  # fmt: skip
EXPECTED_FACTS = {
    "node_batch_size": "1024", "classes": "1000", "model": "ResNet50", "epochs": "120", "print_every": "1",
    "samples_per_epoch": "1281167",
}  # fmt: skip


@pytest.mark.parametrize(
    "front", ["", "INFO:utils.utility:", "2020-08-27 14:56:30,654-INFO: ", "0: INFO:utils.utility:"]
)
def test_the_printed_batch_size_is_per_node(tmp_path, front):
    assert facts(read(tmp_path, printed(ARGUMENTS, front))[1]) == EXPECTED_FACTS


@pytest.mark.parametrize(("arguments", "expected"), [
    ({"use_fp16": True}, {"precision": "amp-fp16"}),
    ({"use_fp16": False}, {"precision": "fp32"}),
    ({"use_amp": True, "use_pure_fp16": False}, {"precision": "amp-fp16"}),
    ({"use_amp": False, "use_pure_fp16": True}, {"precision": "amp-fp16"}),
    ({"use_amp": False, "use_pure_fp16": False}, {}),
    ({"use_dali": True}, {"data": "dali"}),
    ({"random_seed": 7}, {"seed": "7"}),
])  # fmt: skip
def test_precision_and_data(tmp_path, arguments, expected):
    assert facts(read(tmp_path, printed(arguments))[1]) == expected


def test_paddleclas_header(tmp_path):
    """Its batch sizes belong to training and evaluation samplers alike, so none is used."""
    front = "[2021/08/13 10:42:46] root INFO: "
    text = (
        f"{front}Arch : \n{front}    class_num : 1000\n{front}    name : ResNet50\n{front}    batch_size : 64\n"
        f"{front}    name : Momentum\n{front}train with paddle 2.1.2 and device CUDAPlace(0)\n"
    )
    assert facts(read(tmp_path, text)[1]) == {"model": "ResNet50", "paddle": "2.1.2", "place": "CUDAPlace(0)"}
