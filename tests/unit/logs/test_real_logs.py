"""Real logs, where they are at hand: recognised by themselves, and the speeds that their time stamps give."""

from __future__ import annotations

import json

import pytest

from parse.logs.engine.reader import batches
from parse.logs.formats import recognise
from parse.logs.formats.mllog import trained
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


@pytest.mark.parametrize(
    ("name", "text"), [(PLSC, b"throughput: "), (IMAGENET, b"Epoch: ["), (TSM, b"Epoch: ["), (MXNET, b"Speed: ")]
)
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


def records_of(name, kind):
    every = (record for batch in batches(LOGS / name, recognise(LOGS / name)) for record in batch.records)
    return [record for record in every if record.kind == kind]


def test_marks_of_ai_rank():
    marks = records_of(TSM, "mark")
    assert [(mark.values["mark"], mark.time_s) for mark in marks] == [
        ("load_data", pytest.approx(1618110628.103)), ("test_begin", pytest.approx(1618110628.249)),
        ("eval_accuracy", pytest.approx(1618118480.571)), ("eval_accuracy", pytest.approx(1618126329.537)),
    ]  # fmt: skip
    assert marks[0].values["checksum"] == "234584"
    assert [mark.values["total_epoch_cnt"] for mark in marks[2:]] == ["0", "1"]


def test_steps_that_the_loss_scaler_skips_are_printed_all_the_same():
    steps = [step for batch in batches(LOGS / BERT, recognise(LOGS / BERT)) for step in batch.steps.step.tolist()]
    assert steps == [1, 1, 1, 1, *range(1, 52)]
    assert [record.values["rate"] for record in records_of(BERT, "summary")] == ["470.244"]


@pytest.mark.parametrize(("name", "seconds", "status", "epochs", "trained_s"), [
    (MXNET, 4290.339, "aborted", 37, 4286.738), (GOOGLE, 5293.900, "success", 39, 5293.895),
])  # fmt: skip
def test_runs_of_mlperf(name, seconds, status, epochs, trained_s):
    records = records_of(name, "mllog")
    of_key = {record.values["key"]: record for record in records}
    assert of_key["run_stop"].time_s - of_key["run_start"].time_s == pytest.approx(seconds, abs=1e-3)
    assert of_key["run_stop"].values["status"] == status
    facts = {key: value for record in records_of(name, "facts") for key, value in record.values.items()}
    done = trained(records, facts)
    assert done.seconds + done.evaluated_s == pytest.approx(trained_s, rel=1e-6)
    assert done.rate == pytest.approx(epochs * 1281167 / done.seconds) and 0 < done.evaluated_s < 0.2 * trained_s
