"""Samples and tokens: what a step takes in, and that speeds of two units never meet."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from parse import summarize
from parse.logs.engine.fields import field_of
from parse.logs.engine.log_format import LogError
from parse.logs.engine.reader import batches, find_step
from parse.logs.formats import FORMATS, format_named, recognise
from parse.logs.window import Protocol, read_log
from parse.runs.load_logs import HowToRead, explained
from tests.fuzz.samples import SAMPLES_OF_ALL
from tests.unit.logs import made
from tests.unit.logs.made import put

TITAN_S = 0.5
"""Seconds of a step of a made torchtitan log: 65536 tokens on each device."""


def titan(devices: int, steps: int = 130) -> str:
    """torchtitan's lines, all devices as fast as one."""
    clock = [made.BEGIN.timestamp() + TITAN_S * step for step in range(steps + 1)]
    lines = [
        f"[titan] 2025-06-16 22:00:00,000 - root - INFO - Building 1-D device mesh with ['dp_shard'], [{devices}]",
        "[titan] 2025-06-16 22:00:00,000 - root - INFO - Trainer is initialized with local batch size 8, global batch "
        f"size {8 * devices}, gradient accumulation steps 1, sequence length 8192, total steps {steps} (warmup 2)",
    ]
    for step in range(1, steps + 1):
        second, millisecond = divmod(round(1e3 * (clock[step] - clock[0])), 1000)
        stamp = f"2025-06-16 22:{second // 60:02d}:{second % 60:02d},{millisecond:03d}"
        lines.append(
            f"[titan] {stamp} - root - INFO - step: {step:2}  loss:  6.1384  memory: 49.66GiB(52.28%)  "
            f"tps: {round(65536 / TITAN_S):,}  tflops: 339.16  mfu: 34.29%"
        )
    return "\n".join(lines) + "\n"


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """Logs in tokens/s and in samples/s, on one device and on two."""
    for devices in (1, 2):
        step_s = made.steps(800 * devices, 128 * devices)
        put(tmp_path, f"a/1n{devices}g/titan_1.log", titan(devices))
        put(tmp_path, f"a/1n{devices}g/r50_b128_fp32_1.log", made.ngc_pytorch(step_s, batch=128, devices=devices))
    return tmp_path


