"""TensorFlow 2's official models: TimeHistory and BenchmarkMetric, what workers say, where training stands still."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from parse.logs.engine.fields import seconds_of
from parse.logs.formats import FORMATS, recognise
from tests.unit.logs import text_logs
from tests.unit.logs.text_logs import facts, values

ABSL = "I0407 21:17:05.025709 139725706671936 "
HISTORY = "TimeHistory: 6.46 seconds, 495.19 examples/second between steps 100 and 200"

FORMAT = FORMATS["tf2-official"]
read = partial(text_logs.read, FORMAT)


@pytest.mark.parametrize(("before", "rank", "stamped"), [
    (f"{ABSL}keras_utils.py:145] ", -1, True),
    (f"    {ABSL}keras_utils.py:129] ", -1, True),
    (f"[1] {ABSL}keras_utils.py:145] ", 1, True),
    (f"[1,3]<stderr>:{ABSL}keras_utils.py:145] ", 3, True),
    ("2020-04-07 21:17:05,025 - INFO - ", -1, True),
    ("INFO:tensorflow:", -1, False),
    ("", -1, False),
])  # fmt: skip
def test_time_history(tmp_path, before, rank, stamped):
    steps, _ = read(tmp_path, before + HISTORY)
    assert (steps.first.tolist(), steps.step.tolist(), steps.rank.tolist()) == ([100], [200], [rank])
    assert (steps.rate.tolist(), steps.elapsed_s.tolist()) == ([495.19], [6.46])
    assert np.isnan(steps.time_s[0]) == (not stamped)


def test_time_stamps_without_a_year_run_on(tmp_path):
    steps, _ = read(
        tmp_path,
        f"I1231 23:59:58.000000 1 keras_utils.py:145] {HISTORY}",
        f"{ABSL}keras_utils.py:145] {HISTORY}",
    )
    assert steps.time_s[1] == seconds_of(b"0407 21:17:05.025709")
    assert steps.time_s[0] == seconds_of(b"1231 23:59:58.000000")


@pytest.mark.parametrize(("text", "step", "rate", "elapsed_s"), [
    ("{'global step':100, 'time_taken': 16.552601,'examples_per_second': 773.292362}", 100, 773.292362, 16.552601),
    ("{'num_batches':200, 'time_taken': 9.275636,'images_per_second': 1379.959218}", 200, 1379.959218, 9.275636),
    ("{'num_batches': 100, 'time_taken': 55.004655}", 100, np.nan, 55.004655),
])  # fmt: skip
def test_benchmark_metrics_of_all_years(tmp_path, text, step, rate, elapsed_s):
    steps, _ = read(tmp_path, f"I0917 12:01:09.244876 139914427299648 keras_utils.py:88] BenchmarkMetric: {text}")
    assert (steps.step.tolist(), steps.elapsed_s.tolist()) == ([step], [elapsed_s])
    assert steps.rate[0] == pytest.approx(rate, nan_ok=True)
    assert steps.time_s[0] == seconds_of(b"0917 12:01:09.244876")


def test_the_end_of_an_epoch_is_no_step(tmp_path):
    steps, records = read(
        tmp_path, "I0917 12:01:09.244876 1 keras_utils.py:95] BenchmarkMetric: {'epoch':3, 'time_taken': 160.55}"
    )
    assert not len(steps.step)
    assert values(records, "pause") == [{"reason": "the end of an epoch", "epoch": "3"}]


def test_headers(tmp_path):
    _, records = read(
        tmp_path,
        f"{ABSL}classifier_trainer.py:184] Overriding params: runtime.num_gpus=8,train.steps=600",
        f"{ABSL}classifier_trainer.py:184] Overriding params: {{'model_dir': '/o', 'mode': 'train_and_eval', "
        "'model': {'name': 'resnet'}, 'runtime': {'tpu': None}}",
        f"{ABSL}classifier_trainer.py:304] Detected 32 devices.",
        f"{ABSL}classifier_trainer.py:325] Global batch size: 4096",
        "INFO:tensorflow:MultiWorkerMirroredStrategy with cluster_spec = {'worker': ['10.11.0.2:2', '10.11.0.3:2']}, "
        "task_type = 'worker', task_id = 0, num_workers = 4, local_devices = ('/job:worker/task:0/device:GPU:0',)",
        "INFO:tensorflow:Mixed precision compatibility check (mixed_float16): OK",
        "Train for 600 steps, validate for 390 steps",
        "Epoch 1/90",
        "node1:1:2 [0] NCCL INFO NCCL version 2.7.3+cuda10.2",
    )
    assert facts(records) == {
        "gpus_per_node": "8", "model": "resnet50", "world_size": "32", "global_batch_size": "4096", "nodes": "4",
        "precision": "amp-fp16", "steps_per_epoch": "600", "epochs": "90", "nccl": "2.7.3+cuda10.2",
    }  # fmt: skip


def test_no_gpu_is_not_zero_gpus(tmp_path):
    _, records = read(tmp_path, f"{ABSL}classifier_trainer.py:184] Overriding params: runtime.num_gpus=0,train.steps=6")
    assert not records


def test_devices_of_a_mirrored_strategy(tmp_path):
    devices = ", ".join(f"'/job:localhost/replica:0/task:0/device:GPU:{gpu}'" for gpu in range(4))
    _, records = read(tmp_path, f"INFO:tensorflow:Using MirroredStrategy with devices ({devices})")
    assert values(records, "facts") == [{"gpus_per_node": "4"}]
    _, records = read(tmp_path, "INFO:tensorflow:Using MirroredStrategy with devices ('/job:localhost/device:CPU:0',)")
    assert not records


def test_pauses_evaluations_and_the_summary(tmp_path):
    _, records = read(
        tmp_path,
        "600/600 - 160s - loss: 7.0 - accuracy: 0.0010 - val_loss: 6.9 - val_accuracy: 0.7609",
        "300/600 - 80s - loss: 7.0",
        "Epoch 00001: saving model to /o/model.ckpt-0001",
        f"{ABSL}controller.py:195] Start evaluation at step: 800",
        f"{ABSL}controller.py:223] step: 800        evaluation metric: {{'test_loss': 8.6, 'test_accuracy': 0.25}}",
        "{'accuracy_top_1': 0.75, 'eval_loss': 1.9, 'train_finish_time': 1649365329.1, 'avg_exp_per_second': 1210.278}",
    )
    assert [record["reason"] for record in values(records, "pause")] == [
        "the end of an epoch",
        "saving model",
        "Start evaluation",
    ]
    assert values(records, "pause")[0]["steps_per_epoch"] == "600"
    assert [record["top1"] for record in values(records, "evaluation")] == ["76.09", "25", "75"]
    assert values(records, "summary") == [{"what": "avg_exp_per_second", "rate": "1210.278"}]


def test_it_is_recognised(tmp_path):
    path = tmp_path / "rn50_b128_fp32_1.log"
    path.write_text(f"{ABSL}keras_utils.py:145] {HISTORY}\n")
    assert recognise(path).name == "tf2-official"
    assert (FORMAT.warmup, FORMAT.total, FORMAT.rates, FORMAT.numbered) == (100, 600, "all", "run")
