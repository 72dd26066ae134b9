"""Runs of collectives alone: their plans, the check of their results, their times."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.backends import TRAINERS, InvalidRun, load_collectives, operations_of
from hpc.backends.refusals import options_of
from hpc.model.collective_plan import OPERATIONS, Collective, bus_factor, collectives, collectives_run, plan_of
from hpc.model.collective_times import collective_times, table
from hpc.model.options import OptionError
from hpc.model.spec import Plan, RunSpec, SpecError, Target
from hpc.model.timestamps import ABSENT, END
from hpc.model.trace import Trace, TraceError
from hpc.workloads.collectives import Collectives
from launch.sweep import expansion
from launch.sweep.spec import SweepSpec
from tests.unit.traces import make_run, make_trace

FOUR = make_run(nodes=2, ranks_per_node=2)
SMALL = {"min_bytes": "1K", "max_bytes": "4K", "iterations": "3"}


def spec_of(ranks: RunSpec = FOUR, having: Sequence[str] = OPERATIONS, **options: str) -> RunSpec:
    return collectives_run(ranks, having, {**SMALL, **options})


def test_every_operation_at_every_size_is_a_block_of_calls() -> None:
    run = spec_of(min_bytes="1K", max_bytes="1M", factor="32", iterations="7")
    assert [(collective.operation, collective.bytes) for collective in plan_of(run)] == [
        (operation, size) for operation in OPERATIONS for size in (2**10, 2**15, 2**20)
    ]
    assert len(run.blocks) == 12
    assert all(stop - first == 7 for first, stop in run.blocks)
    assert (run.diagnostic, run.warmup_steps, run.batch_size, run.telemetry) == ("collectives", 5, 1, "off")
    assert RunSpec.from_json(run.to_json()) == run


def test_sizes_and_counts_are_those_of_nccl_tests() -> None:
    """`reduce_scatter_perf` and `all_gather_perf` call the larger buffer the size, and a rank's share the count."""
    planned = collectives(OPERATIONS, [1024], 4)
    assert planned == (
        Collective(operation="all-reduce", given=256, got=256),
        Collective(operation="reduce-scatter", given=256, got=64),
        Collective(operation="all-gather", given=64, got=256),
        Collective(operation="broadcast", given=256, got=256),
    )
    assert [each.bytes for each in planned] == [1024] * 4
    assert [each.count for each in planned] == [256, 64, 64, 256]
    assert [bus_factor(operation, 4) for operation in OPERATIONS] == [1.5, 0.75, 0.75, 1.0]


@given(ranks=st.integers(2, 5000), sizes=st.lists(st.integers(4, 2**30), min_size=1, max_size=5))
def test_shares_are_whole_and_nothing_is_called_twice(ranks: int, sizes: list[int]) -> None:
    planned = collectives(OPERATIONS, sizes, ranks)
    assert len(set(planned)) == len(planned)
    for collective in planned:
        shares = ranks if collective.operation in ("reduce-scatter", "all-gather") else 1
        assert collective.bytes == 4 * collective.count * shares
        assert collective.bytes <= max(*sizes, 16 * ranks)
    assert {collective.operation for collective in planned} == set(OPERATIONS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operations": "all-reduce+alltoall"}, "alltoall was requested; mpi has all-reduce, reduce-scatter"),
        ({"factor": "1"}, "factor is 1; it must be at least 2"),
        ({"iterations": "0"}, "iterations is 0"),
        ({"min_bytes": "8K"}, "from min_bytes 8K to max_bytes 4K"),
        ({"min_bytes": "2"}, "at least 4 bytes"),
        ({"max_bytes": "4 KB"}, "'4 KB' is no number of bytes, as 4096, 64K"),
        ({"colour": "red"}, "unknown option colour"),
    ],
)
def test_options_that_cannot_be_measured_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("(", r"\(")):
        spec_of(FOUR, OPERATIONS, **options)


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("4K", 4096), ("4KiB", 4096), ("1M", 2**20), ("1G", 2**30)])
def test_sizes_are_written_as_in_nccl_tests(text: str, size: int) -> None:
    assert plan_of(spec_of(min_bytes=text, max_bytes=text))[0].bytes == size


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_results_are_checked_by_the_definition(operation: str, ranks: int) -> None:
    """Against the definitions of the MPI standard, spelled out."""
    run = spec_of(make_run(ranks_per_node=ranks), [operation], max_bytes="4K")
    everyone = [Collectives(run, None, rank) for rank in range(ranks)]
    for collective in everyone[0].plan:
        given = [member.given(collective) for member in everyone]
        whole = sum(given[1:], start=given[0].astype(np.float64))
        for rank, member in enumerate(everyone):
            right = {
                "all-reduce": whole,
                "reduce-scatter": whole[rank * collective.got : (rank + 1) * collective.got],
                "all-gather": np.concatenate(given),
                "broadcast": given[0],
            }[operation].astype(np.float32)
            assert member.wrong(collective, right) == 0
            for spoilt in (np.roll(right, 1), right + np.float32(1), np.full_like(right, np.nan)):
                assert member.wrong(collective, spoilt) == collective.got
            right[3] += 1
            assert member.wrong(collective, right) == 1
            assert member.wrong(collective, right[:-1]) == collective.got
        if operation != "broadcast":  # nothing was communicated: noticed, except where the root has it already
            for member, mine in zip(everyone, given, strict=True):
                assert member.wrong(collective, np.resize(mine, collective.got)) > 0


