"""Logs without steps: their number is that of the whole training, and says so."""

from __future__ import annotations

import json

import pytest

from parse.logs.path_facts import place_of
from parse.runs.load_logs import HowToRead, _read
from parse.runs.log_attempt import WHOLE_TRAINING
from parse.summarize import main

STEP = "DLL 2021-05-19 10:22:33.848718 - epoch    8 | iter   48/136 | loss  340.75 | utts/s    91 | took 22.58 s | lr"
SUMMARY = "DLL 2021-04-09 10:19:07.126410 - Summary: "
TOTAL = f"{SUMMARY}train.loss : 6.55774  train.total_ips : 854.37 img/s val.top1 : 76.63 %"
COMPUTE = f"{SUMMARY}lr : 0.00075  train.compute_ips : 859.24 img/s train.data_time : 0.00225 s"


def attempt_of(tmp_path, *lines, name="x.log"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    _, attempt = _read(path, place_of(path), HowToRead())
    return attempt


def rnnt(*epochs):
    return [
        f"DLL 2021-06-02 06:15:49.9358 - epoch {number:4} | avg train utts/s {rate:5} | took {seconds:.2f} s"
        for number, (rate, seconds) in enumerate(epochs, 1)
    ]


def test_lines_of_whole_epochs(tmp_path):
    attempt = attempt_of(tmp_path, *rnnt((4623, 60.24), (4808, 57.93)), name="1n8g.log")
    assert attempt.log.log_format == "ngc-rnnt" and attempt.log.window == WHOLE_TRAINING
    expected = (4623 * 60.24 + 4808 * 57.93) / (60.24 + 57.93)
    assert attempt.measured.throughput == attempt.log.printed == pytest.approx(expected)
    assert "from the rates of 2 epochs that it prints" in " ".join(attempt.log.remarks)


def test_a_few_step_lines_beside_those_of_epochs(tmp_path):
    attempt = attempt_of(tmp_path, *rnnt((4623, 60.24), (4808, 57.93)), STEP, name="1n8g.log")
    assert attempt.log.window == WHOLE_TRAINING and "too short" in " ".join(attempt.log.remarks)
    attempt = attempt_of(tmp_path, *rnnt((4623, 60.24)), STEP, name="1n8g.log")
    assert attempt.measured is None and "too short" in attempt.problem


def test_epochs_that_print_only_their_rates_weigh_by_their_samples(tmp_path):
    lines = [f"INFO:root:Epoch[{number}]\tSpeed: {rate} samples/sec" for number, rate in ((0, 100.0), (1, 300.0))]
    assert attempt_of(tmp_path, *lines, name="1n1g.log").log.printed == pytest.approx(150)


def test_epochs_with_a_time_need_the_samples(tmp_path):
    lines = [f"INFO:root:Epoch[{number}] Time cost={seconds}" for number, seconds in ((0, 110.0), (1, 90.0))]
    assert attempt_of(tmp_path, *lines, name="1n1g.log").measured is None
    arguments = "Node[0] start with arguments Namespace(batch_size=32, gpus='0', kv_store='device', num_examples=5000)"
    attempt = attempt_of(tmp_path, f"2020-07-14 22:16:28,914 {arguments}", *lines)
    assert attempt.measured.throughput == pytest.approx(2 * 5000 / 200)


def test_a_total_alone(tmp_path):
    attempt = attempt_of(tmp_path, TOTAL, COMPUTE, name="1n1g.log")
    assert (attempt.log.window, attempt.measured.throughput) == (WHOLE_TRAINING, 854.37)
    assert "the train.total_ips that it prints, 854.37" in " ".join(attempt.log.remarks)
    assert attempt_of(tmp_path, COMPUTE, name="1n1g.log").measured.throughput == 859.24


def test_a_whole_training_is_no_repeat_of_a_window(tmp_path, capsys):
    folder = tmp_path / "1n8g"
    folder.mkdir()
    steps = "".join(f"Epoch[0] Batch [{step}]\tSpeed: 4000.0 samples/sec\n" for step in range(0, 160, 20))
    (folder / "steps.log").write_text(steps)
    (folder / "epochs.log").write_text("Epoch[0]\tSpeed: 3000.0 samples/sec\nEpoch[1]\tSpeed: 3000.0 samples/sec\n")
    assert main([str(tmp_path), "--format", "json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    speeds = {run["window"]: result["median_speed"] for result in results for run in result["runs"]}
    assert len(results) == 2 and speeds == {"steps 20 to 120 of epoch 0": 4000.0, WHOLE_TRAINING: 3000.0}
    assert main(["--explain", str(folder / "epochs.log")]) == 0
    out = capsys.readouterr().out
    assert "no window: it has no line of a step" in out and "result: 3000.00 samples/s (whole training)" in out
