"""Reading logs: speed, memory, and time against the published extractors, each in a process of its own.

`python -m benchmarks.bench_logs [FOLDER]`; 1.8 GB are written there and removed. Half of the lines of every log are
step lines; of the others some come again and again and some never twice.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.pairs import against_limit, compare

SPEED_LIMIT, MEMORY_LIMIT, RATIO_LIMIT, SMALL_LIMIT_S = 150.0, 64.0, 1.0, 20.0
LARGE_BYTES, MEDIUM_BYTES = 10**9, 10**8
BLOCK_STEPS = 5000
"""As many steps are made, then written again for each hour of the log."""
DEVICES, BATCH_SIZE = 8, 128
LARGE_BLOCKS, MEDIUM_BLOCKS = 5, 8
SMALL_LOGS, SMALL_STEPS, REPEATS = 10_000, 120, 5

Line = Callable[[random.Random, int, str], str]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A log to be made: how a step's line is written from its number and the clock, and who reads it."""

    name: str
    log_format: str
    methods: tuple[str, ...]
    line: Line
    ranks: int = 1
    label: str = ""
    noise: Callable[[random.Random], str] | None = None


def _ngc_pytorch(rng: random.Random, step: int, clock: str) -> str:
    loss, rate = rng.uniform(0.5, 12), rng.uniform(780, 1100)
    return (
        f"DLL @DAY {clock}{rng.randrange(1000):03d} - Epoch: @EPOCH Iteration: {step}  "
        f"train.loss : {loss:.5f}  train.total_ips : {rate:.2f} img/s"
    )


def _pytorch_imagenet(rng: random.Random, step: int, clock: str) -> str:
    time, data, loss, top1, top5 = (rng.uniform(*bounds) for bounds in ((0.3, 13), (0, 1), (0.1, 9), (0, 99), (0, 99)))
    return (
        f"Epoch: [@EPOCH][{step:4d}/{BLOCK_STEPS}]\tTime {time:6.3f} ({time:6.3f})\tData {data:6.3f} ({data:6.3f})\t"
        f"Loss {loss:.4e} ({loss:.4e})\tAcc@1 {top1:6.2f} ({top1:6.2f})\tAcc@5 {top5:6.2f} ({top5:6.2f})"
    )


def _paddle(rng: random.Random, step: int, clock: str) -> str:
    loss, taken = rng.uniform(0.5, 12), rng.uniform(0.3, 0.4)
    return (
        f"@DAY {clock.replace('.', ',')}-INFO: [Pass @EPOCH, train batch {step}] \tloss {loss:.5f}, acc1 0.00781, "
        f"acc5 0.02344, lr 0.10000, elapse {taken:.4f} sec"
    )


def _plsc(rng: random.Random, step: int, clock: str) -> str:
    loss, rate = rng.uniform(5, 45), rng.uniform(950, 1150)
    return (
        f"INFO @DAY {clock.replace('.', ',')} entry.py:1022] Pass:@EPOCH batch:{10 * step} lr:0.10000000 "
        f"loss:{loss:.6f} qps:{rate:.2f}"
    )


def _mxnet(rng: random.Random, step: int, clock: str) -> str:
    rate = rng.uniform(9500, 11500)
    return (
        f"@DAY {clock.replace('.', ',')}:INFO: Epoch[@EPOCH] Batch [{step - 1}-{step}]\tSpeed: {rate:.2f} samples/sec"
        "\tLR: 0.256"
    )


SAME = (
    "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0",
    "WARNING:root:NVSHMEM is not there: the ranks talk by way of the host, which is slower",
    "/opt/conda/lib/python3.8/site-packages/PIL/TiffImagePlugin.py:770: UserWarning: Possibly corrupt EXIF data.",
    "node7:2215:2381 [5] NCCL INFO Ring 03 : 5[b2000] -> 6[b5000] via P2P/IPC",
)


def _same(rng: random.Random) -> str:
    return rng.choice(SAME)


def _words(rng: random.Random) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz_/.:0123456789"
    return " ".join("".join(rng.choices(letters, k=rng.randint(2, 12))) for _ in range(rng.randint(3, 20)))


def _either(rng: random.Random) -> str:
    return (_same if rng.random() < 0.5 else _words)(rng)


NGC = Kind(name="NGC PyTorch", log_format="ngc-pytorch", methods=("ngc-pytorch",), line=_ngc_pytorch)
TAGGED = "Tue Mar 23 {clock} 2021[1,{rank}]<stdout>:"
MEDIUM = (
    Kind(
        name="NGC PyTorch, no other line twice", log_format="ngc-pytorch", methods=("ngc-pytorch",), line=_ngc_pytorch,
        noise=_words,
    ),
    Kind(
        name="NGC PyTorch, mpirun's prefixes", log_format="ngc-pytorch", methods=("ngc-pytorch",), line=_ngc_pytorch,
        label=TAGGED,
    ),
    Kind(
        name="pytorch/examples, 8 ranks interleaved", log_format="pytorch-imagenet", methods=("pytorch-imagenet",),
        line=_pytorch_imagenet, ranks=8,
    ),
    Kind(
        name="Paddle", log_format="paddle-resnet50", methods=("paddle-resnet50", "paddle-resnet50-time"), line=_paddle,
    ),
    Kind(name="PLSC, 8 trainers interleaved", log_format="plsc", methods=("plsc",), line=_plsc, ranks=8),
    Kind(
        name="NGC MXNet, 8 ranks interleaved", log_format="ngc-mxnet", methods=("ngc-mxnet", "ngc-mxnet-time"),
        line=_mxnet, ranks=8,
    ),
)  # fmt: skip


