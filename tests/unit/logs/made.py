"""Logs made to measure: texts in each system's own format, whose speeds are known beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from math import ceil, floor
from pathlib import Path

BEGIN = datetime(2020, 9, 15, 14, 28, 53)


def steps(speed: float, batch: int, count: int = 130) -> list[float]:
    """Seconds of `count` steps of `batch` samples at that speed."""
    return [batch / speed] * count


def ends(step_s: Sequence[float], begin: datetime = BEGIN) -> Iterator[tuple[int, datetime, float]]:
    """Number from 1, end and length of every step."""
    at_s = 20.0
    for number, length_s in enumerate(step_s, 1):
        at_s += length_s
        yield number, begin + timedelta(seconds=at_s), length_s


def ngc_pytorch(step_s: Sequence[float], *, batch: int, devices: int = 1, every: int = 1, amp: bool = False) -> str:
    """NVIDIA's PyTorch ResNet-50: rank 0's lines, with the mean rate since the one before."""
    lines = [
        f"DLL {BEGIN:%Y-%m-%d %H:%M:%S.%f} - PARAMETER data : /data/image  data_backend : dali-cpu  arch : resnet50  "
        f"epochs : 1  batch_size : {batch}  optimizer_batch_size : -1  lr : 0.256  print_freq : {every}  amp : {amp}  "
        f"fp16 : {amp}  world_size : {devices}  seed : None"
    ]
    since_s = 0.0
    for number, end, length_s in ends(step_s):
        since_s += length_s
        if number % every == 0:
            lines.append(
                f"DLL {end:%Y-%m-%d %H:%M:%S.%f} - Epoch: 0 Iteration: {number}  train.loss : 7.09304  "
                f"train.total_ips : {devices * batch * every / since_s:.2f} img/s"
            )
            since_s = 0.0
    return "\n".join(lines) + "\n"


def pytorch_imagenet(step_s: Sequence[float], *, rank: int | None = None, epoch_steps: int = 5005) -> str:
    """pytorch/examples imagenet: a line per step with its seconds, three decimals, the mean kept true."""
    lines = [] if rank is None else [f"Use GPU: {rank} for training"]
    lines.append("=> creating model 'resnet50'")
    wanted_s = printed_s = 0.0
    width = len(str(epoch_steps))
    for number, length_s in enumerate(step_s):
        wanted_s += length_s
        shown_s = round(wanted_s - printed_s, 3)
        printed_s += shown_s
        lines.append(
            f"Epoch: [0][{number:{width}}/{epoch_steps}]\tTime {shown_s:6.3f} ({printed_s / (number + 1):6.3f})\t"
            f"Data  0.106 ( 0.077)\tLoss 1.1494e+01 (1.8538e+01)\tAcc@1   1.56 (  2.23)\tAcc@5  11.72 ( 10.94)"
        )
    return "\n".join(lines) + "\n"


def paddle(step_s: Sequence[float], *, batch: int, stamped: bool = True) -> str:
    """Paddle's ResNet-50 of 1.8: a line per step from 0, with seconds to four decimals that keep the mean rate true."""
    lines = []
    wanted = printed = 0.0
    for number, end, length_s in ends(step_s):
        wanted += batch / length_s
        choices = (floor(length_s * 1e4) / 1e4, ceil(length_s * 1e4) / 1e4)
        shown_s = min(choices, key=lambda choice: abs(wanted - printed - batch / choice))
        printed += batch / shown_s
        prefix = f"{end:%Y-%m-%d %H:%M:%S},{end.microsecond // 1000:03d}-INFO: " if stamped else "INFO:utils.utility:"
        lines.append(
            f"{prefix}[Pass 0, train batch {number - 1}] \tloss 7.10000, acc1 0.00000, acc5 0.00000, lr 0.00100, "
            f"elapse {shown_s:.4f} sec"
        )
    return "\n".join(lines) + "\n"


def plsc(step_s: Sequence[float], *, batch: int, trainers: int = 1) -> str:
    """PLSC 1: every trainer prints the rate of all of them, every 10 steps from 0."""
    lines = []
    for number, end, length_s in ends(step_s):
        if (number - 1) % 10 == 0:
            rate = batch / length_s
            for trainer in range(trainers):
                at = end + timedelta(milliseconds=trainer)
                stamp = f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d}"
                lines.append(
                    f"INFO {stamp} entry.py:1022] Pass:0 batch:{number - 1} lr:0.10000000 loss:44.123456 qps:{rate:.2f}"
                )
    return "\n".join(lines) + "\n"


def put(root: Path, name: str, text: str) -> Path:
    """Writes the text under `root`, with the folders that the name asks for."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