def test_ranks_that_change_places_are_noticed() -> None:
    ranks = Collectives(spec_of(FOUR, ["all-gather"]), None, 0)
    collective = ranks.plan[0]
    right = ranks._expected(collective).reshape(4, -1)
    assert ranks.wrong(collective, right[[1, 0, 2, 3]].ravel()) == 2 * collective.given


def test_a_run_whose_blocks_are_other_collectives_is_refused() -> None:
    run = dataclasses.replace(spec_of(), measured_steps=6)
    with pytest.raises(OptionError, match="2 blocks for 8 collectives"):
        Collectives(run, None, 0)


# Times of a trace


def described(run: RunSpec, **changes: Any) -> dict[str, Any]:
    common = {"dtype": "float32", "in_place": True, "wrong": 0, **changes}
    return {
        "backend": {
            "transport": "gloo",
            "collectives": [
                {"operation": c.operation, "bytes": c.bytes, "count": c.count, "factor": bus_factor(c.operation, 4)}
                | common
                for c in plan_of(run)
            ],
        }
    }


def measured(run: RunSpec, **changes: Any) -> Trace:
    """A call takes 1 ms in the first block, 2 ms in the second, …; on rank 3 half as long again."""
    trace = make_trace(run, environment=described(run), **changes)
    for number, (first, stop) in enumerate(run.blocks, start=1):
        for rank in range(4):
            call_ns = number * (1_500_000 if rank == 3 else 1_000_000)
            trace.stamps[rank, first - 1 : stop, END] = 10**9 * number + call_ns * np.arange(stop - first + 1)
            trace.stamps[rank, first:stop, 0] = trace.stamps[rank, first - 1 : stop - 1, END]
    return trace


def test_time_is_the_mean_over_calls_and_ranks() -> None:
    times = collective_times(measured(spec_of(FOUR, ["all-reduce", "all-gather"])))
    assert [time.time_ns for time in times] == [1.125e6, 2.25e6, 3.375e6, 4.5e6]
    assert [time.slowest_ns for time in times] == [1.5e6, 3e6, 4.5e6, 6e6]
    assert {time.iterations for time in times} == {3}
    first, last = times[0], times[-1]
    assert (first.algorithm_bandwidth, first.bus_bandwidth) == (1024 / 1.125e6, 1.5 * 1024 / 1.125e6)
    assert (last.algorithm_bandwidth, last.bus_bandwidth) == (4096 / 4.5e6, 0.75 * 4096 / 4.5e6)


def test_the_table_reads_as_that_of_nccl_tests() -> None:
    assert table(measured(spec_of(FOUR, ["all-reduce", "all-gather"]))) == (
        "# mpi by gloo on 2 nodes x 2 ranks, CPUs\n"
        "\n"
        "# all-reduce, in place, float32: mean of 3 calls back to back; busbw = algbw x 1.5\n"
        "#       size       count        time     slowest       algbw       busbw      #wrong\n"
        "#        (B)  (elements)        (us)        (us)      (GB/s)      (GB/s)\n"
        "        1024         256     1125.00     1500.00       0.001       0.001           0\n"
        "        4096        1024     2250.00     3000.00       0.002       0.003           0\n"
        "\n"
        "# all-gather, in place, float32: mean of 3 calls back to back; busbw = algbw x 0.75\n"
        "#       size       count        time     slowest       algbw       busbw      #wrong\n"
        "#        (B)  (elements)        (us)        (us)      (GB/s)      (GB/s)\n"
        "        1024          64     3375.00     4500.00       0.000       0.000           0\n"
        "        4096         256     4500.00     6000.00       0.001       0.001           0\n"
    )


