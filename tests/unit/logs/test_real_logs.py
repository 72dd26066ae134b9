"""Real logs, where they are at hand: recognised by themselves, and the speeds that their time stamps give."""

from __future__ import annotations

import json

import pytest

from parse.logs.engine.reader import batches
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


@pytest.mark.parametrize(("name", "case", "window", "wall_clock", "printed", "mean", "options"), [
    (NGC_1N1G, "1n1g", (100, 600), 857.62, 858.06, 858.06, ()),
    (NGC_4N8G, "4n8g", (20, 120), 22793.16, 22810.95, 22811.52, ()),
    (PLSC, "1n8g", (100, 600), 7387.85, 7388.30, 7392.69, ()),
    (PLSC, "1n8g", (100, 126_400), 6186.91, 6187.23, 6870.24, ("--window", "all")),
    (MXNET, "1n8g", (20, 120), 11341.33, 11342.28, 11342.87, ()),
])  # fmt: skip
def test_speeds_by_time_stamps_and_as_printed(capsys, name, case, window, wall_clock, printed, mean, options):
    (point,) = summary(capsys, name, *options)["results"]
    (run,) = point["runs"]
    assert point["case"] == case
    assert [run[speed] for speed in ("wall_clock", "printed", "mean_of_rates")] == [
        pytest.approx(speed, abs=0.005) for speed in (wall_clock, printed, mean)
    ]
    assert point["median_speed"] == run["wall_clock"]
    assert all(str(number) in run["window"] for number in window)
    assert not any(alarm["name"] == "rates_and_wall_clock" for alarm in point["alarms"])
    assert run["remarks"] == [] or options


@pytest.mark.parametrize(("name", "text"), [(PLSC, b"throughput: "), (IMAGENET, b"Epoch: ["), (MXNET, b"Speed: ")])
def test_every_step_line_is_read(name, text):
    steps = sum(len(batch.steps.step) for batch in batches(LOGS / name, recognise(LOGS / name)))
    assert steps == (LOGS / name).read_bytes().count(text)


@pytest.mark.parametrize(("name", "reasons"), [
    (NGC_EXCERPT, ("10", "120")), (IMAGENET, ("15", "120")), (BERT, ("51", "120")), (GOOGLE, ("step",)),
])  # fmt: skip
def test_no_number_without_its_reason(capsys, name, reasons):
    page = json.dumps(summary(capsys, name))
    assert all(reason in page for reason in reasons)
    assert 'median_speed": 1' not in page


def test_the_option_batch_size_fills_in_for_a_log(capsys):
    assert "batch size" in json.dumps(summary(capsys, TSM))
    (point,) = summary(capsys, TSM, "--batch-size", "16")["results"]
    (run,) = point["runs"]
    assert run["wall_clock"] is None
    assert run["printed"] == point["median_speed"] == pytest.approx(16 / 0.524, rel=2e-3)
