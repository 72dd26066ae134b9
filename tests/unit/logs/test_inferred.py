"""Logs of no declared format: a number where two fields say the same, else patterns with what each of them makes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parse.logs.infer import inferred as module
from parse.logs.infer.words import numbers_of as numbers_in_line
from parse.logs.line_pattern import LinePattern
from parse.logs.path_facts import PathFacts
from parse.runs.load_logs import HowToRead, LoadedLogs, load_logs

DEVICES, BATCH, LAST = 8, 4096, 130
PATTERN = re.compile(r"--pattern ('(?:[^']|'\"'\"')*') makes ((?:[^;])*)")
"""A suggestion in a refusal, and what it makes."""
READING = re.compile(r"\{(\w+)\} \(makes ((?:[^()])*)\)(?=(?: or \{\w+\} \([^()]*\))*: [^;]*--pattern ('[^']*'))")
"""One of several readings of a field, what it makes, and the pattern to complete."""


def seconds_of(step: int) -> float:
    """Steps of 2.5 s, the first one of 40 s, each a little different."""
    return 40.0 if step == 1 else 2.5 + 0.01 * (step % 7)


CLOCK = [0.0, *accumulate(map(seconds_of, range(1, 10 * LAST + 1)))]
Steps = tuple[int, int]
"""A printed step and the one before."""
Field = Callable[[Steps], tuple[str, str]]


def stamp(seconds: float) -> str:
    return (datetime(2025, 5, 21, 2) + timedelta(seconds=seconds)).isoformat(sep=" ", timespec="milliseconds")


def each_s(steps: Steps) -> float:
    """The seconds of a step, a mean since the line before."""
    return (CLOCK[steps[0]] - CLOCK[steps[1]]) / (steps[0] - steps[1])


TIMES: Mapping[str, Field] = {
    "time stamps": lambda steps: ("time", stamp(CLOCK[steps[0]])),
    "since the begin": lambda steps: ("elapsed_s", f"{CLOCK[steps[0]]:.3f}"),
    "of a step": lambda steps: ("step_time_ms", f"{1e3 * each_s(steps):.2f}"),
    "running mean": lambda steps: ("step_avg_s", f"{CLOCK[steps[0]] / steps[0]:.6f}"),
    "steps per second": lambda steps: ("steps_per_sec", f"{1 / each_s(steps):.6f}"),
}
RATES: Mapping[str, Field] = {
    "of all": lambda steps: ("total_samples_per_sec", f"{DEVICES * BATCH / each_s(steps):.2f}"),
    "of one device": lambda steps: ("samples/s/gpu", f"{BATCH / each_s(steps):.3f}"),
}
WORK: Mapping[str, Field] = {
    "of a step": lambda steps: ("batch_size", f"{DEVICES * BATCH}"),
    "of all steps so far": lambda steps: ("total_samples", f"{DEVICES * BATCH * steps[0]}"),
}


def lines_of(layout: str, fields: Iterable[Field], every: int = 1, lie: float = 1.0) -> list[str]:
    """Step lines with these fields, the last of which is so many times what it should be."""
    lines = []
    for step in range(every, every * LAST + 1, every):
        named = [field((step, step - every)) for field in fields]
        if lie != 1:
            name, text = named[-1]
            named[-1] = name, f"{float(text) * lie:.6f}"
        stamps, others = ([each for each in named if (each[0] == "time") == is_time] for is_time in (True, False))
        front = "".join(f"{text} " for _, text in stamps)
        if layout == "JSON":
            values = {name: text if name == "time" else float(text) for name, text in named}
            lines.append(json.dumps({"step": step, "loss": 2.3, **values}))
        elif layout == "CSV":
            lines += [",".join(["step", "loss", *(name for name, _ in named)])] * (not lines)
            lines.append(",".join([f"{step}", "2.3", *(text for _, text in named)]))
        elif layout == "columns":
            lines += ["  ".join(f"{name:>21}" for name in ("step", "loss", *(name for name, _ in named)))] * (not lines)
            lines.append("  ".join(f"{text:>21}" for text in (f"{step}", "2.3", *(text for _, text in named))))
        elif layout == "continued":
            lines += [f"{front}INFO [step={step}/9999]", *(f"    train/{name}={text}" for name, text in others)]
        else:
            between, equals = {"key=value": (" ", "="), "sentence": (", ", ": "), "bars": (" | ", " ")}[layout]
            parts = [("step", f"{step}"), ("loss", "2.3"), *others]
            lines.append(front + between.join(f"{name}{equals}{text}" for name, text in parts))
    return lines


LAYOUTS = st.sampled_from(["JSON", "CSV", "columns", "continued", "key=value", "sentence", "bars"])
EVERY = st.sampled_from([1, 10])
PROPERTY = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def written(folder: Path, lines: Iterable[str]) -> Path:
    path = folder / "run_1n8g.log"
    path.write_text("\n".join(["starting", "loading data from disk", *lines]) + "\n")
    return path


def loaded(path: Path, *patterns: str, batch: int | None = None) -> LoadedLogs:
    how = HowToRead(patterns=tuple(map(LinePattern, patterns)), otherwise=PathFacts(batch_size=batch))
    return load_logs([path], how, lambda items: items, frozenset())


def reason(path: Path) -> str:
    """Why the log has no number."""
    (refusal,) = loaded(path).refusals
    return refusal


def step_s_of(window: str) -> float:
    """The true seconds of a step over `steps 20 to 120`."""
    begin, end = map(int, re.findall(r"\d+", window))
    return (CLOCK[end] - CLOCK[begin]) / (end - begin)


@given(LAYOUTS, EVERY, st.permutations(sorted(TIMES)))
@PROPERTY
def test_two_times_that_agree_are_a_number(tmp_path: Path, layout: str, every: int, names: list[str]) -> None:
    path = written(tmp_path, lines_of(layout, [TIMES[name] for name in names[:2]], every))
    (attempt,) = loaded(path, batch=BATCH).attempts
    assert attempt.measured is not None and attempt.log is not None, attempt.problem
    expected = DEVICES * BATCH / step_s_of(attempt.log.window)
    assert attempt.measured.throughput == pytest.approx(expected, rel=2e-3)
    pattern = shlex.split(attempt.log.remarks[0].split("--pattern ")[1])[0]
    (confirmed,) = loaded(path, pattern, batch=BATCH).attempts
    assert confirmed.measured is not None and confirmed.measured.throughput == attempt.measured.throughput


@given(LAYOUTS, EVERY, st.sampled_from(sorted(TIMES)), st.sampled_from(sorted(RATES)), st.sampled_from(sorted(WORK)))
@PROPERTY
def test_a_rate_that_is_work_over_time_is_a_number(
    tmp_path: Path, layout: str, every: int, time: str, rate: str, work: str
) -> None:
    lines = lines_of(layout, [TIMES[time], WORK[work], RATES[rate]], every)
    path = written(tmp_path, lines)
    if time == "running mean":  # it says little of a step
        return
    (attempt,) = loaded(path).attempts
    assert attempt.measured is not None and attempt.log is not None, attempt.problem
    expected = DEVICES * BATCH / step_s_of(attempt.log.window)
    assert attempt.measured.throughput == pytest.approx(expected, rel=2e-3)


@given(LAYOUTS, EVERY, st.sampled_from(sorted(TIMES)), st.booleans(), st.sampled_from([0.5, 1.3, 1024.0]))
@PROPERTY
def test_a_field_that_contradicts_another_leaves_no_number_and_no_suggestion(
    tmp_path: Path, layout: str, every: int, time: str, is_rate: bool, lie: float
) -> None:
    other = RATES["of all"] if is_rate else TIMES["of a step" if time != "of a step" else "since the begin"]
    first = TIMES["time stamps" if time == "running mean" else time]
    fields = [first, WORK["of a step"], other] if is_rate else [first, other]
    text = reason(written(tmp_path, lines_of(layout, fields, every, lie)))
    assert "its fields contradict each other" in text
    assert "--pattern" not in text


@given(LAYOUTS, EVERY, st.sampled_from(sorted({**TIMES, **RATES})), st.sampled_from([None, BATCH]))
@PROPERTY
def test_a_suggestion_that_is_typed_back_makes_what_was_shown(
    tmp_path: Path, layout: str, every: int, name: str, batch: int | None
) -> None:
    path = written(tmp_path, lines_of(layout, [{**TIMES, **RATES}[name]], every))
    if name == "running mean":  # of which no pattern alone is offered
        return
    (refusal,) = loaded(path, batch=batch).refusals
    suggestions = PATTERN.findall(refusal)
    suggestions += [(text.replace("{FIELD:", f"{{{field}:"), shown) for field, shown, text in READING.findall(refusal)]
    assert "nothing in it confirms what its lines may be" in refusal and suggestions
    for quoted, shown in suggestions:
        (attempt,) = loaded(path, *shlex.split(quoted), batch=batch).attempts
        if attempt.measured is None:
            assert shown.startswith(f"no speed: {attempt.problem.partition(';')[0]}")
        else:
            assert shown.startswith(f"{attempt.measured.throughput:.2f} samples/s over steps ")


def test_a_rate_without_the_work_of_a_step_is_suggested_with_what_speaks_for_it(tmp_path: Path) -> None:
    lines = [f"step {at} {BATCH / seconds_of(at):.3f} samples/s, {seconds_of(at):.4f} s/step" for at in range(1, LAST)]
    text = reason(written(tmp_path, lines))
    assert "{samples_per_s} (makes 1619.29 samples/s over steps 20 to 120)" in text
    assert "{samples_per_s_per_device} (makes 12954.34 samples/s over steps 20 to 120)" in text
    assert all("samples" not in quoted for quoted, _ in PATTERN.findall(text))
    assert "samples/s × s/step is the same in every step, 4096" in text
    (attempt,) = loaded(written(tmp_path, ["global batch size: 4096", *lines])).attempts
    assert attempt.log is not None and "(4096 a step by global batch size) and s/step agree" in attempt.log.remarks[0]
    assert attempt.measured and attempt.measured.throughput == pytest.approx(1619.29, abs=0.01)
    assert "not known: whether its rate" not in attempt.log.remarks[0]
    assert "of one of 8 devices or of all" in reason(written(tmp_path, ["batch size: 4096", *lines]))


def test_steps_that_nobody_knows_who_prints_several_times_are_no_number(tmp_path: Path) -> None:
    """Four ranks, or four parts of a step."""
    lines = [f"step {at} total {4096 / seconds_of(at):.2f} samples/s {seconds_of(at):.3f} s/it batch 4096"
             for at in range(1, LAST) for _ in range(4)]  # fmt: skip
    assert "each step is printed 4 times, and nothing says by whom" in reason(written(tmp_path, lines))


def test_a_constant_number_of_the_batch_is_its_size(tmp_path: Path) -> None:
    lines = [f"step {at:>6} | loss 2.31 | total 8192 samples/s | 0.500 s/step | batch 4096" for at in range(1, LAST)]
    (attempt,) = loaded(written(tmp_path, lines)).attempts
    assert attempt.measured is not None and attempt.measured.throughput == 8192
    text = reason(written(tmp_path, [line.replace("4096", "2048") for line in lines]))
    assert "s/step makes 0.5 s a step and total (2048 a step by batch) makes 0.25 s a step" in text


@pytest.mark.parametrize("begin", ["épöque à l'étape: step {}", "Шаг step={}", "训练中 | step {}", "ℹ│ step {}"])
@pytest.mark.parametrize("time", ["│ {:.3f} s/it", "耗时 {:.3f} s/it", "— durée time {:.3f} sec"])
def test_signs_beyond_ascii_are_of_a_pattern_as_they_are_written(tmp_path: Path, begin: str, time: str) -> None:
    made = (
        f"{begin.format(at)} • loss 2.3 {time.format(seconds_of(at))} · elapsed {CLOCK[at]:.3f} s"
        for at in range(1, LAST)
    )
    (attempt,) = loaded(written(tmp_path, made), batch=BATCH).attempts
    assert attempt.measured is not None and attempt.log is not None, attempt.problem
    expected = DEVICES * BATCH / step_s_of(attempt.log.window)
    assert attempt.measured.throughput == pytest.approx(expected, rel=2e-3)


def test_numbers_with_a_factor_are_not_read(tmp_path: Path) -> None:
    lines = [f"step {at} | {4.096 / seconds_of(at):.3f}k tok/s | {seconds_of(at):.3f} s/it" for at in range(1, LAST)]
    ((pattern, made),) = PATTERN.findall(reason(written(tmp_path, lines)))
    assert "{seconds:f} s/it" in pattern and "tokens" not in pattern
    assert made.startswith("no speed: a step takes 2.53 s")


def test_a_rate_of_each_device_that_does_not_make_the_total_of_those_named_is_no_number(tmp_path: Path) -> None:
    """Half of what one of 8 devices does: it would fit 16."""
    fields = [TIMES["of a step"], WORK["of all steps so far"], RATES["of one device"]]
    text = reason(written(tmp_path, lines_of("key=value", fields, lie=0.5)))
    assert "but it prints 6477.17 samples/s, and its time and what a step takes in make 12954.3" in text


def test_a_unit_that_no_word_says_is_not_decided(tmp_path: Path) -> None:
    lines = [f"step {step} time {seconds_of(step):.3f} elapsed {CLOCK[step]:.3f}" for step in range(1, LAST)]
    text = reason(written(tmp_path, lines))
    assert "time may be {seconds} (makes no speed: a step takes 2.53 s" in text
    assert "{ms} (makes no speed: a step takes 0.00253 s" in text and not PATTERN.findall(text)
    assert "name one of these for FIELD in --pattern 'step {step:d} … time {FIELD:f}'" in text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("step 7 loss 1.1 samples/s 80.0", ["step", "", "rate"]),
        ("step 7 time 0.25 s 128.0 img/s", ["step", "time", "rate"]),
        ("step 7 loss 1.1 time 0.25 s", ["step", "", "time"]),
        ("step 7 throughput 80.0 samples/s 3", ["step", "", ""]),
        ("step 7 throughput 80.0 samples/s 3.5 GB", ["step", "rate", ""]),
        ("step 7 0.25 s 128.0 img/s 9.5 GB", ["step", "time", "rate", ""]),
        ("iter 7 s 0.25", ["step", "time"]),
    ],
)
def test_what_is_between_two_numbers_is_the_unit_of_one_or_the_name_of_the_other(text: str, names: list[str]) -> None:
    assert [number.role.kind for number in numbers_in_line(text)] == names


def test_steps_per_second_in_lines_of_their_own_say_what_seconds_are_of(tmp_path: Path) -> None:
    """TensorFlow's estimators: the seconds of all steps since the line before."""
    lines = [
        line
        for step in range(0, 1300, 10)
        for line in ("global_step/sec: 5.0", f"loss = 2.3, step = {step} ({2.0:.3f} sec)")
    ]
    (attempt,) = loaded(written(tmp_path, lines), batch=100).attempts
    assert attempt.measured is not None and attempt.measured.throughput == pytest.approx(DEVICES * 500)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (lambda step: f"step {step} loss 2.1 acc 0.5", "no step line of a known system is in it"),
        (lambda step: f"{step},{step * 3.5},{step % 7}", "no step line of a known system is in it"),
        (lambda step: f"{stamp(2.5 * step)} step {step % 3} step_time: 2.5s", "no step line of a known system"),
        (lambda step: f"{stamp(2.5 * step)} [{64 * step}/60000 (1%)] elapsed {2.5 * step}s", "no step line of a known"),
        (lambda step: f"step {step} time 2,5{step % 10}00 s tokens/s 8.192,5", "no step line of a known system"),
        (lambda step: f"val step {step} took {seconds_of(step):.3f} s", "no step line of a known system is in it"),
        (lambda step: f"saving checkpoint step {step}00 took {seconds_of(step):.3f} s", "is in it"),
        (lambda step: f"tokenizing batch {step}, {1000 + step} examples/s", "is in it"),
        (lambda step: f"GPU {step}: NVIDIA H100 80GB HBM3", "is in it"),
        (lambda step: f"step {step} data 0.125 s model {seconds_of(step):.3f} s", "nothing that --pattern can time"),
        (
            lambda step: f"{stamp(2.5 * step + max(min(4 * (step - 60), 40), 0))} step {step} step_time: 2.5s",
            "agree, but in its window time stamps makes 2.9 s a step, and step time 2.5 s",
        ),
        (
            lambda step: f"{stamp(2.5 * step)} step {step - 2 * (step >= 60)} step_time: 2.500s",
            "agree, but in its window time stamps makes 2.55 s a step, and step time 2.5 s",
        ),
        (
            lambda step: (
                f"step {step} step_time: {seconds_of(step):.4f} s elapsed: {CLOCK[step]:.3f} s\n"
                f"iter {step} iter_time: {1 + step % 3:.4f} s elapsed: {2 * step + 0.0:.3f} s"
            ),
            "two kinds of lines count steps, of 2.53 s and of 2 s",
        ),
    ],
)  # fmt: skip
def test_there_is_no_number(tmp_path: Path, line: Callable[[int], str], expected: str) -> None:
    text = reason(written(tmp_path, map(line, range(1, LAST))))
    assert expected in text
    assert "makes no speed" not in text and "may be {" not in text


def test_a_declared_format_is_never_inferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def infer(path: Path) -> None:
        raise AssertionError(f"{path}: inferred")

    monkeypatch.setattr(module, "infer", infer)
    lines = [f"iter {step}: loss 4.1, time {1e3 * seconds_of(step):.2f}ms" for step in range(1, LAST)]
    (attempt,) = loaded(written(tmp_path, lines)).attempts
    assert attempt.log is not None
    assert attempt.log.log_format == "nanogpt"


def test_speeds_of_two_fields_that_differ_are_not_suggested(tmp_path: Path) -> None:
    """8,192 samples/s beside 2.5 s a step: with a batch of 4096 on each of 8 devices that would be 13,107."""
    lines = [f"step {step} total 8192.0 samples/s {2.5:.3f} s/step" for step in range(1, LAST)]
    (refusal,) = loaded(written(tmp_path, lines), batch=BATCH).refusals
    assert "its fields contradict each other: total makes 8192 samples/s, and s/step 13107.2" in refusal
    assert "--pattern" not in refusal
