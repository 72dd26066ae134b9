"""What the extractors published with the reference tables do with one log, in our words: the speed of one run.

`python -m benchmarks.published_extractors METHOD LOG DEVICES BATCH_SIZE`. Their method is kept, mistakes and all: the
whole file as a list of lines, every line searched by words, then by a pattern that is looked up again for each; some
stop at the window's last line. Methods are those of Oneflow-Inc/DLPerf; `plsc` is the one that its document describes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np

WARMUP, TOTAL = 20, 120
STAMP = r"(\d{4}-\d{1,2}-\d{1,2}\s\d{1,2}:\d{1,2}:\d{1,2}[.,]\d{1,6})"


def ngc_pytorch(path: Path, devices: int, batch_size: int) -> float:
    """Time stamps of the 20th and the 120th line that has an iteration above 5."""
    begin, number = "", 0
    for line in _lines(path):
        if "Iteration: " in line and int(re.findall(re.compile(r"Iteration: (.*)  train.loss :"), line)[0]) > 5:
            number += 1
            if number == WARMUP:
                begin = re.findall(STAMP, line)[0]
            elif number == TOTAL:
                return devices * batch_size * (TOTAL - WARMUP) / _between_s(begin, re.findall(STAMP, line)[0], ".")
    return 0.0


def paddle(path: Path, devices: int, batch_size: int) -> float:
    """Mean of the batch over `elapse`, of every line that has one."""
    speeds = [
        round(devices * batch_size / float(re.findall(re.compile(r".*elapse (.*?) sec", re.DOTALL), line)[0]), 4)
        for line in _lines(path)
        if "elapse" in line
    ]
    return float(np.mean(speeds[WARMUP:TOTAL]))


def paddle_time(path: Path, devices: int, batch_size: int) -> float:
    """Time stamps of batches 19 and 119."""
    begin = ""
    for line in _lines(path):
        if "elapse" in line:
            if f"train batch {WARMUP - 1}]" in line:
                begin = re.findall(STAMP, line)[0]
            elif f"train batch {TOTAL - 1}]" in line:
                return devices * batch_size * (TOTAL - WARMUP) / _between_s(begin, re.findall(STAMP, line)[0], ",")
    return 0.0


def plsc(path: Path, devices: int, batch_size: int) -> float:
    """Mean of what is printed behind `qps:`; of 150 lines without the first 50."""
    rates = [float(re.findall(re.compile(r"qps:(\S+)"), line)[0]) for line in _lines(path) if "qps:" in line]
    return float(np.mean(rates[50:150]))


def pytorch_imagenet(path: Path, devices: int, batch_size: int) -> float:
    """Mean of the first number with one digit before its point, in lines 21 to 120 that have an index above 5."""
    number, taken_s = 0, 0.0
    for line in _lines(path):
        if "Epoch: " in line:
            place = re.findall(re.compile(r"\[.*\]\[(.*)\]"), line)[0]
            if int(place.split("/")[0]) > 5:
                number += 1
                if number > WARMUP:
                    taken_s += float(re.findall(re.compile(r"(\d{1}.\d{1,3}\s)", re.DOTALL), line)[0].strip())
                if number == TOTAL:
                    return devices * batch_size * (TOTAL - WARMUP) / taken_s
    return 0.0


def mxnet(path: Path, devices: int, batch_size: int) -> float:
    """Per step the median over ranks, of all lines; theirs fails where there are more or fewer than 120 steps."""
    rates = [
        round(float(re.findall(re.compile(r"Speed: (\d+.\d+) samples/sec", re.DOTALL), line)[0].strip()), 2)
        for line in _lines(path)
        if " Epoch[0] Batch " in line
    ]
    whole = len(rates) // devices * devices
    return float(np.mean(np.median(np.reshape(rates[:whole], (-1, devices)), axis=1)[WARMUP:TOTAL]))


def mxnet_time(path: Path, devices: int, batch_size: int) -> float:
    """Time stamps of the lines 20 and 120 times the devices."""
    begin, number = "", 0
    for line in _lines(path):
        if " Epoch[0] Batch " in line:
            number += 1
            if number == WARMUP * devices:
                begin = re.findall(STAMP, line)[0]
            elif number == TOTAL * devices:
                return devices * batch_size * (TOTAL - WARMUP) / _between_s(begin, re.findall(STAMP, line)[0], ",")
    return 0.0


METHODS: dict[str, Callable[[Path, int, int], float]] = {
    "ngc-pytorch": ngc_pytorch,
    "paddle-resnet50": paddle,
    "paddle-resnet50-time": paddle_time,
    "plsc": plsc,
    "pytorch-imagenet": pytorch_imagenet,
    "ngc-mxnet": mxnet,
    "ngc-mxnet-time": mxnet_time,
}


def _lines(path: Path) -> list[str]:
    with path.open() as file:
        return file.readlines()


def _between_s(begin: str, end: str, mark: str) -> float:
    form = f"%Y-%m-%d %H:%M:%S{mark}%f"
    return (datetime.strptime(end, form) - datetime.strptime(begin, form)).total_seconds()


def main() -> None:
    """Prints the speed as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published_extractors")
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("log", type=Path)
    parser.add_argument("devices", type=int)
    parser.add_argument("batch_size", type=int)
    options = parser.parse_args()
    json.dump({"speed": METHODS[options.method](options.log, options.devices, options.batch_size)}, sys.stdout)


if __name__ == "__main__":
    main()
