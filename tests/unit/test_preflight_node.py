"""What a rank finds out of its node: GPUs by a FAKE driver, others' processes and memory by folders like the kernel's,
and once each by this machine's own kernel."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc.preflight.facts import (
    Hidden,
    NoDriver,
    Process,
    busy_others,
    by_nvml,
    devices_of_rank,
    facts_of_node,
    free_memory,
    of_this_job,
    processes,
)
from hpc.system.text import read_ranges
from tests.unit.telemetry_nodes import UUIDS, FakeNvml

GIB = 1 << 30
BARE = tuple(uuid.removeprefix("GPU-") for uuid in UUIDS)


class FakeDriver(FakeNvml):
    """FAKE: two GPUs, of which a process computes on the second."""

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.65"

    def nvmlDeviceGetName(self, gpu: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetPciInfo(self, gpu: int) -> Any:
        return SimpleNamespace(busId=f"00000000:{('1B', '9A')[gpu]}:00.0")

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[Any]:
        if gpu == 0:
            raise self.NVMLError("Not Supported")
        return [SimpleNamespace(pid=2**22 + 1, usedGpuMemory=2 * GIB)]


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    for bus, node, cores in (("1b", "0", "0-3,8"), ("9a", "-1", "0-15")):
        put(tmp_path / f"0000:{bus}:00.0/numa_node", f"{node}\n")
        put(tmp_path / f"0000:{bus}:00.0/local_cpulist", f"{cores}\n")
    return tmp_path


def test_what_nvml_says_of_each_gpu(devices: Path) -> None:
    gpu_0, gpu_1 = by_nvml(FakeDriver(), devices)
    assert (gpu_0.uuid, gpu_0.name, gpu_0.driver, gpu_0.memory_bytes) == (BARE[0], "NVIDIA H200", "580.65", 80 * GIB)
    assert (gpu_0.near_cores, gpu_1.near_cores) == ((0, 1, 2, 3, 8), ())
    assert (gpu_0.processes, gpu_1.processes) == ((), (f"pid {2**22 + 1} 2.0 GiB",))


def test_a_failing_driver_is_named() -> None:
    class Refusing(FakeDriver):
        def nvmlInit(self) -> None:
            raise self.NVMLError("Driver/library version mismatch")

    with pytest.raises(NoDriver, match="NVML: Driver/library version mismatch"):
        by_nvml(Refusing())
    with pytest.raises(NoDriver, match="has no attribute"):
        by_nvml(FakeNvml())


@pytest.mark.parametrize(
    ("visible", "place", "driven", "uuids"),
    [
        (None, 1, 1, (BARE[1],)),
        (None, 2, 1, ()),
        (None, 0, 2, BARE),
        ("1", 0, 1, (BARE[1],)),
        ("1", 1, 1, (BARE[1],)),  # bound by the launcher: its place is no matter
        ("1,0", 1, 1, (BARE[0],)),
        (UUIDS[1], 3, 1, (BARE[1],)),
        ("GPU-a,GPU-b", 0, 1, (BARE[0],)),
        ("", 0, 1, ()),
        ("-1,0", 0, 1, ()),
        ("0,7,1", 1, 1, (BARE[0],)),  # CUDA stops at what it does not know
    ],
)
def test_the_gpu_of_a_rank_is_the_one_that_backends_take(
    devices: Path, visible: str | None, place: int, driven: int, uuids: tuple[str, ...]
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert devices_of_rank(by_nvml(FakeDriver(), devices), place, driven, environ) == uuids


def test_slices_of_a_gpu_are_left_to_the_framework(devices: Path) -> None:
    with pytest.raises(NoDriver, match="MIG"):
        devices_of_rank(by_nvml(FakeDriver(), devices), 0, 1, {"CUDA_VISIBLE_DEVICES": "MIG-aaaa"})


def test_lists_of_cores() -> None:
    assert read_ranges("0-2,8\n") == [0, 1, 2, 8]
    assert read_ranges("\n") == []
    with pytest.raises(ValueError, match="invalid literal"):
        read_ranges("a-b")


# Processes of others


def process(pid: int, busy: int, parent: int = 1, name: str = "x", kernel: bool = False, begun: int = 5) -> Process:
    return Process(pid=pid, parent=parent, name=name, kernel=kernel, begun_ticks=begun, busy_ticks=busy)


def test_cores_busy_with_other_processes_are_added_up() -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    before = {n: process(n, 0) for n in (2, 3, 4, 6)} | {5: process(5, 0, kernel=True)}
    after = {
        2: process(2, hertz, name="vm\x1b[2J"), 3: process(3, hertz // 2, name="py"), 4: process(4, hertz),
        5: process(5, hertz, kernel=True), 6: process(6, hertz, begun=9), 7: process(7, hertz),
    }  # fmt: skip
    busy, named = busy_others(before, after, 2.0, ours={4})
    assert busy == pytest.approx(0.75)
    assert named == ("vm\\x1b[2J (pid 2) 0.50", "py (pid 3) 0.25")


def proc_of(folder: Path, environs: dict[int, str], cgroups: dict[int, str]) -> Path:
    for pid, text in environs.items():
        put(folder / str(pid) / "environ", text)
    for pid, text in cgroups.items():
        put(folder / str(pid) / "cgroup", text)
    return folder


def test_processes_of_this_job_are_known_by_its_number_its_cgroup_and_its_launcher(tmp_path: Path) -> None:
    by_pid = {
        10: process(10, 0),  # the script
        20: process(20, 0, parent=10),  # its launcher
        30: process(30, 0, parent=20),  # this rank
        31: process(31, 0, parent=20),  # another
        32: process(32, 0, parent=31),  # what that started
        40: process(40, 0),  # a daemon's child that carries the job's number
        50: process(50, 0),  # of the same cgroup
        60: process(60, 0),  # of another job
        70: process(70, 0),  # of nobody
    }
    proc = proc_of(
        tmp_path,
        {30: "A=1\0SLURM_JOB_ID=5\0", 40: "SLURM_JOB_ID=5\0B=2", 60: "SLURM_JOB_ID=55\0"},
        {30: "0::/slurm/uid_1/job_5/step_0\n", 50: "0::/slurm/uid_1/job_5/step_1\n", 60: "0::/slurm/job_55\n"},
    )
    assert of_this_job(by_pid, by_pid, proc, me=30) == {10, 20, 30, 31, 32, 40, 50}
    assert of_this_job([60, 40], by_pid, proc, me=30) == {40}


def test_processes_that_the_kernel_hides_are_no_quiet_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "self/mounts", "proc /proc proc rw,nosuid,hidepid=invisible 0 0\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Hidden, match="hidepid=invisible"):
        processes(tmp_path)
    put(tmp_path / "self/mounts", "proc /proc proc rw,nosuid,hidepid=0 0 0\n")
    assert processes(tmp_path) == {}


def test_a_process_may_call_itself_anything_and_end_at_any_moment(tmp_path: Path) -> None:
    stat = "(a) b (c) S 1 4 4 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 1 0 777 2998272 415"
    put(tmp_path / "17/stat", f"17 {stat.replace('(a) b (c)', '((a) b (c))')} 1 1 1")
    put(tmp_path / "18/stat", "")
    (tmp_path / "19").mkdir()
    assert processes(tmp_path) == {
        17: Process(pid=17, parent=1, name="(a) b (c)", kernel=False, begun_ticks=777, busy_ticks=300)
    }


# Memory and adapters


MEMINFO = "MemTotal: 64000 kB\nMemFree: 1000 kB\nMemAvailable: 32000 kB\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "free_bytes"),
    [
        ("", {}, (64000 * 1024, 32000 * 1024)),
        ("0::/job\n", {"job/memory.max": "max", "job/memory.current": "5"}, (64000 * 1024, 32000 * 1024)),
        (
            "0::/job/step\n",
            {
                "job/memory.max": "10000000", "job/memory.current": "9000000",
                "job/memory.stat": "anon 1\ninactive_file 3000000\n",
            },
            (10_000_000, 4_000_000),
        ),
        (
            "9:cpu:/x\n4:memory:/job\n0::/\n",
            {"memory/job/memory.limit_in_bytes": "8000000", "memory/job/memory.usage_in_bytes": "9000000"},
            (8_000_000, 0),
        ),
        (
            "4:memory:/job\n",
            {"memory/job/memory.limit_in_bytes": "9223372036854771712", "memory/job/memory.usage_in_bytes": "9"},
            (64000 * 1024, 32000 * 1024),
        ),
    ],
)  # fmt: skip
def test_memory_is_the_nodes_or_what_its_cgroups_leave(
    tmp_path: Path, cgroup: str, files: dict[str, str], free_bytes: tuple[int, int]
) -> None:
    put(tmp_path / "proc/meminfo", MEMINFO)
    put(tmp_path / "proc/self/cgroup", cgroup)
    for name, text in files.items():
        put(tmp_path / "sys/fs/cgroup" / name, f"{text}\n")
    assert free_memory(tmp_path / "proc", tmp_path / "sys") == (*free_bytes, "")


def test_unknown_memory_is_none(tmp_path: Path) -> None:
    total, free, reason = free_memory(tmp_path, tmp_path)
    assert (total, free) == (None, None)
    assert "meminfo does not say it" in reason


def test_this_machine_tells_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)  # how long it looks is no matter here
    node = facts_of_node()
    assert node.memory_bytes is not None
    assert node.memory_free_bytes is not None
    assert 0 < node.memory_free_bytes <= node.memory_bytes
    assert node.busy_cores is not None or node.unread["busy_cores"]
    assert dataclasses.asdict(node)
