"""parse.logs.formats.declared: formats as data, those of a person's file among them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from parse import summarize
from parse.logs.formats import declared
from parse.logs.formats.declared import SHARED, FormatError, formats_of
from parse.logs.line_pattern import OtherLine
from parse.report import __main__ as report

DOCUMENT = Path(__file__).parents[3] / "docs" / "logs.md"
EXAMPLE = re.search(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
STEP = "2024-05-01 10:{:02}:{:02}.000 [main] step {} loss 5.8 took 500.0 ms, 128.0 img/s"
PROGRESS = (
    "2025-02-24 17:{:02}:03\tJob ID: 198424\t# GPUs: 8\tSaving async checkpoint\tIteration: {}\tJob throughput: 364.8 "
    "TFLOP/s/GPU\tTokens (in billions): {:.2f}"
)


def lines_of_example() -> list[str]:
    steps = [STEP.format(step * 30 // 60 + (step >= 60), step * 30 % 60, step) for step in range(0, 100, 5)]
    return [
        "training resnet50 on 4 GPUs, batch 16", "mixed precision: on", *steps[:8], "saving checkpoint to a.pt",
        *steps[8:], "epoch 0 accuracy 0.763",
    ]  # fmt: skip


def written(tmp_path: Path, formats: str, lines: list[str]) -> tuple[Path, Path]:
    log, file = tmp_path / "train.log", tmp_path / "ours.toml"
    log.write_text("\n".join(lines) + "\n")
    file.write_text(formats)
    return log, file


def test_the_example_of_the_document_reads_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert EXAMPLE
    log, file = written(tmp_path, EXAMPLE[1], lines_of_example())
    assert summarize.main(["--format", "json", "--formats", str(file), "--speed", "printed", str(log)]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert (result["backend"], result["devices"]) == ("our-trainer", 4) and "_resnet50_b16_" in result["point_id"]
    assert result["precision"] == "amp-fp16" and result["median_speed"] == pytest.approx(128.0)
    (reading,) = formats_of(file)
    assert {each.kind for each in reading.patterns} == {"facts", "pause", "evaluation"}
    page = tmp_path / "page.html"
    assert report.main([str(log), "--formats", str(file), "--out", str(page)]) == 0
    assert "our-trainer" in page.read_text()
    with pytest.raises(SystemExit):
        report.main([str(log), "--formats", str(file), "--kind", "traces"])
    assert "--formats: for logs among the PATHs" in capsys.readouterr().err


def test_a_person_s_format_goes_before_a_known_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, file = written(
        tmp_path, "[mine]\nsteps = ['iter {step}: … time {ms}ms']\n",
        [f"iter {step}: loss 4.1, time 123.45ms" for step in range(0, 200, 10)],
    )  # fmt: skip
    assert summarize.main(["--explain", str(log)]) == 0
    assert "recognised as nanogpt" in capsys.readouterr().out
    assert summarize.main(["--explain", str(log), "--formats", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "recognised as mine (mine)" in printed and "it has the form of nanogpt, too" in printed


def test_a_progress_file_is_read_by_its_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "progress.txt"
    log.write_text("\n".join(PROGRESS.format(38 + 3 * at, 100 * at, 0.05 * at) for at in range(1, 6)) + "\n")
    assert summarize.main(["--format", "json", str(log)]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert (result["unit"], result["devices"]) == ("tokens/s", 8)
    assert result["median_speed"] == pytest.approx(0.05e9 / 180)


def test_what_is_wrong_in_a_file_is_named_with_its_place(tmp_path: Path, cases) -> None:
    file = tmp_path / "ours.toml"

    def outcomes(lines: list[str]) -> Iterator[str]:
        file.write_text("\n".join(lines) + "\n")
        with pytest.raises(FormatError) as error:
            formats_of(file)
        yield str(error.value).replace(f"{tmp_path}/", "")

    cases("log_formats.txt", outcomes)


def test_the_lines_of_shipped_formats_are_valid() -> None:
    """They are looked at here alone: the start of every command would do it again."""
    checked = 0
    for path in sorted(Path(str(declared.__file__)).parent.glob("*.toml")):
        tables = tomllib.loads(path.read_text())
        for name, table in (tables["lines"] if path.name == SHARED else tables).items():
            for entry in (entry for section in declared.SECTIONS for entry in table.get(section, ())):
                its = {"line": entry} if isinstance(entry, str) else {**entry}
                if line := its.pop("line", ""):
                    constants = [(key, value) for key, value in its.items() if key != "marker"]
                    declared.check_other_line(OtherLine(line), constants, f"{path.name}, [{name}]")
                    checked += 1
    assert checked > 150


def test_the_command_line_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, file = written(tmp_path, "[nanogpt]\nsteps = ['x {step} {ms}']\n", ["x"])
    for formats, reason in ((file, "[nanogpt] is the name of another format"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(SystemExit):
            summarize.main([str(log), "--formats", str(formats)])
        assert f"--formats {formats}: " in (printed := capsys.readouterr().err) and reason in printed


def test_running_means_that_begin_behind_the_window_are_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    formats = '[a]\nmean_from = 1000\nsteps = ["step {step} mean {mean_ms} ms"]\n'
    log, file = written(tmp_path, formats, [f"step {step} mean 101.5 ms" for step in range(10, 210, 10)])
    summarize.main(["--formats", str(file), "--batch-size", "8", "--format", "json", str(log)])
    assert "its running means count from step 1000 on (mean_from), and the window" in capsys.readouterr().out
