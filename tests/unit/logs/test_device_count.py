"""The number of devices by the log: from ranks that print, batch sizes, launchers, MLPerf's platform."""

from __future__ import annotations

from pathlib import Path

import pytest

from parse.logs.path_facts import NOWHERE, PathFacts, size_of, with_submission


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


# MLPerf submissions, by the file of their system

SUBMISSION = {"platform": "THING"}


def log_of(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "n4_thing.json").write_bytes(content)
    return tmp_path / "results" / "n4_thing" / "bert" / "result_0.txt"


def test_the_file_of_its_system_counts(tmp_path: Path) -> None:
    log = log_of(tmp_path, b'{"number_of_nodes": "4", "accelerators_per_node": 8}')
    place = with_submission(PathFacts(), log, SUBMISSION)
    assert (place.nodes, place.gpus_per_node, place.devices) == (4, 8, 32)
    assert place.remarks == ("4 nodes, 8 GPUs per node, 32 devices: by the submission's systems/n4_thing.json",)
    assert with_submission(PathFacts(), log, {"model": "bert"}) == PathFacts()


@pytest.mark.parametrize(
    ("content", "remark"),
    [
        (b"{", " cannot be read, and its sizes are not used: "),
        (b"\xff", " cannot be read, and its sizes are not used: "),
        (b"[]", " holds no object: its sizes are not used"),
        (b"{}", " has number_of_nodes None and accelerators_per_node None, no counts: its sizes are not used"),
        (
            b'{"number_of_nodes": "many", "accelerators_per_node": 8}',
            " has number_of_nodes 'many' and accelerators_per",
        ),
        (b'{"number_of_nodes": 4, "accelerators_per_node": 0}', " has number_of_nodes 4 and accelerators_per_node 0, "),
    ],
)
def test_an_odd_file_of_the_system_is_mentioned(tmp_path: Path, content: bytes, remark: str) -> None:
    place = with_submission(PathFacts(), log_of(tmp_path, content), SUBMISSION)
    assert place.devices is None
    assert place.remarks[0].startswith(f"the submission's systems/n4_thing.json{remark}")


def test_without_a_file_of_the_system_nothing_is_mentioned(tmp_path: Path) -> None:
    assert with_submission(PathFacts(), tmp_path / "results" / "a" / "bert" / "x.txt", SUBMISSION) == PathFacts()