def hour(kind: Kind, steps: int = BLOCK_STEPS) -> str:
    """The lines of an hour, with holes for its day, its hour and its epoch; step lines and others by turns."""
    rng = random.Random(0)
    noise = kind.noise or _either
    lines = []
    for step in range(1, steps + 1):
        at_s = step * 3500 / BLOCK_STEPS
        clock = f"@HOUR:{int(at_s // 60):02d}:{at_s % 60:06.3f}"
        for _ in range(kind.ranks):
            for text in (kind.line(rng, step, clock), noise(rng)):
                lines.append(kind.label.format(clock=clock.partition(".")[0], rank=rng.randrange(8)) + text)
    return "\n".join(lines) + "\n"


def write_log(path: Path, kind: Kind, size_bytes: int) -> None:
    """A log of about that size, the same one every time."""
    made = hour(kind, max(BLOCK_STEPS // kind.ranks, SMALL_STEPS)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for number in range(-(-size_bytes // len(made))):
            file.write(filled(made, number))


def filled(made: bytes, number: int) -> bytes:
    day = b"2021-%02d-%02d" % (1 + number // 24 // 28 % 12, 1 + number // 24 % 28)
    return made.replace(b"@DAY", day).replace(b"@HOUR", b"%02d" % (number % 24)).replace(b"@EPOCH", b"%d" % number)


def _read(how: str, path: Path, kind: Kind) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(_run("benchmarks.log_process", how, path, kind.log_format))
    assert result["lines"], "a log without step lines"
    return result


def _run(module: str, *words: object) -> bytes:
    command = [sys.executable, "-m", module, *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def _measure(path: Path, kind: Kind, blocks: int) -> None:
    """Speed of both ways of reading, peak of memory, and whole processes against those of the extractors."""
    size = path.stat().st_size
    where = f"{kind.name}, {size / 1e6:.0f} MB"
    for how, name in (("batches", "steps read and converted"), ("window", "and brought into a window")):
        results = [_read(how, path, kind) for _ in range(blocks)]
        print(_at_least(f"{where}: {name}, one core", [size / 1e6 / result["seconds"] for result in results]))
        above = max(result["above_bytes"] for result in results) / 1e6
        verdict = "met" if above <= MEMORY_LIMIT else "missed"
        print(f"{where}: {name}, memory above numpy: {above:.1f} MB; limit {MEMORY_LIMIT:g} MB: {verdict}")
    for method in kind.methods:
        ratio = compare(
            f"{where}: parse.summarize / extractor {method}, whole processes",
            lambda: _run("parse.summarize", path),
            lambda method=method: _run("benchmarks.published_extractors", method, path, DEVICES, BATCH_SIZE),  # type: ignore[misc]  # mypy knows no default in a lambda's type
            limit=RATIO_LIMIT,
            blocks=blocks,
        )
        print(ratio, flush=True)


def _at_least(name: str, speeds: Sequence[float]) -> str:
    ordered = sorted(speeds)
    verdict = "met" if ordered[0] >= SPEED_LIMIT else "missed" if ordered[-1] < SPEED_LIMIT else "not resolved"
    return (
        f"{name}: {ordered[len(ordered) // 2]:.0f} MB/s [{ordered[0]:.0f}, {ordered[-1]:.0f}]; "
        f"at least {SPEED_LIMIT:g} MB/s: {verdict}"
    )


def places(root: Path) -> Iterator[Path]:
    """Names in the suite's layout: systems, batch sizes, cases, repeats."""
    for number in range(SMALL_LOGS):
        repeat, point = 1 + number % REPEATS, number // REPEATS
        case = ("1n1g", "1n2g", "1n4g", "1n8g", "2n8g", "4n8g", "8n8g", "16n8g")[point % 8]
        batch_size, system = 8 * (1 + point // 8 % 50), f"campaign{point // 400}"
        yield root / system / "resnet50" / f"bz{batch_size}" / case / f"r50_b{batch_size}_fp32_{repeat}.log"


def _small(root: Path) -> None:
    lines = hour(NGC).encode().split(b"\n")
    for number, path in enumerate(places(root)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(filled(b"\n".join(islice(lines, 2 * SMALL_STEPS)) + b"\n", number % 24))
    taken_s = []
    for _ in range(3):
        begin = perf_counter()
        _run("parse.summarize", root)
        taken_s.append(perf_counter() - begin)
    print(against_limit(f"summarise {SMALL_LOGS} logs of {SMALL_STEPS} steps", taken_s, SMALL_LIMIT_S, "s"))


def main() -> None:
    """Prints a line per measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_logs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(tempfile.gettempdir()))
    folder = parser.parse_args().folder
    for kind, size_bytes, blocks in (
        (NGC, LARGE_BYTES, LARGE_BLOCKS),
        *((kind, MEDIUM_BYTES, MEDIUM_BLOCKS) for kind in (NGC, *MEDIUM)),
    ):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            path = Path(name) / "1n8g" / "r50_b128_fp32_1.log"
            write_log(path, kind, size_bytes)
            _measure(path, kind, blocks)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        _small(Path(name))


if __name__ == "__main__":
    main()
