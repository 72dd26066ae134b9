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


def test_resnet50_computes_what_transformers_computes_from_the_same_weights(result: dict[str, Any]) -> None:
    assert result["parameters"] == 25_557_032
    assert result["all_taken"]
    assert max(result["distance"][mode] for mode in ("eval", "train")) <= 1e-5
    # v1.5: the stride of a bottleneck is in its 3×3.
    assert result["strides"] == {
        "conv1": [7, 2],
        **{f"layer{stage}.0.conv2": [3, 2] for stage in (2, 3, 4)},
        **{f"layer{stage}.0.downsample.0": [1, 2] for stage in (2, 3, 4)},
    }


@pytest.mark.parametrize(
    ("recipe", "rate", "momentum", "decays", "gradient"),
    [
        # Reference 000. 53 convolutions, the classifier's weight and bias decay; 53 batch norms do not. Smoothing 0.1:
        # softmax of equal logits, less 0.9 + 0.1 / 1000.
        ("ngc", 0.256 * 128 / 256 / 8, 0.875, {str(1 / 32768): 55, "0.0": 106}, 0.001 - 0.9001),
        ("pytorch-examples", 0.128, 0.9, {"0.0001": 161}, 0.001 - 1),  # reference 001
    ],
)
def test_resnet50_is_trained_by_the_recipe_of_its_reference(
    result: dict[str, Any], recipe: str, rate: float, momentum: float, decays: dict[str, int], gradient: float
) -> None:
    facts = result[recipe]
    assert facts["lr"] == pytest.approx([rate])
    assert (facts["momentum"], facts["decays"]) == ([momentum], decays)
    assert facts["spread"] == pytest.approx(1, rel=0.03)
    assert facts["gradient_of_the_label"] == pytest.approx(gradient)
    assert (facts["images"], facts["channels_last"]) == ([64, 3, 32, 32], True)
    assert (facts["labels"], facts["samples"]) == ([64, True, True], 64)
