"""The log of a whole training, from its history: AI-Rank's marks and MLPerf's `:::MLLOG` lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol

from hpc.model.training import TrainingHistory

_MARK = "AI-Rank-log"
_BENCHMARKS = {"resnet50": "resnet"}
"""MLPerf's names for workloads."""


class Trained(Protocol):
    """The settings of a run that its log states, of a RunSpec or of the fields that are known of one."""

    @property
    def workload(self) -> str | None: ...
    @property
    def site(self) -> str | None: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def global_batch_size(self) -> int | None: ...


def log_lines(run: Trained, history: TrainingHistory) -> Iterator[str]:
    """The whole log of a training that has ended."""
    yield from begin_lines(run, history)
    for number in range(1, len(history.epochs) + 1):
        yield from epoch_lines(history, number)
    yield from end_lines(history)


def begin_lines(run: Trained, history: TrainingHistory) -> Iterator[str]:
    """What a training states before its first epoch. `submission_org` and the like are for its user to change."""
    at = history.start_ns
    settings = {
        "cache_clear": True, "submission_benchmark": _BENCHMARKS.get(run.workload or "", run.workload),
        "submission_org": "unknown", "submission_division": "open", "submission_status": "research",
        "submission_platform": run.site, "init_start": None, "seed": run.seed,
        "global_batch_size": run.global_batch_size, "gradient_accumulation_steps": 1, "opt_name": "sgd",
        "train_samples": history.samples_per_epoch, "eval_samples": history.evaluation_samples, "init_stop": None,
    }  # fmt: skip
    for key, value in settings.items():
        yield _mllog(at, key, value)
    yield f"{_MARK} {_time(at)} load_data, checksum:{history.images_sha256}"
    yield f"{_MARK} {_time(at)} test_begin"
    yield _mllog(at, "run_start", None)


def epoch_lines(history: TrainingHistory, number: int) -> Iterator[str]:
    """An epoch, from 1, and its evaluation if it had one."""
    epoch = history.epochs[number - 1]
    where = {"first_epoch_num": number, "epoch_count": 1, "epoch_num": number}
    yield _mllog(epoch.begin_ns, "block_start", None, **where)
    yield _mllog(epoch.begin_ns, "epoch_start", None, epoch_num=number)
    yield _mllog(epoch.trained_ns, "epoch_stop", None, epoch_num=number)
    yield _mllog(epoch.trained_ns, "block_stop", None, **where)
    if epoch.accuracy is None:
        return
    accuracy = epoch.accuracy / 100
    yield _mllog(epoch.trained_ns, "eval_start", None, epoch_num=number)
    yield _mllog(epoch.evaluated_ns, "eval_accuracy", accuracy, epoch_num=number)
    yield _mllog(epoch.evaluated_ns, "eval_stop", None, epoch_num=number)
    yield f"{_MARK} {_time(epoch.evaluated_ns)} eval_accuracy:{accuracy:.9f}, total_epoch_cnt:{number}"
    if number == history.reached:
        seconds = (epoch.evaluated_ns - history.start_ns) / 1e9
        yield f"{_MARK} {_time(epoch.evaluated_ns)} target_quality_time:{seconds:.3f}sec"


def end_lines(history: TrainingHistory) -> Iterator[str]:
    """The end of a training. `status` is aborted where the target was not reached."""
    at = history.stop_ns
    status = "success" if history.reached is not None or not history.target else "aborted"
    yield _mllog(at, "run_stop", None, status=status)
    yield f"{_MARK} {_time(at)} test_finish"
    yield f"{_MARK} {_time(at)} total_use_time:{history.seconds:.3f}sec"
    if (throughput := history.throughput) is not None:
        yield f"{_MARK} {_time(at)} avg_ips:{throughput:.3f}images/sec"


def _time(unix_ns: int) -> str:
    return f"{unix_ns / 1e9:.3f}"


def _mllog(unix_ns: int, key: str, value: Any, **metadata: Any) -> str:
    kind = "POINT_IN_TIME"
    for suffix, interval in (("_start", "INTERVAL_START"), ("_stop", "INTERVAL_END")):
        if key.endswith(suffix):
            kind = interval
    event = {
        "namespace": "", "time_ms": unix_ns // 1_000_000, "event_type": kind, "key": key, "value": value,
        "metadata": {"file": "hpc/model/training_log.py", "lineno": 0, **metadata},
    }  # fmt: skip
    return f":::MLLOG {json.dumps(event)}"
