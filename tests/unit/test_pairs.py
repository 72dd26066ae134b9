"""Pairs of nodes that exchange messages: who meets whom, what must arrive, their times."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hpc.backends import BACKENDS, operations_of
from hpc.model.collective_plan import (
    MAX_PAIR_BYTES,
    PAIRS,
    bus_factor,
    collectives_beside,
    collectives_run,
    partner,
    partner_rank,
    plan_of,
    turns,
)
from hpc.model.collective_times import PairTime, collective_times, pair_times, table
from hpc.model.options import OptionError
from hpc.model.spec import RunSpec
from hpc.model.timestamps import BEGIN, END
from hpc.model.trace import Trace
from hpc.workloads.collectives import Collectives
from parse.ledger.standalone import curves
from tests.unit.traces import make_run, make_trace

SMALL = {"min_bytes": "1K", "max_bytes": "4K", "iterations": "3"}
THREE = make_run(nodes=3, ranks_per_node=2)


def pairs_run(ranks: RunSpec = THREE, *others: str, **options: str) -> RunSpec:
    return collectives_run(ranks, [*others, PAIRS], {**SMALL, **options})


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 9, 64, 65])
def test_every_pair_meets_once_and_nobody_has_two_partners(nodes: int) -> None:
    met = []
    for turn in range(turns(nodes)):
        partners = {node: partner(node, turn, nodes) for node in range(nodes)}
        for node, other in partners.items():
            assert other is None or (other != node and partners[other] == node)
        assert sum(other is None for other in partners.values()) == nodes % 2
        met += [(node, other) for node, other in partners.items() if other is not None and node < other]
    assert sorted(met) == [(first, second) for first in range(nodes) for second in range(first + 1, nodes)]


def test_ranks_of_two_nodes_meet_place_by_place() -> None:
    for turn in range(3):
        partners = [partner_rank(THREE, rank, turn) for rank in range(6)]
        for rank, other in enumerate(partners):
            assert other is None or (partners[other] == rank and other % 2 == rank % 2 and other // 2 != rank // 2)
        assert partners.count(None) == 2


def test_each_turn_is_a_block_of_the_smallest_and_of_the_largest_size() -> None:
    planned = plan_of(pairs_run(THREE, "all-reduce", min_bytes="1K", max_bytes="1G", factor="1024"))
    reduced = [each for each in planned if each.operation == "all-reduce"]
    pairs = [each for each in planned if each.operation == PAIRS]
    assert [(each.bytes, each.turn) for each in pairs] == [
        (size, turn) for size in (1024, MAX_PAIR_BYTES) for turn in range(3)
    ]
    assert [each.turn for each in reduced] == [None] * 3
    assert {(each.bytes, each.turn) for each in plan_of(pairs_run(max_bytes="1K"))} == {
        (1024, turn) for turn in (0, 1, 2)
    }
    run = pairs_run()
    assert len(run.blocks) == len(plan_of(run)) == 6
    assert RunSpec.from_json(run.to_json()) == run


def test_one_node_has_no_pairs() -> None:
    first = make_run(ranks_per_node=2)
    run = collectives_run(first, ["all-reduce", PAIRS], SMALL)
    assert run.options["operations"] == "all-reduce"
    with pytest.raises(OptionError, match="pairs alone was requested of one node; it takes two"):
        collectives_run(first, [PAIRS], SMALL)
    beside = collectives_beside([first, THREE], [{**SMALL, "operations": PAIRS}], {"mpi": ("all-reduce", PAIRS)})
    assert [run.nodes for run in beside] == [3]


def test_what_a_partner_gives_must_arrive() -> None:
    run = pairs_run()
    everyone = [Collectives(run, None, rank) for rank in range(6)]
    for collective in everyone[0].plan:
        assert collective.turn is not None
        given = [member.given(collective) for member in everyone]
        for rank, member in enumerate(everyone):
            other = partner_rank(run, rank, collective.turn)
            assert member.wrong(collective, given[rank if other is None else other]) == 0
            for wrong in {*range(6)} - {rank if other is None else other}:
                assert member.wrong(collective, given[wrong]) > 0


def test_backends_that_send_from_rank_to_rank_have_pairs() -> None:
    having = {name for name, entry in BACKENDS.items() if entry.collectives and PAIRS in operations_of(name, False)}
    assert having == {"torch-ddp", "torch-fsdp", "mpi"}


def measured(run: RunSpec, slow: int | None = None) -> Trace:
    """A call of a pair takes 1 ms, with node `slow` 4 ms; every third call stalls for 1 s. All-reduce takes 2 ms."""
    described = [
        {
            "operation": each.operation, "bytes": each.bytes, "count": each.count, "dtype": "float32", "wrong": 0,
            "factor": bus_factor(each.operation, run.ranks), "in_place": False,
            **({} if each.turn is None else {"turn": each.turn}),
        }
        for each in plan_of(run)
    ]  # fmt: skip
    trace = make_trace(run, environment={"backend": {"transport": "gloo", "collectives": described}})
    for each, (first, stop) in zip(plan_of(run), run.blocks, strict=True):
        for rank in range(run.ranks):
            ms = 2
            if each.turn is not None:
                node = rank // run.ranks_per_node
                other = partner(node, each.turn, run.nodes)
                ms = 0 if other is None else 4 if slow in (node, other) else 1
            calls_ns = ms * 10**6 * np.ones(stop - first, np.int64)
            calls_ns[-1] += 10**9
            ends = np.cumsum(calls_ns)
            trace.stamps[rank, first:stop, END], trace.stamps[rank, first:stop, BEGIN] = ends, ends - calls_ns
    return trace


def test_the_time_of_a_pair_is_its_median_call() -> None:
    trace = measured(pairs_run(THREE, "all-reduce"), slow=2)
    small = [pair for pair in pair_times(trace) if pair.bytes == 1024]
    assert sorted(small, key=lambda pair: pair.nodes) == [
        PairTime(nodes=nodes, bytes=1024, time_ns=ms * 1e6, fastest_ns=ms * 1e6)
        for nodes, ms in (((0, 1), 1), ((0, 2), 4), ((1, 2), 4))
    ]
    assert small[0].bandwidth == 1024 / small[0].time_ns
    assert {each.operation for each in collective_times(trace)} == {"all-reduce"}
    assert {each.median_ns for each in collective_times(trace)} == {2e6}
    assert set(curves(trace)) == {"all-reduce"}
    assert pair_times(measured(collectives_run(THREE, ["all-reduce"], SMALL))) == ()


def test_the_table_shows_the_slowest_pairs() -> None:
    text = table(measured(pairs_run(), slow=2))
    assert text.split("\n\n")[1] == (
        "# pairs of nodes, 1024 bytes each way at once: median call\n"
        "#      nodes        time   bandwidth\n"
        "#                   (us)      (GB/s)\n"
        "         0-2     4000.00       0.000\n"
        "         1-2     4000.00       0.000\n"
        "         0-1     1000.00       0.001"
    )
    many = table(measured(pairs_run(dataclasses.replace(THREE, nodes=9, ranks_per_node=1)), slow=4))
    assert "median call, the slowest 20 of 36 and the fastest" in many
    assert len(many.split("\n\n")[1].splitlines()) == 3 + 21
