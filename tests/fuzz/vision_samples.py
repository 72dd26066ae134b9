"""Short logs of vision trainers and benchmark programs: name, format, lines, and a plain pattern of their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

BEGIN = datetime(2021, 3, 23, 10, 16, 49, 131815)
STEP_S, BATCH = 0.31, 128
RATE = BATCH / STEP_S
NUMBER = r"(?P<rate>[-+\w.]+)"
SOLVER = (
    "SOLVER:\n  AMP:\n    ENABLED: true\n  BASE_LR: 0.02\n  IMS_PER_BATCH: 1024\n  LR_SCHEDULER_NAME: WarmupMultiStepLR"
)


def _clock(step: int) -> datetime:
    return BEGIN + timedelta(seconds=step * STEP_S)


def _timm(steps: int) -> Iterator[str]:
    yield "Training in distributed mode with multiple processes, 1 device per process.Process 0, total 8, device cuda."
    yield "Model resnet50 created, param count:25557032"
    yield "Learning rate (0.4) calculated from base learning rate (0.1) and effective global batch size (1024)."
    for step in range(0, 50 * steps, 50):
        yield (
            f"Train: 0 [{step:>4d}/1251 ({100 * step / 1251:>3.0f}%)]  Loss: 6.93 (6.94)  Time: {STEP_S:.3f}s, "
            f"{8 * RATE:>7.2f}/s  ({STEP_S:.3f}s, {8 * RATE:>7.2f}/s)  LR: 1.000e-05  Data: 0.012 (0.024)"
        )
    yield "Test: [   0/48]  Time: 6.593 (6.593)  Loss:   6.723 ( 6.723)  Acc@1:   0.000 (  0.000)"


def _torchvision(steps: int) -> Iterator[str]:
    yield "| distributed init (rank 0): env://"
    yield "Namespace(amp=True, batch_size=128, epochs=90, model='resnet50', print_freq=10, world_size=8)"
    for step in range(0, 10 * steps, 10):
        yield (
            f"Epoch: [0]  [{step:4d}/1251]  eta: 0:12:34  lr: 0.1  img/s: {1.1 * RATE}  loss: 6.8536 (6.9458)  "
            f"acc1: 0.0000 (0.2103)  time: {STEP_S:.4f}  data: 0.0012  max mem: 3524"
        )
    yield "Epoch: [0] Total time: 0:07:40 (0.3681 s / it)"
    yield "Test:  [  0/391]  eta: 0:05:00  loss: 0.9794 (0.9148)  time: 0.7  data: 0.6  max mem: 3524"
    yield "Test:  Acc@1 69.362 Acc@5 88.316"


def _paddle_nlp(steps: int) -> Iterator[str]:
    yield "Namespace(batch_size=128, logging_steps=10, model_name_or_path='bert-base-uncased', use_amp=True)"
    for step in range(10, 10 * (steps + 1), 10):
        yield (
            f"[{_clock(step):%Y-%m-%d %H:%M:%S,%f}"[:-3]
            + f"] [    INFO] - global step {step}, epoch: 0, batch: {step - 1}, "
            f"loss: 11.090787, avg_reader_cost: 0.00011 sec, avg_batch_cost: {STEP_S:.5f} sec, avg_samples: 128.00000, "
            f"ips: {RATE:.5f} sequences/sec"
        )


def _paddle_seg(steps: int) -> Iterator[str]:
    yield from ("LAUNCH INFO 2023-07-27 12:58:34,252 devices: 0,1,2,3,4,5,6,7", "batch_size: 128")
    for step in range(5, 5 * (steps + 1), 5):
        yield (
            f"{_clock(step):%Y-%m-%d %H:%M:%S} [INFO]\t[TRAIN] epoch: 1, iter: {step}/2000, loss: 1.6422, lr: 0.0095, "
            f"batch_cost: {STEP_S:.4f}, reader_cost: 0.00325, ips: {RATE:.4f} samples/sec | ETA 00:01:01"
        )
    yield "2021-08-14 08:06:16 [INFO]\t[EVAL] #Images: 82 mIoU: 0.8397 Acc: 0.9263 Kappa: 0.8238"


def _paddle_detection(steps: int) -> Iterator[str]:
    for step in range(0, 20 * steps, 20):
        yield (
            f"[{_clock(step):%m/%d %H:%M:%S}] ppdet.engine INFO: Epoch: [0] [{step:4d}/1929] learning_rate: 0.064000 "
            f"loss: 2.628206 eta: 2 days, 12:18:53 batch_cost: {STEP_S:.4f} data_cost: 0.0008 ips: {RATE:.4f} images/s"
        )


def _paddle_tokens(steps: int) -> Iterator[str]:
    for step in range(1, steps + 1):
        yield (
            f"[{_clock(step):%Y-%m-%d %H:%M:%S,%f}"[:-3]
            + f"] [    INFO] - global step {step}, epoch: 0, batch: {step - 1}, "
            f"loss: 11.05, avg_reader_cost: 0.00014 sec, avg_batch_cost: {STEP_S:.5f} sec, speed: 3.23 step/s, "
            f"ips_total: {8 * RATE:.0f} tokens/s, ips: {RATE:.0f} tokens/s, learning rate: 8.33333e-09"
        )


def _mmengine(steps: int) -> Iterator[str]:
    yield from ("    GPU number: 8", "optim_wrapper = dict(", "    type='AmpOptimWrapper')", "train_dataloader = dict(")
    yield from (
        "    batch_sampler=dict(type='AspectRatioBatchSampler'),",
        "    batch_size=128,",
        "    dataset=dict(x=1))",
    )
    for step in range(50, 50 * (steps + 1), 50):
        yield (
            f"{_clock(step):%Y/%m/%d %H:%M:%S} - mmengine - INFO - Epoch(train)  [1][{step:4d}/7330]  lr: 1.0000e-02  "
            f"eta: 6:12:01  time: {STEP_S:.4f}  data_time: 0.0003  memory: 214  loss: 2.0611"
        )
    yield f"{_clock(99):%Y/%m/%d %H:%M:%S} - mmengine - INFO - Saving checkpoint at 1 epochs"
    yield f"{_clock(99):%Y/%m/%d %H:%M:%S} - mmengine - INFO - Epoch(val) [1][196/196]    accuracy/top1: 76.3400"


def _mmcv(steps: int) -> Iterator[str]:
    yield from ("data = dict(", "    samples_per_gpu=128,")
    for step in range(4, 4 * (steps + 1), 4):
        yield (
            f"{_clock(step):%Y-%m-%d %H:%M:%S},123 - mmseg - INFO - Iter [{step}/1800]\tlr: 9.653e-03, eta: 0:08:04, "
            f"time: {STEP_S:.3f}, data_time: 0.052, memory: 11439, decode.loss_ce: 2.5"
        )


def _detectron2(steps: int) -> Iterator[str]:
    yield "[03/23 10:16:00 detectron2]: Rank of current process: 0. World size: 8"
    yield SOLVER
    for step in range(19, 20 * steps, 20):
        yield (
            f"[{_clock(step):%m/%d %H:%M:%S} d2.utils.events]:  eta: 1 day, 5:56:07  iter: {step}  total_loss: 0.9507  "
            f"loss_cls: 0.4049    time: 0.3200  last_time: {STEP_S:.4f}  data_time: 0.0091  last_data_time: 0.0092   "
            "lr: 0.0067932  max_mem: 4212M"
        )


def _keras_2(steps: int) -> Iterator[str]:
    for epoch in range(1, steps + 1):
        yield f"Epoch {epoch}/{steps}"
        yield "\b" * 40 + "\r237/422 [===============>..............] - ETA: 7s - loss: 0.0398"
        yield f"422/422 [==============================] - 13s {1e3 * STEP_S:.0f}ms/step - loss: 0.7 - val_loss: 0.1"


def _keras_3(steps: int) -> Iterator[str]:
    for epoch in range(1, steps + 1):
        yield f"Epoch {epoch}/{steps}"
        for step in (1, 175, 350):
            yield (
                f"\b\b\b\r\x1b[1m{step:3d}/350\x1b[0m \x1b[32m{'━' * 20}\x1b[0m\x1b[37m\x1b[0m \x1b[1m12s\x1b[0m "
                f"{1e3 * STEP_S:.0f}ms/step - loss: 0.3174"
            )


def _tf_cnn_benchmarks(steps: int) -> Iterator[str]:
    yield from (
        "TensorFlow:  1.14",
        "Model:       resnet101",
        "Dataset:     imagenet (synthetic)",
        "Mode:        training",
    )
    yield from ("Batch size:  1024 global", "             128 per device", "Devices:     ['/gpu:0', '/gpu:1']")
    for step in range(10, 10 * (steps + 1), 10):
        yield f"{step}\timages/sec: {RATE:.1f} +/- 0.7 (jitter = 4.0)\t8.280"
    yield f"total images/sec: {RATE:.2f}"


def _horovod(steps: int) -> Iterator[str]:
    yield from ("Model: resnet50", "Batch size: 128", "Number of GPUs: 8", "Running benchmark...")
    for step in range(steps):
        yield f"Iter #{step}: {RATE:.1f} img/sec per GPU"
    yield f"Total img/sec on 8 GPU(s): {8 * RATE:.1f} +-42.7"


VISION: Sequence[tuple[str, str, Callable[[int], Iterator[str]], str]] = (
    ("timm", "timm", _timm, r"Train: (?P<epoch>\d+) \[ *(?P<step>\d+)/.*?Time: .*?s, +" + NUMBER + "/s"),
    ("torchvision", "torchvision", _torchvision, r"Epoch: \[(?P<epoch>\d+)\] +\[ *(?P<step>\d+)/"),
    ("paddle nlp", "paddle-suites", _paddle_nlp, r"global step (?P<step>\d+),.*? ips: " + NUMBER),
    ("paddle seg", "paddle-suites", _paddle_seg, r"\[TRAIN\] .*?iter: (?P<step>\d+)/.*? ips: " + NUMBER),
    (
        "paddle detection", "paddle-suites", _paddle_detection,
        r"Epoch: \[(?P<epoch>\d+)\] \[ *(?P<step>\d+)/.*? ips: " + NUMBER,
    ),
    ("paddle tokens", "paddle-tokens", _paddle_tokens, r"global step (?P<step>\d+),.*? ips: " + NUMBER),
    ("mmengine", "mmengine", _mmengine, r"Epoch\(train\) +\[(?P<epoch>\d+)\]\[ *(?P<step>\d+)/"),
    ("mmcv", "mmengine", _mmcv, r"Iter \[(?P<step>\d+)/"),
    ("detectron2", "detectron2", _detectron2, r"iter: (?P<step>\d+) "),
    ("keras 2", "keras", _keras_2, r"(?P<step>\d+)/\d+ \[=+\]"),
    ("keras 3", "keras", _keras_3, r"(?P<step>\d+)/\d+ "),
    ("tf_cnn_benchmarks", "tf-cnn-benchmarks", _tf_cnn_benchmarks, r"(?P<step>\d+)(?!)"),
    ("horovod", "horovod-synthetic", _horovod, r"(?P<step>\d+)(?!)"),
)  # fmt: skip
