"""Logs of MLPerf's trainings from their events, and the numbers read from them."""

from __future__ import annotations

import json

from parse.published.training import read_training
from parse.published.training_result import RuleSettings, numbers

Y2019, Y2020, Y2021, Y2022, Y2023, Y2025 = (
    1_556_700_000, 1_593_154_000, 1_621_462_000, 1_652_000_000, 1_696_579_000, 1_760_000_000,
)  # fmt: skip


def line(key, value=None, at_s=0.0, begin_s=Y2021, **metadata):
    event = {"time_ms": round((begin_s + at_s) * 1000), "key": key, "value": value, "metadata": metadata}
    return ":::MLLOG " + json.dumps(event)


def log(*events, benchmark="resnet", begin_s=Y2021, stop_s=None, status="success", facts=()):
    """A log of (key, value, seconds since run_start, metadata); `facts` are keys with values."""
    lines = [line(key, value, 0, begin_s) for key, value in facts]
    if benchmark:
        lines.append(line("submission_benchmark", benchmark, 0, begin_s))
    lines.append(line("run_start", None, 0, begin_s))
    lines += [line(key, value, at_s, begin_s, **metadata) for key, value, at_s, metadata in events]
    if stop_s is not None:
        lines.append(line("run_stop", None, stop_s, begin_s, status=status))
    return "\n".join([*lines, ""])


def evaluated(*items):
    """Evaluations by (value, seconds, epoch_num)."""
    return [("eval_accuracy", value, at_s, {"epoch_num": number}) for value, at_s, number in items]


def by_samples(*items):
    return [("eval_accuracy", value, at_s, {"samples_count": samples}) for value, at_s, samples in items]


def started(*items):
    """Blocks by (seconds, first_epoch_num, epoch_count)."""
    return [
        ("block_start", None, at_s, {"first_epoch_num": first, "epoch_count": count}) for at_s, first, count in items
    ]


def trained(tmp_path, content):
    path = tmp_path / "result_0.txt"
    path.write_text(content)
    return read_training(path)


def numbers_of(tmp_path, content, **settings):
    return numbers(trained(tmp_path, content), RuleSettings(**settings))
