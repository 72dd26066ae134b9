"""MXNet: step lines of all its programs, whose batch their headers tell, where training stands still."""
# ruff: noqa: E501 (lines of logs are long)

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from parse.logs.engine.fields import seconds_of
from parse.logs.formats import FORMATS
from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import LOGS, facts, values

DGX1 = LOGS / "nvidia-mxnet-resnet50_mlperf0.7_dgx1_1n8g_slurm.log"
TIME_S = seconds_of(b"2020-07-14 22:16:38,360")
SPEED = "Speed: 2891.11 samples/sec"
STAMP = "DLL 2020-07-14 22:16:38.360000 - "


def line(step, data, time="1594764998.36"):
    return "DLLL " + json.dumps({
        "timestamp": time, "elapsedtime": "35.5", "datetime": "2020-07-14 22:16:38.36", "type": "LOG", "step": step,
        "data": data,
    })  # fmt: skip


FORMAT = FORMATS["ngc-mxnet"]
read = partial(text_logs.read, FORMAT)


@pytest.mark.parametrize(("text", "epoch", "step", "rank", "stamped"), [
    (f"2020-07-14 22:16:38,360:INFO: Epoch[0] Batch [7-7]\t{SPEED}\tLR: 0.256\t", 0, 7, -1, True),
    (f"[1,5]<stderr>:2020-07-14 22:16:38,360:INFO: Epoch[0] Batch [0-19]\t{SPEED}\tLR: 0.256\t", 0, 19, 5, True),
    (f"2020-07-14 22:16:38,360 Node[0] Epoch[12] Batch [0-20]\t{SPEED}\taccuracy=0.000000", 12, 20, 0, True),
    (f"2020-07-14 22:16:38,360 Node[3] Epoch[0] Batch [20]\t{SPEED}\taccuracy=nan", 0, 20, 3, True),
    (f"0: 2020-07-14 22:16:38,360 Node[0] Epoch[1] Batch [740-760]\t{SPEED}", 1, 760, 0, True),
    (f"[2020-07-14 22:16:38.360] Epoch[0] Batch [50-100]\t{SPEED}\taccuracy=0.004531", 0, 100, -1, True),
    (f"INFO:root:Epoch[0] Batch [20]\t{SPEED}\tacc=0.000000\tlossvalue=7.5", 0, 20, -1, False),
    (f"INFO:root:Epoch[0] Batch [0-40]    {SPEED}\tacc=0.000000", 0, 40, -1, False),
    (f"INFO:root:Iter[2] Batch [40]\t{SPEED}", 2, 40, -1, False),
    (f"[1,0]<stderr>:INFO:root:Epoch[0] Batch[20]\t{SPEED}", 0, 20, 0, False),
    (f"Epoch[0] Batch [49]\t{SPEED}\taccuracy=0.001152\tlr=0.041613", 0, 49, -1, False),
    (f"{STAMP}Epoch: 2 Iteration: 19  train.loss : 6.93504  train.ips : 2891.11 images/s train.lr : 0.1 ", 2, 19, -1, True),
    (f"{STAMP}Epoch: 2 Iteration: 19  train.ips : 2891.11 images/s train.lr : 0.1 ", 2, 19, -1, True),
    (line([2, 19], {"train.loss": 6.9, "train.ips": 2891.11, "train.lr": 0.1}), 2, 19, -1, True),
    ("rank-id:0:2020-07-14 22:16:38,360-Iter:460 Rank:361.39 it/sec Total:2891.11 it/sec [0][loss]:0.01 ", -1, 460, 0, True),
    ("[1,0]<stdout>:rank-id:0:2020-07-14 22:16:38,360-Iter:460 Rank:361.39 it/sec Total:2891.11 it/sec [0][loss]:0.01 ", -1,
     460, 0, True),
])  # fmt: skip
def test_step_lines(tmp_path, text, epoch, step, rank, stamped):
    steps, _ = read(tmp_path, text)
    assert (steps.epoch.tolist(), steps.step.tolist(), steps.rank.tolist()) == ([epoch], [step], [rank])
    assert steps.rate.tolist() == [pytest.approx(2891.11)]
    assert steps.first.tolist() == [-1]
    assert steps.time_s[0] == pytest.approx(TIME_S if stamped else np.nan, nan_ok=True, abs=1e-6)


def test_all_digits_of_a_rate(tmp_path):
    steps, _ = read(
        tmp_path,
        "2020-07-14 22:16:38,360:INFO: Epoch[0] Batch [7-7]\tSpeed: 2891.1134567890123 samples/sec\tLR: 0.256\t",
        "2020-07-14 22:16:38,360 Node[0] Epoch[0] Batch [0-20]\tSpeed: 1057426 samples/sec",
    )
    assert steps.rate.tolist() == [pytest.approx(2891.1134567890123), 1057426.0]


