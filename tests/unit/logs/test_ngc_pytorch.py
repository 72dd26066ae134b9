"""NGC PyTorch: dllogger's text and JSON, what its header says, where it stands still."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import facts

read = partial(text_logs.read, "ngc-pytorch")

TEXT = """\
DLL 2020-09-15 14:28:53.498443 - PARAMETER data : /data/image set  data_backend : dali-cpu  arch : resnet50  \
model_config : fanin  epochs : 90  batch_size : 256  optimizer_batch_size : 2048  lr : 2.048  print_freq : 10  \
seed : None  amp : True  static_loss_scale : 128.0  world_size : 4  gather_checkpoints : False
Fri Apr  9 10:16:49 2021[1,0]<stdout>:DLL 2021-04-09 10:16:49.131815 - Epoch: 0 Iteration: 10  train.loss : 8.83980  \
train.total_ips : 20746.98 img/s
[1,0]<stdout>:===========>--nnodes 4 --node_rank 0  --master_addr 10.0.0.1 --master_port 38187
DLL 2021-04-09 10:17:07.126410 - Epoch: 0 Iteration: 5005 Validation Iteration: 10  val.top1 : 76.24 % val.top5 : 93.09 %
DLL 2021-04-09 10:18:07.126410 - Epoch: 0  train.loss : 1.70351  train.total_ips : 855.24 img/s val.top1 : 76.63 % val.top5 : 93.04 %
DLL 2021-04-09 10:18:08.126410 - Epoch: 0  lr : 0.00075  train.compute_ips : 858.09 img/s train.data_time : 0.00100 s
SAVING ./checkpoint.pth.tar
DLL 2021-04-09 10:19:07.126410 - Summary: train.loss : 6.55774  train.total_ips : 854.37 img/s val.top1 : 76.63 %
DLL 2021-04-09 10:19:07.126410 - Summary: lr : 0.00075  train.compute_ips : 859.24 img/s train.data_time : 0.00225 s
"""  # noqa: E501


def line(step, data, time="1600180133.498443"):
    return "DLLL " + json.dumps({
        "timestamp": time, "datetime": "2020-09-15 14:28:53.498443", "elapsedtime": "35.5", "type": "LOG", "step": step,
        "data": data,
    })  # fmt: skip


JSON = "\n".join([
    line("PARAMETER", {"arch": "resnet50", "batch_size": 128, "world_size": 8, "amp": False, "fp16": False}),
    line([0, 20], {"train.loss": 7.09304, "train.total_ips": 2806.66}, "1600180140.5"),
    line([0, 5005, 10], {"val.top1": 76.24, "val.top5": 93.09}),
    line([0], {"train.loss": 1.7, "train.total_ips": 855.24, "val.top1": 76.63}),
    line([], {"train.total_ips": 854.37, "val.top1": 76.63}),
])  # fmt: skip


def test_a_step_of_the_text(tmp_path):
    steps, _ = read(tmp_path, TEXT)
    assert (steps.epoch.tolist(), steps.step.tolist(), steps.rank.tolist()) == ([0], [10], [0])
    assert steps.rate.tolist() == [20746.98]
    assert steps.time_s[0] == pytest.approx(1617963409.131815)
    assert np.isnan(steps.duration_s[0])


def test_records_of_the_text(tmp_path):
    _, records = read(tmp_path, TEXT)
    assert facts(records) == {
        "data": "dali-cpu", "model": "resnet50", "epochs": "90", "batch_size": "256", "print_every": "10",
        "world_size": "4", "precision": "amp-fp16", "accumulation": "2", "nodes": "4", "steps_per_epoch": "5005",
    }  # fmt: skip
    kinds = ["facts", "facts", "pause", "facts", "evaluation", "pause", "summary", "summary"]
    assert [record.kind for record in records] == kinds
    assert records[4].values == {"epoch": "0", "top1": "76.63"}
    assert [record.values["rate"] for record in records[-2:]] == ["854.37", "859.24"]


def test_the_same_as_json(tmp_path):
    steps, records = read(tmp_path, JSON)
    assert (steps.epoch.tolist(), steps.step.tolist()) == ([0], [20])
    assert steps.rate.tolist() == [2806.66]
    assert steps.time_s[0] == pytest.approx(1600180140.5)
    assert records[0].values == {"model": "resnet50", "batch_size": "128", "world_size": "8", "precision": "fp32"}
    assert [record.kind for record in records] == ["facts", "pause", "facts", "evaluation"]
    assert records[2].values == {"steps_per_epoch": "5005"}
    assert records[3].values == {"epoch": "0", "top1": "76.63"}


@pytest.mark.parametrize(("amp", "fp16", "precision"), [
    ("True", "False", "amp-fp16"), ("False", "True", "amp-fp16"), ("False", "False", "fp32"),
])  # fmt: skip
def test_precisions(tmp_path, amp, fp16, precision):
    text = TEXT.replace("amp : True", f"amp : {amp}  fp16 : {fp16}")
    _, records = read(tmp_path, text)
    assert records[0].values["precision"] == precision
