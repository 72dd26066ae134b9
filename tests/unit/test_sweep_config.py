"""launch.sweep.request: a file takes the names of the command line's options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc.model.outcome import Outcome
from hpc.model.spec import SpecError
from launch.sweep import cli
from launch.sweep.cli import read_arguments, sweep_parser
from launch.sweep.request import Request, SweepOptions, make_request, read_config

COMMAND_LINE_ONLY = {"config", "version", "help", "help-all"}


def read(folder: Path, text: str) -> dict[str, Any]:
    path = folder / "sweep.toml"
    path.write_text(text)
    return read_config(path)


def merged(folder: Path, text: str, *argv: str) -> Request:
    """The request of a file and a command line."""
    (folder / "sweep.toml").write_text(text)
    return read_arguments([*argv, "--config", str(folder / "sweep.toml")])


def test_every_option_of_the_command_line_is_a_name_of_a_file(tmp_path: Path) -> None:
    for name in sorted({option[2:] for option in sweep_parser().long_options()} - COMMAND_LINE_ONLY):
        for key in {name, name.replace("-", "_")}:
            value = {"env": '["A=1"]', "option": '["a=1"]', "sbatch": '["qos=q"]'}.get(name, "true")
            assert read(tmp_path, f"{key} = {value}\n")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("batch-size = [8, 16]", {"batch_size": [8, 16]}),
        ('batch_size = "8,16"', {"batch_size": "8,16"}),
        ('env = ["A=1", "B=x=y"]', {"env": {"A": "1", "B": "x=y"}}),
        ('env = "A=1"', {"env": {"A": "1"}}),
        ("[env]\nA = [1, 2]", {"env": {"A": [1, 2]}}),
        ('option = ["image_size=64"]', {"option": {"image_size": "64"}}),
        ("[option]\nimage_size = 64", {"option": {"image_size": 64}}),
        ("no-baseline = true", {"no_baseline": True}),
        ("no_baseline = false", {"no_baseline": False}),
        ("detach = true\nforce = false", {"detach": True, "force": False}),
    ],
)  # fmt: skip
def test_spellings_of_names_and_values(tmp_path: Path, text: str, same: dict[str, Any]) -> None:
    assert read(tmp_path, text) == same


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batchsize = 8", r"unknown name batchsize; .*: .*batch-size.*\. Did you mean batch-size\?"),
        ("warmup_steps = 8", r"unknown name warmup_steps; .*\. Did you mean warmup\?"),
        ("batch-size = 8\nbatch_size = 16", "batch_size is there twice"),
        ("env = 1", "env must be a table of NAME = value"),
        ('env = ["A"]', "'A' is not of the form NAME=VALUE"),
        ('env = ["A=1", "A=2"]', "A=1 and A=2: say one"),
        ('no-baseline = "yes"', "no-baseline must be true or false"),
        ("baseline = true", "unknown name baseline; .*Did you mean no-baseline"),
        ("xla = true", "xla is no option any more: --option xla=on"),
        ("help-all = true", "unknown name help-all"),
        ("detach = 1", "detach must be true or false, not 1"),
        (f"seed = 0x{'f' * 5000}", "not TOML"),
        ("nodes = [1", "not TOML"),
    ],
)
def test_invalid_names_and_values_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=rf"sweep\.toml: .*{message}"):
        read(tmp_path, text)


def test_the_command_line_wins(tmp_path: Path) -> None:
    text = (
        'batch-size = 8\ndetach = true\nsbatch = ["nodelist=a,b"]\n[env]\nA = 1\nB = ["2", "x,y"]\n'
        "[option]\nxla = [false, true]\n"
    )
    argv = ("--nodes", "1", "--batch-size", "16", "--env", "A=3")
    request = merged(tmp_path, text, "retry", "invalid", *argv)
    (sweep,) = request.sweeps
    assert (sweep.batch_size, sweep.env) == ((16,), {"A": ("3",), "B": ("2", "x,y")})
    assert sweep.option == {"xla": ("off", "on")}
    assert request.launch.sbatch == {"nodelist": "a,b"}
    assert request.options == SweepOptions(detach=True, retry=(Outcome.INVALID,))


def test_a_command_is_kept_as_json_that_means_the_same(tmp_path: Path) -> None:
    text = "nodes = [1, 2]\ncopy_s = 2.5\nno-baseline = true\n[env]\nDAY = 2020-01-01\nA = [nan, 1e5]\n"
    request = merged(tmp_path, text)
    assert request.command is not None
    values = json.loads(json.dumps(request.command.values, allow_nan=False))
    assert values == {"nodes": [1, 2], "copy_s": "2.5", "no_baseline": True,
                      "env": {"DAY": "2020-01-01", "A": ["nan", "100000.0"]}}  # fmt: skip
    assert make_request("", "", values) == request


def test_an_unknown_name_ends_with_2_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sweep.toml").write_text("node = 1\n")
    assert cli.main(["--config", str(tmp_path / "sweep.toml"), "--dry-run"]) == 2
    assert capsys.readouterr().err.endswith("Did you mean nodes?\n")


@pytest.mark.parametrize(
    ("argv", "text", "chosen"),
    [
        ("--sbatch qos=high --sbatch nodelist=n[1-2],n4", "", {"qos": "high", "nodelist": "n[1-2],n4"}),
        ("--sbatch constraint=a|b", 'sbatch = "qos=high"', {"qos": "high", "constraint": "a|b"}),
        ("--sbatch qos=low", '[sbatch]\nqos = "high"\nexclude = ["n1", "n2"]', {"qos": "low", "exclude": "n1,n2"}),
        ("", 'sbatch = ["reservation=x=y", "qos=1"]', {"reservation": "x=y", "qos": "1"}),
        (
            "--sbatch mem=0",
            "[sbatch]\nmail_type = ['END', 'FAIL']\nspread-job = true",
            {"mem": "0", "mail-type": "END,FAIL", "spread-job": "true"},
        ),
    ],
)
def test_options_of_sbatch_have_its_own_commas(tmp_path: Path, argv: str, text: str, chosen: dict[str, str]) -> None:
    assert merged(tmp_path, text, "--nodes", "1", *argv.split()).launch.sbatch == chosen


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("qos=a,constraint=b", "give --sbatch once for each name, for constraint, too"),
        ("partition=p", r"\[sbatch\] partition is a key or an option of its own"),
        ("q=a", r"\[sbatch\] .q. is no long name of an option"), ("nodes=2", "set by the toolkit: use --nodes"),
        ("qos=", r"\[sbatch\] qos = '': give a text of one line"),
        ("qos", "--sbatch 'qos' is not of the form NAME=VALUE"),
    ],
)  # fmt: skip
def test_what_sbatch_would_take_for_another_option_is_refused(given: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_arguments(["--nodes", "1", "--sbatch", given])


@pytest.mark.parametrize(("text", "limits"), [("20", (20, 1)), ("20/2", (20, 2)), ("0", (0, 1))])
def test_epochs_say_how_often_they_are_evaluated(text: str, limits: tuple[int, int]) -> None:
    (sweep,) = read_arguments(["--nodes", "1", "--epochs", text]).sweeps
    assert (sweep.epochs, sweep.eval_every) == limits