@pytest.mark.parametrize("text", [
    f"2020-07-14 22:16:38,360:INFO: Batch [19]\t{SPEED}",  # reading only
    f"INFO:root:Epoch[0]\t{SPEED}",  # of the whole epoch
    f"INFO:root:[Epoch 0] {SPEED.lower()}",
    "INFO:root:Epoch[0] Rank[0] Batch[20]\taccuracy=0.001\tlr=0.05",
    f"2020-07-14 22:16:38,360 Node[0] Epoch[0] Batch [0-20]\t{SPEED[:-10]}",
    f"{STAMP}Epoch: 2  train.loss : 6.93504  train.ips : 2891.11 images/s val.accuracy : 0.1 ",
])  # fmt: skip
def test_no_step_lines(tmp_path, text):
    steps, _ = read(tmp_path, text)
    assert not len(steps.step)


def test_the_batch_of_a_rank_of_mlperf(tmp_path):
    _, records = read(
        tmp_path,
        "+ srun --kill-on-bad-exit=0 --mpi=pmix --ntasks=128 --ntasks-per-node=8 --container-name=x ./run_and_time.sh",
        "2020-07-14 22:16:28,914 Node[1] start with arguments Namespace(accuracy_threshold=0.759, batch_size=208, "
        "disp_batches=20, dtype='float16', gpus='1', image_shape='4,224,224', kv_store='horovod', model_prefix=None, "
        "network='resnet-v1b-dbar-fl', num_classes=1000, num_epochs=37, num_examples=1281167, num_layers=50, seed=49068, "
        "warmup_epochs=2, wd=0.0001)",
        "NCCL version 2.7.5+cuda11.0",
    )
    assert facts(records) == {
        "world_size": "128", "gpus_per_node": "8", "nodes": "16", "batch_size": "208", "print_every": "20",
        "precision": "amp-fp16", "network": "resnet-v1b-dbar-fl", "model": "resnet50", "classes": "1000", "epochs": "37",
        "samples_per_epoch": "1281167", "warmup_epochs": "2", "nccl": "2.7.5+cuda11.0",
        "gpus_per_process": "1",
    }  # fmt: skip
    assert {record.rank for record in records} == {None, 1}


@pytest.mark.parametrize(("store", "facts"), [
    ("device", {"batch_size": "128", "gpus_per_node": "4", "world_size": "4", "nodes": "1"}),
    ("dist_sync", {"batch_size": "128", "gpus_per_node": "4", "gpus_per_process": "4"}),
])  # fmt: skip
def test_the_batch_of_a_process_with_several_devices(tmp_path, store, facts):
    _, records = read(
        tmp_path,
        f"2020-07-14 22:16:28,914 Node[0] start with arguments Namespace(batch_size=512, gpus='0,1,2,3', kv_store='{store}')",
    )
    assert values(records, "facts") == [facts]


def test_a_batch_that_does_not_divide_by_the_devices_is_dropped(tmp_path):
    _, records = read(
        tmp_path,
        "2020-07-14 22:16:28,914 Node[0] start with arguments Namespace(batch_size=10, gpus='0,1,2', kv_store='device')",
    )
    assert values(records, "facts") == [{}]


@pytest.mark.parametrize("header", [
    "2020-07-14 22:16:28,914:INFO: Start with arguments Namespace(amp=True, arch='resnetv15', batch_size=1024, "
    "dtype='float32', gpus=[0, 1, 2, 3, 4, 5, 6, 7], kv_store='horovod', num_layers=50, rgb_mean=[123.68, 116.779])",
    f"{STAMP}PARAMETER arch : resnetv15  num_layers : 50  gpus : [0, 1, 2, 3, 4, 5, 6, 7]  kv_store : horovod  dtype : float32  "
    "amp : True  batch_size : 1024 ",
    line("PARAMETER", {
        "arch": "resnetv15", "num_layers": 50, "gpus": list(range(8)), "kv_store": "horovod", "dtype": "float32", "amp": True,
        "batch_size": 1024,
    }),
])  # fmt: skip
def test_the_batch_of_all_ranks_of_nvidias_gluon(tmp_path, header):
    _, records = read(tmp_path, header)
    assert values(records, "facts") == [{
        "network": "resnetv15", "model": "resnet50", "precision": "amp-fp16", "global_batch_size": "1024",
        "gpus_per_node": "8",
    }]  # fmt: skip


@pytest.mark.parametrize(("before", "gpus", "facts"), [
    ("INFO:root:", ", num_gpus=8", {"world_size": "8", "nodes": "1"}),
    ("", ", num_gpus=8", {"world_size": "8", "nodes": "1"}),
    ("[1,0]<stderr>:INFO:root:", "", {}),
    ("INFO:root:", ", num_gpus=0", {}),
])  # fmt: skip
def test_the_batch_of_a_device_of_gluoncv_and_horovod(tmp_path, before, gpus, facts):
    _, records = read(
        tmp_path,
        f"{before}Namespace(batch_norm=False, batch_size=128, dtype='float32', model='resnet50_v1b'{gpus}, wd=0.0001)",
    )
    assert values(records, "facts") == [
        {"network": "resnet50_v1b", "model": "resnet50", "precision": "fp32", "batch_size": "128", **facts}
    ]


