"""OneFlow-Benchmark: its three forms of step lines and BERT's, the arguments it prints first, where it stands still."""
# ruff: noqa: E501 (lines of logs are long)

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from parse.logs.formats import FORMATS, recognise
from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import facts, values

FORMAT = FORMATS["oneflow"]
read = partial(text_logs.read, FORMAT)

CNN = "epoch 0, iter 20, loss: 7.087004, top_1: 0.000000, top_k: 0.000000, samples/s: 3988.891"
HEADER = """\
==================================================================
Running resnet50: num_gpu_per_node = 8, num_nodes = 2.
==================================================================
dtype = float32
gpu_num_per_node = 8
num_nodes = 2
node_ips = ['10.11.0.2', '10.11.0.3']
model = resnet50
use_fp16 = None
num_epochs = 1
model_load_dir = None
batch_size_per_device = 128
val_batch_size_per_device = 20
num_classes = 1000
num_examples = 1281167
num_val_examples = 50000
warmup_epochs = 5
loss_print_every_n_iter = 20
------------------------------------------------------------------
Time stamp: 2020-07-27-09:28:28
Loading synthetic data.
 626 iter per epoch...
"""


@pytest.mark.parametrize(("text", "epoch", "step", "rate", "time_s"), [
    (f"train: {CNN} 1597933942.9863544", 0, 20, 3988.891, 1597933942.9863544),
    (f"train: {CNN}", 0, 20, 3988.891, np.nan),
    ("epoch 0, iter 9, loss: 7.087004, accuracy: 0.100000, samples/s: 361.500", 0, 9, 361.5, np.nan),
    ("train: epoch 12, iter 5000, loss: nan, top_1: 0.1, top_k: 0.2, samples/s: 935.390 1597933942.98", 12, 5000, 935.39,
     1597933942.98),
    ("train: iter 119, loss 39.2251, throughput: 2536.040", -1, 119, 2536.04, np.nan),
    ("train: iter 119, loss [39.2251], throughput: 2536.040 1612345678.25", -1, 119, 2536.04, 1612345678.25),
    ("step: 119, total_loss: 8.010, mlm_loss: 7.331, nsp_loss: 0.679, throughput: 139.896 1598056537.0029895", -1, 119,
     139.896, 1598056537.0029895),
    ("step: 119, total_loss: 8.010, mlm_loss: 7.331, nsp_loss: 0.679, throughput: 139.896", -1, 119, 139.896, np.nan),
])  # fmt: skip
def test_step_lines(tmp_path, text, epoch, step, rate, time_s):
    steps, _ = read(tmp_path, text)
    assert (steps.epoch.tolist(), steps.step.tolist(), steps.rate.tolist()) == ([epoch], [step], [rate])
    assert steps.time_s[0] == pytest.approx(time_s, abs=1e-5, nan_ok=True)


def test_validation_is_no_step(tmp_path):
    steps, records = read(
        tmp_path, "validation: epoch 3, iter 195, top_1: 0.773277, top_k: 0.936058, samples/s: 1578.325 1.5"
    )
    assert not len(steps.step)
    assert values(records, "pause") == [{"reason": "validation", "epoch": "3"}]
    assert values(records, "evaluation") == [{"top1": "77.3277", "epoch": "3"}]


def test_header(tmp_path):
    _, records = read(tmp_path, HEADER)
    assert facts(records) == {
        "model": "resnet50", "gpus_per_node": "8", "nodes": "2", "batch_size": "128", "precision": "fp32", "epochs": "1",
        "classes": "1000", "samples_per_epoch": "1281167", "warmup_epochs": "5", "print_every": "20",
        "data": "synthetic", "steps_per_epoch": "626",
    }  # fmt: skip


def test_the_four_lines_that_logs_of_the_suite_keep(tmp_path):
    _, records = read(tmp_path, "model = resnet50\nbatch_size_per_device = 160\ngpu_num_per_node = 1\nnum_nodes = 16")
    assert facts(records) == {"model": "resnet50", "batch_size": "160", "gpus_per_node": "1", "nodes": "16"}


@pytest.mark.parametrize(("fp16", "precision"), [("True", "amp-fp16"), ("False", "fp32"), ("None", "fp32")])
def test_precision(tmp_path, fp16, precision):
    _, records = read(tmp_path, f"use_fp16 = {fp16}")
    assert values(records, "facts") == [{"precision": precision}]


@pytest.mark.parametrize(
    "text", ["num_val_examples = 50000", "val_batch_size_per_device = 20", "batch_size_per_device = no"]
)
def test_other_arguments_are_not_taken_for_these(tmp_path, text):
    _, records = read(tmp_path, text)
    assert not records


def test_pauses(tmp_path):
    _, records = read(
        tmp_path,
        "Saving model to ./output/snapshots/model_save-20200723124215/snapshot_epoch_0.\n"
        "Validation on [lfw]:\nvalidation: time: 12.345",
    )
    assert [record["reason"] for record in values(records, "pause")] == ["Saving model", "Validation", "validation"]


def test_it_is_recognised(tmp_path):
    path = tmp_path / "r50_b128_fp32_1.log"
    path.write_text(f"{HEADER}train: {CNN} 1597933942.9863544\n")
    assert recognise(path).name == "oneflow"
