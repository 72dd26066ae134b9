"""hpc.system.command_line: errors of usage, as commands print them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from hpc.backends import TRAINERS
from hpc.model.spec import PRECISIONS
from hpc.system import removed
from hpc.system import text as texts
from hpc.system.command_line import SUBCOMMANDS
from hpc.system.command_parser import CommandParser
from hpc.system.text import nearest
from hpc.workloads import WORKLOADS
from launch.sweep.cli import sweep_parser
from launch.sweep.request import SUBCOMMANDS as OF_SWEEP
from tests.unit.commands import command

OPTIONS = sweep_parser().long_options()


def test_an_unknown_option_is_answered_with_the_nearest(tmp_path: Path) -> None:
    done = command("hpc.sweep", "--nodes", "1", "--batchsize=3", "--repaets", "5", "--zzzz", cwd=tmp_path)
    assert done.returncode == 2
    first, second, *_, last = done.stderr.splitlines()
    assert first == "did you mean --batch-size instead of --batchsize, --repeats instead of --repaets?"
    assert second.startswith("usage: ")
    assert last.endswith("error: unrecognized arguments: --batchsize=3 --repaets 5 --zzzz")


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        ("--gone=1", "--gone is no option any more: do this"), ("--form old", "--form old is gone: do that"),
        ("--form=old", "--form old is gone: do that"), ("--form new", ""), ("--form new -- --gone --form old", ""),
    ],
)  # fmt: skip
def test_an_option_or_choice_of_the_release_before_says_what_to_do_instead(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: str, answer: str
) -> None:
    monkeypatch.setitem(removed.OPTIONS, "summarize", {"--gone": "do this", "--form old": "do that"})
    parser = CommandParser("rankwise summarize")
    parser.add_argument("--form")
    parser.add_argument("paths", nargs="*")
    with pytest.raises(SystemExit) if answer else nullcontext():
        parser.parse_args(argv.split())
    assert capsys.readouterr().err.endswith(f"error: {answer}\n" if answer else "")


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("fp16", PRECISIONS, "amp-fp16"), ("half", PRECISIONS, "amp-fp16"), ("bfloat16", PRECISIONS, "bf16"),
        ("BF16", PRECISIONS, "bf16"), ("float32", PRECISIONS, "fp32"), ("int8", PRECISIONS, ""),
        ("pytorch", TRAINERS, "torch-ddp"), ("ddp", TRAINERS, "torch-ddp"), ("fsdp", TRAINERS, "torch-fsdp"),
        ("torch_fsdp", TRAINERS, "torch-fsdp"), ("torch-dpp", TRAINERS, "torch-dp"), ("jax", TRAINERS, ""),
        ("resnet", WORKLOADS, "resnet50"), ("bert", WORKLOADS, "gpt"), ("yolo", WORKLOADS, ""),
        ("--bs", OPTIONS, "--batch-size"), ("--batch", OPTIONS, "--batch-size"), ("--np", OPTIONS, "--ranks-per-node"),
        ("--nproc_per_node", OPTIONS, "--ranks-per-node"), ("--nnodes", OPTIONS, "--nodes"),
        ("--model", OPTIONS, "--workload"), ("--dtype", OPTIONS, "--precision"), ("--output-dir", OPTIONS, "--out"),
        ("--walltime", OPTIONS, "--time"), ("--queue", OPTIONS, "--partition"), ("--dryrun", OPTIONS, "--dry-run"),
        ("--iterations", OPTIONS, "--steps"), ("--steps-per", OPTIONS, "--steps"),
        ("--gpus", OPTIONS, "--gpus-per-node"), ("--node", OPTIONS, "--nodes"), ("--lr", OPTIONS, ""),
        ("--verbose", OPTIONS, ""), ("--layout", OPTIONS, ""), ("--x", OPTIONS, ""), ("run", SUBCOMMANDS, "sweep"),
        ("ls", SUBCOMMANDS, "list"), ("findmax", OF_SWEEP, "find-max"), ("stop", OF_SWEEP, "cancel"),
        ("plot", SUBCOMMANDS, "report"), ("sumarize", SUBCOMMANDS, "summarize"),
        ("world_siz", ("world_size",), "world_size"), ("", OPTIONS, ""),
    ],
)  # fmt: skip
def test_what_is_meant_is_a_synonym_a_part_or_nearly_the_same(name: str, known: Sequence[str], meant: str) -> None:
    assert nearest(name, known) == meant


def test_every_synonym_is_of_a_name_that_exists() -> None:
    known = {*PRECISIONS, *TRAINERS, *WORKLOADS, *OPTIONS, *SUBCOMMANDS, *OF_SWEEP}
    assert set(texts._SYNONYMS) <= known


def test_an_unknown_option_of_a_sub_command_too(tmp_path: Path) -> None:
    done = command("launch.devcluster", "start", "--gpsu", "2", "--root", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("did you mean --gpus instead of --gpsu?\n")


def test_other_errors_of_usage_are_those_of_argparse(capsys: pytest.CaptureFixture[str]) -> None:
    parser = CommandParser(prog="x")
    parser.add_argument("--format", choices=("a", "b"))
    with pytest.raises(SystemExit):
        parser.parse_args(["--format", "--c"])
    assert capsys.readouterr().err.endswith("error: argument --format: expected one argument\n")
