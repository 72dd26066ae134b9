"""Energy of the measured steps from counters: made ones, of an NVML and an amdsmi that are MOCKS, and of a folder that
stands in for powercap. No number here is of a machine."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from hpc.model.timestamps import END
from hpc.model.trace import Telemetry, Trace
from hpc.node_agent.gpus import AmdSmi, Nvml, gpus
from hpc.node_agent.sources import packages
from hpc.node_agent.telemetry import Readings
from parse.report.costs import cost_line
from parse.report.export import as_json
from parse.report.notices import warnings
from parse.report.summary import read_summary
from parse.report.table import text
from parse.runs.machine_use import _COUNTERS, Energy
from parse.runs.machine_use import energy_of as energy_of_ends
from tests.unit.telemetry_nodes import SYS, UUIDS, FakeAmdSmi, FakeNvml
from tests.unit.test_cost import put_attempt, put_planned
from tests.unit.traces import make_ranks, make_run, make_trace, put

STEP_S = 1.0
GPU_W, PACKAGE_W, DRAM_W = 400.0, 150.0, 20.0
Series = Mapping[str, Callable[[float], float]]
CONSTANT: Series = {
    "gpu0.energy_j": lambda s: 7e6 + GPU_W * s, "gpu1.energy_j": lambda s: GPU_W * s,
    "gpu0.power_w": lambda s: GPU_W, "gpu1.power_w": lambda s: GPU_W,
    "power.package-0_0_j": lambda s: PACKAGE_W * s, "power.core_0_0_j": lambda s: 99 * s,
    "power.dram_0_1_j": lambda s: DRAM_W * s,
}  # fmt: skip


def metered(series: Series = CONSTANT, *, nodes: int = 2, facts: Mapping[str, Any] | None = None, **run: Any) -> Trace:
    """A trace of nodes of two GPUs, steps of 1 s, 5 of warm-up, with a reading every 0.7 s; clocks of ranks differ."""
    spec = make_run(**({"nodes": nodes, "ranks_per_node": 2, "gpus_per_node": 2, "measured_steps": 10} | run))
    bare = make_trace(spec, step_s=STEP_S)
    ranks = 2 * np.arange(nodes)
    at_s = np.arange(-0.3, spec.steps * STEP_S + 0.7, 0.7)
    values = np.array([[[of(s) for of in series.values()] for s in at_s]] * nodes, np.float64)
    local_ns = (bare.stamps[ranks, 0, 0][:, None] + at_s * 1e9).astype(np.int64)
    telemetry = Telemetry(ranks=ranks, local_ns=local_ns, values=values, series=tuple(series))
    reports = [{**rank, "telemetry": dict(facts or {})} for rank in make_ranks(spec)]
    return make_trace(spec, step_s=STEP_S, telemetry=telemetry, ranks=reports)


def energy_of(trace: Trace) -> Energy:
    return energy_of_ends(trace, trace.stamps[:, :, END])


def test_counters_give_the_energy_of_the_measured_steps() -> None:
    energy = energy_of(metered())
    assert energy.gpus_j == pytest.approx(2 * 2 * GPU_W * 10)
    assert energy.cpus_j == pytest.approx(2 * (PACKAGE_W + DRAM_W) * 10)  # cores are within their package
    assert energy.bound_j == pytest.approx(4 * 2 * 0.1 * GPU_W, rel=0.01)  # each GPU's counter, at begin and end
    assert energy.sensor == 0.05


def test_what_is_between_blocks_does_not_count() -> None:
    """Blocks from 5 to 10 s and from 15 to 20 s: 400 W inside, 50 W outside."""

    def joules(s: float) -> float:
        inside = min(max(s - 5, 0), 5) + min(max(s - 15, 0), 5)
        return GPU_W * inside + 50 * (s - inside)

    energy = energy_of(metered({"gpu0.energy_j": joules}, nodes=1, block_steps=5))
    assert energy.gpus_j is not None
    assert abs(energy.gpus_j - GPU_W * 10) <= energy.bound_j < 0.2 * GPU_W * 10
    assert energy.cpus_j is None and energy.unmetered[0].startswith("CPUs (no counter was read)")


def test_a_short_window_is_refused() -> None:
    energy = energy_of(metered(measured_steps=4))
    assert energy.joules is None
    assert energy.reason == "the measured steps take 4.0 s; energy is told from 5 s on"


@pytest.mark.parametrize(
    ("joules", "reason"),
    [
        (lambda s: 400 * (s % 9), "a counter went back"),
        (lambda s: 5.0, "a counter stands still"),
        (lambda s: 400 * s if s < 9 else np.inf, "telemetry does not cover the measured steps"),
    ],
)
def test_a_counter_that_counts_nothing_is_none(joules: Callable[[float], float], reason: str) -> None:
    energy = energy_of(metered({"gpu0.energy_j": joules}, nodes=1))
    assert energy.joules is None and reason in energy.reason


@pytest.mark.parametrize(
    ("series", "absent", "reason"),
    [
        ("gpu0.energy_j", {"gpu1.energy_j": "Not Supported"}, "GPUs (Not Supported)"),
        ("power.package-0_0_j", {"power.package-1_1_j": "Permission denied"}, "CPUs (Permission denied)"),
        ("power.package-0_0_j", {"CPU power": "Permission denied"}, "CPUs (Permission denied)"),
    ],
)
def test_a_part_of_the_counters_is_no_energy(series: str, absent: dict[str, str], reason: str) -> None:
    energy = energy_of(metered({series: CONSTANT[series]}, nodes=1, facts={"absent": absent}))
    assert energy.joules is None and reason in energy.reason


def test_gpus_that_the_run_does_not_use_are_in_no_energy() -> None:
    energy = energy_of(metered(nodes=1, ranks_per_node=1, gpus_per_node=1))
    assert energy.gpus_j is None and energy.unmetered[0].startswith("GPUs (2 were read and 1 are used")


def test_a_summary_has_energy(tmp_path: Path) -> None:
    low = {**CONSTANT, "gpu0.power_w": lambda s: 0.5 * GPU_W}
    trace = metered(low)
    put(tmp_path, trace)
    failed = dataclasses.replace(metered(low, repeat=2), outcome=Outcome.RANK_FAIL)
    put(tmp_path, failed)
    put_planned(tmp_path, [trace.run])
    put_attempt(tmp_path, trace.run, 0.5)
    put_attempt(tmp_path, trace.run, 0.5, Outcome.RANK_FAIL, attempt=2)
    put_attempt(tmp_path, failed.run, 0.5, Outcome.RANK_FAIL)
    summary, _ = read_summary([tmp_path])
    (line,) = [part for part in cost_line(summary).split("; ") if "kWh" in part]
    assert " kWh metered in 2 attempts, " in line and line.endswith("the energy of 1 other attempt is not known")
    (result,) = json.loads(as_json(summary))["results"]
    joules = (4 * GPU_W + 2 * (PACKAGE_W + DRAM_W)) * 10 / (10 * trace.run.global_batch_size)
    energy = result["cost"]["energy"]
    assert energy["joules"] == pytest.approx(joules)
    assert energy["kwh_per_million"] == pytest.approx(joules / 3.6)
    printed = " ".join(text(summary).split())
    assert f"{joules:.3g}" in printed
    lines = "\n".join(warnings(summary))
    assert "; not metered: network cards and switches, fans" in lines


def test_rights_that_are_missing_are_named_with_their_remedy(tmp_path: Path) -> None:
    denied = {"absent": {"CPU power": "/sys/class/powercap/intel-rapl:0/energy_uj: Permission denied"}}
    put(tmp_path, metered({"cpu.busy_s": lambda s: s}, facts=denied, gpus_per_node=0))
    lines = "\n".join(warnings(read_summary([tmp_path])[0]))
    assert "no energy: CPUs (/sys/class/powercap/intel-rapl:0/energy_uj: Permission denied)" in lines
    assert "docs/telemetry.md" in lines


def powercap(folder: Path) -> None:
    for name, content in SYS.items():
        if name.startswith("class/powercap/"):
            path = folder / name.removeprefix("class/powercap/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


def test_the_counters_are_those_that_the_drivers_give(tmp_path: Path) -> None:
    powercap(tmp_path)
    driven = {"GPU": gpus([UUIDS[0]], Nvml(FakeNvml())), "AMD": gpus([], AmdSmi(FakeAmdSmi()))}
    of_gpus = [name for name in Readings(driven).series if re.fullmatch(_COUNTERS["gpu"], name)]
    assert of_gpus == ["gpu0.energy_j", "gpu0.energy_j", "gpu1.energy_j"]
    readings = Readings({"CPU power": packages(tmp_path)})
    assert any(re.fullmatch(_COUNTERS["cpu"], name) for name in readings.series)
