"""Workload gpt under every strategy, on real ranks: the contract, sizes, and what the ledger reads from its steps."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc.backends import missing_modules
from hpc.model.timestamps import ABSENT, GRADS_READY, REDUCED
from hpc.workloads.gpt import SIZES
from tests.mpi.attempts import HERE, Attempt, Ranks, spec

ROOT = HERE.parents[2]
DDP, FSDP = ({"backend": f"torch-{name}"} for name in ("ddp", "fsdp"))
HYBRID = {**FSDP, "options": {"shard_group": "2"}}
ACROSS_NODES = {**FSDP, "options": {"shard_group": "node"}, "nodes": 2, "ranks_per_node": 2}
STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {
    **{f"{case['backend']} alone": (1, case) for case in (DDP, FSDP)},
    **{case["backend"]: (2, case) for case in (DDP, FSDP)},
    **{f"{case['backend']} at the usual rate": (2, {**case, "switches": ["usual"]}) for case in (DDP, FSDP)},
    "whole shards each": (2, {**FSDP, "options": {"shard_group": "1"}}),
    "other weights under DDP": (2, {**DDP, "switches": ["apart_at_first"]}),
    "other weights under FSDP": (2, {**FSDP, "switches": ["apart_at_first"]}),
    "checkpointing under DDP": (2, {**DDP, "options": {"activation_checkpointing": "on"}}),
    "checkpointing under FSDP": (2, {**FSDP, "options": {"activation_checkpointing": "on"}}),
    "an output layer of its own under FSDP": (2, {**FSDP, "switches": ["untied"]}),
    "strong scaling": (2, {**FSDP, "scaling": "strong", "batch_size": 4}),
    "only steps timed": (2, {**FSDP, "timing": "step"}),
    "four under DDP": (4, DDP), "four under FSDP": (4, FSDP),
    "hybrid": (4, HYBRID), "hybrid across nodes": (4, ACROSS_NODES),
}  # fmt: skip
COMPILED: dict[str, tuple[int, dict[str, Any]]] = {
    "compiled parts under FSDP": (2, {**FSDP, "options": {"compile": "on"}}),
}
BROKEN: dict[str, tuple[int, dict[str, Any]]] = {
    "without averaging under DDP": (2, {**DDP, "switches": ["broken"]}),
    "without averaging under FSDP": (2, {**FSDP, "switches": ["broken"]}),
}
CASES = {**STRATEGIES, **COMPILED, **BROKEN}
_results: dict[str, dict[str, Any]] = {}


@pytest.fixture(autouse=True)
def _installed() -> None:
    if missing := missing_modules("torch-ddp"):
        pytest.skip("; ".join(missing))


def result_of(ranks: Ranks, name: str) -> dict[str, Any]:
    """What ranks/gpt_contract.py prints of a case. One start of the ranks makes all cases of as many ranks, and one the
    compiled ones."""
    if name in COMPILED and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU: apt-get install g++")
    size = CASES[name][0]
    if name not in _results:
        alike = [its for its in CASES if CASES[its][0] == size and (its in COMPILED) == (name in COMPILED)]
        cases = {its: CASES[its][1] for its in alike}
        done = ranks(size, HERE / "gpt_contract.py", *map(json.dumps, cases.values()))
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        _results.update(zip(cases, map(json.loads, lines), strict=True))
    return _results[name]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.all if size == 4 else ()) for name, (size, _) in STRATEGIES.items()]
    + [pytest.param(name, marks=pytest.mark.all) for name in COMPILED],
)
def test_ranks_learn_what_one_process_learns_from_the_joined_batch(ranks: Ranks, name: str) -> None:
    result = result_of(ranks, name)
    assert result["moved"] > 50 * 1e-5, "nothing was learned: the check would prove nothing"
    assert result["off"] <= 1e-5
    assert result["apart"] == 0
    size, case = CASES[name]
    sequences = case["batch_size"] if case.get("scaling") == "strong" else 2 * size
    assert result["tokens"] == 3 * sequences * 8  # three steps of sequences of eight tokens
    assert result["ordered"] or case.get("timing") == "step"
    untied = "untied" in case.get("switches", ())
    assert result["count"] == SIZES["tiny"].parameters + untied * 256 * 64
    assert result["facts"]["flops_per_token"] > 6 * (result["count"] - untied * 256 * 64)


@pytest.mark.parametrize("name", BROKEN)
def test_ranks_that_do_not_average_are_noticed(ranks: Ranks, name: str) -> None:
    assert result_of(ranks, name)["off"] > 1e-5


def test_collectives_before_gradients_are_in_the_facts(ranks: Ranks) -> None:
    def facts(name: str) -> tuple[list[str], list[str]]:
        its = result_of(ranks, name)["facts"]
        return its["meets_before_gradients"], its["unrecorded_collectives"]

    assert facts("torch-ddp") == ([], [])
    assert facts("torch-fsdp") == (["FSDP gathers parameters before each module"], [])
    assert facts("torch-fsdp alone") == ([], [])


@pytest.mark.all
def test_collectives_stay_outside_of_compiled_parts(ranks: Ranks) -> None:
    its = result_of(ranks, "compiled parts under FSDP")["facts"]
    assert (its["options"]["compile"], its["unrecorded_collectives"]) == (True, [])


def test_all_gradients_count_as_reduced(ranks: Ranks) -> None:
    def reduced(name: str) -> int:
        count: int = result_of(ranks, name)["facts"]["gradient_bytes"]
        return count

    assert reduced("torch-ddp") == 4 * SIZES["tiny"].parameters == reduced("torch-fsdp")


PARAMETERS = """
import torch
from hpc.workloads.gpt import SIZES
from hpc.workloads.torch_gpt import GPT

