"""parse.logs.path_facts: what paths say, and what they are not made to say."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse.logs.path_facts import PathFacts, case_of, model_name, place_of

R50 = {"batch_size": 128, "precision": "fp32", "model": "resnet50"}


def facts_of(path: str) -> dict[str, object]:
    """What the path says, less what it leaves empty."""
    place = place_of(Path("/root") / path)
    return {name: value for name, value in vars(place).items() if value and name != "folder"}


def sized(nodes: int, each: int) -> dict[str, object]:
    return {"nodes": nodes, "gpus_per_node": each, "devices": nodes * each}


@pytest.mark.parametrize(
    ("path", "facts"),
    [
        ("logs/paddle/resnet50/bz128/1n8g/r50_b128_fp32_1.log", {**sized(1, 8), **R50, "repeat": 1}),
        ("bz128/1n8g/r50_b128_fp32_12.log.gz", {**sized(1, 8), **R50, "repeat": 12}),
        ("pytorch/16n8g/r50_b128_fp32_3.log", {**sized(16, 8), **R50, "repeat": 3}),
        ("pytorch/128n16g/rn50_b128_fp32_3.log", {**sized(128, 16), **R50, "repeat": 3}),
        (
            "amp_ngc/pytorch/4n8g/r50_b256_amp_2.log",
            {**sized(4, 8), "batch_size": 256, "precision": "amp-fp16", "model": "resnet50", "repeat": 2},
        ),
        (
            "fp16_ngc_bert_b96/pytorch/2n8g/bert-base-adam-training_b96_fp16_5.log",
            {
                **sized(2, 8), "batch_size": 96, "precision": "amp-fp16", "model": "bert-base-adam-training",
                "repeat": 5,
            },
        ),
        ("fp32_b128/mxnet/resnet50/bz128/1n1g/rn50_b128_fp32_1.log", {**sized(1, 1), **R50, "repeat": 1}),
        (
            "85742_fp32_b64_oneflow_model_parallel_1_partial_fc_0/2n8g/r100_b64_fp32_1.log",
            {
                **sized(2, 8), "batch_size": 64, "precision": "fp32", "model": "resnet100", "repeat": 1,
                "options": {"classes": "85742", "model_parallel": "1", "partial_fc": "0"},
            },
        ),
        (
            "r100_fp32_b115_oneflow_model_parallel_True_partial_fc_False_0.1/r100/1n8g/r100_b115_fp32_4.log",
            {
                **sized(1, 8), "batch_size": 115, "precision": "fp32", "model": "resnet100", "repeat": 4,
                "options": {"model_parallel": "1", "partial_fc": "0", "sample_ratio": "0.1"},
            },
        ),
        (
            "cnns/resnet50_1node_bz128/1n8c_real.log",
            {**sized(1, 8), "batch_size": 128, "model": "resnet50", "name": "real"},
        ),
        (
            "ngc-pytorch-resnet50_airank_4n8g_b256_amp_time2train.log",
            {
                **sized(4, 8), "batch_size": 256, "precision": "amp-fp16", "model": "resnet50",
                "name": "ngc-pytorch_airank_time2train",
            },
        ),
        ("GPUx8_time2train_ips.log", {"devices": 8, "name": "time2train_ips"}),
        ("GPUx32_AMP.log", {"devices": 32, "precision": "amp-fp16"}),
        ("transformer_gpu8_fp32.log", {"devices": 8, "precision": "fp32", "model": "transformer"}),
        ("tensorflow2-resnet50_google_v100x8.log", {"devices": 8, "model": "resnet50", "name": "tensorflow2_google"}),
        ("1n8g/r50_b128_fp32_dali_2.log", {**sized(1, 8), **R50, "repeat": 2, "options": {"dali": "on"}}),
        ("resnet50-fp16-dali/1n8g/r50_b128_fp16_1.log",
         {**sized(1, 8), **R50, "precision": "amp-fp16", "repeat": 1, "options": {"dali": "on"}}),
        ("2n8g/run3/train.log", {**sized(2, 8), "repeat": 3}),
        ("2n8g/train_4.log", {**sized(2, 8), "repeat": 4}),
        ("2n8g/train.log", sized(2, 8)),
        ("500iters-n1g8.log", {**sized(1, 8), "name": "500iters"}),
    ],
)  # fmt: skip
def test_layouts(path, facts):
    assert facts_of(path) == facts


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("1n8g/r50_b128_fp32_7_9.log", (7, 9)),
        ("1n8g/r50_b128_fp32_4_6.log", (4, 6)),
        ("1n8g/r50_b128_fp32_10_12.log.gz", (10, 12)),
        ("1n8g/r50_b128_fp32_7_8_9.log", (7, 8, 9)),
        ("1n8g_b128_fp32_7_9.log", (7, 9)),
        ("1n8g/r50_b128_fp32_7.log", ()),
    ],
)
def test_packed_jobs(name, packed):
    place = place_of(Path("/") / name)
    assert place.packed == packed
    assert (place.repeat is None) == bool(packed)


@pytest.mark.parametrize(
    "path",
    [
        "gpu3.log", "rank0.log", "mlperf_dgx1_v2.log", "x8n.log", "8g.log", "n8g/train.log", "1n8gpu8n/train.log",
        "1n8g8/a.log", "test_b128_fp32_a0/out.log", "j5_amp_ngc/out.log", "/fp32x/out.log", "2020_09_15.log",
        "a_7_9.log", "1n0g/a.log", "0n8g/a.log", "GPUx0.log",
    ],
)  # fmt: skip
def test_unknown_words_state_nothing(path):
    facts = facts_of(path)
    assert not set(facts) - {"name", "model", "remarks", "batch_size"}, facts
    assert "batch_size" not in facts


@pytest.mark.parametrize(
    ("path", "remark", "expected"),
    [
        ("imagenet_excerpt_2n8g_4n8g.log", "its name has 2n8g and 4n8g: neither is taken", {}),
        ("1n8g/r50_b128_b256_1.log", "b128 and b256", {**sized(1, 8), "model": "resnet50", "repeat": 1}),
        ("2n8g/r50_1n8g_b128_fp32_1.log", "its name says 1n8g, its folder 2n8g", {**sized(1, 8), **R50, "repeat": 1}),
        ("bz64/1n8g/r50_b128_fp32_1.log", "batch size 128, its folder 64", {**sized(1, 8), **R50, "repeat": 1}),
        ("amp/1n8g/r50_b128_fp32_1.log", "precision fp32, its folder amp-fp16", {**sized(1, 8), **R50, "repeat": 1}),
        ("bz64/1n8g/bz128/a.log", "contradicts one nearer", {**sized(1, 8), "batch_size": 128}),
        ("2nodes_8gpus.log", "in all or of each", {}),
        ("1n8g/r50_b128_fp32_x1.log", "x1 is neither a run's number", {**sized(1, 8), **R50, "name": "x1"}),
        ("1n8g/r50_b128_fp32_20210923.log", "20210923 is neither", {**sized(1, 8), **R50, "name": "20210923"}),
    ],
)
def test_contradictions_in_names_are_remarked(path, remark, expected):
    facts = facts_of(path)
    assert len(facts["remarks"]) == 1 and remark in facts.pop("remarks")[0]
    assert facts == expected


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/data/logs/ngc/pytorch/resnet50/bz128/1n8g/r50_b128_fp32_1.log", ("data", "logs", "ngc", "pytorch")),
        ("/data/amp_ngc/pytorch/1n8g/r50_b256_amp_1.log", ("data", "ngc", "pytorch")),
        ("/data/j5_amp_ngc/pytorch/1n8g/r50_b256_amp_1.log", ("data", "j5_amp_ngc", "pytorch")),
        ("/data/1n8g/dali-tests/a.log", ("data", "dali-tests")),
        ("/data/bz128/1n8g/r50_b64_fp32_1.log", ("data",)),
        ("/cnns/resnet50_1node_bz128/1n8c_real.log", ("cnns",)),
        ("/a/resnet101/1n8g/r50_b64_fp32_1.log", ("a",)),
    ],
)
def test_folders_tell_campaigns_apart(path, folder):
    assert place_of(Path(path)).folder == folder


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
