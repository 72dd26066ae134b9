"""parse.runs.explain: the explanation of a log can be checked by hand against its lines."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from parse.logs.engine.log_format import LogError, LogFormat, LogPattern, StepLine
from parse.logs.window import Protocol, Reading, read_log
from parse.runs.attempt import Attempt, FromLog, Measured, RequestedRun, RunFields
from parse.runs.explain import MAX_LISTED, MAX_TEXT, explain, lines_at

FORMAT = LogFormat(
    name="made",
    title="made for this test",
    steps=(
        StepLine(
            marker=b"step",
            expression=(
                rb"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) epoch (?P<epoch>\d+) step (?P<step>\d+) "
                rb"rate (?P<rate>\d+\.\d+) "
            ),
        ),
        StepLine(
            marker=b"took",
            expression=rb"epoch (?P<epoch>\d+) step (?P<step>\d+) took (?P<duration_s>\d+\.\d+) ",
        ),
    ),
    patterns=(
        LogPattern(kind="facts", marker=b"batch", expression=rb"batch (?P<batch_size>\d+) on (?P<world_size>\d+)"),
        LogPattern(kind="pause", marker=b"saving", expression=rb"(?P<reason>saving)"),
    ),
)


def text(first: int = 10, last: int = 150, head: str = "noise\nbatch 32 on 4\n") -> str:
    """Lines of every tenth step, a step in 0.5 s, with 20 s of saving after step 60."""
    lines = [head]
    for step in range(first, last + 1, 10):
        tenths = step * 5 + (200 if step > 60 else 0) + 5
        minutes, seconds = divmod(tenths / 10, 60)
        lines.append(f"2021-01-01 10:{int(minutes):02}:{seconds:06.3f} epoch 0 step {step} rate 250.00 img/s\n")
        if step == 60:
            lines.append("saving the model\n")
    return "".join(lines)


RUN = RunFields(backend="made", devices=4, nodes=1, workload="resnet50", batch_size=32, precision="fp32")


def attempt(
    path: Path,
    reading: Reading,
    wall_clock: float | None,
    printed: float | None,
    *,
    per_step: int = 128,
    run: RunFields = RUN,
    problem: str = "",
    mean_of_rates: float | None = None,
    remarks: tuple[str, ...] = (),
) -> Attempt:
    speed = printed if wall_clock is None else wall_clock
    steps = reading.window.steps if reading.window else 0
    return Attempt(
        run_id="x",
        number=1,
        requested=RequestedRun(run=run, run_id="x"),
        outcome=Outcome.OK if speed else None,
        measured=None
        if speed is None
        else Measured(
            throughput=speed, mean_of_rates=mean_of_rates, step_s=np.empty(0), samples=steps * per_step, clock_share=0.0
        ),
        problem=problem,
        log=FromLog(
            path=path,
            log_format="made",
            window="",
            wall_clock=wall_clock,
            printed=printed,
            remarks=remarks or tuple(each.text for each in reading.remarks),
        ),
    )


def explained(
    path: Path,
    log_format: LogFormat = FORMAT,
    wall_clock: float | None = 256.0,
    printed: float | None = 250.0,
    **more: object,
) -> str:
    reading = read_log(path, log_format, Protocol())
    return explain(path, reading, attempt(path, reading, wall_clock, printed, **more))  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "r50.log"
    path.write_text(text())
    return path


def test_the_whole_of_it(log: Path) -> None:
    assert (
        explained(log)
        == f"""{log}
recognised as made (made for this test), 15 step lines up to step 150 of epoch 0, printed every 10 steps
  line 4 is of its form: {{time}} epoch {{epoch}} step {{step}} rate {{samples_per_s}}
  no other format has such a line

what its other lines say:
  batch_size  32  (line 2)
  world_size  4  (line 2)

window: from step 20 of epoch 0 to step 120 of epoch 0, 90 steps counted
  first line used: 4: 2021-01-01 10:00:10.500 epoch 0 step 20 rate 250.00 img/s
  last line used:  15: 2021-01-01 10:01:20.500 epoch 0 step 120 rate 250.00 img/s
  kept out: 1 interval:
    steps 60 to 70: saving, 25.000000 s

