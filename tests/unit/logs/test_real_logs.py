"""Real logs, where they are at hand: recognised without being told, and the speeds that their time stamps give."""

from __future__ import annotations

import json

import pytest

from parse.logs.formats import recognise
from parse.summarize import main
from tests.unit.logs.text_logs import LOGS

pytestmark = pytest.mark.skipif(not LOGS.is_dir(), reason=f"the real logs are not at {LOGS}")

NGC_1N1G = "ngc-pytorch-resnet50_airank_1n1g_b256_amp_time2train.log"
NGC_4N8G = "ngc-pytorch-resnet50_airank_4n8g_b256_amp_time2train.log"
NGC_EXCERPT = "ngc-pytorch-resnet50_dlperf-readme_excerpt_2n8g.log"
IMAGENET = "pytorch-examples-imagenet_dlperf-readme_excerpt_2n8g_4n8g.log"
TSM = "airank-format_tsm_pytorch_1n1g_fp32.log"
BERT = "ngc-tensorflow-bert_airank_1n1g_bs96_fp16.log"
PLSC = "plsc2-arcface_r50_1n8g_b128_fp16_sr1.0_dynamic.log"
MXNET = "nvidia-mxnet-resnet50_mlperf0.7_dgx1_1n8g_slurm.log"
GOOGLE = "tensorflow2-resnet50_mlperf0.7_google_v100x8.log"


def summary(capsys, name, *options):
    status = main([str(LOGS / name), "--format", "json", *options])
    out, err = capsys.readouterr()
    return json.loads(out) if status == 0 else err


@pytest.mark.parametrize(("name", "log_format"), [
    (NGC_1N1G, "ngc-pytorch"), (NGC_4N8G, "ngc-pytorch"), (NGC_EXCERPT, "ngc-pytorch"), (IMAGENET, "pytorch-imagenet"),
    (TSM, "pytorch-imagenet"), (BERT, "ngc-tensorflow"), (PLSC, "plsc"), (MXNET, "ngc-mxnet"), (GOOGLE, "mllog"),
])  # fmt: skip
def test_recognised(name, log_format):
    assert recognise(LOGS / name).name == log_format


@pytest.mark.parametrize(("name", "case", "speed", "window"), [
    (NGC_1N1G, "1n1g", 857.62, (100, 600)), (NGC_4N8G, "4n8g", 22793.16, (20, 120)),
    (PLSC, "1n8g", 7387.85, (100, 600)), (MXNET, "1n8g", 11341.33, (20, 120)),
])  # fmt: skip
def test_wall_clock(capsys, name, case, speed, window):
    (point,) = summary(capsys, name)["results"]
    (run,) = point["runs"]
    assert point["case"] == case
    assert run["wall_clock"] == pytest.approx(speed, rel=5e-4)
    assert point["median_speed"] == run["wall_clock"]
    assert all(str(number) in run["window"] for number in window)


def test_the_whole_of_plsc_has_a_gap_that_is_flagged(capsys):
    (point,) = summary(capsys, PLSC, "--window", "all")["results"]
    (run,) = point["runs"]
    assert run["wall_clock"] == pytest.approx(6186.91, rel=5e-4)
    assert run["printed"] == pytest.approx(6870.24, rel=5e-4)
    assert any(alarm["name"] == "rates_and_wall_clock" for alarm in point["alarms"])


@pytest.mark.parametrize(("name", "reasons"), [
    (NGC_EXCERPT, ("10", "120")), (IMAGENET, ("15", "120")), (BERT, ("51", "120")), (GOOGLE, ("step",)),
])  # fmt: skip
def test_no_number_without_its_reason(capsys, name, reasons):
    said = json.dumps(summary(capsys, name))
    assert all(reason in said for reason in reasons)
    assert 'median_speed": 1' not in said


def test_a_log_that_does_not_say_its_batch_size_is_told_it(capsys):
    assert "batch size" in json.dumps(summary(capsys, TSM))
    (point,) = summary(capsys, TSM, "--batch-size", "16")["results"]
    (run,) = point["runs"]
    assert run["wall_clock"] is None
    assert run["printed"] == point["median_speed"] == pytest.approx(16 / 0.524, rel=2e-3)
