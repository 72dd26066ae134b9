"""hpc.model.trace: read and written; absent stays absent, and what is not known is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from hpc.model.trace import RankReport
from tests.unit.traces import make_ranks, make_run

GPU = {"kind": "gpu", "name": "H200", "uuid": "GPU-1", "memory_bytes": 5}


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"rank": 3},
        {"rank": 0, "hostname": "n1", "nvidia_driver": None, "kernel": "6.1", "stamp_bound_ns": 0, "device": GPU},
        {"hostname": 7, "node_rank": "first", "affinity": "0-3", "backend": ["mpi"], "of a later version": {"a": [1]}},
        *make_ranks(make_run(nodes=2, gpus_per_node=1)),
    ],
)
def test_a_table_is_written_as_it_was_read(table: dict[str, Any]) -> None:
    stored = json.loads(json.dumps(table))
    assert RankReport.from_json(stored).as_json() == stored


def test_values_of_another_type_are_absent() -> None:
    report = RankReport.from_json({"hostname": 7, "affinity": "0-3", "stamp_bound_ns": "wide", "device": None})
    assert (report.hostname, report.affinity, report.stamp_bound_ns, report.device) == (None, None, None, None)


def test_shared_tables_are_merged_with_the_ranks_own() -> None:
    shared = {"software": {"torch": "2.9"}, "backend": {"fused": True}, "job": {"id": "7"}, "preflight": "damaged"}
    report = RankReport.from_json({"rank": 1, "software": {"nccl": "2.27"}}, shared)
    assert report.software == {"torch": "2.9", "nccl": "2.27"}
    assert report.backend_fact("fused") is True
    assert report.preflight is None
    assert RankReport.from_json({"rank": 1}).software is None


@pytest.mark.parametrize(
    ("table", "uuids"),
    [
        ({}, ()),
        ({"device": {"kind": "cpu"}}, ()),
        ({"device": GPU}, ("GPU-1",)),
        ({"device": {"kind": "gpu"}}, (None,)),
        (
            {"device": {"kind": "cpu"}, "backend": {"devices": [GPU, {"kind": "gpu", "uuid": "GPU-2"}, 3]}},
            ("GPU-1", "GPU-2"),
        ),
    ],
)
def test_gpus_are_those_of_the_backend_or_the_device(table: dict[str, Any], uuids: tuple[Any, ...]) -> None:
    assert RankReport.from_json(table).gpu_uuids == uuids


def test_a_rank_loads_no_numpy_before_its_threads_are_set() -> None:
    code = "import sys, hpc.rank; sys.exit(' '.join({'numpy', 'torch', 'h5py'} & sys.modules.keys()) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