def test_an_incomplete_trace_has_no_times() -> None:
    run = spec_of(FOUR, ["all-reduce"])
    with pytest.raises(TraceError, match="a run of delay, not of collectives"):
        collective_times(make_trace())
    with pytest.raises(TraceError, match="describes 0 collectives for 2 blocks"):
        collective_times(dataclasses.replace(measured(run), environment={}))
    with pytest.raises(TraceError, match="'wrong': None"):
        collective_times(dataclasses.replace(measured(run), environment=described(run, wrong=None)))
    cut = measured(run)
    cut.stamps[1, run.blocks[1][1] - 1, END] = ABSENT
    with pytest.raises(TraceError, match="ranks lack steps among"):
        collective_times(cut)


# In a sweep.

GPUS = Target(site="big", gpus_per_node=8, cpus_per_node=64)
LAPTOP = dataclasses.replace(GPUS, gpus_per_node=0, nodes_simulated=True)


def plan(target: Target = GPUS, **sweep: object) -> Plan:
    facts: dict[str, Any] = {
        "options_of": lambda backend, workload: {},
        "operations_of": lambda backend, on_gpus: OPERATIONS,
    }
    with mock.patch.multiple(expansion, **facts):
        return expansion.expand(SweepSpec.from_mapping({"collectives": True, **sweep}), target)


def test_a_sweep_measures_the_collectives_of_each_set_of_ranks_once() -> None:
    made = plan(
        nodes="1,2", cases="1n1g", batch_size="64,128", precision="fp32,bf16", env={"NCCL_ALGO": "Ring,Tree"}, seed=7,
        no_sync=True,
    )  # fmt: skip
    diagnostics = [run for run in made.runs if run.diagnostic == "collectives"]
    assert {run.seed for run in diagnostics} == {0}  # nothing of it is random: another seed is not another measurement
    assert [(run.case, run.env["NCCL_ALGO"], run.repeat) for run in diagnostics] == [
        ("1n8g", "Ring", 1), ("1n8g", "Tree", 1), ("2n8g", "Ring", 1), ("2n8g", "Tree", 1),
    ]  # fmt: skip
    assert {run.options["operations"] for run in diagnostics} == {"+".join(OPERATIONS)}
    assert all(len(plan_of(run)) == len(run.blocks) == 40 for run in diagnostics)  # 1 KiB to 256 MiB
    assert not any(run.diagnostic for run in plan(nodes="1,2", collectives=False).runs)


def test_default_sizes_are_small_on_cpus_and_options_reach_the_collectives() -> None:
    made = plan(LAPTOP, nodes="2", repeats=1)
    assert "max_bytes 16M instead of 256M" in made.reduced
    options = {"max_bytes": "64K", "operations": "all-reduce+broadcast", "iterations": "9"}
    *_, diagnostic = plan(LAPTOP, nodes="2", repeats=1, option=options).runs
    assert dict(diagnostic.options) == options
    assert (len(diagnostic.blocks), diagnostic.block_steps) == (2 * 4, 9)
    with pytest.raises(SpecError, match="unknown option iterations, max_bytes, operations"):
        plan(nodes="2", option=options, collectives=False)


def test_collectives_of_one_rank_are_refused() -> None:
    with pytest.raises(SpecError, match="no point has ranks between which anything goes"):
        plan(cases="1n1g")


def test_collectives_are_no_workload_of_a_training() -> None:
    with pytest.raises(SpecError, match="trains nothing: --collectives"):
        options_of("mpi", "collectives")


def test_a_backend_without_collectives_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="torch-dp has no collectives: one rank drives the GPUs"):
        operations_of("torch-dp", gpus=True)
    with pytest.raises(InvalidRun, match="torch-dp has no collectives"):
        load_collectives("torch-dp")
    assert "reduce-scatter" in operations_of("paddle-fleet", gpus=True)
    assert "reduce-scatter" not in operations_of("paddle-fleet", gpus=False)
    assert all(entry.collectives or name == "torch-dp" for name, entry in TRAINERS.items())