def test_insightface(tmp_path):
    _, records = read(
        tmp_path,
        "Called with argument: Namespace(batch_size=512, ckpt=3, ctx_num=8, dataset='emore', frequent=20, kvstore='device', "
        "loss='arcface', network='r100', per_batch_size=64, wd=0.0005) {'bn_mom': 0.9, 'num_classes': 85742}",
        "[lfw][2000]XNorm: 22.113432",
    )
    assert values(records, "facts") == [{
        "network": "r100", "model": "r100", "print_every": "20", "task": "arcface", "batch_size": "64", "world_size": "8",
    }]  # fmt: skip
    assert values(records, "pause") == [{"reason": "validation on lfw"}]


@pytest.mark.parametrize(("text", "pause", "top1"), [
    ("2020-07-14 22:18:27,100 Node[0] Epoch[3] Time cost=112.089", {"reason": "the end of an epoch", "epoch": "3"}, None),
    ("[2020-06-22 19:39:07] Rank[0] Epoch[3] Time cost=1628.136", {"reason": "the end of an epoch", "epoch": "3"}, None),
    ("INFO:root:Epoch[3] Rank[0] Batch[625]\tTime cost=90.1\tTrain-accuracy=0.1", {"reason": "the end of an epoch", "epoch": "3"},
     None),
    ("INFO:root:[Epoch 3] speed: 2758 samples/sec\ttime cost: 476.447162", {"reason": "the end of an epoch", "epoch": "3"}, None),
    (f"INFO:root:Epoch[3]\t{SPEED}", {"reason": "the end of an epoch", "epoch": "3"}, None),
    ("2020-07-14 22:18:31,500 Node[0] Epoch[3] Validation-accuracy=0.134720", {"reason": "Validation", "epoch": "3"}, "13.472"),
    ("INFO:root:Epoch[3] Rank[0]\tValidation-accuracy=0.134720\tValidation-top_k=0.2", {"reason": "Validation", "epoch": "3"},
     "13.472"),
    ("2020-07-14 22:16:38,360:INFO: Epoch[3] Validation accuracy            : 0.7609", {"reason": "Validation", "epoch": "3"},
     "76.09"),
    ("INFO:root:[Epoch 3] validation: err-top1=0.239100 err-top5=0.07", {"reason": "validation", "epoch": "3"}, "76.09"),
    (f"{STAMP}Epoch: 3  train.loss : 2.1  train.ips : 2891.1 images/s val.accuracy : 0.7609 val.ips : 9 images/s",
     {"reason": "Validation", "epoch": "3"}, "76.09"),
    ("2020-07-14 22:16:38,360:INFO: Starting epoch 1", {"reason": "Starting epoch"}, None),
    ("2020-07-14 22:16:38,360:INFO: Validating epoch 1", {"reason": "Validating epoch"}, None),
    ("2020-07-14 22:16:38,360:INFO: [Epoch 3] Saving checkpoint to ./m.params with Accuracy: 0.7", {"reason": "Saving checkpoint"},
     None),
    ('INFO:root:Saved checkpoint to "../model/partial_fc-0000.params"', {"reason": "Saved checkpoint"}, None),
])  # fmt: skip
def test_pauses_and_evaluations(tmp_path, text, pause, top1):
    _, records = read(tmp_path, text)
    assert values(records, "pause") == [pause]
    assert values(records, "evaluation") == ([{"top1": top1, "epoch": "3"}] if top1 else [])


def test_the_programs_own_rate(tmp_path):
    _, records = read(tmp_path, f"{STAMP}Summary: train.loss : 2.1  train.ips : 10633.22 images/s val.accuracy : 0.76 ")
    assert values(records, "summary") == [{"what": "train.ips", "rate": "10633.22"}]


def test_gluoncv_s_detectors_mean_the_batch_of_all_their_devices(tmp_path):
    steps, records = read(
        tmp_path,
        "Namespace(amp=False, batch_size=64, data_shape=416, epochs=1, gpus='0,1,2,3', horovod=False, network='darknet53')",
        "[Epoch 0][Batch 9], LR: 3.41E-07, Speed: 49.591 samples/sec, ObjLoss=6561.729, ClassLoss=303.936",
    )
    assert (steps.epoch.tolist(), steps.step.tolist(), steps.rate.tolist()) == ([0], [9], [49.591])
    (facts,) = values(records, "facts")
    assert (facts["global_batch_size"], facts["world_size"], facts["model"]) == ("64", "4", "darknet53")
