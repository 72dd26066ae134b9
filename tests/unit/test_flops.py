"""The FLOPs of a ResNet-50, and its MFU from a trace to a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc.workloads import resnet50
from parse.report.notices import warnings
from parse.report.reading import read_summary
from parse.runs.attempt import measure
from tests.unit.traces import make_ranks, make_run, make_trace, put


def test_the_flops_of_an_image() -> None:
    """4.089 G multiply-adds forward, as torchvision's page has them; 64 × 64 as torch's FlopCounterMode counts it."""
    of_first = 2 * 3 * 64 * 7**2 * 112**2
    assert resnet50.flops_per_sample(224) == 3 * 8_178_368_512 - of_first
    assert resnet50.flops_per_sample(64) == 1_994_883_072


@pytest.mark.parametrize(("precision", "peak"), [("bf16", 989.5), ("fp32", 67)])
def test_an_mfu_of_samples(tmp_path: Path, precision: str, peak: float) -> None:
    run = make_run(backend="torch-ddp", workload="resnet50", gpus_per_node=1, precision=precision)
    backend = {"transport": "nccl", "flops_per_sample": 2 * 10**10, "flops_by": "its layers"}
    ranks = make_ranks(run, device={"kind": "gpu", "name": "NVIDIA H100 80GB HBM3"}, backend=backend)
    trace = make_trace(run, speed=1000, ranks=ranks)
    assert measure(trace).utilisation.share == pytest.approx(20 / peak)
    put(tmp_path, trace)
    (line,) = [line for line in warnings(read_summary([tmp_path])[0]) if "MFU" in line]
    assert f"of {peak:g} TFLOPS a device in {precision}: NVIDIA H100" in line and line.endswith(
        "20 GFLOP a sample: its layers"
    )
