"""MetricLogger: torchvision's references and the programs that took it over."""
# ruff: noqa: E501 (lines of logs are long)

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from parse.logs.formats import recognise
from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import facts, values

read = partial(text_logs.read, "torchvision")

# github.com/fangwei123456/Spike-Element-Wise-ResNet/issues/10
CLASSIFICATION = """\
Epoch: [0]  [ 103/5005]  eta: 4:43:31  lr: 0.1  img/s: 13.62830983555788  loss: 6.8536 (6.9458)  acc1: 0.0000 (0.2103)  acc5: 0.0000 (0.9916)  time: 2.5401  data: 0.0336  max mem: 3524
Epoch: [0]  [ 104/5005]  eta: 4:47:43  lr: 0.1  img/s: 3.5788954758177014  loss: 6.8593 (6.9466)  acc1: 0.0000 (0.2083)  acc5: 0.0000 (0.9821)  time: 2.8689  data: 0.0337  max mem: 3524
"""
# Of the form of references/detection/engine.py and references/classification/utils.py (pytorch/vision).
DETECTION = """\
Epoch: [0]  [ 0/60]  eta: 0:02:10  lr: 0.000090  loss: 3.3485 (3.3485)  loss_classifier: 0.8555 (0.8555)  time: 2.1828  data: 0.0141  max mem: 1945
Epoch: [0]  [59/60]  eta: 0:00:00  lr: 0.005000  loss: 0.3216 (0.7944)  loss_classifier: 0.0498 (0.1673)  time: 0.2061  data: 0.0129  max mem: 2765
Epoch: [0] Total time: 0:00:14 (0.2396 s / it)
Test:  [ 0/50]  eta: 0:00:05  model_time: 0.0931 (0.0931)  evaluator_time: 0.0033 (0.0033)  time: 0.1008  data: 0.0042  max mem: 2765
"""
OTHERS = [
    "Epoch: [1] [100/295] eta: 0:00:53 loss: 3.0450 (3.7) acc1: 0.0000 (0.0000) time: 6.9739 data: 1.7344",
    "Epoch: [1/100]  [100/295]  eta: 10:34:17  loss: 10.404 (10.4)  lr: 0.0  wd: 0.04  time: 6.9739  data: 1.7344  max mem: 15",
    "Train: data epoch: [1]  [  100/295]  eta: 1 day, 12:16:51  lr: 0.000000  loss: 0.4781  time: 6.9739  data: 0.0000  max mem: 2136",
    "[11:38:56.250000] Epoch: [1]  [100/295]  eta: 0:54:21  lr: 0.000000  loss: 1.7 (1.7)  time: 6.9739  data: 1.5  max mem: 13512",
]


def test_time_is_read_and_one_ranks_rate_is_not(tmp_path):
    steps, records = read(tmp_path, CLASSIFICATION)
    assert (steps.epoch.tolist(), steps.step.tolist(), steps.epoch_steps.tolist()) == ([0, 0], [103, 104], [5005] * 2)
    assert steps.duration_s.tolist() == [2.5401, 2.8689] and np.isnan(steps.rate).all()
    assert not records


def test_programs_without_a_rate(tmp_path):
    steps, records = read(tmp_path, DETECTION)
    assert (steps.step.tolist(), steps.duration_s.tolist()) == ([0, 59], [2.1828, 0.2061])
    assert [record["reason"] for record in values(records, "pause")] == ["the end of an epoch", "Test"]


@pytest.mark.parametrize("line", OTHERS)
def test_other_programs(tmp_path, line):
    steps, _ = read(tmp_path, line)
    assert (steps.epoch.tolist(), steps.step.tolist(), steps.duration_s.tolist()) == ([1], [100], [6.9739])
    assert np.isnan(steps.time_s[0]) != line.startswith("[11")


def test_steps_without_epochs(tmp_path):
    steps, _ = read(
        tmp_path,
        "I20230415 20:20:40 12345 dinov2 helpers.py:102] Training  [ 3120/125000]  eta: 21:29:49  lr: 0.0010 (0.0006)  "
        "total_loss: 13.9 (14.4)  time: 0.624514  data: 0.000183  max mem: 21112",
    )
    assert (steps.epoch.tolist(), steps.step.tolist(), steps.duration_s.tolist()) == ([-1], [3120], [0.624514])
    assert steps.time_s.tolist() == [1681590040.0]


# The arguments as a run of references/classification printed them (two processes of 32), shortened.
NAMESPACE = "Namespace(apex=False, apex_opt_level='O1', batch_size=32, distributed=True, epochs=90, model='shufflenet_v2_x1_0', print_freq=10, rank=0, world_size=2)"
MAE = "Namespace(accum_iter=4,\nbatch_size=64,\nmodel='mae_vit_base_patch16',\nepochs=800,\nworld_size=8)"
DINO = "arch: vit_small\nbatch_size_per_gpu: 128\nlocal_crops_number: 8\nworld_size: 16"


@pytest.mark.parametrize(("text", "expected"), [
    (NAMESPACE, {"batch_size": "32", "world_size": "2", "model": "shufflenet_v2_x1_0", "epochs": "90",
                 "print_every": "10"}),
    (NAMESPACE.replace("apex=False, ", "amp=True, "), {"precision": "amp-fp16"}),
    (NAMESPACE.replace("apex=False, ", "amp=False, "), {"precision": "fp32"}),
    (NAMESPACE.replace("apex=False", "apex=True"), {"precision": "amp-fp16"}),
    (MAE, {"accumulation": "4", "batch_size": "64", "model": "mae_vit_base_patch16", "world_size": "8", "epochs": "800"}),
    (DINO, {"model": "vit_small", "batch_size": "128", "world_size": "16"}),
])  # fmt: skip
def test_arguments(tmp_path, text, expected):
    known = facts(read(tmp_path, text)[1])
    assert {name: known.get(name) for name in expected} == expected
    assert "precision" not in expected or "precision" in known


@pytest.mark.parametrize("line", [
    " * Acc@1 69.362 Acc@5 88.316", "Test:  Acc@1 69.362 Acc@5 88.316", "* Acc@1 69.362 Acc@5 88.316 loss 0.911",
])  # fmt: skip
def test_accuracy(tmp_path, line):
    assert values(read(tmp_path, line)[1], "evaluation") == [{"top1": "69.362"}]


@pytest.mark.parametrize("text", [CLASSIFICATION, DETECTION, *OTHERS])
def test_it_is_recognised(tmp_path, text):
    (path := tmp_path / "x.log").write_text(text + "\n")
    assert recognise(path).name == "torchvision"


@pytest.mark.parametrize("line", [
    "Epoch: [0][   6/5005]\tTime  0.403 ( 2.123)\tData  0.106 ( 0.077)\tLoss 6.9e+00 (7.1e+00)",
    "[08/15 04:02:46] ppdet.engine INFO: Epoch: [0] [   0/1929] learning_rate: 0.04 loss: 2.9 eta: 17 days batch_cost: 15.7452 data_cost: 2.9112 ips: 1.5243 images/s",
    "Test:  [ 0/50]  eta: 0:00:05  model_time: 0.0931 (0.0931)  time: 0.1008  data: 0.0042  max mem: 2765",
])  # fmt: skip
def test_lines_of_others_are_no_steps(tmp_path, line):
    assert not len(read(tmp_path, line)[0].step)
