"""ResNet-50 is the model that everybody means, trained by the recipes of the reference systems."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "ranks"
pytestmark = pytest.mark.all

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / "resnet50_facts.py")], cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def test_resnet50_has_the_parameters_of_v1_5(result: dict[str, Any]) -> None:
    assert result["parameters"] == 25_557_032
    assert result["all_taken"]


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_resnet50_computes_what_transformers_computes_from_the_same_weights(result: dict[str, Any], mode: str) -> None:
    assert result["distance"][mode] <= 1e-5


def test_the_stride_is_in_the_3x3(result: dict[str, Any]) -> None:
    assert result["strides"] == {
        "conv1": [7, 2],
        **{f"layer{stage}.0.conv2": [3, 2] for stage in (2, 3, 4)},
        **{f"layer{stage}.0.downsample.0": [1, 2] for stage in (2, 3, 4)},
    }


def test_recipe_000_is_that_of_ngc(result: dict[str, Any]) -> None:
    ngc = result["ngc"]
    assert ngc["lr"] == pytest.approx([0.256 * 128 / 256 / 8])
    assert ngc["momentum"] == [0.875]
    # 53 convolutions, the classifier's weight and bias decay; 53 batch norms do not.
    assert ngc["decays"] == {str(1 / 32768): 55, "0.0": 106}
    assert ngc["spread"] == pytest.approx(1, rel=0.03)
    # Smoothing 0.1: softmax of equal logits, less 0.9 + 0.1 / 1000.
    assert ngc["gradient_of_the_label"] == pytest.approx(0.001 - 0.9001)


def test_recipe_001_is_that_of_pytorch_examples(result: dict[str, Any]) -> None:
    examples = result["pytorch-examples"]
    assert examples["lr"] == pytest.approx([0.128])
    assert examples["momentum"] == [0.9]
    assert examples["decays"] == {"0.0001": 161}
    assert examples["spread"] == pytest.approx(1, rel=0.03)
    assert examples["gradient_of_the_label"] == pytest.approx(0.001 - 1)


@pytest.mark.parametrize("recipe", ["ngc", "pytorch-examples"])
def test_the_batch_is_synthetic_and_of_the_requested_size(result: dict[str, Any], recipe: str) -> None:
    facts = result[recipe]
    assert facts["images"] == [64, 3, 32, 32]
    assert facts["channels_last"]
    assert facts["labels"] == [64, True, True]
    assert facts["samples"] == 64
