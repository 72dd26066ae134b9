"""parse.logs.path_facts: what paths say, and what they are not made to say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse.logs.path_facts import PathFacts, case_of, model_name, place_of


def test_what_paths_say(cases) -> None:
    def outcomes(lines: list[str]) -> Iterator[str]:
        place = place_of(Path("/root", *lines))
        yield json.dumps({name: value for name, value in vars(place).items() if value and name != "remarks"})
        yield from place.remarks

    cases("paths.txt", outcomes)


def test_paths_mean_the_same_from_everywhere(tmp_path, monkeypatch):
    whole = place_of(tmp_path / "bz64" / "1n8g" / "run2" / "train.log")
    (tmp_path / "bz64" / "1n8g").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "bz64" / "1n8g")
    assert place_of(Path("run2/train.log")) == place_of(Path("../1n8g/./run2/train.log")) == whole
    assert (whole.devices, whole.batch_size, whole.repeat) == (8, 64, 2)


@pytest.mark.parametrize(
    ("token", "name"),
    [
        ("r50", "resnet50"), ("rn50", "resnet50"), ("RN50", "resnet50"), ("ResNet50", "resnet50"),
        ("FresResNet50", "resnet50"), ("resnet50_v1.5", "resnet50"), ("resnet-50", "resnet50"), ("r100", "resnet100"),
        ("iresnet100", "resnet100"), ("r51", "r51"), ("BERT", "bert"), ("", ""), ("resnet50-extra", "resnet50-extra"),
    ],
)  # fmt: skip
def test_models_by_one_name(token, name):
    assert model_name(token) == name


def test_cases_that_somebody_writes():
    assert case_of("16n8g") == PathFacts(nodes=16, gpus_per_node=8, devices=128)
    assert [case_of(token) for token in ("8g", "n8", "0n8g", "1n8gg", "")] == [None] * 5


@given(st.lists(st.text(alphabet="rnbgz_-.x0123456789afmp/GPU", max_size=30), min_size=1, max_size=4))
def test_any_name_is_read(parts):
    place = place_of(Path("/", *parts))
    assert all(number is None or number > 0 for number in (place.nodes, place.devices, place.batch_size, place.repeat))
    if place.nodes and place.gpus_per_node:
        assert place.devices == place.nodes * place.gpus_per_node
