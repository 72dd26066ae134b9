"""Logs of language-model training: real lines, headers, and what is no step."""

from __future__ import annotations

import numpy as np
import pytest

from parse.logs.formats import recognise
from tests.unit.logs.real_lines import DEEPSPEED_HEADER, MEGATRON_HEADER, NO_STEPS, REAL
from tests.unit.logs.text_logs import facts, read, values


@pytest.mark.parametrize("name", REAL)
def test_a_real_line_is_recognised_and_read(tmp_path, name):
    path = tmp_path / "x.log"
    path.write_text(REAL[name].text)
    log_format = recognise(path)
    assert log_format.name == name.split()[0]
    steps, records = read(log_format, tmp_path, REAL[name].text)
    for column, wanted in REAL[name].steps.items():
        assert getattr(steps, column).tolist() == pytest.approx(wanted, nan_ok=True), column
    assert facts(records) == REAL[name].facts


@pytest.mark.parametrize("name", REAL)
def test_under_a_launcher_and_coloured(tmp_path, name):
    log_format = name.split()[0]
    lines = [f"[1,3]<stdout>:\x1b[31m{line}\x1b[0m\r" for line in REAL[name].text.splitlines()]
    steps, _ = read(log_format, tmp_path, *lines)
    assert steps.step.tolist() == REAL[name].steps["step"]
    assert set(steps.rank.tolist()) == {3}


@pytest.mark.parametrize(("log_format", "line"), NO_STEPS)
def test_other_lines_are_no_steps(tmp_path, log_format, line):
    steps, _ = read(log_format, tmp_path, line)
    assert not len(steps.step[np.isfinite(steps.time_s) | np.isfinite(steps.rate) | np.isfinite(steps.duration_s)])


def test_the_header_of_megatron(tmp_path):
    _, records = read("megatron", tmp_path, MEGATRON_HEADER)
    assert facts(records) == {
        "world_size": "32", "global_batch_size": "512", "hidden_size": "4096", "micro_batch_size": "2",
        "num_layers": "32", "precision": "bf16", "pipeline_parallel": "2", "sequence_length": "2048",
        "tensor_parallel": "4",
    }  # fmt: skip


def test_the_header_of_deepspeed(tmp_path):
    _, records = read("deepspeed", tmp_path, DEEPSPEED_HEADER)
    assert facts(records) == {
        "nodes": "1", "gpus_per_node": "2", "world_size": "2", "precision": "bf16", "micro_batches": "2",
        "global_batch_size": "32", "micro_batch_size": "8", "data_parallel": "2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]", {"world_size": "8"}),
        (
            "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=8, cp=2, tp=1, ep=16, etp=1",
            {"world_size": "32"},
        ),
        (
            "Trainer is initialized with local batch size 8, global batch size 64, gradient accumulation steps 1, "
            "sequence length 2048, total steps 10 (warmup 2)",
            {"local_batch_size": "8", "global_batch_size": "64", "sequence_length": "2048"},
        ),
        (
            "Trainer is initialized with 4096 tokens per DP rank, 262144 tokens per train step",
            {"tokens_per_step": "262144"},
        ),
        ("\x1b[34mModel llama3 8B \x1b[31msize: 8,030,261,248 total parameters\x1b[39m", {"model": "llama3_8B"}),
    ],
)
def test_the_header_of_torchtitan(tmp_path, line, wanted):
    _, records = read("torchtitan", tmp_path, line)
    assert facts(records) == wanted


def test_the_whole_run_of_the_trainer(tmp_path):
    # https://github.com/hiyouga/LlamaFactory/issues/4783 for the header
    text = """\
***** Running training *****
  Num examples = 36,718
  Instantaneous batch size per device = 1
  Total train batch size (w. parallel, distributed & accumulation) = 16
  Gradient Accumulation steps = 8
{'train_runtime': 437.8544, 'train_samples_per_second': 25.132, 'train_steps_per_second': 3.145, 'epoch': 3.0}
***** train metrics *****
  train_samples_per_second =   7335.823
"""
    _, records = read("huggingface", tmp_path, text)
    assert facts(records) == {
        "samples_per_epoch": "36718", "micro_batch_size": "1", "global_batch_size": "16", "micro_batches": "8",
    }  # fmt: skip
    assert values(records, "summary") == [
        {"what": "train_samples_per_second", "rate": "25.132"},
        {"what": "train_samples_per_second", "rate": "7335.823"},
    ]
