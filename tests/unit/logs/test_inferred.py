"""Logs of no declared format: a number where two of their fields say the same, and a true reason where not."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from parse import summarize
from parse.logs.formats import UTF_16
from parse.runs import load_logs as module
from parse.runs.load_logs import HowToRead, LoadedLogs, load_logs

STEPS = range(1, 131)
COMMAS = str.maketrans(",.", ".,")


def seconds_of(step: int) -> float:
    """Steps of 2.5 s, the first one of 40 s, each a little different."""
    return 40.0 if step == 1 else 2.5 + 0.01 * (step % 7)


def clock(step: int) -> float:
    return sum(map(seconds_of, range(1, step + 1)))


def stamp(seconds: float) -> str:
    return f"2025-05-21 {2 + int(seconds) // 3600:02d}:{int(seconds) // 60 % 60:02d}:{seconds % 60:06.3f}"


MEAN_S = sum(map(seconds_of, range(21, 121))) / 100
RATE = 8192 * 100 / sum(map(seconds_of, range(21, 121)))

LOGS: dict[str, tuple[Callable[[int], str], float]] = {
    "MaxText's: a rate of a device and the seconds": (
        lambda step: (
            f"completed step: {step}, seconds: {seconds_of(step):.3f}, TFLOP/s/device: {400 / seconds_of(step):.3f}, "
            f"Tokens/s/device: {8192 / seconds_of(step):.3f}, total_weights: 65536, loss: 9.1"
        ),
        8 * RATE,
    ),
    "OLMo's: on several lines, with commas": (
        lambda step: (
            f"{stamp(clock(step))}\tnode1:0\tolmo.train:990\tINFO\t[step={step}/1000,epoch=0]\n"
            f"    train/CrossEntropyLoss=5.1\n"
            f"    throughput/total_tokens={65536 * step:,}\n"
            f"    throughput/device/tokens_per_second={8192 / seconds_of(step):,.2f}\n"
            f"    throughput/device/batches_per_second={1 / seconds_of(step):.4f}"
        ),
        8 * RATE,
    ),
    "a dictionary behind a time stamp, and elapsed seconds": (
        lambda step: (
            f"pod-7 {stamp(clock(step))} {{'loss': 0.4, 'global_step/max_steps': '{step}/4491', 'percentage': '6.57%', "
            f"'elapsed_time': '{clock(step):.2f}s'}}"
        ),
        64 / MEAN_S,
    ),
    "JSON lines: all tokens so far and two times": (
        lambda step: json.dumps(
            {"step": step, "loss": 2.5, "total_tokens": 65536 * step, "elapsed_s": round(clock(step), 3),
             "step_time_ms": round(1e3 * seconds_of(step), 2)}
        ),
        8 * RATE,
    ),
    "key=value of ranks, one in the other": (
        lambda step: "\n".join(
            f"[rank{rank}]: iter={step} loss=3.2 total tokens/s={65536 / seconds_of(step):.1f} "
            f"iter_time={seconds_of(step):.4f}s"
            for rank in (0, 1, 2, 3)
        ),
        8 * RATE,
    ),
    "units in the next column": (
        lambda step: (
            f"step | {step} | loss | 3.1 | total speed | {65536 / seconds_of(step):.2f} | tokens/s | "
            f"{seconds_of(step):.4f} | s/it"
        ),
        8 * RATE,
    ),
    "units of times in the next column": (
        lambda step: f"step | {step} | time | {1e3 * seconds_of(step):.1f} | ms | elapsed | {clock(step):.2f} | s",
        64 / MEAN_S,
    ),
    "CSV with empty cells": (
        lambda step: (
            "step,loss,val_loss,total tokens/s,step_ms\n" * (step == 1)
            + f"{step},3.5,{'' if step % 9 else 3.7},{65536 / seconds_of(step):.2f},{1e3 * seconds_of(step):.1f}"
        ),
        8 * RATE,
    ),
    "aligned columns, their heading again and again": (
        lambda step: (
            "  Step   Train Loss   Time (s)   Elapsed (s)\n" * (step % 20 == 1)
            + f"{step:6d} {3.5:12.4f} {seconds_of(step):10.4f} {clock(step):13.2f}"
        ),
        64 / MEAN_S,
    ),
    "a table with | and units in its cells": (
        lambda step: (
            "| iter | tokens/s/gpu | time  |\n|------|------|------|\n" * (step % 50 == 1)
            + f"| {step:4d} | {8192 / seconds_of(step):.2f} tok/s/gpu | {1e3 * seconds_of(step):.1f}ms |"
        ),
        8 * RATE,
    ),
    "W&B's columns, and a time stamp": (
        lambda step: '"_step","_timestamp","_runtime"\n' * (step == 1)
        + f'"{step}","{1.7e9 + clock(step):.3f}","{clock(step):.3f}"',
        64 / MEAN_S,
    ),
    "one line, redrawn": (
        lambda step: f"step {step}/500 total {65536 / seconds_of(step):.1f} tok/s, {seconds_of(step):.4f} s/step\r",
        8 * RATE,
    ),
    "ersatz's: the time since the last line and the one passed": (
        lambda step: json.dumps(
            {"update_num": step, "time_since_last_update_s": seconds_of(step), "predictions_per_second": 800.5,
             "time_passed": clock(step)}
        ),
        64 / MEAN_S,
    ),
    "a running mean beside the time since the beginning": (
        lambda step: f"step:{step}/1480 train_time:{1e3 * clock(step):.1f}ms step_avg:{1e3 * clock(step) / step:.3f}ms",
        64 / MEAN_S,
    ),
}  # fmt: skip


def written(folder: Path, lines: Sequence[str], name: str = "run_1n8g.log") -> Path:
    path = folder / name
    path.write_text("\n".join(["starting", "loading data from disk", *lines]) + "\n")
    return path


def loaded(path: Path) -> LoadedLogs:
    return load_logs([path], HowToRead(), lambda items: items, frozenset())


def reason(path: Path) -> str:
    """Why the log has no number."""
    (refusal,) = loaded(path).refusals
    return refusal


@pytest.mark.parametrize("name", LOGS)
def test_the_number_is_that_of_the_pattern_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    line, expected = LOGS[name]
    path = written(tmp_path, [line(step) for step in STEPS])
    arguments = ["--kind", "logs", "--format", "json", "--batch-size", "8", str(path)]
    assert summarize.main(arguments) == 0
    (point,) = json.loads(capsys.readouterr().out)["results"]
    assert point["backend"] == "inferred"
    assert point["median_speed"] == pytest.approx(expected, rel=2e-3)
    (attempt,) = loaded(path).attempts
    assert attempt.log is not None
    pattern = shlex.split(attempt.log.remarks[0].split("--pattern ")[1])[0]
    assert summarize.main([*arguments, "--pattern", pattern]) == 0
    (confirmed,) = json.loads(capsys.readouterr().out)["results"]
    assert (confirmed["backend"], confirmed["median_speed"]) == ("pattern", point["median_speed"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (lambda step: f"step {step} speed 812.5 img/s loss 2.1", "nothing in it confirms: to read it so, --pattern"),
        (lambda step: f"{stamp(clock(step))} step {step} loss 2.1", "which nothing in it confirms"),
        (lambda step: f"step {step} loss 2.1 acc 0.5", "no time, no rate and no time stamp"),
        (
            lambda step: f"{stamp(clock(step))} step {step} step_time: 0.9s elapsed: {clock(step):.1f}s",
            "they contradict each other (step time makes 0.9 s a step",
        ),
        (
            lambda step: f"step {step} throughput {8192 / seconds_of(step):.2f} tokens/s {seconds_of(step):.4f} s/step",
            "of all 8 devices, or that of one",
        ),
        (
            lambda step: f"step {step} avg {step * 8192 / clock(step):.3f} tokens/s, {seconds_of(step):.4f} s/step",
            "which nothing in it confirms",
        ),
        (lambda step: f"{stamp(clock(step))} step {step} took {0.4 + step % 3:.2f} s", "which do not agree: to read"),
        (
            lambda step: f"Schritt {step} von 500 Dauer {seconds_of(step):.3f}",
            "in no words that inference knows: say what they are as by --pattern 'Schritt {step:d} … {seconds:f}'",
        ),
        (
            lambda step: f"step {step} time {2.5 + step % 3:.4f} s tokens/s {8192.5:,.1f}".translate(COMMAS),
            "its numbers have decimal commas, as '3,5000'",
        ),
        (
            lambda step: "step,loss,seconds\n" * (step == 1) + f"{step},3.5,{seconds_of(step):.3f}",
            "which nothing in it confirms: to read it so, --pattern '{step:d},{_},{seconds:f}'",
        ),
        (
            lambda step: (
                "step seconds elapsed_s\n" * (step == 1) + f"{step} {seconds_of(step):.3f} {3 * clock(step):.3f}"
            ),
            "which do not agree: to read",
        ),
        (
            lambda step: (
                "time/iterations,time/episodes,time/total_timesteps\n" * (step == 1) + f"{step},{3 * step},{3 * step}"
            ),
            "its lines count 'time/iterations', and have no time, no rate and no time stamp beside it",
        ),
        (
            lambda step: "Schritt,loss,Dauer\n" * (step == 1) + f"{step},3.5,{seconds_of(step):.3f}",
            "it is a table of columns 'Schritt,loss,Dauer', which inference does not read: say what they are",
        ),
        (
            lambda step: f"{stamp(2.5 * step)} step {step - 2 * (step >= 60)} step_time: 2.500s",
            "its steps go back from 59 to 58 at line 62",
        ),
        (
            lambda step: f"{stamp(2.5 * step)} step {step % 3} step_time: 2.5s",
            "its lines print 'step', which does not grow as steps do; its steps go back from 2 to 0 at line 5, and 4",
        ),
        (
            lambda step: f"{stamp(2.5 * step)} [{64 * step}/60000 (1%)] elapsed {2.5 * step}s",
            "but these may be samples as well as steps",
        ),
        (
            lambda step: f"Iter: {1000 * step} Time(1000 iters): {seconds_of(step):.3f}s",
            "or 2.53 s a step by iters), which nothing in it confirms",
        ),
        (
            lambda step: f"step {step} time {seconds_of(step):.3f} elapsed {clock(step):.3f}",
            "which agree, and do not say whether they are in s or in ms",
        ),
        (
            lambda step: f'{{"update_num": {100 * step}, "predictions_per_second": {800 + step % 7}}}',
            "its lines count 'update num', and have no time, no rate and no time stamp beside it",
        ),
        (
            lambda step: f"{stamp(clock(step))} step: {step}, 'get_old_steps_start_time': {1.7e9 + clock(step):.3f}",
            "2.53 s a step by time stamps, which nothing in it confirms",
        ),
        (
            lambda step: f"Instance: {500 * step}; Time: {seconds_of(step):.3f}s; acc: {50 * step}/{64 * step}=0.78",
            "its lines count something, as in 'Instance: 500",
        ),
    ],
)  # fmt: skip
def test_without_a_second_field_there_is_a_reason_and_no_number(
    tmp_path: Path, line: Callable[[int], str], expected: str
) -> None:
    assert expected in reason(written(tmp_path, [line(step) for step in STEPS]))


@pytest.mark.parametrize("head", ["Namespace(batch_size=64)", "bs 64"])
def test_a_batch_size_of_one_or_of_all_devices_is_named(tmp_path: Path, head: str) -> None:
    lines = [f"{stamp(clock(step))} step {step} step_time: {seconds_of(step):.3f}s" for step in STEPS]
    (attempt,) = loaded(written(tmp_path, [head, *lines])).attempts
    assert "64', and not whether that is of one device or of all: give --batch-size" in attempt.problem


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_log_of_utf_16_is_named_with_what_to_do(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.log"
    path.write_text("step 1 of 100 took 0.5 s\n" * 30, encoding=encoding)
    assert reason(path) == f"{path}: {UTF_16}"


def test_two_programs_in_one_file_are_none(tmp_path: Path) -> None:
    lines = [LOGS["MaxText's: a rate of a device and the seconds"][0](step) for step in STEPS]
    lines += [f"iter={step} total tokens/s={100 / (1 + step % 5):.1f} iter_time={1 + step % 5:.4f}s" for step in STEPS]
    assert "two kinds of lines count steps" in reason(written(tmp_path, lines))


def test_steps_that_go_back_are_another_run(tmp_path: Path) -> None:
    line, expected = LOGS["MaxText's: a rate of a device and the seconds"]
    first = [line(step) for step in STEPS]
    path = written(tmp_path, [*first, *(text.replace("seconds: 2", "seconds: 9") for text in first)])
    (attempt,) = loaded(path).attempts
    assert attempt.measured is not None
    assert attempt.measured.throughput == pytest.approx(expected, rel=2e-3)


def test_a_window_that_contradicts_itself_has_no_number(tmp_path: Path) -> None:
    """The time that the lines print and the time stamps part behind the lines that show the form."""
    late = [max(min(4 * (step - 60), 40), 0) for step in STEPS]
    lines = [f"{stamp(2.5 * step + late[step - 1])} step {step} step_time: 2.5s" for step in STEPS]
    assert "in its window nothing confirms 2.9 s a step by time stamps; 2.5 s" in reason(written(tmp_path, lines))


def test_an_elapsed_time_that_contradicts_is_not_passed_over(tmp_path: Path) -> None:
    """The rate and the time of a step make the batch size; the elapsed time says that steps take ten times as long."""
    lines = [f"step {at} step time 500 ms, elapsed {5.0 * at:.1f} s, 128 samples/s, batch size 64" for at in STEPS]
    expected = "they contradict each other (elapsed makes 5 s a step, and step time 0.5 s)"
    assert expected in reason(written(tmp_path, lines))


def test_time_stamps_count_where_the_first_is_none(tmp_path: Path) -> None:
    """Lines that are equal but for their digits are read alike, but `10:99:99` is no time, and others like it are."""
    lines = [
        f"{stamp(5 * step)} step {step} seconds: {seconds_of(step):.3f}, tokens/s/device: {8192 / seconds_of(step):.3f}"
        for step in STEPS
    ]
    lines[0] = lines[0].replace(stamp(5)[11:19], "10:99:99")
    assert "they contradict each other (time stamps makes 5 s a step" in reason(written(tmp_path, lines))


def test_a_declared_format_is_never_inferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def infer(path: Path) -> None:
        raise AssertionError(f"{path}: inferred")

    monkeypatch.setattr(module, "infer", infer)
    lines = [f"iter {step}: loss 4.1, time {1e3 * seconds_of(step):.2f}ms" for step in STEPS]
    (attempt,) = loaded(written(tmp_path, lines)).attempts
    assert attempt.log is not None
    assert attempt.log.log_format == "nanogpt"


def test_text_that_is_no_log_stays_none(tmp_path: Path) -> None:
    lines = [f"{step},{step * 3.5},{step % 7}" for step in STEPS]
    assert reason(written(tmp_path, lines)).count("no step line of a known system is in it") == 1


@pytest.mark.parametrize(("times", "is_mentioned"), [(3, True), (1, False)])
def test_step_lines_of_another_program_are_mentioned(tmp_path: Path, times: int, is_mentioned: bool) -> None:
    """Lines of the same steps are those of one program."""
    line, _ = LOGS["MaxText's: a rate of a device and the seconds"]
    pairs = [text for step in STEPS for text in (line(step), f"iter {times * step} loss 3.4 lr 1e-3 time 0.51s")]
    (attempt,) = loaded(written(tmp_path, pairs)).attempts
    assert attempt.log is not None
    mentioned = [each for each in attempt.log.remarks if "from line 4 on, count 'iter' apart from these" in each]
    assert bool(mentioned) == is_mentioned


def test_a_time_is_not_confirmed_by_lines_beside_a_far_longer_interval(tmp_path: Path) -> None:
    """As of the ends of two runs in one file, days between."""
    line = "I0401 {} solver.cpp:218] Iteration {} ({:.5f} iter/s), loss = 0.1"
    steps = [*range(100, 200, 20), *range(6000, 6200, 20)]
    seconds = [0.34 * step if step < 200 else 0.34 * step + 9000 for step in steps]
    lines = [line.format(stamp(at).split()[1], step, 1 / 0.34) for step, at in zip(steps, seconds, strict=True)]
    assert "in its window nothing confirms" in reason(written(tmp_path, lines))


def test_bars_that_prepare_and_lines_of_a_logger_called_benchmark(tmp_path: Path) -> None:
    bars = [
        f"Tokenizing: {step}%|{'#' * 70:100}| {step}/999 [00:{step // 2:02d}<09:00, 2.00it/s]\r" for step in range(90)
    ]
    assert "count 'steps'" not in reason(written(tmp_path, bars))
    bare = [bar.replace("Tokenizing: ", "") for bar in bars]
    assert "its progress bars do not say what they count" in reason(written(tmp_path, bare))
    lines = [
        f"{stamp(clock(step))} my_benchmark.trainer INFO: iter: {step} time: {seconds_of(step):.4f}" for step in STEPS
    ]
    (attempt,) = loaded(written(tmp_path, lines)).attempts
    assert attempt.problem.startswith("a step takes 2.53 s")


def test_the_mean_in_brackets_behind_a_time_confirms_the_time_stamps(tmp_path: Path) -> None:
    lines = [f"{stamp(clock(step))} iter: {step} time: 2.4 ({clock(step) / step:.4f})" for step in STEPS]
    (attempt,) = loaded(written(tmp_path, lines)).attempts
    assert attempt.log is not None and "time stamps and time in brackets agree" in attempt.log.remarks[0]


def test_fields_that_are_far_apart_in_a_line(tmp_path: Path) -> None:
    """verl's: a part of a step, as `timing_s/update_actor`, is no time of a step."""
    between = " - ".join(f"critic/part_{letter}/mean:0.123456789012" for letter in "abcdefghijklmnopqrstuvwxyz")
    lines = [
        f"step:{step} - training/global_step:{step} - {between} - timing_s/update_actor:1.0 - "
        f"timing_s/step:{seconds_of(step):.6f} - perf/time_per_step:{seconds_of(step):.6f}"
        for step in STEPS
    ]
    (attempt,) = loaded(written(tmp_path, lines)).attempts
    assert attempt.problem.startswith("a step takes 2.53 s")
