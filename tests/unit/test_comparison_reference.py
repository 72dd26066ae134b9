"""parse.compare --reference: files of expected speeds, those of the project, recipes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc.model.reference import (
    FOLDER,
    ReferenceFileError,
    known_recipes,
    known_references,
    read_reference,
    read_share,
)
from parse.comparison.pairs import compare_with_reference
from parse.comparison.types import ComparisonError, ComparisonVerdict, Reason
from tests.unit.comparisons import FIVE, ONE, TWO, measured, only, times
from tests.unit.traces import make_run, requested_run


def toml(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


POINT = """
title = "machine"
tolerance = "5%"
[[point]]
speed = 100
source = "measured here"
settings = { case = "1n1g", backend = "mpi" }
"""


@pytest.mark.parametrize(
    ("factor", "verdict", "status"),
    [
        (1.0, ComparisonVerdict.SAME, 0),
        (0.97, ComparisonVerdict.SAME, 0),
        (0.9, ComparisonVerdict.SLOWER, 1),
        (1.2, ComparisonVerdict.FASTER, 0),
        (0.95, ComparisonVerdict.CANNOT_TELL, 2),
    ],
)
def test_a_reference_is_the_acceptance_test_of_a_machine(tmp_path, factor, verdict, status):
    path = toml(tmp_path / "r.toml", POINT)
    comparison = compare_with_reference(str(path), measured((ONE, times(factor)), (TWO, FIVE)), "new", 0.03)
    assert (only(comparison).verdict, comparison.status) == (verdict, status)
    assert only(comparison).threshold == 0.05 and only(comparison).source == "measured here"
    assert comparison.only_new == ("1n2g",)


def test_a_point_of_a_reference_that_was_not_measured_or_is_several(tmp_path):
    path = toml(tmp_path / "r.toml", POINT)
    nothing = compare_with_reference(str(path), measured((TWO, FIVE)), "new", 0.03)
    assert (only(nothing).reason, nothing.status) == (Reason.NOT_MEASURED, 2)
    several = measured((ONE, FIVE), (make_run(batch_size=8), FIVE))
    assert only(compare_with_reference(str(path), several, "new", 0.03)).reason is Reason.SEVERAL


@pytest.mark.parametrize(
    ("name", "text"),
    [("references.txt", POINT), ("recipes.txt", known_references()["ngc-pytorch-resnet50"].read_text())],
)
def test_what_is_wrong_with_a_reference_is_named(tmp_path: Path, cases, name: str, text: str) -> None:
    """A part of its text (first line) is replaced."""
    path = tmp_path / "r.toml"

    def outcomes(lines: list[str]) -> Iterator[str]:
        old, new = (*lines, "")[:2]
        assert old in text
        with pytest.raises(ReferenceFileError) as refused:
            read_reference(toml(path, text.replace(old, new.replace("\\n", "\n"))), 0.03)
        yield str(refused.value).replace(str(path), path.name)

    cases(name, outcomes)


def test_a_reference_with_a_point_twice_or_that_is_no_text(tmp_path):
    twice = toml(tmp_path / "r.toml", POINT + POINT.split('tolerance = "5%"')[1])
    with pytest.raises(ReferenceFileError, match="points 1 and 2 have the same settings"):
        read_reference(twice, 0.03)
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ReferenceFileError, match=r"b\.toml"):
        read_reference(tmp_path / "b.toml", 0.03)
    with pytest.raises(ComparisonError, match="Did you mean nvidia-dgxc"):
        compare_with_reference("nvidia-dgx", (), "new", 0.03)


@pytest.mark.parametrize(("text", "share"), [("3%", 0.03), ("0.03", 0.03), (" 2.5% ", 0.025)])
def test_a_share(text, share):
    assert read_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "0", "3", "100%", "nan", "-1%", "inf", "1e400"])
def test_no_share(text):
    with pytest.raises(ValueError, match=r"neither|between"):
        read_share(text)


@pytest.mark.parametrize("name", sorted(set(known_references()) - set(known_recipes())))
def test_references_of_the_project_have_a_line_as_source_of_every_point(name):
    reference = read_reference(FOLDER / f"{name}.toml", 0.03)
    assert len(reference.points) == {"llm-foundry": 44, "nvidia-dgxc": 64, "torchtitan": 6}[name]
    assert all(re.search(r"@\w.*, line \d+: ", point.source) for point in reference.points)
    assert all(point.tolerance == 0.05 and "devices" in point.settings for point in reference.points)


def test_of_references_of_the_project_only_what_was_measured_is_judged():
    run = requested_run(make_run()).run
    sizes = {"devices": 8, "nodes": 1, "gpus_per_node": 8, "ranks_per_node": None, "batch_size": 6}
    fields = dataclasses.replace(run, backend="composer", **sizes)
    (result,) = measured((ONE, times(0.4)))
    requested = dataclasses.replace(result.requested, run=fields, extra={"name": "mpt-7b"})
    result = dataclasses.replace(result, requested=requested)
    comparison = compare_with_reference("llm-foundry", [result], "new", 0.03)
    assert only(comparison).base.median == pytest.approx(85144 / 2048, abs=1e-3)
    assert "line 118" in only(comparison).source and len(comparison.only_base) == 43


def test_recipes_are_references_as_they_are(tmp_path):
    run = make_run(
        backend="torch-ddp", workload="resnet50", batch_size=128, gpus_per_node=1, warmup_steps=20, measured_steps=100,
        timing="step", options={"recipe": "ngc", "image_size": "224"},
    )  # fmt: skip
    same = compare_with_reference("ngc-pytorch-resnet50", measured((run, times(3.6614))), "new", 0.03)
    assert (
        only(same).base.median == 366.14
        and only(same).verdict is ComparisonVerdict.SAME
        and "line 166, 191" in only(same).source
    )
    assert len(same.only_base) == 2 and same.status == 0
    other = dataclasses.replace(run, batch_size=64)
    apart = compare_with_reference("ngc-pytorch-resnet50", measured((other, times(3.6614))), "new", 0.03)
    assert only(apart).reason is Reason.OTHER_SETTINGS and "batch_size 64, not 128" in only(apart).detail
    copy = toml(tmp_path / "own.toml", known_references()["ngc-pytorch-resnet50"].read_text())
    assert compare_with_reference(str(copy), measured((run, times(3.6614))), "new", 0.03) == same
