"""From the text of a log to the numbers of its run: cases of tests/golden/log_attempts.txt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from parse.logs.path_facts import place_of
from parse.logs.window import Protocol
from parse.report.summary import read_summary
from parse.runs.load_logs import HowToRead, _read
from tests.cases import cases_of
from tests.unit.logs import made
from tests.unit.logs.nccl_lines import ONE_NODE
from tests.unit.logs.text_logs import read

SPEEDS = ("wall_clock", "printed", "stated", "mlperf_s")


def protocol_of(options: list[str]) -> Protocol:
    """`20 120` are the steps of warm-up and those with them, `whole` is the whole log."""
    if options == ["whole"]:
        return Protocol(whole=True)
    warmup, total = map(int, options) if options else (None, None)
    return Protocol(warmup=warmup, total=total)


def test_runs_of_logs(tmp_path: Path, cases) -> None:
    """The first line is the path and the protocol, the others are the log."""

    def outcomes(lines: list[str]) -> Iterator[str]:
        name, *options = lines[0].split(" ")
        path = made.put(tmp_path / str(len(lines)), name, "\n".join(lines[1:]) + "\n")
        _, attempt = _read(path, place_of(Path("/", name)), HowToRead(protocol=protocol_of(options)))
        run, log, measured = attempt.requested.run, attempt.log, attempt.measured
        sizes = "" if run.batch_size is None else f", {run.batch_size} on each device"
        facts = {"workload": run.workload, "precision": run.precision, **run.options}
        yield f"{log.log_format} {attempt.requested.case}{sizes} {json.dumps({k: v for k, v in facts.items() if v})}"
        speeds = {name: round(value, 4) for name in SPEEDS if (value := getattr(log, name)) is not None}
        if measured:
            speeds |= {"speed": round(measured.throughput, 4), "samples": measured.samples}
        yield f"{log.window or 'no window'} {json.dumps(speeds)}"
        yield from log.remarks
        yield from [f"no number: {attempt.problem}"] if attempt.problem else []

    cases("log_attempts.txt", outcomes)


def test_a_log_that_begins_with_nccl_tests_is_a_training_too(tmp_path: Path) -> None:
    # v5.0 Google/results/h200_n8_nemo/stable_diffusion/result_8.txt
    (training, *_) = (case.lines[1:] for case in cases_of("log_attempts.txt") if "llama2" in "".join(case.lines))
    path = made.put(tmp_path, "result_0.txt", ONE_NODE + "\n".join(training) + "\n")
    summary, _ = read_summary([path], "logs")
    assert [result.median_speed for result in summary.results] == [pytest.approx(1920 / 716.14)]
    assert summary.benchmarks.nccl_tests


@pytest.mark.parametrize(
    "garbage",
    ['{"key": "eval_accuracy", "value": 1' + "0" * 5000 + "}",
     '{"key": "a", "value": ' + "[" * 20_000 + "]" * 20_000 + "}"],
    ids=["digits", "depth"],
)  # fmt: skip
def test_endless_garbage_is_no_record_of_mlperf(tmp_path: Path, garbage: str) -> None:
    assert read("mllog", tmp_path, f":::MLLOG {garbage}")[1] == ()
