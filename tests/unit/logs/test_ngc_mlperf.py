"""NVIDIA's SSD and RNN-T for MLPerf, Baidu's ResNet-50, and the newer line of NVIDIA's PyTorch ResNet-50."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

from parse.logs.path_facts import place_of
from parse.logs.window import Protocol
from parse.runs.load_logs import HowToRead, _read
from tests.unit.logs.text_logs import facts, read, values

# mlcommons/training_results_v0.7, NVIDIA/results/dgx2h_ngc20.06_pytorch/ssd/result_0.txt
SSD_PYTORCH = """\
+ srun --mpi=none --ntasks=16 --ntasks-per-node=16 --container-name=single_stage_detector ./run_and_time.sh
+ ./bind.sh -- python -u train.py --use-fp16 --nhwc --pad-input --epochs 80 --data /data/coco2017 --batch-size=56 \
--warmup=650
Iteration:      0, Loss function: 23.571, Average Loss: 0.024, avg. samples / sec: 29.94
Iteration:     20, Loss function: 20.876, Average Loss: 0.450, avg. samples / sec: 8747.58
Iteration:     40, Loss function: 19.104, Average Loss: 0.841, avg. samples / sec: 9642.41
Iteration:     60, Loss function: 14.087, Average Loss: 1.114, avg. samples / sec: 9873.45
Iteration:     80, Loss function: 10.884, Average Loss: 1.318, avg. samples / sec: 9937.38
Iteration:    100, Loss function: 9.377, Average Loss: 1.489, avg. samples / sec: 9951.65
Iteration:    120, Loss function: 9.446, Average Loss: 1.644, avg. samples / sec: 9998.50
"""
# mlcommons/training_results_v1.0, NVIDIA/results/dgxa100_ngc21.05_mxnet/ssd/result_0.txt
SSD_MXNET = """\
INFO:root:[Training][Iteration 100][Epoch 1, Batch 100/129] lr: 0.01401, training time: 78.790 [ms], \
speed: 11575.145 [imgs/sec], loss=9.368
[Training][Iteration 100][Epoch 1, Batch 100/129] lr: 0.01401, training time: 78.790 [ms], \
speed: 11575.145 [imgs/sec], loss=9.368
INFO:root:[Training][Epoch 1] training time: 10.081 [sec],avg speed: 11670.331 [imgs/sec],loss=14.149
[Training][Epoch 1] training time: 10.081 [sec],avg speed: 11670.331 [imgs/sec],loss=14.149
"""
# mlcommons/training_results_v1.0, Dell/results/DSS8440x8A100-PCIE-40GB/rnnt/result_0.txt
RNNT = """\
python -u -m bind_launch --nsockets_per_node=2 --ncores_per_socket=24 --nproc_per_node=8
DLL 2021-05-19 10:22:06.392838 - PARAMETER | amp_level :  2
DLL 2021-05-19 10:22:06.393200 - PARAMETER | batch_size :  128
DLL 2021-05-19 10:22:33.848718 - epoch    1 | iter   20/272 | loss  340.75 | utts/s  5054 | took  0.20 s | lrate 5e-05
DLL 2021-05-19 10:22:34.180820 - epoch    1 | iter   21/272 | loss 1081.00 | utts/s  3078 | took  0.33 s | lrate 5e-05
DLL 2021-05-19 10:23:41.029011 - epoch    1 | avg train utts/s  3779 | took 73.70 s
DLL 2021-05-19 10:23:42.139011 - epoch    1 |   dev ema wer 584.30 | took  0.21 s
"""
# mlcommons/training_results_v1.1, Baidu/results/1_node_8_A100_PaddlePaddle/resnet/result_0.txt
BAIDU = """\
         batch_size_train : 408
               num_epochs : 37
