"""hpc.preflight.compare: every check fires once and is silent once, on facts that are MADE UP (preflight_facts)."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from hpc.backends import InvalidRun
from hpc.measure.world import World
from hpc.model.findings import CHECKS, CheckError, CheckFinding, Level, State, read_levels
from hpc.model.trace import RankReport
from hpc.preflight.compare import LOOKS, judge, numbers
from hpc.preflight.run import Expectations, Preflight
from hpc.preflight.types import ImagesSeen, Launched, Transports
from tests.unit.preflight_facts import GIB, LAUNCHED, RUN, findings, seen

CPUS = dataclasses.replace(RUN, gpus_per_node=0)
GPU_CHECKS = {
    "gpu_per_rank", "gpus_in_sight", "same_device", "same_driver", "cores_near_gpu", "gpu_idle", "transport",
    "transport_in_node",
}  # fmt: skip


def every(**changes: Any) -> dict[int, dict[str, Any]]:
    return dict.fromkeys(range(4), changes)


def by(**peers: tuple[int, ...]) -> dict[str, Any]:
    return {"transports": Transports(peers={name.replace("_", "/"): ranks for name, ranks in peers.items()})}


def test_the_table_and_the_functions_name_the_same_checks() -> None:
    assert {name for looks in LOOKS.values() for name in looks} == set(CHECKS)
    assert next(iter(CHECKS)) == "mpi_size"
    assert all(check.fix for check in CHECKS.values())


def test_every_check_is_ok_on_sound_facts() -> None:
    by_name = findings(seen(expect_transport="ib"))
    assert set(by_name) == set(CHECKS)
    assert {finding.name: finding.text for finding in by_name.values() if finding.state is not State.OK} == {}


FIRES: list[tuple[str, dict[int, dict[str, Any]], dict[str, Any], str]] = [
    ("mpi_size", {}, {"launched": Launched(size=1, variables={}, library="")}, "4 ranks requested, MPI sees 1"),
    ("ranks_per_node", {3: {"node": 2}}, {}, "2 nodes with 2 ranks each requested; 3 with 2, 1, 1"),
    ("gpu_per_rank", {1: {"devices": ("uuid-0-0",)}}, {}, "ranks 0-1 share GPU uuid-0-0"),
    ("gpu_per_rank", {2: {"devices": ()}}, {}, "rank 2 on node1 needs 1 and finds 0 (2 in sight)"),
    ("gpus_in_sight", {0: {"in_sight": ("uuid-0-0",)}}, {}, "rank 0 on node0 sees 1 of the 2 GPUs in use"),
    ("same_device", {3: {"device": "Tesla V100"}}, {}, "NVIDIA H200 on rank 0-2; Tesla V100 on rank 3"),
    ("same_driver", {2: {"gpu": {"driver": "535.9"}}}, {}, "580.1 on rank 0-1, 3; 535.9 on rank 2"),
    ("same_nccl", {1: {"software": {"torch": "2.13", "nccl": "2.21.5"}}}, {}, "differ in NCCL"),
    ("same_framework", {1: {"software": {"torch": "2.12", "nccl": "2.27.5"}}}, {}, "differ in torch: 2.13 on rank 0"),
    ("same_framework", {1: {"software": {"nccl": "2.27.5"}}}, {}, "none on rank 1"),
    ("cores", {1: {"cores": (0,)}}, {}, "rank 1 has 1 (core 0), 2 each requested; node0: ranks 0-1 overlap on core 0"),
    ("cores", {0: {"cores": (0, 1)}, 1: {"cores": (0, 1)}}, {}, "node0: ranks 0-1 have 2 between them (core 0-1)"),
    ("cores", {1: {"cores": (1, 2, 3)}}, {}, "ranks 0-1 overlap on core 1"),
    ("cores_near_gpu", {2: {"gpu": {"near_cores": (8, 9)}}}, {}, "rank 2 on node1 may run on 2 of its 2 cores away"),
    ("gpu_idle", {0: {"gpu": {"processes": ("vllm (pid 9) 60.0 GiB",)}}}, {}, "0.5 of 140.0 GiB in use"),
    ("gpu_idle", {0: {"gpu": {"used_bytes": 8 * GIB}}}, {}, "8.0 of 140.0 GiB in use before the start"),
    ("load", {2: {"about_node": {"busy_cores": 1.5}}}, {}, "node1: other processes keep 1.50 cores busy"),
    ("host_memory", {0: {"about_node": {"memory_free_bytes": 6 * GIB}}}, {}, "node0: 6.0 of 64.0 GiB free"),
    ("host_memory", every(about_node={"memory_bytes": 2 * GIB, "memory_free_bytes": GIB // 2}), {}, "for 2 ranks"),
    ("transport", {1: by(NET_Socket=(2,))}, {"expect_transport": "ib"}, "rank 1 on node0 goes by NET/Socket"),
    ("transport", {1: by(NET_IB=(2,))}, {"expect_transport": "ib/gdrdma"}, "promises ib/gdrdma; rank 1 on node0 goes"),
    ("transport_in_node", {0: by(SHM=(1,))}, {}, "rank 0 on node0 goes by SHM to rank 1"),
    ("images", {2: {"images": ImagesSeen(problem="/data is no folder")}}, {}, "rank 2 on node1: /data is no folder"),
]


def test_every_check_has_a_case_that_fires() -> None:
    assert {name for name, *_ in FIRES} == set(CHECKS)


@pytest.mark.parametrize(("name", "changes", "other", "says"), FIRES)
def test_a_check_fires_and_leaves_the_others_alone(
    name: str, changes: dict[int, dict[str, Any]], other: dict[str, Any], says: str
) -> None:
    by_name = findings(seen(changes, **other))
    assert by_name[name].state is State.FAILED
    assert says in by_name[name].text
    assert by_name[name].fix
    assert by_name[name].severity == CHECKS[name].level
    beside = {each.name for each in by_name.values() if each.state is State.FAILED} - {name}
    assert beside <= {"transport": {"transport_in_node"}}.get(name, set())


UNKNOWN: list[tuple[str, dict[int, dict[str, Any]], str]] = [
    ("gpu_per_rank", every(devices=None, in_sight=None, devices_unread="no driver"), "rank 0 on node0: no driver"),
    ("gpus_in_sight", every(devices=None, in_sight=None, devices_unread="no driver"), "no driver"),
    ("same_device", every(device="", devices_unread="no driver"), "rank 0 does not say its device (no driver)"),
    ("same_driver", every(gpus=()), "does not say its driver"),
    ("cores_near_gpu", every(gpu={"near_cores": ()}), "names no NUMA node"),
    ("gpu_idle", every(gpus=(), devices_unread="no driver"), "no driver"),
    ("load", every(about_node={"busy_cores": None, "unread": {"busy_cores": "hidepid=2"}}), "node0: hidepid=2"),
    ("host_memory", every(about_node={"memory_free_bytes": None}), "node0: not looked"),
    ("transport", every(transports=Transports(unread="NCCL_DEBUG is WARN")), "rank 0: NCCL_DEBUG is WARN"),
    ("transport", every(transports=Transports(peers={"P2P/IPC": (1,)})), "nothing of going from node to node"),
    ("transport_in_node", every(transports=None), "rank 0: not looked"),
]


@pytest.mark.parametrize(("name", "changes", "says"), UNKNOWN)
def test_a_check_without_facts_is_unknown(name: str, changes: dict[int, dict[str, Any]], says: str) -> None:
    by_name = findings(seen(changes, expect_transport="ib"))[name]
    assert by_name.state is State.UNKNOWN
    assert says in by_name.text
    assert by_name.fix == ""
    assert not by_name.fatal


def test_checks_that_do_not_apply_are_not_made() -> None:
    assert GPU_CHECKS.isdisjoint(findings(seen(run=CPUS, expect_transport="socket")))
    assert "transport" not in findings(seen())
    assert "transport" not in findings(seen(expect_transport="ib", simulated=True))


@pytest.mark.parametrize(
    ("name", "changes", "other"),
    [
        pytest.param("cores", every(cores=(0, 1, 2, 3)), {}, id="ranks are not bound and have cores enough"),
        pytest.param("cores", every(hostname="here"), {}, id="two nodes may have one name"),
        pytest.param(
            "transport", every(**by(NET_IB=(2,), COLLNET_SHARP=(), P2P_IPC=(1,))), {"expect_transport": "ib"},
            id="CollNet beside the network",
        ),
        pytest.param("gpus_in_sight", {rank: {"devices": (f"mig-{rank}",)} for rank in range(4)}, {}, id="MIG"),
    ],
)  # fmt: skip
def test_what_is_no_fault_is_ok(name: str, changes: dict[int, dict[str, Any]], other: dict[str, Any]) -> None:
    assert findings(seen(changes, **other))[name].state is State.OK


def test_on_this_machine_no_fix_names_an_option_of_slurm() -> None:
    crowded = {number: {"cores": (0,)} for number in range(4)}
    fix = {simulated: findings(seen(crowded, simulated=simulated))["cores"].fix for simulated in (False, True)}
    assert "--cpu-bind" in fix[False]
    assert fix[True] == CHECKS["cores"].fix_here and "--cpu-bind" not in fix[True]
    local = [CHECKS[name].fix_here for name in ("cores", "load", "gpu_idle", "host_memory")]
    assert all(local) and not [fix for fix in local if re.search("--cpu-bind|--mem|exclu", fix)]


def test_a_machine_of_simulated_nodes_has_its_cores_and_is_busy_once() -> None:
    together = every(hostname="here", about_node={"busy_cores": 1.5})
    assert findings(seen(together, simulated=True))["cores"].state is State.FAILED
    assert findings(seen(together, simulated=True))["load"].text.count("here: ") == 1
    assert findings(seen(together))["load"].text.count("here: ") == 2


def test_a_site_changes_levels_and_switches_off() -> None:
    busy = seen({2: {"about_node": {"busy_cores": 1.5}}})
    assert not findings(busy)["load"].fatal
    assert findings(busy, load=Level.FATAL)["load"].fatal
    assert "load" not in findings(busy, load=Level.OFF)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("laod=fatal", "unknown check 'laod'; known: mpi_size, ranks_per_node"),
        ("load=deadly", "level 'deadly' is not one of fatal, alarm, off"),
        ("load", "level '' is not"),
        ("mpi_size=off", "mpi_size is always fatal"),
    ],
)
def test_unknown_checks_and_levels_are_refused(setting: str, says: str) -> None:
    assert read_levels(["load=fatal", "mpi_size=fatal"]) == {"load": Level.FATAL, "mpi_size": Level.FATAL}
    with pytest.raises(CheckError, match=says):
        read_levels([setting])


@pytest.mark.parametrize(
    ("size", "variables", "fix"),
    [
        (1, {}, "srun or mpiexec"),
        (1, {"SLURM_NTASKS": "4"}, "pmix or pmi2"),
        (1, {"OMPI_COMM_WORLD_SIZE": "4"}, "MPI4PY_LIBMPI"),
        (2, {"SLURM_NTASKS": "2"}, "--nodes=2 --ntasks-per-node=2 (mpiexec: -n 4)"),
        (2, {"OMPI_COMM_WORLD_SIZE": "2"}, "--nodes=2 --ntasks-per-node=2 (mpiexec: -n 4)"),
    ],
)
def test_too_few_ranks_name_the_fix_that_fits(size: int, variables: dict[str, str], fix: str) -> None:
    launched = dataclasses.replace(LAUNCHED, size=size, variables=variables)
    assert fix in findings(seen(launched=launched))["mpi_size"].fix


def test_a_failed_fatal_check_ends_the_run_with_its_name_and_fix() -> None:
    preflight = Preflight(RUN, Expectations())
    preflight.started(4, "")
    preflight.demand()
    preflight.started(3, "")
    with pytest.raises(InvalidRun, match=r"^mpi_size: 4 ranks requested, MPI sees 3 .*: start it"):
        preflight.demand()


def test_texts_about_many_ranks_are_short() -> None:
    assert numbers([3, 1, 2, 9]) == "1-3, 9"
    assert numbers(range(0, 100, 2)) == "0, 2, 4, 6, 8, 10, 12, 14, …"
    crowd = [dataclasses.replace(seen().ranks[0], rank=number, cores=(number % 2,)) for number in range(1000)]
    by_name = [by_name for stage in LOOKS for by_name in judge(stage, seen(ranks=crowd), {})]
    assert all(len(finding.text) < 600 for finding in by_name)
    assert any(isinstance(finding, CheckFinding) and finding.state is State.FAILED for finding in by_name)


class FakeComm:
    """FAKE: two ranks on two nodes, of which this is the first; the other one brings the same as this one."""

    rank, size = 0, 2

    def gather(self, mine: Any) -> list[Any]:
        return [mine, {**mine, "rank": 1, "node": 1, "devices": ("other",)}]

    def bcast(self, value: Any) -> Any:
        return value


def test_the_transport_of_nccl_is_compared_with_the_expected_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    run = dataclasses.replace(RUN, ranks_per_node=1, gpus_per_node=1, data="synthetic")
    comm: Any = FakeComm()
    world = World(rank=0, size=2, local_rank=0, local_size=1, node_rank=0, nodes=2, hostname="n0")
    levels = {"gpu_per_rank": Level.OFF}
    preflight = Preflight(run, Expectations(expect_transport="ib", levels=levels, network={"latency_us": 3.0}))
    preflight.met(comm, world)
    preflight.enable_nccl_log(tmp_path)
    report = RankReport(device={"kind": "gpu", "name": "H200", "uuid": "GPU-A"}, software={"nccl": "2.27"})
    report = preflight.built(comm, report)
    assert report.start and report.start["network"] == {"latency_us": 3.0}
    assert report.preflight and report.preflight["same_nccl"]["text"] == "NCCL 2.27 on all ranks"
    report = preflight.stepped(comm, report)
    assert report.preflight and report.preflight["transport"]["state"] == "unknown"
    assert report.nccl and "wrote nothing" in report.nccl["unread"]
    (tmp_path / "nccl.rank0").write_text("n0:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n")
    with pytest.raises(InvalidRun, match="transport: the site promises ib; rank 0 on n0 goes by NET/Socket"):
        preflight.stepped(comm, report)
    transports = preflight.ranks[0].transports
    assert transports is not None and transports.peers == {"NET/Socket": (1,)}
    transport = next(finding for finding in preflight.findings if finding.name == "transport")
    assert transport.fix.startswith("see why NCCL took another")
