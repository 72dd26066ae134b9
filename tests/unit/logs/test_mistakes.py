"""Mistakes that published extractors and tables make: each impossible here, with the number that it would have given.

The numbers in the names are those of the project's list of them (docs/logs.md).
"""

from __future__ import annotations

import json

import pytest

from parse.summarize import main
from tests.unit.logs import made


def summary(capsys, *argv):
    assert main([*map(str, argv), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def points(capsys, *argv):
    return {point["case"]: point for point in summary(capsys, *argv)["results"]}


def test_7_lines_of_validation_are_no_steps(tmp_path, capsys):
    """They crashed one extractor."""
    lines = made.ngc_pytorch(made.steps(857.6, 256), batch=256, amp=True).splitlines()
    lines.append(
        "DLL 2020-09-15 15:28:53.498443 - Epoch: 0 Iteration: 130 Validation Iteration: 10  val.top1 : 76.24 % "
        "val.top5 : 93.09 % val.loss : 1.75077  val.total_ips : 2522.81 img/s"
    )
    made.put(tmp_path, "pytorch/1n1g/r50_b256_amp_1.log", "\n".join(lines))
    assert points(capsys, tmp_path)["1n1g"]["median_speed"] == pytest.approx(857.6, abs=0.01)


def test_9_lines_of_all_ranks_are_not_steps_of_one(tmp_path, capsys):
    """A hundred lines of eight ranks were twelve steps, those of the start among them."""
    slow_start = [5.0] * 15 + [0.4] * 115
    lines = [made.pytorch_imagenet(slow_start, rank=rank).splitlines() for rank in range(8)]
    text = "\n".join(line for same in zip(*lines, strict=True) for line in same)
    made.put(tmp_path, "pytorch/1n8g/r50_b128_fp32_1.log", text)
    assert points(capsys, tmp_path)["1n8g"]["median_speed"] == pytest.approx(1024 / 0.4, rel=1e-6)


def test_10_the_mean_of_rates_is_not_the_speed(tmp_path, capsys):
    """One step in ten at half the speed: rates of 334 img/s on average where the wall clock has 309."""
    step_s = [128 / 350 if number % 10 else 128 / 152 for number in range(1, 141)]
    made.put(tmp_path, "paddle/bz128/1n1g/r50_b128_fp32_1.log", made.paddle(step_s, batch=128))
    point = points(capsys, tmp_path)["1n1g"]
    true = 100 * 128 / sum(step_s[20:120])
    (run,) = point["runs"]
    assert point["median_speed"] == pytest.approx(true, rel=1e-4)
    assert run["wall_clock"] == pytest.approx(true, rel=1e-4) and run["printed"] == pytest.approx(true, rel=1e-3)
    assert run["mean_of_rates"] > 1.05 * true and not point["alarms"]
    point = points(capsys, tmp_path, "--speed", "protocol")["1n1g"]
    assert point["median_speed"] == run["mean_of_rates"] and point["runs"][0]["remarks"]
    (alarm,) = (alarm for alarm in point["alarms"] if alarm["name"] == "rates_and_wall_clock")
    assert "its protocol's mean of rates, 330.20 samples/s, is the result" in alarm["text"]


def test_11_the_start_of_many_trainers_stays_out(tmp_path, capsys):
    """Eight trainers' lines in one file, a window of lines: the start-up was averaged, 1n8g looked slow."""
    for case, trainers, speed in (("1n1g", 1, 397.78), ("1n8g", 8, 2950.0), ("2n8g", 16, 5800.0)):
        count = 128 * trainers
        step_s = [count / (speed / 3)] * 45 + made.steps(speed, count, 120)
        made.put(
            tmp_path, f"arcface/bz128/{case}/r50_b128_fp32_1.log", made.plsc(step_s, batch=count, trainers=trainers)
        )
    by_case = points(capsys, tmp_path)
    for case, speed in (("1n1g", 397.78), ("1n8g", 2950.0), ("2n8g", 5800.0)):
        assert by_case[case]["median_speed"] == pytest.approx(speed, rel=2e-3)


def test_12_an_option_that_logs_contradict_is_reported(tmp_path, capsys):
    """`--batch_size_per_device` was ignored in silence."""
    made.put(tmp_path, "bz64/1n1g/r50_b64_fp32_1.log", made.paddle([0.25] * 130, batch=64))
    made.put(tmp_path, "bz64/1n1g/r50_b64_fp32_2.log", made.paddle([0.26] * 130, batch=64))
    page = summary(capsys, tmp_path, "--batch-size", "128", "--case", "2n8g")
    assert [point["batch_size_per_device"] for point in page["results"]] == [64]
    assert any(line.startswith("--batch-size 128 is not taken for 2 logs") for line in page["remarks"])
    assert any(line.startswith("--case 2n8g is not taken for 2 logs") for line in page["remarks"])
    assert not summary(capsys, tmp_path, "--batch-size", "64", "--case", "1n1g")["remarks"]
