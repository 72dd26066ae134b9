"""hpc.node_agent.sources: the kernel's files, as real kernels write them, and what is missing or odd."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from math import isnan
from pathlib import Path

import numpy as np
import pytest

from hpc.node_agent.sources import (
    MAX_CORES,
    MAX_INTERFACES,
    KernelFile,
    RankProcess,
    SeriesReader,
    Unread,
    link_speed,
    sources_of_node,
)
from hpc.node_agent.telemetry import Census, Readings
from tests.unit.telemetry_nodes import OF_THIS_MACHINE, PAGE_BYTES, PROC, RANK, Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture(autouse=True)
def ticks_of_10_ms(monkeypatch):
    monkeypatch.setattr("hpc.node_agent.sources._TICKS_PER_S", 100)


def test_all_that_a_node_tells_in_the_units_of_the_names(node):
    assert node.read() == pytest.approx(
        {
            "cpu.busy_s": 16.5, "cpu.idle_s": 92.0, "cpu.stolen_s": 0.3,
            "ranks_cpu.busy_s": 10.2, "ranks_cpu.idle_s": 7.5, "ranks_cpu.stolen_s": 0.1,
            "ranks_cpu.frequency_mean_mhz": 2700, "ranks_cpu.frequency_min_mhz": 2400,
            "ranks_cpu.throttles": 5, "ranks_cpu.package_throttles": 4,
            "power.package-0_0_j": 0,
            "memory.swapped_out_bytes": 7 * PAGE_BYTES,
            "net.eth0.received_bytes": 98084, "net.eth0.sent_bytes": 11036, "net.eth0.dropped_packets": 10,
            "net.eth0.errors": 7,
            "net.eth0.12.received_bytes": 40, "net.eth0.12.sent_bytes": 50, "net.eth0.12.dropped_packets": 0,
            "net.eth0.12.errors": 0,
            "net.lo.received_bytes": 100, "net.lo.sent_bytes": 100, "net.lo.dropped_packets": 0, "net.lo.errors": 0,
            "net.tcp_sent_segments": 990_000, "net.tcp_retransmitted_segments": 43265,
            "net.tcp_needlessly_retransmitted_segments": 41,
            "net.mlx5_0_port1.received_bytes": 1000, "net.mlx5_0_port1.sent_bytes": 4000,
            "net.mlx5_0_port1.link_bytes_per_s": 12.5e9, "net.mlx5_0_port1.symbol_errors": 0,
            "net.rdmap0_port1.received_bytes": 77, "net.rdmap0_port1.sent_bytes": 88,
            "local_rank0.minor_faults": 1020, "local_rank0.major_faults": 33, "local_rank0.cpu_s": 3.0,
            "local_rank0.memory_bytes": 415 * PAGE_BYTES,
            "local_rank0.main_thread_voluntary_switches": 12, "local_rank0.main_thread_involuntary_switches": 34,
            "local_rank0.main_thread_queued_s": 2.5, "local_rank0.main_thread_kernel_s": 0.75,
            "local_rank0.main_thread_cpu_s": 5.0, "local_rank0.main_thread_storage_s": 1.2,
            "local_rank0.main_thread_running_looks": 2, "local_rank0.main_thread_sleeping_looks": 0,
            "local_rank0.main_thread_uninterruptible_looks": 0, "local_rank0.main_thread_stopped_looks": 0,
            "local_rank0.children_cpu_s": 0.4,
            "local_rank0.cores_busy_s": 10.2, "local_rank0.throttled_s": 0.0,
        }
    )  # fmt: skip


def test_what_a_machine_does_not_have_is_absent_with_the_reason(node, tmp_path):
    sources = sources_of_node([RANK], node.proc, tmp_path / "none")
    readings = Readings({what: source for what, source in sources.items() if what not in OF_THIS_MACHINE})
    assert set(readings.absent) == {"CPU frequency", "CPU throttling", "CPU power", "fabric"}
    assert all(readings.absent.values())
    assert "cpu.busy_s" in readings.series


def test_a_counter_that_may_not_be_read_is_absent_by_itself(node):
    (node.sys / "class/powercap/intel-rapl:0/energy_uj").unlink()
    (node.proc / "17/schedstat").unlink()
    absent = node.readings().absent
    assert absent["CPU power"].endswith("energy_uj: No such file or directory")
    assert absent["processes of ranks"].endswith("schedstat: No such file or directory")


def test_energy_goes_on_where_its_counter_begins_anew(node):
    readings = node.readings()
    at = readings.series.index("power.package-0_0_j")
    counter = node.sys / "class/powercap/intel-rapl:0/energy_uj"
    for count, joules in (("950000", 0.05), ("50000", 0.15), ("60000", 0.16)):
        counter.write_text(count)
        assert readings.read()[at] == pytest.approx(joules)
    for count in ("10000", "20000"):  # set back: by far less than a wrap
        counter.write_text(count)
        assert isnan(readings.read()[at])


def test_a_process_of_another_namespace_is_not_taken_for_the_rank(node):
    node.namespace("pid:[2]")
    readings = node.readings()
    assert [name for name in readings.series if name.startswith("local_rank")] == ["local_rank0.cores_busy_s"]
    assert "namespace" in readings.absent["processes of ranks"]


def test_where_the_kernel_names_no_namespace_nobody_is_taken_for_the_rank(node):
    (node.proc / "self/ns/pid").unlink()
    unnamed = RankProcess(pid=17, cores=(0,), pid_namespace="")
    assert "processes of ranks" in node.readings(unnamed).absent


@pytest.mark.parametrize(
    ("mbit", "stated"),
    [(100, 12.5e6), (400_000, 50e9), (10, "10 Mbit/s"), (0, "0 Mbit/s"), (0xFFFFFFFF, "knows no speed")],
)
def test_the_speed_of_a_link_is_what_its_driver_says(
    monkeypatch: pytest.MonkeyPatch, mbit: int, stated: float | str
) -> None:
    """Two halves in `struct ethtool_cmd`, at bytes 12 and 28; unknown is -1, and a tun device claims 10 Mbit/s."""

    def answer(control: object, number: int, request: bytes) -> None:
        name, address = struct.unpack_from("16sP", request)
        assert (number, name.rstrip(b"\0")) == (0x8946, b"eth0")
        place = ctypes.c_char_p(address)
        command = (ctypes.c_char * 44).from_address(ctypes.cast(place, ctypes.c_void_p).value or 0)
        struct.pack_into("H", command, 12, mbit & 0xFFFF)
        struct.pack_into("H", command, 28, mbit >> 16)

    monkeypatch.setattr("fcntl.ioctl", answer)
    if isinstance(stated, str):
        with pytest.raises(Unread, match=stated):
            link_speed("eth0")
    else:
        assert link_speed("eth0") == (stated,)


def test_an_interface_that_goes_is_nan_and_the_rest_stays(node):
    readings = node.readings()
    lines = PROC["net/dev"].splitlines(keepends=True)
    (node.proc / "net/dev").write_text("".join(line for line in lines if "eth0:" not in line))
    values = dict(zip(readings.series, readings.read(), strict=True))
    assert isnan(values["net.eth0.sent_bytes"])
    assert values["net.lo.sent_bytes"] == 100


def test_of_very_many_interfaces_the_busiest_are_read(node):
    rows = [f"veth{index}: {index} 0 0 0 0 0 0 0 {index} 0 0 0 0 0 0 0\n" for index in range(100)]
    (node.proc / "net/dev").write_text("".join(rows))
    values_read = {name for name in node.read() if name.endswith("sent_bytes") and "veth" in name}
    assert values_read == {f"net.veth{index}.sent_bytes" for index in range(100 - MAX_INTERFACES, 100)}


def test_of_very_many_cores_the_frequency_of_some_is_read(node):
    for core in range(256):
        node.put(node.sys / f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", f"{core}000")
    values = node.read(RankProcess(pid=17, cores=tuple(range(256)), pid_namespace="pid:[1]"))
    cores = list(range(0, 256, 256 // MAX_CORES))
    assert values["ranks_cpu.frequency_mean_mhz"] == pytest.approx(sum(cores) / len(cores))


def test_text_of_another_form_is_nan_not_the_end(node):
    readings = node.readings()
    (node.proc / "stat").write_text("cpu what\n")
    (node.proc / "17/status").write_text("Name:\tpy\n")
    values = dict(zip(readings.series, readings.read(), strict=True))
    assert isnan(values["cpu.busy_s"])
    assert isnan(values["local_rank0.main_thread_voluntary_switches"])
    assert values["local_rank0.cpu_s"] == 3.0
    assert set(readings.failed) == {"cpu.busy_s", "local_rank0.main_thread_voluntary_switches"}


def test_a_file_longer_than_one_read_is_read_whole(tmp_path):
    (tmp_path / "long").write_text("x" * (3 << 20))
    assert len(KernelFile(tmp_path / "long").text()) == 3 << 20


def test_a_series_that_fails_at_first_is_absent_and_one_that_fails_later_is_nan() -> None:
    state = {"fails": False}

    def later() -> list[float]:
        if state["fails"]:
            raise OSError(5, "Input/output error")
        return [1.0, 2.0]

    def never() -> list[float]:
        raise Unread("Not Supported")

    def sources() -> Iterator[SeriesReader]:
        yield SeriesReader(["a.x_s", "a.y_s"], later)
        yield SeriesReader(["b.z_s"], never)
        yield SeriesReader(["c.w_s"], lambda: [3.0])
        raise Unread("no more of it")

    readings = Readings({"some": sources()})
    assert readings.series == ["a.x_s", "a.y_s", "c.w_s"]
    assert readings.absent == {"b.z_s": "Not Supported", "some": "no more of it"}
    assert readings.read() == [1.0, 2.0, 3.0]
    state["fails"] = True
    np.testing.assert_equal(readings.read(), [np.nan, np.nan, 3.0])
    assert readings.failed == {"a.x_s": "Input/output error"}


def test_in_which_state_a_thread_is_is_counted_look_by_look(node):
    readings = node.readings()
    stat = node.proc / "17/task/17/stat"
    for letter in "RSDTt":
        stat.write_text(stat.read_text().replace("(x y) R", f"(x y) {letter}"))
        readings.look()
        stat.write_text(PROC["17/task/17/stat"])
    counts = dict(zip(readings.series, readings.read(), strict=True))
    states = ("running", "sleeping", "uninterruptible", "stopped")
    looks = [counts[f"local_rank0.main_thread_{state}_looks"] for state in states]
    assert looks == [3, 1, 1, 2]  # each reading is a look, too


def quota(node: Node, groups: str, mount: str, levels: dict[str, str]) -> None:
    """A process with these control groups; `levels` are their files in the folder where they are mounted."""
    node.put(node.proc / "17/cgroup", groups)
    node.put(node.proc / "self/mountinfo", mount.replace("{}", str(node.sys / "fs/cgroup")))
    for path, text in levels.items():
        node.put(node.sys / "fs/cgroup" / path, text)


V1 = "33 31 0:29 / {}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n34 31 0:30 / {}/pids rw - cgroup cgroup rw,pids\n"
V2 = "35 31 0:31 / {} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


def test_a_quota_holds_back_by_the_group_of_a_process_and_all_above(node):
    """In version 1 nanoseconds, in version 2 microseconds; the root of version 2 has no such figure."""
    idle = "nr_periods 5\nnr_throttled 0\nthrottled_time 0\n"
    held = "nr_periods 9\nnr_throttled 4\nthrottled_time {}\n"
    its = "cpu/slurm/job_1/cpu.stat"
    quota(node, "2:cpu,cpuacct:/slurm/job_1\n", V1, {"cpu/cpu.stat": idle, "cpu/slurm/cpu.stat": idle, its: idle})
    readings = node.readings()
    at = readings.series.index("local_rank0.throttled_s")
    node.put(node.sys / "fs/cgroup" / its, held.format(1_500_000_000))
    assert readings.read()[at] == pytest.approx(1.5)
    node.put(node.sys / "fs/cgroup/cpu/slurm/cpu.stat", held.format(500_000_000))
    assert readings.read()[at] == pytest.approx(2.0)


def test_a_quota_of_version_2_and_of_a_group_that_a_process_joins_later(node):
    v2 = "usage_usec 7\nnr_periods 9\nnr_throttled 4\nthrottled_usec {}\n"
    levels = {"cpu.stat": "usage_usec 7\n", "pod/cpu.stat": v2.format(10), "pod/a/cpu.stat": v2.format(7_000_000)}
    quota(node, "0::/pod\n", V2, levels)
    readings = node.readings()
    at = readings.series.index("local_rank0.throttled_s")
    node.put(node.proc / "17/cgroup", "0::/pod/a\n")
    assert readings.read()[at] == 0  # what the group lost before is not the rank's
    node.put(node.sys / "fs/cgroup/pod/a/cpu.stat", v2.format(7_250_000))
    assert readings.read()[at] == pytest.approx(0.25)


def test_a_container_s_group_is_below_what_it_has_mounted(node):
    """Without a namespace of groups the path is the machine's, the mount begins at the container's."""
    mount = "35 31 0:29 /docker/abc {}/cpu rw - cgroup cgroup rw,cpu\n"
    stat = {"cpu/cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_time 3000000000\n"}
    quota(node, "2:cpu:/docker/abc\n", mount, stat)
    assert "local_rank0.throttled_s" in node.readings().series


def test_where_the_kernel_accounts_no_delays_the_wait_for_storage_is_absent(node):
    node.put(node.proc / "sys/kernel/task_delayacct", "0\n")
    assert "task_delayacct" in node.readings().absent["local_rank0.main_thread_storage_s"]
    (node.proc / "sys/kernel/task_delayacct").unlink()
    assert "local_rank0.main_thread_storage_s" in node.readings().series  # it has waited, so it is counted


def test_the_time_of_children_stays_where_one_ends(node):
    readings = node.readings()
    at = readings.series.index("local_rank0.children_cpu_s")
    node.put(node.proc / "17/task/17/children", "22 ")
    node.put(node.proc / "22/stat", PROC["21/stat"].replace("21 (worker)", "22 (worker)"))
    assert readings.read()[at] == pytest.approx(0.8)


def test_files_of_a_rank_that_may_not_be_read_are_absent_by_themselves(node):
    for name in ("17/cgroup", "17/task/17/children"):
        (node.proc / name).unlink()
    readings = node.readings()
    lacking = {"throttled_s", "children_cpu_s"}
    assert {f"local_rank0.{name}" for name in lacking} <= set(readings.absent)
    assert "local_rank0.main_thread_queued_s" in readings.series


def test_a_census_names_the_threads_of_a_rank_its_cores_and_who_ran_beside_it(node):
    for task, name, ran_ns in ((17, "python3", 9e9), (18, "Thread-1", 4e9), (19, "idle", 1e8)):
        node.put(node.proc / f"17/task/{task}/schedstat", f"{ran_ns:.0f} 0 0\n")
        node.put(node.proc / f"17/task/{task}/comm", f"{name}\n")
    stat = "{} ({}) R {} 1 1 0 -1 4194304 1 0 0 0 {} 0 0 0 20 0 1 0 1 1 1 1 1 1 1 1 0 0 0 0 0 0 0 0 17 1 0\n"
    node.put(node.proc / "30/stat", stat.format(30, "stress (1)", 1, 500))
    census = Census([RANK], node.proc)
    node.put(node.proc / "30/stat", stat.format(30, "stress (1)", 1, 800))
    node.put(node.proc / "31/stat", stat.format(31, "of a child", 21, 900))
    assert census.end() == {
        "threads": {"0": [(18, "Thread-1", 4.0)]}, "cores": {"0": [1]}, "beside": [(30, "stress (1)", 3.0, 1)],
    }  # fmt: skip


def test_a_census_keeps_what_it_saw_of_a_rank_that_has_ended(node):
    census = Census([RANK], node.proc)
    census.take()
    (node.proc / "17/status").unlink()
    assert census.end()["cores"] == {"0": [1]}


def test_without_a_group_that_has_a_quota_what_quotas_hold_back_is_absent(node):
    node.put(node.proc / "17/cgroup", "4:memory:/\n0::/\n")
    assert node.readings().absent["local_rank0.throttled_s"] == "no control group of it counts what quotas hold back"
