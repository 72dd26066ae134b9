"""The FLOPs of a sample, and its MFU from a trace to a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc.model.trace import Trace
from hpc.workloads import table_flops
from parse.report.notices import warnings
from parse.report.summary import read_summary
from parse.runs.attempt import measure
from tests.unit.traces import make_ranks, make_run, make_trace, put

COUNTED = {"flops_per_sample": 2 * 10**10, "flops_by": "its layers"}


def test_the_flops_of_an_image() -> None:
    """4.089 G multiply-adds forward, as torchvision's page has them."""
    of_first = 2 * 3 * 64 * 7**2 * 112**2
    assert table_flops(make_run(workload="resnet50")) == 3 * 8_178_368_512 - of_first


@pytest.mark.parametrize("options", [{}, {"sample_ratio": "0.5"}])
def test_a_sharded_head_has_the_flops_of_one_over_all_classes(options: dict[str, str]) -> None:
    size = {"classes": "101", "image_size": "32", **options}
    four = make_run(workload="arcface", ranks_per_node=4, batch_size=1, options={**size, "head": "sharded"})
    whole = make_run(workload="arcface", options={**size, "head": "replicated"})
    assert table_flops(four) is not None and (not options) == (table_flops(four) == table_flops(whole))
    assert (table_flops(replace(four, batch_size=40)) is None) == bool(options)


def gpu_trace(
    name: str = "NVIDIA H100 80GB HBM3", precision: str = "bf16", *, others: bool = True, backend: Any = COUNTED,
    **device: Any,
) -> Trace:  # fmt: skip
    """Two GPUs of that name at 1000 samples/s; `others`: all ranks have the backend's FLOPs, not the first alone."""
    run = make_run(
        backend="torch-ddp",
        workload="resnet50",
        ranks_per_node=2,
        gpus_per_node=2,
        precision=precision,
        batch_size=1000,
    )
    ranks = make_ranks(run, device={"kind": "gpu", "name": name, **device})
    for rank, report in enumerate(ranks):
        report["backend"] = {"transport": "nccl", **(backend if others or rank == 0 else {})}
    return make_trace(run, speed=1000, ranks=ranks)


@pytest.mark.parametrize(("precision", "peak"), [("bf16", 989.5), ("fp32", 67)])
@pytest.mark.parametrize("others", [True, False])
def test_an_mfu_of_samples(tmp_path: Path, precision: str, peak: float, others: bool) -> None:
    trace = gpu_trace(precision=precision, others=others)
    assert measure(trace).utilisation.share == pytest.approx(10 / peak)
    put(tmp_path, trace)
    (line,) = [line for line in warnings(read_summary([tmp_path])[0]) if "MFU" in line]
    assert f"of {peak:g} TFLOPS a device in {precision}: NVIDIA H100" in line and line.endswith(
        "20 GFLOP a sample: its layers"
    )


def test_flops_that_could_not_be_counted_say_why(tmp_path: Path) -> None:
    put(tmp_path, gpu_trace(others=False, backend={"flops_by": "its FLOPs could not be counted"}))
    assert [line for line in warnings(read_summary([tmp_path])[0]) if "no MFU: its FLOPs could not be counted" in line]


@pytest.mark.parametrize(
    ("units", "peak", "words"),
    [
        (304, 1307.4, "without sparsity"),
        (38, 1307.4 / 8, "of 38 of a card's 304 compute units, as its partitions have"),
        (None, 1307.4, "taken for whole cards, as nothing recorded their 304 compute units"),
        (400, None, "its devices have 400 compute units, and a whole card has 304"),
    ],
)
def test_a_partition_of_a_card_has_its_part_of_the_peak(units: int | None, peak: float | None, words: str) -> None:
    its = measure(gpu_trace("AMD Instinct MI300X", compute_units=units)).utilisation
    assert its.peak_tflops == (peak and pytest.approx(peak)) and (its.source + its.reason).endswith(words)
