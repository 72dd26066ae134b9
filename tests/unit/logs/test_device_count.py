"""The number of devices by the log: from ranks that print, batch sizes, launchers, MLPerf's platform."""

from __future__ import annotations

from parse.logs.path_facts import NOWHERE, PathFacts, size_of


def sizes(header, place=NOWHERE, otherwise=NOWHERE):
    remarks = []
    size = size_of(header, place, otherwise, remarks)
    return size, " ".join(remarks)


BATCHES = {"global_batch_size": "3264", "batch_size": "204"}


def test_names_and_the_world_size_stand_before_the_quotient():
    assert sizes({**BATCHES, "world_size": "8"})[0].devices == 8
    size, remarks = sizes(BATCHES, PathFacts(devices=8))
    assert size.devices == 8 and "which is 1632" in remarks
    assert sizes(BATCHES, otherwise=PathFacts(devices=16, nodes=2, gpus_per_node=8))[0].nodes == 2
