"""The speeds of formats whose numbers need more than a line: a header, another scope, lines of whole epochs."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from parse.logs.path_facts import place_of
from parse.logs.window import Protocol
from parse.runs.attempt import Attempt
from parse.runs.load_logs import HowToRead, _read

SSD = "".join(
    f"Iteration: {step:6}, Loss function: 23.571, Average Loss: 0.024, avg. samples / sec: {rate}\n"
    for step, rate in zip(range(0, 121, 20), (29.94, 8747.58, 9642.41, 9873.45, 9937.38, 9951.65, 9998.5), strict=True)
)
SSD_HEAD = """\
+ srun --mpi=none --ntasks=16 --ntasks-per-node=16 --container-name=single_stage_detector ./run_and_time.sh
+ ./bind.sh -- python -u train.py --use-fp16 --nhwc --epochs 80 --data /data/coco2017 --batch-size=56 --warmup=650
"""
RNNT = """\
python -u -m bind_launch --nsockets_per_node=2 --ncores_per_socket=24 --nproc_per_node=8
DLL 2021-05-19 10:22:06.393200 - PARAMETER | batch_size :  128
""" + "".join(
    f"DLL 2021-05-19 10:22:{step / 4:09.6f} - epoch    1 | iter {step:4}/272 | loss  340.75 | utts/s   999 | "
    "took  0.25 s | lrate 5.14e-05\n"
    for step in range(1, 130)
)
BAIDU = """\
         batch_size_train : 408
Train Pass 1, batch 20, rtime 0.1374, time 0.5037, speed 6479.79
Train Pass 1, batch 40, rtime 0.1218, time 0.1366, speed 23886.39
Train Pass 1, batch 60, rtime 0.1714, time 0.1382, speed 23609.84
"""
SUITES = "".join(
    f"total step: {step}, epoch: 0, batch: {step - 1}, loss: 11.1, avg_reader_cost: 0.0001 sec, "
    "avg_batch_cost: 0.50000 sec, avg_samples: 96.00000, ips: 192.00000 sequences/sec\n"
    for step in range(10, 131, 10)
)
DETECTRON2 = """\
[11/08 10:00:00 detectron2]: Rank of current process: 0. World size: 8
[11/08 10:00:00 detectron2]: Running with full config:
CUDNN_BENCHMARK: false
SOLVER:
  AMP:
    ENABLED: false
  BASE_LR: 0.02
  IMS_PER_BATCH: 32
  LR_SCHEDULER_NAME: WarmupMultiStepLR
""" + "".join(
    f"[11/01 11:{minute:02d}:38 d2.utils.events]:  eta: 8:08:27  iter: {20 * minute - 1}  total_loss: 1.194  "
    "time: 0.9999  data_time: 0.0328  lr: 0.006394  max_mem: 3961M\n"
    for minute in range(1, 9)
)


def attempt_of(tmp_path: Path, name: str, text: str, protocol: Protocol | None = None) -> Attempt:
    (path := tmp_path / name).write_text(text)
    return _read(path, place_of(path), HowToRead(protocol=protocol or Protocol()))[1]


@pytest.mark.parametrize(
    ("name", "text", "protocol", "case", "wall_clock", "printed"),
    [
        # mlcommons/training_results_v0.7, NVIDIA/results/dgx2h_ngc20.06_pytorch/ssd/result_0.txt
        ("x.log", SSD_HEAD + SSD, None, "1n16g", None,
         statistics.harmonic_mean([9642.41, 9873.45, 9937.38, 9951.65, 9998.5])),
        ("1n8g.log", RNNT, None, "1n8g", 4096, 4096),
        ("1n8g.log", BAIDU, Protocol(warmup=20, total=60), "1n8g", None,
         statistics.harmonic_mean([23886.39, 23609.84])),
        ("1n8g.log", SUITES, None, "1n8g", None, 8 * 192),  # its rate is one rank's
        ("x.log", DETECTRON2, None, "8g", 32 * 100 / 300, None),  # its time is a mean of the run
    ],
    ids=["ngc-ssd", "ngc-rnnt", "paddle-resnet50", "paddle-suites", "detectron2"],
)  # fmt: skip
def test_speeds(
    tmp_path: Path, name: str, text: str, protocol: Protocol | None, case: str, wall_clock: float | None,
    printed: float | None,
) -> None:  # fmt: skip
    attempt = attempt_of(tmp_path, name, text, protocol)
    assert attempt.log and attempt.measured and attempt.requested.case == case
    assert (attempt.log.wall_clock, attempt.log.printed) == (pytest.approx(wall_clock), pytest.approx(printed))
    assert attempt.measured.throughput == pytest.approx(wall_clock or printed)


def test_the_header_of_ssd(tmp_path: Path) -> None:
    run = attempt_of(tmp_path, "x.log", SSD_HEAD + SSD).requested.run
    assert (run.workload, run.precision, run.batch_size) == ("ssd", "amp-fp16", 56)


def test_inference_is_in_no_point_with_training(tmp_path: Path) -> None:
    text = (
        "TensorFlow:  1.15\nModel:       resnet50\nMode:        {}\nDevices:     ['/gpu:0']\ntotal images/sec: 875.2\n"
    )
    points = {attempt_of(tmp_path, "x.log", text.format(mode)).requested.point for mode in ("training", "forward only")}
    assert len(points) == 2
