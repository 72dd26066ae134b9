"""parse.logs.nearest: which known formats come nearest to a log of none, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from parse.command_options import read_columns
from parse.logs.engine.reader import sample
from parse.logs.formats import FORMATS, recognise
from parse.logs.nearest import nearest, second_systems, tables
from parse.runs.load import load
from parse.tables import published

TITAN = "[rank0]: step: 10 loss: 8.1 grad_norm: 2.1 memory: 40.5GiB speed: 300 tokens a second"
MEGATRON = " iteration 10/ 100 | consumed samples: 80 | elapsed time per iteration: 412.1 ms | loss: 6.1"


@pytest.mark.parametrize(
    ("lines", "name", "reason"),
    [
        (["hello", TITAN], "torchtitan", "its line 2 has memory, norm, loss, step, but not '  loss: '"),
        ([MEGATRON], "megatron", "its line 1 has consumed, elapsed, per, iteration, but not 'elapsed time per iter"),
        (["throughput: none"], "plsc", "its line 1 has 'throughput: ', but not in the form of its step lines"),
    ],
)
def test_the_nearest_formats_with_reasons(lines: list[str], name: str, reason: str) -> None:
    (first, text), *_ = nearest([line.encode() for line in lines])
    assert first == name and text.startswith(reason)


def test_no_format_is_near_to_a_text_without_their_words() -> None:
    assert nearest([b"12 34 56", b"zwei drei vier"]) == []


def test_the_error_names_three_formats_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"{MEGATRON}\n" * 10)
    (refusal,) = load([path]).refusals
    named = [name for name in FORMATS if f" {name} (its line" in refusal]
    assert refusal.startswith(
        f"{path}: no step line of a known system is in it; the nearest of {len(FORMATS)}: megatron ("
    )
    assert 0 < len(named) <= 3 and "--pattern 'step {step} {samples_per_s} samples/s'" in refusal
    path.write_text("zwei\ndrei\n")
    (refusal,) = load([path]).refusals
    assert "nor one that is near to theirs: say what a step line is by --pattern" in refusal


@pytest.mark.parametrize(("second", "count"), [(1, 60), (200, 60), (1, 2)])
def test_the_steps_of_a_second_system_are_mentioned(tmp_path: Path, second: int, count: int) -> None:
    """They are between the first one's, or behind all of them; a quotation of two lines is none."""
    lines = [f" iteration {step}/ 200 | elapsed time per iteration (ms): 412.1 | loss: 6.1 |" for step in range(1, 201)]
    for place in range(count):
        lines.insert(second + place * (second < 200) * 2, f"iter {place}: loss 4.1, time 123.45ms")
    path = tmp_path / "a.log"
    path.write_text("\n".join(lines))
    sentences = list(second_systems(path, sample(path), recognise(path)))
    expected = f"60 lines, from line {second + 1} on, are steps of another system, nanogpt: they are not counted"
    assert sentences == ([expected] if count == 60 else [])


TABLE = "|**GPUs**|**Throughput (tok/s)**|\n|---:|---:|\n| 4 | 1880000.0 |\n"
CRASH = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nRuntimeError: no GPU\n'


@pytest.mark.parametrize("rule", ["|---:|---:|", "| --- | --- |", "+----+----+"])
def test_tables_that_programs_print(tmp_path: Path, rule: str) -> None:
    path = tmp_path / "a.log"
    path.write_text(TABLE.replace("|---:|---:|", rule))
    (text,) = tables(sample(path))
    assert "Throughput (tok/s) 1880000.0: --kind table with --columns reads it" in text
    assert (
        published([path], read_columns(["gpus=GPUs,tokens_per_s=Throughput (tok/s)"])).results[0].median_speed == 1.88e6
    )


def test_a_word_alone_is_not_near_and_a_table_and_a_traceback_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"Rank {rank} took 3.2 s\n" for rank in range(8)) + TABLE + CRASH)
    (refusal,) = load([path]).refusals
    assert (
        "nor one that is near to theirs; it has a table of its own, GPUs 4, Throughput (tok/s) 1880000.0: " in refusal
    )
    assert "it has a traceback, that of RuntimeError: no GPU: " in refusal


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "Figures:\n\n| #GPU | ours <br/> (GPU/CPU) |\n|---|---|\n| 1 | 230/228 |\n"),
        ("a.csv", "#GPU,ours (GPU/CPU)\n"),
    ],
)
def test_a_document_that_is_a_table_is_refused_with_its_columns(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    (refusal,) = load([path]).refusals
    assert "but a table with the columns #GPU | ours (GPU/CPU): name them, --columns " in refusal
    assert "--pattern" not in refusal


def test_a_log_that_is_read_names_the_table_of_its_program(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"iter {step}: loss 4.1, time 123.45ms\n" for step in range(150)) + TABLE)
    (attempt,) = load([path]).attempts
    assert attempt.log and any("a table of its own, GPUs 4, " in remark for remark in attempt.log.remarks)