Train Pass 1, batch 20, rtime 0.1374, time 0.5037, speed 6479.79
Train Pass 1, batch 40, rtime 0.1218, time 0.1366, speed 23886.39
Train Pass 1, batch 60, rtime 0.1714, time 0.1382, speed 23609.84
Test Pass 3, loss 4.09301, acc1 0.25422, nsamples 50000.0, time 4.1200 sec
"""
# PaddlePaddle/Perf, ResNet50V1.5/OtherReports/PyTorch/logs/A100-LOG/pytorch_gpu8_amp_bs256.txt
NEWER = """\
DLL 2023-08-04 05:47:02.235240 - Epoch: 0 Iteration: 20  train.loss : 8.29430 None \
train.compute_ips : 11052.85 images/s train.total_ips : 10983.57 images/s train.lr : 0.1
DLL 2023-08-04 05:47:06.002063 - Epoch: 0 Iteration: 40  train.loss : 5.48432 None \
train.compute_ips : 10971.76 images/s train.total_ips : 10894.72 images/s train.lr : 0.1
DLL 2023-08-04 05:47:15.364144 - Epoch: 0  train.loss : 6.22588 None train.compute_ips : 10580.73 images/s \
train.total_ips : 10515.76 images/s train.lr : 0.1  train.grad_scale : 256.00000 None \
val.top1 : 75.62 % val.top5 : None %
DLL 2023-08-04 05:47:16.032703 - Summary: train.loss : 6.22588 None train.compute_ips : 10580.73 images/s \
train.total_ips : 10515.76 images/s train.lr : 0.1  train.grad_scale : 256.00000 None val.top1 : None %
"""


def speeds(tmp_path: Path, text: str, name: str = "x.log", **protocol: int):
    path = tmp_path / name
    path.write_text(text)
    reading, attempt = _read(path, place_of(path), HowToRead(protocol=Protocol(**protocol)))
    return reading, attempt


def test_ssd_in_pytorch(tmp_path):
    reading, attempt = speeds(tmp_path, SSD_PYTORCH)
    assert reading.log_format.name == "ngc-ssd" and attempt.requested.case == "1n16g"
    rates = [9642.41, 9873.45, 9937.38, 9951.65, 9998.50]
    assert attempt.measured.throughput == attempt.log.printed == pytest.approx(statistics.harmonic_mean(rates))
    run = attempt.requested.run
    assert (run.workload, run.precision, run.batch_size) == ("ssd", "amp-fp16", 56)


def test_ssd_in_mxnet(tmp_path):
    steps, records = read("ngc-ssd", tmp_path, *SSD_MXNET.splitlines())
    assert steps.step.tolist() == [100, 100] and steps.rate.tolist() == [11575.145] * 2
    assert steps.epoch_steps.tolist() == [129, 129]
    assert values(records, "epoch") == [{"epoch": "1", "seconds": "10.081", "rate": "11670.331"}] * 2


def test_rnnt(tmp_path):
    steps, records = read("ngc-rnnt", tmp_path, *RNNT.splitlines())
    assert steps.step.tolist() == [20, 21] and steps.elapsed_s.tolist() == [0.20, 0.33]
    assert np.isnan(steps.rate).all() and np.diff(steps.time_s) == pytest.approx(0.332102)
    assert facts(records) == {"gpus_per_node": "8", "precision": "amp-fp16", "batch_size": "128"}
    assert values(records, "epoch") == [{"epoch": "1", "seconds": "73.70", "rate": "3779"}]
    assert values(records, "pause") == [{"reason": "dev ema wer"}]


def test_rnnt_by_its_steps(tmp_path):
    line = (
        "DLL 2021-05-19 10:22:{second:09.6f} - epoch    1 | iter {step:4}/272 | loss  340.75 | utts/s   999 | "
        "took  0.25 s | lrate 5.14e-05\n"
    )
    text = RNNT.partition("DLL 2021-05-19 10:22:33")[0]
    text += "".join(line.format(second=step / 4, step=step) for step in range(1, 130))
    _, attempt = speeds(tmp_path, text, "1n8g.log")
    assert attempt.log.wall_clock == pytest.approx(4096) and attempt.log.printed == pytest.approx(4096)


def test_a_rate_that_spans_many_steps_is_not_believed(tmp_path):
    # The last epoch's line of mlcommons/training_results_v1.0, GIGABYTE/results/G492-ZD2_A100_20210517.pytorch/rnnt.
    line = (
        "DLL 2021-06-02 06:21:57.514044 - epoch    8 | iter   48/136 | loss  186.41 | utts/s   103 | took 19.98 s | x"
    )
    steps, _ = read("ngc-rnnt", tmp_path, line)
    assert steps.elapsed_s.tolist() == [19.98] and np.isnan(steps.rate).all()


def test_paddle_for_mlperf(tmp_path):
    steps, records = read("paddle-resnet50", tmp_path, *BAIDU.splitlines())
    assert steps.step.tolist() == [20, 40, 60] and steps.epoch.tolist() == [1] * 3
    assert steps.rate.tolist() == [6479.79, 23886.39, 23609.84]
    assert facts(records) == {"batch_size": "408", "epochs": "37"}
    assert values(records, "evaluation") == [{"epoch": "3", "top1": "25.422"}]
    assert values(records, "pause") == [{"reason": "Test"}]
    full = (
        "Train Pass 1, batch 40, loss 6.90775, acc1 0.00100, acc5 0.00500, rtime0.1218 sec, time 0.1366 sec, speed 9.50"
    )
    assert read("paddle-resnet50", tmp_path, full)[0].rate.tolist() == [9.5]
    _, attempt = speeds(tmp_path, BAIDU, "1n8g.log", warmup=20, total=60)
    assert attempt.measured.throughput == pytest.approx(statistics.harmonic_mean([23886.39, 23609.84]))


def test_the_newer_line_of_nvidias_pytorch(tmp_path):
    steps, records = read("ngc-pytorch", tmp_path, *NEWER.splitlines())
    assert steps.step.tolist() == [20, 40] and steps.rate.tolist() == [10983.57, 10894.72]
    assert values(records, "evaluation") == [{"epoch": "0", "top1": "75.62"}]
    assert values(records, "summary") == [{"what": "train.total_ips", "rate": "10515.76"}]
