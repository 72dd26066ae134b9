"""parse.ledger.telemetry: traces reduced to their windows' conditions, and what of these differs from a baseline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from hpc.model.timestamps import ABSENT, END
from hpc.model.trace import Telemetry, Trace
from hpc.model.trace_file import open_trace
from hpc.node_agent.gpus import AmdSmi, Nvml, gpus
from hpc.node_agent.telemetry import Readings
from parse.ledger import symptoms
from parse.ledger.causes import Cause
from parse.ledger.telemetry import (
    QUANTITIES,
    STANDSTILL,
    ConditionChange,
    Conditions,
    HostMean,
    TooFewSamples,
    compare_conditions,
    reduce_telemetry,
)
from parse.say.evidence import EVIDENCE
from parse.say.notes import telemetry_text
from parse.say.paragraph import CONTENTION
from tests.unit.telemetry_nodes import AMD_UUIDS, UUIDS, FakeAmdSmi, FakeNvml, Node
from tests.unit.traces import make_run, make_trace, put

STEP_S = 1.0


def traced(
    nodes: int,
    series: Mapping[str, Any],
    per_block: Sequence[int] = (4,),
    step_s: float = STEP_S,
    without: Sequence[int] = (),
) -> Trace:
    """A trace of `nodes` of two ranks with telemetry every 0.7 s, `without` some samples.

    `series` gives each its values by (node, seconds of run).
    """
    measured = sum(per_block)
    block_steps = max(per_block) if len(per_block) > 1 else 0
    run = make_run(nodes=nodes, ranks_per_node=2, measured_steps=measured, block_steps=block_steps)
    trace = make_trace(run, step_s=step_s)
    ranks = 2 * np.arange(nodes)
    begin_ns = trace.stamps[ranks, 0, 0]
    at_s = np.delete(np.arange(0.13, run.steps * step_s, 0.7), without)
    local_ns = (begin_ns[:, None] + at_s * 1e9).astype(np.int64)
    values = np.array([[[of(node, s) for of in series.values()] for s in at_s] for node in range(nodes)], np.float64)
    telemetry = Telemetry(ranks=ranks, local_ns=local_ns, values=values, series=tuple(series))
    return make_trace(run, step_s=step_s, telemetry=telemetry)


def only(conditions: Conditions | None, name: str) -> Mapping[str, HostMean]:
    assert conditions is not None
    return conditions.figures[name]


def test_every_quantity_that_another_table_names_is_one() -> None:
    """A quantity renamed in one place would make its sentence, its limit or its rule silent."""
    known = {quantity.name for quantity in QUANTITIES}
    assert EVIDENCE.keys() <= known | {STANDSTILL, *Cause}
    assert CONTENTION.keys() == symptoms.LIMITS.keys() <= known
    assert {*symptoms.RULES} <= known
    assert {*symptoms.SPECIFIC} <= {*Cause} and {
        name for names in symptoms.SPECIFIC.values() for name in names
    } <= known
    assert {*Cause} <= EVIDENCE.keys()
    assert {*symptoms.LOWER, *symptoms.HIGHER, symptoms.KERNEL} <= known
    assert any(name.startswith(symptoms.THROTTLED) for name in known)


def test_a_trace_without_telemetry_says_nothing():
    assert reduce_telemetry(make_trace()) is None
    assert compare_conditions([], []) == ()


def test_only_the_window_counts_on_each_nodes_own_clock():
    """Warm-up takes 5 s, the window 4 s; clocks of the two nodes are 7 s apart."""
    clock = traced(2, {"gpu0.sm_clock_mhz": lambda node, s: (1755 if 5 <= s <= 9 else 10) - node})
    conditions = reduce_telemetry(clock)
    figures = only(conditions, "SM clock")
    assert {host: figure.mean for host, figure in figures.items()} == {"n0": 1755, "n1": 1754}
    assert conditions is not None
    assert conditions.samples == {"n0": 6, "n1": 6}


def test_pauses_between_blocks_do_not_count():
    """Two blocks of 4 steps, entered through 5 steps each: 5 to 9 s and 14 to 18 s."""

    def inside(s: float) -> bool:
        return 5 <= s <= 9 or 14 <= s <= 18

    level = traced(1, {"gpu0.sm_clock_mhz": lambda _, s: 1755 if inside(s) else 10}, (4, 4))
    assert only(reduce_telemetry(level), "SM clock")["n0"] == HostMean(1755.0, 0.0)
    # A counter grows a thousandfold faster outside; no difference spans the pause.
    counter = traced(
        1, {"local_rank0.major_faults": lambda _, s: 3 * s + 3000 * (max(0, min(s - 9, 5)) + min(s, 5))}, (4, 4)
    )
    assert only(reduce_telemetry(counter), "major page faults of a rank")["n0"].mean == pytest.approx(3)


def test_a_pause_without_a_sample_does_not_count():
    """Blocks from 0.5 to 4.5 s and from 5 to 9 s; a counter that grows between them only."""
    counter = traced(1, {"local_rank0.major_faults": lambda _, s: 0 if s < 4.75 else 100}, (40, 40), step_s=0.1)
    assert only(reduce_telemetry(counter), "major page faults of a rank")["n0"] == HostMean(0.0, 0.0)


def test_a_missed_round_has_the_weight_of_its_time():
    """Samples at 5.03, 5.73, 7.83 and 8.53 s of a counter that has grown by the square of the seconds."""
    counter = traced(1, {"local_rank0.major_faults": lambda _, s: s * s}, without=(8, 9))
    rate = only(reduce_telemetry(counter), "major page faults of a rank")["n0"].mean
    assert rate == pytest.approx((8.53**2 - 5.03**2) / 3.5)


def test_rates_counts_levels_and_shares():
    trace = traced(
        1,
        {
            "gpu0.power_w": lambda _, s: 600,
            "gpu1.power_w": lambda _, s: 700,
            "gpu0.throttle_power_cap_flag": lambda _, s: 1.0,
            "gpu1.throttle_power_cap_flag": lambda _, s: 0.0,
            "local_rank0.main_thread_queued_s": lambda _, s: 0.1 * s,
            "local_rank1.main_thread_queued_s": lambda _, s: 0.3 * s,
            "gpu0.pcie_replays": lambda _, s: 7 + float(s > 7),
            "gpu1.pcie_replays": lambda _, s: 9 + float(s > 6),
            "memory.swapped_out_bytes": lambda _, s: 5e6 * s,
        },
    )
    read = reduce_telemetry(trace)
    assert read is not None and read.step_ms == pytest.approx(1000 * STEP_S)
    means = {name: figures["n0"].mean for name, figures in read.figures.items()}
    assert means == pytest.approx(
        {
            "GPU power": 650, "GPUs throttled (power cap) in": 50, "a rank ready to run waits for a core": 20,
            "PCIe replays": 2, "swapped out": 5,
        }
    )  # fmt: skip


def test_what_a_node_could_not_read_is_left_out_there():
    nan = float("nan")
    trace = traced(
        2,
        {
            "gpu0.power_w": lambda node, s: 600 if s < 7 else nan,
            "gpu1.power_w": lambda node, s: nan if node else 700,  # the second node has one GPU only
            "gpu0.sm_clock_mhz": lambda node, s: nan if node else 1755,
        },
    )
    conditions = reduce_telemetry(trace)
    assert {host: figure.mean for host, figure in only(conditions, "GPU power").items()} == {"n0": 650, "n1": 600}
    assert list(only(conditions, "SM clock")) == ["n0"]


def test_samples_after_a_nodes_last_do_not_count():
    trace = traced(1, {"gpu0.power_w": lambda _, s: 600})
    assert trace.telemetry is not None
    local_ns = trace.telemetry.local_ns.copy()
    local_ns[0, local_ns[0] > trace.stamps[0, 5, END]] = ABSENT
    telemetry = Telemetry(
        ranks=trace.telemetry.ranks, local_ns=local_ns, values=trace.telemetry.values, series=trace.telemetry.series
    )
    conditions = reduce_telemetry(make_trace(trace.run, step_s=STEP_S, telemetry=telemetry))
    assert conditions is not None
    assert conditions.samples == {"n0": 2}
    assert conditions.figures == {}
    assert compare_conditions([conditions], BASE) == (TooFewSamples(of_base=False, largest=2),)
    assert compare_conditions(BASE, [conditions]) == (TooFewSamples(of_base=True, largest=2),)
    assert compare_conditions([conditions], []) == ()


def test_a_trace_that_stays_in_its_file_says_the_same(tmp_path):
    trace = traced(2, {"gpu0.power_w": lambda node, s: 600 + s}, (4, 4))
    with open_trace(put(tmp_path, trace)) as opened:
        assert reduce_telemetry(opened) == reduce_telemetry(trace)


def conditions(**quantities: Any) -> Conditions:
    """`clock={"n0": 1755}`, or with a deviation `{"n0": (1755, 20)}`."""
    names = {
        "clock": "SM clock", "capped": "GPUs throttled (power cap) in", "ecc": "uncorrected ECC errors",
        "faults": "minor page faults of a rank", "swapped": "swapped out",
    }  # fmt: skip
    figures = {
        names[name]: {
            host: HostMean(*(value if isinstance(value, tuple) else (value, 0.0))) for host, value in of.items()
        }
        for name, of in quantities.items()
    }
    return Conditions(figures=figures, samples={"n0": 10}, step_ms=100.0)


CLOCK = next(quantity for quantity in QUANTITIES if quantity.name == "SM clock")
BASE = [conditions(clock={"n0": 1980}, capped={"n0": 0.0}), conditions(clock={"n0": 1978}, capped={"n0": 0.0})]


@pytest.mark.parametrize(
    ("point", "changes"),
    [
        ({"clock": {"n0": 1755, "n1": 1755}}, [("SM clock", 1755, 1979, ())]),
        ({"clock": {"n0": 2200}}, [("SM clock", 2200, 1979, ())]),
        ({"clock": {"n0": 1979, "n3": 1755}}, [("SM clock", 1755, 1979, ("n3",))]),
        (
            {"clock": {"n0": 1979, "n3": 1755, "n4": 2100}},
            [("SM clock", 1755, 1979, ("n3",)), ("SM clock", 2100, 1979, ("n4",))],
        ),
        ({"clock": {"n0": 1950}}, []),  # less than 2 %
        ({"clock": {"n0": (1755, 300)}}, []),  # less than its samples scatter
        ({"capped": {"n0": 0.0, "n3": 43.2}}, [("GPUs throttled (power cap) in", 43.2, 0, ("n3",))]),
        ({"capped": {"n0": 1.5}}, []),
        ({"faults": {"n0": 1e6}}, []),  # the baseline has none
        ({"ecc": {"n0": 2}}, [("uncorrected ECC errors", 2, None, ())]),
        ({"swapped": {"n0": 0.5}}, []),
    ],
)
def test_what_differs_notably(point, changes):
    assert compared([conditions(**point)], BASE) == changes


def compared(point: Sequence[Conditions], baseline: Sequence[Conditions]) -> list[tuple[object, ...]]:
    changes = compare_conditions(point, baseline)
    return [(change.quantity.name, change.value, change.usual, change.hosts) for change in changes]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (TooFewSamples(of_base=True, largest=2),
         "telemetry: the base's runs are too short for it (2 samples, it needs 3)"),
        (ConditionChange(quantity=CLOCK, value=1755, usual=1979),
         "SM clock 1755 MHz against 1979 at the base (−11.3 %)"),
        (ConditionChange(quantity=CLOCK, value=1800, usual=1979, hosts=tuple(f"n{node}" for node in range(9))),
         "SM clock 1800 MHz against 1979 at the base (−9.04 %) on nodes n0, n1, n2 and 6 more"),
        (ConditionChange(quantity=CLOCK, value=21000, usual=100), "SM clock 21000 MHz against 100 at the base"),
        (ConditionChange(quantity=QUANTITIES[0], value=43.2, usual=0.0, hosts=("n3",)),
         "GPUs throttled (power cap) in 43.2 % of the samples against 0 at the base on node n3"),
        (ConditionChange(quantity=QUANTITIES[0], value=43, usual=None),
         "GPUs throttled (power cap) in 43 % of the samples"),
    ],
)  # fmt: skip
def test_a_change_as_text(change, text):
    assert telemetry_text(change) == text


def test_runs_that_overlap_do_not_differ():
    spread = [conditions(clock={"n0": clock}) for clock in (1980, 1700)]
    assert compare_conditions([conditions(clock={"n0": 1755})], spread) == ()
    assert len(compare_conditions([conditions(clock={"n0": 1600})], spread)) == 1
    runs = [conditions(clock={"n0": clock}) for clock in (1990, 1500)]
    assert compare_conditions(runs, BASE) == ()
    assert compare_conditions(BASE, BASE) == ()


def test_a_fault_is_reported_without_a_baseline_and_compared_with_the_worst_of_one():
    capped = [conditions(capped={"n0": 43.0})]
    assert compared(capped, []) == [("GPUs throttled (power cap) in", 43, None, ())]
    assert compare_conditions([conditions(clock={"n0": 100})], []) == ()
    assert compare_conditions(capped, [conditions(capped={"n0": value}) for value in (0.0, 42.0)]) == ()


def test_a_fault_in_one_run_is_a_fault():
    runs = [conditions(ecc={"n0": count}) for count in (0, 0, 3)]
    assert compared(runs, [conditions(ecc={"n0": 0})]) == [("uncorrected ECC errors", 1, 0, ())]


def test_what_is_compared_is_what_is_read(tmp_path):
    """Names of series are written down in two places, apart because parse knows nothing that runs."""
    read = [*Node(tmp_path).read(), *Readings({"GPU": gpus([UUIDS[0]], Nvml(FakeNvml()))}).series]
    read += Readings({"GPU": gpus([AMD_UUIDS[0]], AmdSmi(FakeAmdSmi()))}).series
    for quantity in QUANTITIES:
        assert any(re.fullmatch(quantity.series, name) for name in read), quantity.name
