"""parse.logs.line_pattern: a person's own step lines, by names of fields."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse import summarize
from parse.logs.engine.reader import batches
from parse.logs.line_pattern import FIELDS, MAX_GAP, LinePattern, PatternError, nearest_line, pattern_format
from tests.unit.logs import made

DOCUMENT = Path(__file__).parents[3] / "docs/logs.md"


def steps(tmp_path, pattern, *lines):
    """The columns read from these lines."""
    path = tmp_path / "own.log"
    path.write_bytes(("\n".join(lines) + "\n").encode())
    (batch,) = batches(path, pattern_format((LinePattern(pattern),)))
    return batch.steps


def fields(pattern, line):
    """What the pattern reads from a line; None where it does not match."""
    match = LinePattern(pattern).step_line().pattern.search(line.encode())
    return match and {name: value.decode() for name, value in match.groupdict().items()}


@pytest.mark.parametrize(
    ("pattern", "line", "expected"),
    [
        ("step {step:d} … {samples_per_s:f}", "step 40 512.3", {"step": "40", "rate": "512.3"}),
        ("step {step:d} ... {samples_per_s:f}", "[rank0] step   40\tspeed 512.3 it/s", {"step": "40", "rate": "512.3"}),
        ("step {step} … {samples_per_s} img/s", "step 4 loss 2.3 lr 0.1 512 img/s", {"step": "4", "rate": "512"}),
        ("step {step:5d} … speed {samples_per_s:.1f}", "step     4 | speed 1e3.", {"step": "4", "rate": "1e3"}),
        (
            "[{step:d}/{epoch_steps:d}] {ms:f} ms",
            "[  6/53] 2.5 ms",
            {"step": "6", "epoch_steps": "53", "duration_ms": "2.5"},
        ),
        (
            "{time} … it={step:d} … {steps_per_s:f} it/s",
            "2024-05-01T10:00:00.123Z INFO it=7, loss=2, 3.5 it/s",
            {"time": "2024-05-01T10:00:00.123", "step": "7", "steps_per_s": "3.5"},
        ),
        (
            "{{'loss': {_}, 'step': {step:d}, 't': {seconds}}}",
            "{'loss': nan, 'step': 9, 't': 0.5}",
            {"step": "9", "duration_s": "0.5"},
        ),
        (
            "epoch {epoch}:{_} {step} t={tokens_per_s}",
            "epoch 1:50% 9 t=7.5",
            {"epoch": "1", "step": "9", "rate": "7.5"},
        ),
        ("rank {rank} {step},{seconds}", "rank 3 9,0.25", {"rank": "3", "step": "9", "duration_s": "0.25"}),
        ("{step:d},{_},{ms:f}", "40,abc,512.3", {"step": "40", "duration_ms": "512.3"}),
        ("loss … it {step} … ({samples_per_s}/s", "loss=2.5,it 5: 4|(7/s)", {"step": "5", "rate": "7"}),
        ("it {step} …ips: {samples_per_s}", "it 5, avg_ips: 7", {"step": "5", "rate": "7"}),
        ("it {step} at {time}", "it 5 at 1597933942.9863544", {"step": "5", "time": "1597933942.9863544"}),
        ("step {step} loss {_} {samples_per_s}/s", "step 5 loss 2.5 7/s", {"step": "5", "rate": "7"}),
        ("step {step} … speed {samples_per_s}", "step 40 speed 1,512.3", {"step": "40", "rate": "1,512.3"}),
        ("step {step},{samples_per_s},{_}", "step 40,512,300", {"step": "40", "rate": "512"}),
        ("step {step} … [{elapsed}", "step 40 50% [1:02:03<01:00", {"step": "40", "runtime": "1:02:03"}),
        (
            "step {step} … total {total_tokens} in {elapsed_s}",
            "step 4 total 8,192 in 10",
            {"step": "4", "consumed": "8,192", "since_s": "10"},
        ),
    ],
)
def test_reads_fields_by_name(pattern, line, expected):
    assert fields(pattern, line) == expected


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("step {step:d} … {samples_per_s:f}", "step 40 loss 2.3 speed 512.3"),  # which of the two?
        ("step {step:d} … speed {samples_per_s:f}", "step 40 speed 1,512,34"),
        ("step {step:d} … speed {samples_per_s:f}", "step 40 speed 12k"),
        ("step {step:d} … speed {samples_per_s:f}", "step 40 speed 1.2.3"),
        ("step {step:d} … speed {samples_per_s:f}", "step 40 speed -5"),
        ("step {step:d} … speed {samples_per_s:f}", "step 40 speed nan"),
        ("step {step:d} … speed {samples_per_s:f}", "step 40 maxspeed 5"),
        ("loss … step {step:d} … speed {samples_per_s:f}", "losses step 40 speed 5"),
        ("step {step:d} … speed {samples_per_s:f}", "val_step 40 speed 5"),
        ("step {step:d} … speed {samples_per_s:f}", f"step 40 {'x' * MAX_GAP} speed 5"),
        ("step {step:d} speed {samples_per_s:f}", "step 1,040 speed 5"),
        ("{step:d} {samples_per_s:f}", "at 40 512.3"),
        ("{step:d} {samples_per_s:f}", "40 512.3 7"),
        ("{step:d}/{epoch_steps:d} … {ms:f} ms", "2021/03/04 12:00 5 ms"),
    ],
)
def test_a_line_that_leaves_its_numbers_open_does_not_match(pattern, line):
    assert fields(pattern, line) is None


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("step {step:d}", "it lacks one of {samples_per_s}"),
        ("{samples_per_s}", "it lacks {step}"),
        ("", "it lacks {step} and one of"),
        ("{step} … {smples_per_s:f}", "character 10: {smples_per_s:f}: no such field; did you mean {samples_per_s}?"),
        ("{step} … {smples_per_s:f}", "Fields: step, epoch, epoch_steps, rank, samples_per_s"),
        ("{loss:.3f} {step}", "character 1: {loss:.3f}: no such field"),
        ("a {step", "character 3: { without }"),
        ("{step:f} {ms}", "character 1: {step:f}: step is a whole number, {step:d}"),
        ("{step} {ms:s}", "character 8: {ms:s}: ms is a number, {ms:f}"),
        ("{step} {time:f}", "character 8: {time:f}: time has no type, {time}"),
        ("{step}{ms}", "character 7: no text separates {step} and {ms}"),
        ("{step} {step} {ms}", "it has {step} twice"),
        ("{step} {samples_per_s} {tokens_per_s}", "samples_per_s and tokens_per_s: a line has one rate"),
        ("{step} {seconds} {ms}", "seconds and ms: a line has one duration"),
        ("step {step} … {epoch} … t={ms}", "character 14: between two … no text fixes which word"),
        ("step {step}\n{ms}", "a pattern is one line"),
        ("step {step} {ms}" + "x" * 1000, "a pattern is one line of 1000 characters at most"),
    ],
)
def test_an_error_names_place_and_remedy(pattern, message):
    with pytest.raises(PatternError, match=re.escape(message)):
        LinePattern(pattern)


def test_units_and_scopes_of_one_log_are_one():
    forms = tuple(map(LinePattern, ("a {step} {samples_per_s}", "b {step} {tokens_per_s}")))
    with pytest.raises(PatternError, match="must count the same"):
        pattern_format(forms)
    tokens = pattern_format((LinePattern("a {step} {tokens_per_s_per_device}"),))
    assert (tokens.unit, tokens.rates, tokens.printed) == ("tokens", "rank", "rates")
    assert pattern_format((LinePattern("a {step} {ms}"),)).printed == "durations"
    assert pattern_format((LinePattern("a {step} {steps_per_s}"),)).printed == "durations"


@pytest.mark.parametrize(
    "pattern",
    [
        "step:{step:d}/{_} train_time:{elapsed_ms:f}ms", "step:{step:d}/ … step_avg:{mean_ms:f}ms",
        "step:{step:d}/ … at {elapsed_s:f} s", "step:{step:d}/ … mean {mean_s:f} s",
    ],
)  # fmt: skip
def test_the_time_since_the_beginning_and_running_means_are_differenced(tmp_path, capsys, pattern):
    """Steps of 100 ms, after 40 of 20 ms: what is printed is never the time of a step."""
    elapsed_ms, lines = 0, []
    for step in range(1, 161):
        elapsed_ms += 20 if step <= 40 else 100
        mean_ms = elapsed_ms / step
        lines.append(
            f"step:{step}/1480 train_time:{elapsed_ms}ms step_avg:{mean_ms:.6f}ms at {elapsed_ms / 1e3} s "
            f"mean {mean_ms / 1e3:.9f} s"
        )
    path = tmp_path / "run_1n8g.log"
    path.write_text("\n".join(lines) + "\n")
    arguments = ["--kind", "logs", "--pattern", pattern, "--batch-size", "8", "--warmup", "50", "--steps", "150"]
    assert summarize.main([*arguments, "--format", "json", str(path)]) == 0
    (point,) = json.loads(capsys.readouterr().out)["results"]
    assert point["median_speed"] == pytest.approx(64 / 0.1, rel=1e-4)


def test_several_forms_of_line(tmp_path):
    forms = (LinePattern("train {step} {ms} ms"), LinePattern("Train {step}: {seconds} s"))
    path = tmp_path / "own.log"
    path.write_text("train 1 250 ms\nTrain 2: 0.5 s\ntrain 3 125 ms\n")
    (batch,) = batches(path, pattern_format(forms))
    assert batch.steps.step.tolist() == [1, 2, 3]
    assert batch.steps.duration_s.tolist() == [0.25, 0.5, 0.125]


def test_a_digit_of_the_text_is_that_digit(tmp_path):
    """Lines of equal shape differ in digits: those of GPU 1 must not be taken for those of GPU 0."""
    lines = [f"gpu{gpu} step {step} speed {100 * gpu + step}.5" for step in range(10, 20) for gpu in (0, 1)]
    read = steps(tmp_path, "gpu1 step {step:d} speed {samples_per_s:f}", *lines)
    assert read.step.tolist() == list(range(10, 20))
    assert read.rate.tolist() == [step + 100.5 for step in range(10, 20)]


TEXTS = st.text(st.sampled_from("abcdefgh=:/|[](){}é%_"), min_size=1, max_size=6)
GAPS = st.text(st.sampled_from("XYZ ,;"), max_size=20)
BLANKS, GAP_MARKS = ("", " ", "   "), ("…", " … ", " ... ")
NUMBERS = {
    "step": st.integers(0, 10**9), "epoch": st.integers(0, 1000), "epoch_steps": st.integers(1, 10**6),
    "rank": st.integers(0, 10**5), "samples_per_s": st.floats(0.001, 1e12), "seconds": st.floats(0.001, 1e9),
}  # fmt: skip
COLUMNS = {"samples_per_s": "rate", "seconds": "duration_s"}


@st.composite
def printed_lines(draw):
    """A pattern of texts and fields, blanks or gaps between them, and lines of its form with their values."""
    others = draw(st.lists(st.sampled_from(sorted({*NUMBERS} - {"step", "seconds"})), unique=True, max_size=4))
    names = draw(st.permutations(["step", "seconds", *others]))
    values = [{name: draw(NUMBERS[name]) for name in names} for _ in range(draw(st.integers(1, 5)))]
    pattern, lines = "", [""] * len(values)

    def add(written: str, printed: list[str]) -> None:
        nonlocal pattern
        pattern += written
        for at, text in enumerate(printed):
            lines[at] += text

    def add_separator(marks: tuple[str, ...]) -> bool:
        separator = draw(st.sampled_from(marks))
        is_gap = separator in GAP_MARKS
        add(separator, [f" {draw(GAPS)} " if is_gap else separator for _ in lines])
        return is_gap

    for place in range(len(names) + 1):
        text = f"t{chr(65 + place)}{draw(TEXTS)}"
        add(text.translate({ord(brace): brace * 2 for brace in "{}"}), [text] * len(lines))
        if place < len(names):
            behind_gap = add_separator(BLANKS + GAP_MARKS)
            add(f"{{{names[place]}}}", [str(value[names[place]]) for value in values])
            add_separator(BLANKS if behind_gap else BLANKS + GAP_MARKS)  # between two gaps no text tells the number
    return pattern, lines, values


@settings(max_examples=100, deadline=None)
@given(printed=printed_lines())
def test_a_line_printed_by_the_form_is_read_back_exactly(tmp_path_factory, printed):
    pattern, lines, values = printed
    read = steps(tmp_path_factory.mktemp("own"), pattern, *lines)
    assert len(read.step) == len(values)
    for name in values[0]:
        column = getattr(read, COLUMNS.get(name, name))
        assert np.allclose(column, [value[name] for value in values], rtol=1e-13, atol=0), name


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("step {step:d} … speed {samples_per_s:f}", "step 1 speed x "),
        ("step {step:d} … {samples_per_s:f}", "step 1 "),
        ("{time} … it {step:d} … {ms} ms", "2021-01-01 10:00:00 it 5 "),
        ("{_},{_},{_},{_} {step:d} … x {_} {_} … speed {samples_per_s:f}", "a,a,a,a 1 x a "),
        ("{_}={_}={_}={step:d} … b{_}b{_}b … {samples_per_s:f}/s", "a=a=a=1b"),
        ("[{step:d}/{epoch_steps:d}] … a … b … c … d … e … {ms}f", "[1/2] a b c d e "),
        ("s {step:d} {samples_per_s}", "s" + " " * 500),
        ("s{step:d}e{samples_per_s}.", "s1e1e1e1"),
        ("{step}a{samples_per_s}", "1" * 50),
    ],
)
def test_matching_takes_time_in_proportion_to_the_line(pattern, line):
    compiled = LinePattern(pattern).step_line().pattern
    seconds = []
    for letters in (4096, 16384):
        text = (line * letters)[:letters].encode() + b"\0"
        begin = time.process_time()
        compiled.search(text)
        seconds.append(time.process_time() - begin)
    assert seconds[1] < 20 * seconds[0] + 0.2


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.sampled_from([*"{}:…. \tabd", *(f"{{{name}}}" for name in FIELDS)]), max_size=12))
def test_any_text_is_a_pattern_or_refused(parts):
    try:
        pattern = LinePattern("".join(parts))
    except PatternError as error:
        assert str(error)
        return
    assert {"step"} < {*pattern.names}
    pattern.step_line().pattern.search(b"a 1 b 2.5 2021-01-01 10:00:00 d")


@settings(max_examples=200, deadline=None)
@given(lines=st.lists(st.binary(max_size=60), max_size=5))
def test_the_nearest_line_of_anything(lines):
    forms = (LinePattern("step {step} … speed {samples_per_s}"), LinePattern("{time} it {step}"))
    nearest = nearest_line(forms, lines)
    assert nearest is None or lines[nearest.number - 1].decode(errors="replace") == nearest.line


def test_nearest_is_the_first_line_that_fits_furthest():
    lines = [b"hello", b"step 1 loss 2", b"step 2 loss 3 speed x", b"step 3 loss 4 speed y"]
    nearest = nearest_line((LinePattern("step {step} … speed {samples_per_s}"),), lines)
    assert nearest is not None
    assert (nearest.number, nearest.reached, nearest.expected, nearest.rest) == (3, 19, " {samples_per_s}", " x")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for devices in (1, 8):
        lines = [
            f"[2024-05-01 10:{step // 240:02}:{step % 240 / 4:06.3f}] step {step:5d} | loss {7 - step / 100:.3f} | "
            f"{128.0 * devices:.1f} img/s\n"
            for step in range(0, 200, 10)
        ]
        made.put(tmp_path, f"runs/1n{devices}g/train.log", "resume: no\n" + "".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def documented_commands():
    section = DOCUMENT.read_text().split("## Lines of your own\n")[1]
    lines = section.split("```console\n")[1].split("```")[0].splitlines()
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]


def test_the_documented_commands_run(folder, capsys):
    table, explained = documented_commands()
    assert table[:3] == explained[:3] == ["python", "-m", "parse.summarize"]
    assert summarize.main(table[3:]) == 0
    assert re.search(r"^1n8g +1 +8 +1/\? +1024\.00 +1024\.00 +1024\.00 +1024\.00 +8\.00", capsys.readouterr().out, re.M)
    assert summarize.main(explained[3:]) == 0
    out = capsys.readouterr().out
    assert "recognised as pattern (lines of the form --pattern), 20 step lines up to step 190" in out
    assert "wall_clock: 100 × 256 / 25.000000 s = 1024.00 samples/s" in out


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        (
            "epoch {epoch} step {step}/{epoch_steps} {seconds} s",
            [f"epoch {step // 50} step {step % 50}/50 0.25 s" for step in range(0, 200, 10)],
        ),
        (
            "epoch {epoch} step {step} {seconds} s",
            [f"epoch {step // 50} step {step} 0.25 s" for step in range(0, 200, 10)],
        ),
    ],
    ids=["anew in each epoch", "through the run"],
)
def test_how_steps_are_numbered_is_seen_from_them(tmp_path, capsys, pattern, lines):
    path = made.put(tmp_path, "1n1g/own.log", "\n".join(lines) + "\n")
    assert summarize.main(["--explain", str(path), "--pattern", pattern, "--window", "all"]) == 0
    assert "190 steps counted" in capsys.readouterr().out


def refused(capsys, *arguments):
    """The error of a wrong usage."""
    with pytest.raises(SystemExit) as stopped:
        summarize.main(list(arguments))
    assert stopped.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_pattern_that_matches_nothing_names_the_nearest_line(folder, capsys):
    assert summarize.main(["runs/1n1g", "--pattern", "step {step} … sped {samples_per_s}"]) == 1
    error = capsys.readouterr().err
    assert "runs/1n1g/train.log: no line has the form of --pattern 'step {step} … sped {samples_per_s}'" in error
    assert "line 2 comes nearest, '[2024-05-01 10:00:00.000] step     0 | loss 7.000 | 128.0 img/s'" in error
    assert "behind character 11 it expects ' … sped', and the line has ' | loss 7.000 | 128.0 img/s'" in error
    assert summarize.main(["runs/1n1g", "--pattern", "stp {step} … {samples_per_s}"]) == 1
    assert "line 2 comes nearest, '[2024-05-01" in (error := capsys.readouterr().err)
    assert "it lacks 'stp'" in error
    assert summarize.main(["--explain", "runs/1n1g/train.log", "--pattern", "step {step} … {samples_per_s}"]) == 1
    assert "{samples_per_s} could be another number of it, or goes on with ' | 128.0 img/s'" in capsys.readouterr().err
    made.put(folder, "empty.log", "")
    assert summarize.main(["empty.log", "--pattern", "step {step} {ms}"]) == 1
    assert "empty.log: no line has the form of" in capsys.readouterr().err


def test_wrong_usage(folder, capsys):
    error = refused(capsys, "runs", "--pattern", "step {stp} {ms}")
    assert "--pattern 'step {stp} {ms}': character 6: {stp}: no such field; did you mean {step}?" in error
    assert "--pattern: only for logs, and none is read" in refused(
        capsys, "runs", "--kind", "traces", "--pattern", "{step} {ms}"
    )
    assert "both say what a step line is" in refused(capsys, "runs", "--log-format", "plsc", "--pattern", "{step} {ms}")
    assert "must count the same" in refused(
        capsys, "runs", "--pattern", "{step} {tokens_per_s}", "--pattern", "a {step} {samples_per_s}"
    )


def test_help_names_every_field(capsys):
    with pytest.raises(SystemExit):
        summarize.main(["--help"])
    printed = " ".join(capsys.readouterr().out.split("--pattern LINE", 2)[-1].split("--warmup")[0].split())
    short = [name for name in FIELDS if not name.endswith("_per_device")]
    assert [name for name in short if f"{{{name}}}" not in printed] == []
    assert "_per_device" in printed
    assert len(printed) < 800
