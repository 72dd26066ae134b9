"""NGC TensorFlow 1: ResNet-50 in training and benchmark mode, BERT; dllogger's text and JSON."""
# ruff: noqa: E501 (lines of logs are long)

from __future__ import annotations

import json
from functools import partial

import pytest

from parse.logs.engine.reader import batches
from parse.logs.formats import FORMATS, recognise
from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import LOGS, values

BERT = LOGS / "ngc-tensorflow-bert_airank_1n1g_bs96_fp16.log"
STAMP = "DLL 2020-09-01 06:41:11.984949 - "
TIME_S = 1598942471.984949
TRAIN = f"{STAMP}(3, 16135) imgs_per_sec : 1146.8574254443538  cross_entropy : 3.44898  l2_loss : 0.66942  total_loss : 4.11840 "


def line(step, data, time="1598942471.984949"):
    return "DLLL " + json.dumps({
        "timestamp": time, "datetime": "2020-09-01 06:41:11.984949", "elapsedtime": "35.5", "type": "LOG", "step": step,
        "data": data,
    })  # fmt: skip


FORMAT = FORMATS["ngc-tensorflow"]
read = partial(text_logs.read, FORMAT)


@pytest.mark.parametrize(("text", "epoch", "step", "rank", "rate"), [
    (TRAIN, 3, 16135, -1, 1146.8574254443538),
    (f"[1,0]<stdout>:{TRAIN}", 3, 16135, 0, 1146.8574254443538),
    (f"{STAMP}(0, 120) total_ips : 2879.14", 0, 120, -1, 2879.14),
    (f"{STAMP}(0, 120) total_ips : 2879.1421875 ", 0, 120, -1, 2879.1421875),
    (f"{STAMP}Iteration: 1  throughput_train : 243.828 seq/s mlm_loss : 10.3802  nsp_loss : 0.7127 ", -1, 1, -1, 243.828),
    (f"{STAMP}Iteration: 10  Rank : 3  throughput_train : 243.828 seq/s mlm_loss : 10.3802 ", -1, 10, 3, 243.828),
    (line([3, 16135], {"imgs_per_sec": 1146.85, "cross_entropy": 3.4}), 3, 16135, -1, 1146.85),
    (line([0, 120], {"total_ips": 2879.14}), 0, 120, -1, 2879.14),
    (line(10, {"throughput_train": 243.828, "mlm_loss": 10.38}), -1, 10, -1, 243.828),
    (line(10, {"Rank": 3, "throughput_train": 243.828}), -1, 10, 3, 243.828),
])  # fmt: skip
def test_step_lines(tmp_path, text, epoch, step, rank, rate):
    steps, _ = read(tmp_path, text)
    assert (steps.epoch.tolist(), steps.step.tolist(), steps.rank.tolist()) == ([epoch], [step], [rank])
    assert steps.rate.tolist() == [pytest.approx(rate)]
    assert steps.time_s[0] == pytest.approx(TIME_S, abs=1e-5)


@pytest.mark.parametrize("text", [
    f"{STAMP}(3,) cross_entropy : 3.44898  l2_loss : 0.66942  total_loss : 4.11840  learning_rate : 0.10318 ",
    f"{STAMP}(3, 16135) imgs_per_sec : ",
    f"{STAMP}(3, 16135) imgs_per_sec : {'1' * 400}  cross_entropy : 3.4",
    line([3], {"cross_entropy": 3.4}),
])  # fmt: skip
def test_no_step_lines(tmp_path, text):
    steps, _ = read(tmp_path, text)
    assert not len(steps.step)


@pytest.mark.parametrize(("flags", "facts"), [
    ("arch : resnet50  mode : train  data_dir : /data/tf records  batch_size : 128  num_iter : 120  iter_unit : batch  "
     "display_every : 1  lr_warmup_epochs : 8  precision : fp32  use_tf_amp : False  use_xla : True  use_dali : False  seed : None",
     {"model": "resnet50", "mode": "train", "batch_size": "128", "print_every": "1", "warmup_epochs": "8", "xla": "true",
      "precision": "fp32"}),
    ("arch : resnet50  mode : training_benchmark  data_dir : None  batch_size : 256  num_iter : 90  iter_unit : epoch  "
     "amp : True  xla : False  dali : True  seed : 1",
     {"model": "resnet50", "mode": "training_benchmark", "batch_size": "256", "epochs": "90", "dali": "true",
      "precision": "amp-fp16", "data": "synthetic", "seed": "1"}),
    ("arch : resnet50  data_dir : /d  batch_size : 256  precision : fp16  use_tf_amp : False",
     {"model": "resnet50", "batch_size": "256", "precision": "amp-fp16"}),
    ("arch : resnet50  data_dir : /d  batch_size : 256  precision : fp32  use_tf_amp : True",
     {"model": "resnet50", "batch_size": "256", "precision": "amp-fp16"}),
])  # fmt: skip
def test_parameters(tmp_path, flags, facts):
    _, records = read(tmp_path, f"{STAMP}PARAMETER {flags} ")
    assert values(records, "facts") == [facts]


