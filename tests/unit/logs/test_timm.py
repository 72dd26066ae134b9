"""timm's train.py: lines of its versions, what its header says, where it stands still."""
# ruff: noqa: E501 (lines of logs are long)

from __future__ import annotations

from functools import partial

import pytest

from parse.logs.formats import recognise
from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import facts, values

read = partial(text_logs.read, "timm")

# huggingface/optimum-habana, examples/pytorch-image-models/README.md
NEWER = """\
Train: 0 [   0/73 (  1%)]  Loss: 6.86 (6.86)  Time: 9.575s,   13.37/s  (9.575s,   13.37/s)  LR: 1.000e-05  Data: 0.844 (0.844)
Train: 0 [  50/73 ( 70%)]  Loss: 6.77 (6.83)  Time: 0.320s,  400.32/s  (0.470s,  272.39/s)  LR: 1.000e-05  Data: 0.217 (0.047)
Test: [   0/30]  Time: 6.593 (6.593)  Loss:   6.723 ( 6.723)  Acc@1:   0.000 (  0.000)  Acc@5:   0.000 (  0.000)
Test: [  30/30]  Time: 3.856 (0.732)  Loss:   6.615 ( 6.691)  Acc@1:   0.000 (  0.076)  Acc@5:   1.176 (  3.287)
Current checkpoints:
 ('./output/train/20241016-034927-resnet50_a1_in1k-224/checkpoint-0.pth.tar', 0.07643312101910828)
"""
OLDER = "Train: 0 [ 100/10009 (  1%)]  Loss:  6.969796 (6.9847)  Time: 0.326s,  392.81/s  (0.330s,  387.68/s)  LR: 5.000e-07  Data: 0.006 (0.019)\n"
# The texts that train.py of huggingface/pytorch-image-models has for its header, today and in 2021.
HEADER = """\
Training in distributed mode with multiple processes, 1 device per process.Process 3, total 8, device cuda:3.
Model resnet50.a1_in1k created, param count:25557032
AMP not enabled. Training in torch.float32.
Learning rate (0.4) calculated from base learning rate (0.1) and effective global batch size (2048) with linear scaling.
Scheduled epochs: 300 (epochs + cooldown_epochs). Warmup within epochs when warmup_prefix=False. LR stepped per epoch.
"""
OLDER_HEADER = """\
Training with a single process on 1 GPUs.
Model resnet50 created, param count:25557032
Using native Torch AMP. Training in mixed precision.
Learning rate (0.05) calculated from base learning rate (0.1) and global batch size (128) with linear scaling.
Scheduled epochs: 310
"""


def test_steps_are_of_the_last_update(tmp_path):
    steps, records = read(tmp_path, NEWER)
    assert (steps.epoch.tolist(), steps.step.tolist(), steps.epoch_steps.tolist()) == ([0, 0], [0, 50], [73, 73])
    assert steps.duration_s.tolist() == [9.575, 0.32] and steps.rate.tolist() == [13.37, 400.32]
    assert values(records, "pause") == [{"reason": "Test"}] * 2 + [{"reason": "Current checkpoints"}]


def test_older_versions(tmp_path):
    steps, _ = read(tmp_path, OLDER)
    assert (steps.step.tolist(), steps.rate.tolist(), steps.epoch_steps.tolist()) == ([100], [392.81], [10009])


def test_header(tmp_path):
    _, records = read(tmp_path, HEADER)
    assert facts(records) == {
        "world_size": "8", "model": "resnet50.a1_in1k", "precision": "fp32", "global_batch_size": "2048", "epochs": "300",
    }  # fmt: skip
    assert records[0].rank == 3


def test_the_half_precision_of_amp_is_unknown(tmp_path):
    _, records = read(tmp_path, OLDER_HEADER)
    assert facts(records) == {"world_size": "1", "model": "resnet50", "global_batch_size": "128", "epochs": "310"}


@pytest.mark.parametrize("text", [NEWER, OLDER])
def test_it_is_recognised(tmp_path, text):
    (path := tmp_path / "x.log").write_text(text)
    assert recognise(path).name == "timm"


@pytest.mark.parametrize("cut", [
    "Train: 0 [  50/73 ( 70%)]  Loss: 6.77 (6.83)  Time: 0.320s,  400.3",
    "Train: 0 [  50/73 ( 70%)]  Loss: 6.77 (6.83)",
    "INFO Train: [0/300][10/1251]\teta 0:05:11 lr 0.000001\ttime 0.2484 (0.2509)\tloss 6.9534 (6.9612)\tmem 2234MB",
])  # fmt: skip
def test_other_lines_are_no_steps(tmp_path, cut):
    assert not len(read(tmp_path, cut)[0].step)