def out(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert summarize.main([*map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_a_table_for_each_unit(both, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = out(capsys, both)
    heads = [line for line in text.splitlines() if line.startswith("case")]
    units = [set(line.split()) & {"samples/s", "tokens/s"} for line in text.splitlines()]
    assert len(heads) == 2
    assert [each for each in units if each] and all(len(each) <= 1 for each in units)
    speed = 65536 / TITAN_S
    assert f"{speed:.2f}" in text and f"{2 * speed:.2f}" in text
    assert "torchtitan batch_size=8: 1n2g runs 2.00 × as fast as 1n1g (100 % of ideal)" in text
    assert "ngc-pytorch resnet50 batch_size=128: 1n2g runs 2.00 ×" in text


def test_csv_has_columns_for_each_unit(both, capsys):
    rows = list(csv.DictReader(io.StringIO(out(capsys, both, "--format", "csv"))))
    for row in rows:
        tokens = row["backend"] == "torchtitan"
        assert row["unit"] == ("tokens/s" if tokens else "samples/s")
        assert bool(row["median_speed_tokens"]) is tokens and bool(row["median_speed"]) is not tokens
        assert bool(row["wall_clock_tokens"]) is tokens and bool(row["wall_clock"]) is not tokens


def test_json_says_the_unit_and_compares_no_two(both, capsys):
    content = json.loads(out(capsys, both, "--format", "json"))
    assert {result["backend"]: result["unit"] for result in content["results"]} == {
        "ngc-pytorch": "samples/s",
        "torchtitan": "tokens/s",
    }
    assert [result["speedup"] for result in content["results"]] == pytest.approx([1, 2, 1, 2], rel=1e-6)


def test_the_reference_format_takes_no_tokens(both, capsys):
    assert summarize.main([str(both), "--format", "dlperf"]) == 1
    assert "the speeds of torchtitan are in tokens/s" in capsys.readouterr().err
    content = json.loads(out(capsys, both, "--format", "dlperf", "--where", "backend=ngc-pytorch"))
    assert content["r50"]["1n2g"]["speedup"] == 2.0


def test_the_way_of_tokens_is_explained(both):
    text = explained(both / "a/1n2g/titan_1.log", HowToRead())
    assert "tokens of a step: 16 samples × 8192 = 131072" in text
    assert "wall_clock: 100 × 131072 / 50.000000 s = 262144.00 tokens/s" in text
    numbers = "work / time by 100 printed rates = 131072.00 tokens/s"
    assert f"{numbers}, of one device each; × 2 devices = 262144.00 tokens/s" in text
    assert "samples/s" not in text


def bars(eval_s: int = 0) -> str:
    """The Trainer's bar of 50 steps of 3 s; after 25 of them an evaluation of 12 batches with a bar of its own."""
    header = """\
  Instantaneous batch size per device = 4
  Total train batch size (w. parallel, distributed & accumulation) = 64
  Gradient Accumulation steps = 2
"""
    text = header
    for step in range(51):
        second = 3 * step + (eval_s if step > 25 else 0)
        text += f"\r  4%|▍         | {step}/50 [{second // 60:02d}:{second % 60:02d}<09:00,  3.00s/it]"
        if step == 25 and eval_s:
            for batch in range(12):
                text += f"\n\r  8%|▊         | {batch}/12 [00:{batch:02d}<00:36,  1.00s/it]\x1b[A"
            second += eval_s
            text += f"\r  4%|▍         | {step}/50 [{second // 60:02d}:{second % 60:02d}<09:00,  3.00s/it]"
    return text + "\n"


@pytest.mark.parametrize("eval_s", [0, 40])
def test_another_bar_is_a_pause(tmp_path, eval_s):
    reading = read_log(
        put(tmp_path, "x.log", bars(eval_s)), recognise(tmp_path / "x.log"), Protocol(warmup=5, total=45)
    )
    assert reading.window.steps == (39 if eval_s else 40)
    assert reading.window.seconds == pytest.approx(3 * reading.window.steps)
    assert [pause.reason for pause in reading.window.pauses] == (["another progress bar"] if eval_s else [])


def test_a_bar_of_another_program_is_no_training(tmp_path):
    """MLPerf's logs of Mask R-CNN have bars of evaluations, and any log may have those of a download."""
    lines = "".join(f"\r  {step}%|▍ | {step}/200 [00:{step // 4:02d}<00:09,  4.00it/s]" for step in range(200))
    with pytest.raises(LogError, match="no step line of a known system"):
        recognise(put(tmp_path, "download.log", f"{lines}\n"))
    marks = ':::MLLOG {"namespace": "", "time_ms": 1594790175195, "key": "run_start", "value": null, "metadata": {}}\n'
    assert recognise(put(tmp_path, "maskrcnn.log", f"{marks}{lines}\n")).name == "mllog"


@pytest.mark.parametrize(
    ("name", "line", "step"),
    [
        # Lines of public logs; torchtitan's of a run that diverges.
        ("torchtitan", "step: 70  loss: 12.1234  grad_norm: 3126774309322752.0000  memory: 13.28GiB(27.97%)  tps: 6,749"
         "  tflops: 41.12  mfu: 13.18%\n", 70),
        ("nanochat", "step 00200/01680 (11.90%) | loss: 3.975811 | lrm: 1.00 | lr(adamw:4.071e-01, muon:1.414e-02) | "
         "dt: 287.87ms | tok/sec: 910,644 | bf16_mfu: 26.36\n", 200),
        ("detectron2", "[03/31 13:44:18] d2.utils.events INFO: AI-Rank-log eta: 0:15:11  iter: 19  total_loss: 6.024  "
         "time: 0.1858  data_time: 0.0296  lr: 2.4976e-05  max_mem: 2768M\n", 19),
    ],
)  # fmt: skip
def test_lines_that_differ_from_the_usual_form(tmp_path, name, line, step):
    path = put(tmp_path, "x.log", line)
    assert recognise(path).name == name
    assert next(iter(batches(path, format_named(name)))).steps.step.tolist() == [step]


@pytest.mark.parametrize(
    ("text", "fits"),
    [("3,456", True), ("1,234,567.8", True), ("3,45", False), ("1,2345", False), (",345", False), ("12,345,", False)],
)
def test_commas_between_thousands(text, fits):
    field = field_of("rate", text.encode(), 0, len(text))
    assert (field is not None) is fits
    assert not (field and field.plain)
    assert field_of("step", b"1,000", 0, 5) is None


@pytest.mark.parametrize("sample", SAMPLES_OF_ALL, ids=lambda sample: sample.name)
def test_no_sample_has_steps_of_another_format(tmp_path, sample):
    lines = sample.text(12).replace(b"\r", b"").splitlines()
    formats = [format_named(name) for name in FORMATS if name != sample.log_format]
    strangers = {
        log_format.name
        for log_format in formats
        for line in lines
        if not log_format.anywhere and find_step(line, log_format.steps)
    }
    assert not strangers