for name, shape in SIZES.items():
    with torch.device("meta"):
        model = GPT(shape, 16)
    print(name, sum(parameter.numel() for parameter in model.parameters()))
"""


def test_models_have_the_parameters_of_their_sizes() -> None:
    done = subprocess.run([sys.executable, "-c", PARAMETERS], cwd=ROOT, capture_output=True, text=True, check=True)
    counts = dict(line.split() for line in done.stdout.splitlines())
    assert {name: int(count) for name, count in counts.items()} == {name: s.parameters for name, s in SIZES.items()}


def attempt(ranks: Ranks, folder: Path, backend: str, size: int = 2, **options: str) -> Attempt:
    small = {"size": "tiny", "sequence_length": "16", **options}
    run = spec(backend=backend, workload="gpt", options=small, measured_steps=12, ranks_per_node=size)
    return Attempt(ranks, folder, run)


def test_what_shards_call_is_recorded_block_by_block(ranks: Ranks, tmp_path: Path) -> None:
    run = attempt(ranks, tmp_path, "torch-fsdp")
    # Two blocks, and the rest with the whole model: gathered in forward; the blocks once more, one ahead, in backward.
    assert list(run.trace().meeting_names) == ["all-gather"] * 5 + ["reduce-scatter"] * 3


@pytest.mark.all
def test_what_hybrid_shards_call_is_recorded_in_their_groups(ranks: Ranks, tmp_path: Path) -> None:
    trace = attempt(ranks, tmp_path, "torch-fsdp", 4, shard_group="2").trace()
    assert trace.calls is not None
    assert {(group.ranks, group.dimension) for group in trace.calls.groups} == {
        ((0, 1), "dp_shard"), ((2, 3), "dp_shard"), ((0, 2), "dp_replicate"), ((1, 3), "dp_replicate"),
    }  # fmt: skip
    assert [*trace.calls.names] == ["all-gather", "reduce-scatter", "all-reduce"]
    assert all(report.backend_fact("reduction") == {"by": "calls"} for report in trace.reports)
    first, stop = trace.blocks[0].tolist()
    assert (trace.meetings[:, first:stop, :, 2] != ABSENT).all()
    assert (trace.stamps[:, :, GRADS_READY] <= trace.stamps[:, :, REDUCED]).all()