def test_parameters_as_json(tmp_path):
    flags = {"arch": "resnet50", "batch_size": 128, "amp": False, "xla": True, "data_dir": "/data", "seed": None}
    _, records = read(tmp_path, line("PARAMETER", flags))
    assert values(records, "facts") == [{"model": "resnet50", "batch_size": "128", "xla": "true", "precision": "fp32"}]


def test_what_rank_0_prints_before_it_begins(tmp_path):
    _, records = read(
        tmp_path,
        "Training Epochs 1", "Total Steps 120", "Steps per Epoch 120.0", "Num GPUs 16", "Per-GPU Batch Size 128",
        "2020-12-16 13:36:23.186309: I tensorflow/compiler/xla/service/service.cc:176]   StreamExecutor device (0): "
        "Tesla V100-SXM2-16GB, Compute Capability 7.0",
        "2020-12-16 13:36:22.913097: I tensorflow/compiler/xla/service/service.cc:176]   StreamExecutor device (0): "
        "Host, Default Version",
    )  # fmt: skip
    assert values(records, "facts") == [
        {"steps_per_epoch": "120"}, {"world_size": "16"}, {"batch_size": "128"}, {"device": "Tesla V100-SXM2-16GB"},
    ]  # fmt: skip


def test_a_part_of_a_step_is_no_number_of_steps(tmp_path):
    _, records = read(tmp_path, "Steps per Epoch 5004.558")
    assert not records


@pytest.mark.parametrize(("phase", "batch_size"), [(1, "67584"), (2, "32768")])
def test_the_folder_of_bert_states_the_global_batch_size(tmp_path, phase, batch_size):
    folder = f"/results/tf_bert_pretraining_lamb_base_fp16_gbs167584_gbs232768_201216133557/phase_{phase}"
    _, records = read(tmp_path, f"INFO:tensorflow:Using config: {{'_model_dir': '{folder}', '_tf_random_seed': None}}")
    assert values(records, "facts") == [
        {"model": "bert-base", "precision": "amp-fp16", "global_batch_size": batch_size}
    ]


def test_pauses_evaluation_and_the_programs_own_rate(tmp_path):
    _, records = read(
        tmp_path,
        "INFO:tensorflow:Saving checkpoints for 200 into /results/phase_1/model.ckpt.",
        "Starting Model Evaluation...",
        f"{STAMP} train_throughput : 1149.207",
        f"{STAMP} throughput_train : 470.244 seq/s",
        f"{STAMP} throughput_val : 712.3557695029468",
        f"{STAMP} top1_accuracy : 0.7681 top5_accuracy : 0.93  eval_throughput : 1500.1 ",
        line([], {"train_throughput": 1149.207}),
        line([], {"top1_accuracy": 0.7681, "top5_accuracy": 0.93}),
    )
    assert values(records, "pause") == [
        {"reason": "Saving checkpoints", "step": "200"}, {"reason": "Starting Model Evaluation"},
    ]  # fmt: skip
    assert values(records, "summary") == [
        {"what": "train_throughput", "rate": "1149.207"}, {"what": "throughput_train", "rate": "470.244"},
        {"what": "train_throughput", "rate": "1149.207"},
    ]  # fmt: skip
    assert values(records, "evaluation") == [{"top1": "76.81"}, {"top1": "76.81"}]


def test_it_is_recognised(tmp_path):
    path = tmp_path / "r50_b128_fp32_1.log"
    path.write_text(TRAIN + "\n")
    assert recognise(path).name == "ngc-tensorflow"


@pytest.mark.skipif(not BERT.exists(), reason=f"no real logs at {LOGS}")
def test_the_real_log_of_bert():
    assert recognise(BERT).name == "ngc-tensorflow"
    read_batches = list(batches(BERT, FORMAT))
    steps = [step for batch in read_batches for step in batch.steps.step.tolist()]
    assert steps == [1, 1, 1, 1, *range(1, 52)]  # the loss scaler skips four steps, which are printed all the same
    records = [record for batch in read_batches for record in batch.records]
    assert values(records, "summary") == [{"what": "throughput_train", "rate": "470.244"}]
