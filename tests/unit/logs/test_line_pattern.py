"""parse.logs.line_pattern: a person's own step lines, by names of fields."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse import summarize
from parse.logs.engine.reader import batches
from parse.logs.line_pattern import FIELDS, MAX_GAP, LinePattern, PatternError, pattern_format, why_unmatched
from parse.logs.window import Protocol, read_log
from tests.unit.logs import made

DOCUMENT = Path(__file__).parents[3] / "docs/logs.md"


def steps(tmp_path, pattern, *lines):
    """The columns read from these lines."""
    path = tmp_path / "own.log"
    path.write_bytes(("\n".join(lines) + "\n").encode())
    (batch,) = batches(path, pattern_format((LinePattern(pattern),)))
    return batch.steps


def test_patterns(cases) -> None:
    """What each reads from the line below it; or what is wrong with it, its place and the remedy."""

    def outcomes(lines: list[str]) -> Iterator[str]:
        try:
            pattern = LinePattern(lines[0]).step_line.pattern
        except PatternError as error:
            yield f"refused: {error}"
            return
        match = pattern.search(lines[1].encode())
        yield json.dumps({name: value.decode() for name, value in match.groupdict().items()}) if match else "no match"

    cases("line_patterns.txt", outcomes)


@pytest.mark.parametrize("pattern", ["", "step {step}\n{ms}", "step {step} {ms}" + "x" * 1000])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(PatternError, match=r"it lacks \{step\} and one of|a pattern is one line"):
        LinePattern(pattern)


@pytest.mark.parametrize(("between", "speed"), [("x" * MAX_GAP, None), ("x", b"5")])
def test_a_gap_has_an_end(between: str, speed: bytes | None) -> None:
    match = LinePattern("step {step} … speed {samples_per_s}").step_line.pattern.search(
        f"step 4 {between} speed 5".encode()
    )
    assert (match and match["rate"]) == speed


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


@pytest.mark.parametrize(
    ("header", "sizes"),
    [
        ("world_size: 16, rank 0", {"world_size": "16"}),
        ("{'number_of_nodes': 2, 'accelerators_per_node': 8}", {"nodes": "2", "gpus_per_node": "8"}),
        ("torchrun --nnodes 2 --nproc_per_node=4 a.py", {"nodes": "2", "gpus_per_node": "4"}),
        ("number_of_ranks ........ 32", {"world_size": "32"}),
        ("tp_world_size: 2, local world size 4, data parallel world_size 8, world_size: 1.5", {}),
    ],
)
def test_keys_of_sizes_in_logs_of_any_program(tmp_path: Path, header: str, sizes: dict[str, str]) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"{header}\n" + "".join(f"step {step} 5.0 img/s\n" for step in range(9)))
    log_format = pattern_format((LinePattern("step {step} {samples_per_s} img/s"),))
    facts = read_log(path, log_format, Protocol(warmup=2, total=8)).facts
    assert {name: facts[name] for name in facts if name != "processes"} == sizes


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


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.sampled_from([*"{}:…. \tabd", *(f"{{{name}}}" for name in FIELDS)]), max_size=12))
def test_any_text_is_a_pattern_or_refused(parts):
    try:
        pattern = LinePattern("".join(parts))
    except PatternError as error:
        assert str(error)
        return
    assert {"step"} < {*pattern.names}
    pattern.step_line.pattern.search(b"a 1 b 2.5 2021-01-01 10:00:00 d")


@settings(max_examples=200, deadline=None)
@given(lines=st.lists(st.binary(max_size=60), max_size=5))
def test_the_nearest_line_of_anything(lines):
    forms = (LinePattern("step {step} … speed {samples_per_s}"), LinePattern("{time} it {step}"))
    assert why_unmatched(forms, lines).startswith("no line has the form of --pattern 'step {step} … ")


def test_nearest_is_the_first_line_that_fits_furthest():
    lines = [b"hello", b"step 1 loss 2", b"step 2 loss 3 speed x", b"step 3 loss 4 speed y"]
    reason = why_unmatched((LinePattern("step {step} … speed {samples_per_s}"),), lines)
    expected = "behind character 19 it expects ' {samples_per_s}', and the line has ' x'"
    assert reason.endswith(f"; line 3 comes nearest, 'step 2 loss 3 speed x': {expected}")


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
    assert table[:2] == explained[:2] == ["rankwise", "summarize"]
    assert summarize.main(table[2:]) == 0
    assert re.search(r"^1n8g +1 +8 +1/\? +1024\.00 +1024\.00 +1024\.00 +1024\.00 +8\.00", capsys.readouterr().out, re.M)
    assert summarize.main(explained[2:]) == 0
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


@pytest.mark.parametrize("prefix", ["rank {rank}: ", "proc {rank}/4 "])
def test_whose_rates_a_pattern_reads_is_not_taken_for_granted(tmp_path, capsys, prefix):
    lines = [f"{prefix.format(rank=rank)}step {step} 128.0 img/s\n" for step in range(150) for rank in range(4)]
    path = made.put(tmp_path, "1n4g/own.log", "".join(lines))
    assert summarize.main([str(path), "--verbose", "--pattern", "step {step} {samples_per_s} img/s"]) == 0
    assert "each step is printed 4 times: the pattern takes each rate for that of all" in capsys.readouterr().out


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
    assert "; no line has 'stp'" in (error := capsys.readouterr().err) and "comes nearest" not in error
    assert summarize.main(["--explain", "runs/1n1g/train.log", "--pattern", "step {step} … {samples_per_s}"]) == 1
    assert "{samples_per_s} could be another number of it, or goes on with ' | 128.0 img/s'" in capsys.readouterr().err
    made.put(folder, "empty.log", "")
    assert summarize.main(["empty.log", "--pattern", "step {step} {ms}"]) == 1
    assert "empty.log: no line has the form of" in capsys.readouterr().err


def test_help_names_every_field(capsys):
    with pytest.raises(SystemExit):
        summarize.main(["--help"])
    printed = " ".join(capsys.readouterr().out.split("--pattern LINE", 2)[-1].split("--warmup")[0].split())
    short = [name for name in FIELDS if not name.endswith("_per_device")]
    assert [name for name in short if f"{{{name}}}" not in printed] == []
    assert "_per_device" in printed
    assert len(printed) < 800
