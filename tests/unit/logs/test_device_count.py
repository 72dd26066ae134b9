"""The number of devices by the log: from ranks that print, batch sizes, launchers, MLPerf's platform."""

from __future__ import annotations

import pytest

from parse.logs.formats import format_named
from parse.logs.path_facts import NOWHERE, PathFacts, place_of, size_of
from parse.logs.window import Protocol, read_log
from tests.unit.logs.text_logs import facts, read


def sizes(header, place=NOWHERE, otherwise=NOWHERE):
    remarks = []
    size = size_of(header, place, otherwise, remarks)
    return size, " ".join(remarks)


BATCHES = {"global_batch_size": "3264", "batch_size": "204"}


def test_the_global_batch_divided_by_that_of_a_device():
    size, remarks = sizes(BATCHES)
    assert (size.devices, size.nodes, size.batch_size, size.per_step) == (16, None, 204, 3264)
    assert "3264 samples a step, 204 on each device: 16 devices, if no gradients are accumulated" in remarks
    size, remarks = sizes({**BATCHES, "nodes": "2"})
    assert (size.devices, size.nodes) == (16, 2)
    size, remarks = sizes({**BATCHES, "accumulation": "2"})
    assert (size.devices, size.per_step, remarks) == (8, 1632, "")


@pytest.mark.parametrize(
    "header",
    [
        {**BATCHES, "batch_size": "205"},
        {**BATCHES, "nodes": "3"},
        {**BATCHES, "gpus_per_node": "5"},
        {"global_batch_size": "3264"},
        {"batch_size": "204"},
    ],
)
def test_a_quotient_that_does_not_fit_is_not_taken(header):
    assert sizes(header)[0].devices is None


def test_names_and_the_world_size_stand_before_the_quotient():
    assert sizes({**BATCHES, "world_size": "8"})[0].devices == 8
    size, remarks = sizes(BATCHES, PathFacts(devices=8))
    assert size.devices == 8 and "which is 1632" in remarks
    assert sizes(BATCHES, otherwise=PathFacts(devices=16, nodes=2, gpus_per_node=8))[0].nodes == 2


def test_ranks_that_print():
    header = {"batch_size": "204", "processes": "16", "gpus_per_process": "1"}
    size, remarks = sizes({**header, "global_batch_size": "3264"})
    assert (size.devices, size.per_step, remarks) == (16, 3264, "")
    assert sizes({**header, "processes": "2", "gpus_per_process": "4"})[0].devices == 8
    assert sizes({**header, "processes": "1"})[0].devices is None
    assert sizes({"processes": "16", "batch_size": "204"})[0].devices is None
    size, remarks = sizes({**header, "global_batch_size": "6528"})
    assert size.devices == 32 and "makes 16 devices, but its batch sizes make 32" in remarks


# mlcommons/training_results_v1.0, Supermicro/results/AS-4124GO-NART_mxnet/resnet/result_1.txt
NODE = (
    "2021-05-18 23:30:39,954 Node[{rank}] start with arguments Namespace(accuracy_threshold=0.759, batch_size=408, "
    "gpus='{gpus}', kv_store='{store}', network='resnet-v1b-stats-fl', num_layers=50)"
)
SPEED = "2021-05-18 23:30:{second:02},597 Node[0] Epoch[0] Batch [{step}]\tSpeed: 10956.73 samples/sec\taccuracy=nan"


def header_of(tmp_path, ranks, store="horovod"):
    path = tmp_path / "x.log"
    gpus = {rank: rank if store == "horovod" else "0,1,2,3,4,5,6,7" for rank in range(99)}
    lines = [NODE.format(rank=rank, store=store, gpus=gpus[rank]) for rank in ranks]
    lines += [SPEED.format(step=step, second=step // 10) for step in range(0, 160, 20)]
    path.write_text("\n".join(lines) + "\n")
    return read_log(path, format_named("ngc-mxnet"), Protocol()).facts


@pytest.mark.parametrize(
    ("ranks", "store", "devices"),
    [(range(8), "horovod", 8), (reversed(range(16)), "horovod", 16), ([0], "horovod", None), ([0, 2], "horovod", None),
     (range(2), "dist_device_sync", 16)],
)  # fmt: skip
def test_the_nodes_of_mxnet(tmp_path, ranks, store, devices):
    assert sizes(header_of(tmp_path, ranks, store))[0].devices == devices


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("devices: 0,1,2,3,4,5,6,7", "nnodes: 2"), {"gpus_per_node": "8", "nodes": "2"}),
        (("devices: 3", "nnodes: 1"), {"gpus_per_node": "1", "nodes": "1"}),
        (("devices: None", "nnodes: 1:4"), {}),
    ],
)
def test_paddles_launcher(tmp_path, lines, expected):
    # PaddlePaddle/Perf, ResNet50V1.5/logs/V100-LOG/PaddleClas_ResNet50_bs256_fp32_DP_N1C8_log
    _, records = read("paddle-resnet50", tmp_path, *(f"LAUNCH INFO 2023-07-28 07:49:49,627 {line}" for line in lines))
    assert facts(records) == expected


def test_the_cards_in_a_name(tmp_path):
    place = place_of(tmp_path / "PaddleClas_ResNet50_bs256_pure_fp16_DP_N1C8_log")
    assert (place.nodes, place.gpus_per_node, place.devices, place.batch_size) == (1, 8, 8, 256)
    assert place_of(tmp_path / "PaddleNLP_gpt_N4C32_log").devices == 128
