"""Sizes in the names of MLPerf's submissions."""

from __future__ import annotations

from pathlib import Path

import pytest

from parse.logs.formats.mllog import _facts
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
        ("8_node_64_A100_PaddlePaddle", 8, None, 64),
        ("ipu-pod64-POPART-closed", None, None, 64),
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


@pytest.mark.parametrize(
    ("folder", "platform", "devices"),
    [("dgxa100_n8_ngc21.05_mxnet", "8xNVIDIA DGX A100", 64), ("dgxa100_ngc21.05_mxnet", "1xNVIDIA DGX A100", 8),
     ("2xa30_ngc22.04_mxnet", "1xNVIDIA DGX A100", None), ("HLS-1H-N2", "gaudi-8", 8), ("HLS-1H-N4", "gaudi-8", None),
     ("HLS-Gaudi2-N8-PT", "gaudi-8", None), ("DSS8440x8A100-PCIE-80GB", "1xDSS8440x10A100-PCIE-80GB", None),
     ("64xBM.GPU.H100.8", "8xSUBMISSION_PLATFORM_PLACEHOLDER", None), ("ND_H100_v5_n64", "ND_H100_v5", 512)],
)  # fmt: skip
def test_folders_and_platforms_together(folder: str, platform: str, devices: int | None) -> None:
    facts = {"platform": platform} | ({"nodes": platform.split("x", maxsplit=1)[0]} if platform[0].isdigit() else {})
    place = with_submission(PathFacts(), Path(f"/logs/results/{folder}/bert/result_0.txt"), facts)
    assert place.devices == devices


def test_the_file_of_its_system_counts(tmp_path: Path) -> None:
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "n4_thing.json").write_text('{"number_of_nodes": "4", "accelerators_per_node": 8}')
    place = with_submission(PathFacts(), tmp_path / "results/n4_thing/bert/result_0.txt", {"platform": "THING"})
    assert (place.nodes, place.devices) == (4, 32)
    assert place.remarks == ("4 nodes, 8 GPUs per node, 32 devices: by the submission's systems/n4_thing.json",)


@pytest.mark.parametrize(("platform", "nodes"), [("2xA5000", None), ("1xMI300X", "1"), ("4xNVIDIA DGX-2H", "4")])
def test_nodes_of_a_platform(platform: str, nodes: str | None) -> None:
    assert _facts({"key": "submission_platform", "value": platform}).get("nodes") == nodes


@pytest.mark.parametrize("content", [b"{", b"\xff", None])
def test_a_file_of_the_system_that_cannot_be_read_is_mentioned(tmp_path: Path, content: bytes | None) -> None:
    log = tmp_path / "results" / "2xXE9680x8H200" / "bert" / "result_0.txt"
    file = tmp_path / "systems" / "2xXE9680x8H200.json"
    file.parent.mkdir()
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    place = with_submission(PathFacts(), log, {"platform": "THING"})
    assert place.devices == 16
    assert place.remarks[0].startswith("the submission's systems/2xXE9680x8H200.json cannot be read, and its sizes")