samples of a step: 32 × 4 devices = 128
time: stamp of line 15 - stamp of line 4 = 70.000000 s, less 25.000000 s kept out = 45.000000 s
wall_clock: 90 × 128 / 45.000000 s = 256.00 samples/s
printed: work / time by 9 printed rates = 250.00 samples/s
gap: printed / wall_clock - 1 = 250.00 / 256.00 - 1 = -2.34%
result: 256.00 samples/s
"""
    )


@pytest.mark.parametrize(
    ("more", "printed", "sentence"),
    [
        ({}, 250.0, "work / time by 9 printed rates = 250.00 samples/s"),
        ({}, 1000.0, "of one device, as its time stamps say; × 4 devices = 1000.00 samples/s"),
        ({}, 62.5, "/ 4 devices, as its time stamps say = 62.50 samples/s"),
        ({"rates": "rank"}, 1000.0, "of one device each; × 4 devices = 1000.00 samples/s"),
    ],
)
def test_the_way_from_printed_rates_to_the_printed_speed(
    log: Path, more: dict[str, Any], printed: float, sentence: str
) -> None:
    explanation = explained(log, dataclasses.replace(FORMAT, **more), printed=printed)
    assert "printed: work / time by 9 printed rates = 250.00 samples/s" in explanation
    assert sentence in explanation


def test_the_way_from_printed_step_times(tmp_path: Path) -> None:
    path = tmp_path / "times.log"
    path.write_text("".join(f"epoch 0 step {step} took 0.5 s\n" for step in range(0, 200)))
    log_format = dataclasses.replace(FORMAT, printed="durations")
    explanation = explained(path, log_format, wall_clock=None, printed=256.0)
    assert "wall_clock: none, without usable time stamps" in explanation
    assert "printed: mean of 100 printed step times = 0.500000 s; 128 / 0.500000 s = 256.00 samples/s" in explanation
    assert "gap" not in explanation and "result: 256.00 samples/s" in explanation
    assert "no line says batch size" in explanation
    assert explained(path, wall_clock=None, printed=256.0) == explanation.replace("durations", "rates")
    path.write_text("".join(f"epoch 0 step {step} took {0.2 + 0.3 * (step % 2):.1f} s\n" for step in range(0, 200)))
    log_format = dataclasses.replace(log_format, publishes_mean=True)
    explanation = explained(path, log_format, wall_clock=None, printed=128 / 0.35, mean_of_rates=448.0)
    assert "step times = 0.350000 s; 128 / 0.350000 s = 365.71 samples/s" in explanation
    mean = "mean of 100 rates of 128 / a printed step time = 448.00 samples/s"
    assert f"its protocol's, no work over time: {mean}" in explanation
    explanation = explained(path, log_format, wall_clock=None, printed=None, problem="nobody says the batch size")
    assert "no speed without the samples of a step" in explanation and "samples of a step: not known" in explanation
    assert "result: none (nobody says the batch size)" in explanation


def test_without_samples_the_time_still_gives_steps(log: Path) -> None:
    explanation = explained(log, wall_clock=None, printed=None, problem="no batch size")
    assert "wall_clock: 90 / 45.000000 s = 2.000000 steps/s" in explanation


def test_medians_over_ranks_are_named(tmp_path: Path) -> None:
    path = tmp_path / "ranks.log"
    path.write_text("".join(line * 4 for line in text().splitlines(keepends=True)))
    explanation = explained(path)
    assert "4 lines for each" in explanation
    assert "work / time by 9 printed rates, each the median over its lines, = 250.00 samples/s" in explanation
    path.write_text("".join(f"[1,{rank}]<stdout>:{line}" for line in text().splitlines(True) for rank in range(3)))
    assert "printed every 10 steps, by 3 ranks" in explained(path)


def test_a_log_without_a_window_says_why(tmp_path: Path) -> None:
    path = tmp_path / "short.log"
    path.write_text(text(last=80))
    explanation = explained(path, wall_clock=None, printed=None)
    assert (
        "no window: too short: the last printed step is 80 of epoch 0" in explanation
        and "needs step 120" in explanation
    )
    assert "line used" not in explanation and "result" not in explanation
    path.write_text("batch 32 on 4\n")
    assert "without a step line" in explained(path, wall_clock=None, printed=None)


def test_remarks_stand_at_the_end(log: Path) -> None:
    assert explained(log, remarks=("it is odd", "very")).endswith("\n\nremarks:\n  it is odd\n  very\n")
    assert "\nremarks:" not in explained(log)


def test_many_pauses_are_shortened(tmp_path: Path) -> None:
    path = tmp_path / "pauses.log"
    path.write_text(
        "".join(
            f"2021-01-01 10:{step // 60:02}:{step % 60:02}.500 epoch 0 step {step} rate 1.0 \n"
            + ("saving\n" if step % 2 else "")
            for step in range(130)
        )
    )
    explanation = explained(path)
    assert (
        "kept out: 50 intervals" in explanation
        and explanation.count("saving") == MAX_LISTED
        and "and 30 more" in explanation
    )


def test_a_log_that_is_gone_or_another_by_now(log: Path) -> None:
    reading = read_log(log, FORMAT, Protocol())
    read_attempt = attempt(log, reading, 256.0, 250.0)
    log.write_text("short\n")
    with pytest.raises(LogError, match=r"r50\.log: ends before byte \d+"):
        explain(log, reading, read_attempt)
    log.unlink()
    with pytest.raises(LogError, match=r"r50\.log: cannot be read"):
        explain(log, reading, read_attempt)


# Lines by their place


def test_lines_are_read_wherever_pieces_meet(tmp_path: Path) -> None:
    path = tmp_path / "large.log"
    lines = [f"line {number} {'x' * (number % 700)}\n".encode() for number in range(1, 9000)]
    path.write_bytes(b"".join(lines))
    assert path.stat().st_size > 2 * (1 << 20)
    offsets = np.concatenate([[0], np.cumsum([len(line) for line in lines])])[:-1].tolist()
    near = [at for at, begin in enumerate(offsets) if begin % (1 << 20) > (1 << 20) - 3000 or begin % (1 << 20) < 3000]
    wanted = {0, 4500, len(lines) - 1, *near}
    line_at = lines_at(path, [offsets[at] for at in wanted])
    for at in wanted:
        whole = lines[at].decode().rstrip("\n")
        line = line_at[offsets[at]]
        assert line.number == at + 1
        assert line.text == (whole if len(whole) <= MAX_TEXT else whole[: MAX_TEXT - 1] + "…")


def test_a_line_behind_carriage_returns_has_the_number_that_editors_show(tmp_path: Path) -> None:
    path = tmp_path / "bar.log"
    path.write_bytes(b"first\n10%\r20%\rstep 3\rmore\nlast \x1b[1mbold\xff")
    lines = lines_at(path, [14, 26])
    assert (lines[14].number, lines[14].text) == (2, "step 3")
    assert (lines[26].number, lines[26].text) == (3, "last ?[1mbold�")
