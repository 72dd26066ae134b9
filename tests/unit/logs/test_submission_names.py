"""Sizes in the names of MLPerf's submissions."""

from __future__ import annotations

from pathlib import Path

import pytest

from parse.logs.path_facts import PathFacts
from parse.logs.submission_names import sizes_in, with_submission


@pytest.mark.parametrize(
    ("name", "nodes", "each", "devices"),
    [
        ("carina_ngpu1536_ngc25.04_nemo", None, None, 1536),
        ("eos_n128_ngc24.09_nemo", 128, None, None),
        ("h100_n4_ngc24.1_pytorch_deepspeed", 4, None, None),
        ("8xH100", None, None, 8),
        ("8xMI325X_2xEPYC_9575F", None, None, 8),
        ("2xXE9680x8H200-SXM-141GB", 2, 8, 16),
        ("XE9680x8H100-SXM-80GB", None, 8, 8),
        ("18xBM.GPU.GB200.4", 18, 4, 72),
        ("1xBM.GPU.MI300X.8", 1, 8, 8),
        ("8xR750-2xA100-PCIe-80GB", 8, 2, 16),
        ("6x8xH100-SXM5-80GB", 6, 8, 48),
        ("2xC885A_M8-8xH200-SXM-141GB", 2, 8, 16),
        ("SR680aV3-8xH200_SXM_141GB_700W", None, 8, 8),
        ("nebius_soperator_8xH200_n128_ngc25.01_nemo", 128, 8, 1024),
        ("GX2560M7_H100_SXM_80GBx4", None, None, 4),
        ("ESC_N8_E11", None, None, None),  # a machine's name
        ("1xKinabalux18x4GB200", None, None, None),  # 18 nodes of 4
        ("2R5500G5-Intelx8A100-SXM-80GB", None, None, None),
        ("cloud-tpu-v5p-12288-maxtext", None, None, None),
        ("1_node_8_A100_PyTorch", None, None, None),
    ],
)
def test_names_of_folders(name: str, nodes: int | None, each: int | None, devices: int | None) -> None:
    sizes = {"nodes": nodes, "gpus_per_node": each, "devices": devices}
    assert sizes_in(name) == {key: value for key, value in sizes.items() if value}


def test_a_platform_counts_systems() -> None:
    assert sizes_in("8xH100", platform=True) == {}
    assert sizes_in("gaudi-384", platform=True) == {"devices": 384}
    assert sizes_in("4xXE9680x8H100-SXM-80GB", platform=True)["devices"] == 32


def test_only_logs_of_submissions_have_them_and_say_where_from() -> None:
    path = Path("/logs/results/2xXE9680x8H200-SXM-141GB/bert/result_0.txt")
    assert with_submission(PathFacts(), path, {"model": "bert"}) == PathFacts()
    facts = with_submission(PathFacts(), path, {"platform": "H200"})
    assert facts.devices == 16
    assert facts.remarks == ("2 nodes, 8 GPUs per node, 16 devices: by its folder 2xXE9680x8H200-SXM-141GB",)


def test_a_platform_that_does_not_fit_its_folder_is_none() -> None:
    path = Path("/logs/results/HLS-1H-N64/bert/result_0.txt")
    assert with_submission(PathFacts(), path, {"platform": "gaudi-8"}).devices is None
