"""tf_cnn_benchmarks and Horovod's synthetic benchmarks: what they say of the whole run."""

from __future__ import annotations

import pytest

from parse.logs.engine.log_format import LogError
from parse.logs.formats import format_named, recognise
from parse.logs.path_facts import PathFacts
from parse.logs.window import Protocol, read_log
from parse.runs.log_attempt import attempt_of
from tests.unit.logs.text_logs import facts, read, values

# kubeflow/mpi-operator, README.md
HOROVOD_CNN = """\
TensorFlow:  1.14
Model:       resnet101
Dataset:     imagenet (synthetic)
Mode:        training
SingleSess:  False
Batch size:  128 global
             64 per device
Num batches: 100
Num epochs:  0.01
Devices:     ['horovod/gpu:0', 'horovod/gpu:1']
Variables:   horovod
40\timages/sec: 154.4 +/- 0.7 (jitter = 4.0)\t8.280
40\timages/sec: 154.4 +/- 0.7 (jitter = 4.1)\t8.482
100\timages/sec: 154.2 +/- 0.4 (jitter = 4.0)\t8.372
100\timages/sec: 154.2 +/- 0.4 (jitter = 4.0)\t8.542
----------------------------------------------------------------
total images/sec: 308.27
"""
# LambdaColdStorage/lambda-tensorflow-benchmark, logs/3960X-GeForce_RTX_3080_XLA.logs/…/resnet50-48/throughput/1
ONE_DEVICE = """\
TensorFlow:  1.15
Model:       resnet50
Dataset:     imagenet (synthetic)
Mode:        training
Batch size:  48 global
48 per device
Devices:     ['/gpu:0']
Step\tImg/sec\ttotal_loss
1\timages/sec: 881.6 +/- 0.0 (jitter = 0.0)\t8.021 1604275111
10\timages/sec: 872.2 +/- 2.2 (jitter = 8.9)\t7.954 1604275111
100\timages/sec: 876.0 +/- 0.8 (jitter = 9.0)\t7.857 1604275116
total images/sec: 875.20
"""
FACTS = {
    "tensorflow": "1.14",
    "model": "resnet101",
    "data": "synthetic",
    "global_batch_size": "128",
    "batch_size": "64",
}


def test_the_mean_since_the_first_step_of_one_worker_is_no_rate(tmp_path):
    steps, records = read("tf-cnn-benchmarks", tmp_path, HOROVOD_CNN)
    assert not len(steps.step)
    assert values(records, "summary") == [{"what": "total images/sec", "rate": "308.27"}]
    assert facts(records) == FACTS | {"world_size": "2"}


def test_one_device(tmp_path):
    _, records = read("tf-cnn-benchmarks", tmp_path, ONE_DEVICE)
    assert values(records, "summary") == [{"what": "total images/sec", "rate": "875.20"}]
    assert facts(records) == {
        "tensorflow": "1.15", "model": "resnet50", "data": "synthetic", "global_batch_size": "48", "batch_size": "48",
        "gpus_per_node": "1", "world_size": "1", "nodes": "1",
    }  # fmt: skip


@pytest.mark.parametrize(("devices", "expected"), [
    ("['/gpu:0', '/gpu:1']", {"gpus_per_node": "2", "world_size": "2", "nodes": "1"}),
    ("['/job:worker/replica:0/task:0/gpu:0', '/job:worker/replica:0/task:0/gpu:1']", {"gpus_per_node": "2"}),
])  # fmt: skip
def test_devices_of_a_worker_are_all_where_it_is_alone(tmp_path, devices, expected):
    assert facts(read("tf-cnn-benchmarks", tmp_path, f"Devices:     {devices}")[1]) == expected


def test_inference_is_in_no_point_with_training(tmp_path):
    points = set()
    for mode in ("training", "forward only"):
        (path := tmp_path / "x.log").write_text(ONE_DEVICE.replace("training", mode))
        reading = read_log(path, format_named("tf-cnn-benchmarks"), Protocol())
        points.add(attempt_of(path, reading, PathFacts(), Protocol()).requested.point)
    assert len(points) == 2


# BaguaSys/bagua-net, README.md; Horovod's own lines end with `img/sec per GPU`.
BAGUA = """\
Running benchmark...
Iter #0: 2620.2 img/sec GPU
Iter #9: 2796.6 img/sec GPU
Img/sec per GPU: 85.8 +-3.8
Total img/sec on 32 GPU(s): 2744.9 +-122.3
"""
# The texts of horovod/horovod, examples/pytorch/pytorch_synthetic_benchmark.py, under mpirun
HOROVOD = """\
[1,0]<stdout>:Model: resnet50
[1,0]<stdout>:Batch size: 96
[1,0]<stdout>:Number of GPUs: 8
[1,0]<stdout>:Running warmup...
[1,0]<stdout>:Running benchmark...
[1,0]<stdout>:Iter #0: 592.3 img/sec per GPU
[1,0]<stdout>:Img/sec per GPU: 600.2 +-5.3
[1,0]<stdout>:Total img/sec on 8 GPU(s): 4801.4 +-42.7
"""


@pytest.mark.parametrize(("text", "rate", "expected"), [
    (BAGUA, "2744.9", {"world_size": "32"}),
    (HOROVOD, "4801.4", {"world_size": "8", "model": "resnet50", "batch_size": "96"}),
])  # fmt: skip
def test_horovods_total_is_of_the_whole_run(tmp_path, text, rate, expected):
    steps, records = read("horovod-synthetic", tmp_path, text)
    assert not len(steps.step)
    assert values(records, "summary") == [{"what": "Total img/sec", "rate": rate}]
    assert facts(records) == expected


@pytest.mark.parametrize(("text", "name"), [
    (HOROVOD_CNN, "tf-cnn-benchmarks"), (ONE_DEVICE, "tf-cnn-benchmarks"), (BAGUA, "horovod-synthetic"),
    (HOROVOD, "horovod-synthetic"), (HOROVOD.replace("GPU", "CPU"), "horovod-synthetic"),
])  # fmt: skip
def test_they_are_recognised(tmp_path, text, name):
    (path := tmp_path / "x.log").write_text(text)
    assert recognise(path).name == name


def test_a_header_alone_is_no_benchmark(tmp_path):
    (path := tmp_path / "x.log").write_text("Model: resnet50\nBatch size: 96\nNumber of GPUs: 8\n")
    with pytest.raises(LogError, match="no step line"):
        recognise(path)
