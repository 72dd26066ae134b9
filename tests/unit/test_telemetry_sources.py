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
from hpc.node_agent.telemetry import Readings
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
            "cpu.busy_s": 16.5, "cpu.idle_s": 92.0, "cpu.interrupts_s": 0.5, "cpu.stolen_s": 0.3,
            "ranks_cpu.busy_s": 10.2, "ranks_cpu.idle_s": 7.5, "ranks_cpu.interrupts_s": 0.2, "ranks_cpu.stolen_s": 0.1,
            "cpu.context_switches": 4711, "cpu.running_processes": 3, "cpu.load_processes": 0.75,
            "ranks_cpu.frequency_mean_mhz": 2700, "ranks_cpu.frequency_min_mhz": 2400,
            "ranks_cpu.throttles": 5, "ranks_cpu.package_throttled_s": 0.5,
            "power.package-0_0_j": 0, "power.package-0_0_limit_w": 205,
            "memory.available_bytes": 32_768_000,
            "memory.swapped_in_bytes": 5 * PAGE_BYTES, "memory.swapped_out_bytes": 7 * PAGE_BYTES,
            "net.eth0.received_bytes": 98084, "net.eth0.sent_bytes": 11036, "net.eth0.dropped_packets": 10,
            "net.eth0.errors": 7,
            "net.eth0.12.received_bytes": 40, "net.eth0.12.sent_bytes": 50, "net.eth0.12.dropped_packets": 0,
            "net.eth0.12.errors": 0,
            "net.lo.received_bytes": 100, "net.lo.sent_bytes": 100, "net.lo.dropped_packets": 0, "net.lo.errors": 0,
            "net.tcp_sent_segments": 990_000, "net.tcp_retransmitted_segments": 43265,
            "net.tcp_needlessly_retransmitted_segments": 41,
            "net.mlx5_0_port1.received_bytes": 1000, "net.mlx5_0_port1.sent_bytes": 4000,
            "net.mlx5_0_port1.link_bytes_per_s": 12.5e9, "net.mlx5_0_port1.symbol_errors": 0,
            "net.mlx5_0_port1.out_of_sequence_packets": 6,
            "net.rdmap0_port1.received_bytes": 77, "net.rdmap0_port1.sent_bytes": 88,
            "local_rank0.minor_faults": 1020, "local_rank0.major_faults": 33, "local_rank0.cpu_s": 3.0,
            "local_rank0.memory_bytes": 415 * PAGE_BYTES,
            "local_rank0.main_thread_voluntary_switches": 12, "local_rank0.main_thread_involuntary_switches": 34,
            "local_rank0.main_thread_queued_s": 2.5, "local_rank0.main_thread_kernel_s": 0.75,
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


def test_a_process_of_another_namespace_is_not_taken_for_the_rank(node):
    node.namespace("pid:[2]")
    readings = node.readings()
    assert not [name for name in readings.series if name.startswith("local_rank")]
    assert "namespace" in readings.absent["processes of ranks"]


def test_where_the_kernel_names_no_namespace_nobody_is_taken_for_the_rank(node):
    (node.proc / "self/ns/pid").unlink()
    unnamed = RankProcess(pid=17, cores=(0,), pid_namespace="")
    assert "processes of ranks" in node.readings(unnamed).absent


@pytest.mark.parametrize(
    ("mbit", "stated"),
    [(100, 12.5e6), (400_000, 50e9), (10, "10 Mbit/s"), (0, "0 Mbit/s"), (0xFFFFFFFF, "knows no speed")],
)
def test_the_speed_of_a_link_is_what_its_driver_says(monkeypatch, mbit: int, stated: float | str) -> None:
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


def test_an_interface_without_a_link_has_no_speed() -> None:
    with pytest.raises(OSError, match=r"\[Errno"):
        link_speed("no such device")


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


def test_this_machine_itself_tells_what_every_linux_does():
    values_read = Readings(sources_of_node([RankProcess.this_process()]))
    values = dict(zip(values_read.series, values_read.read(), strict=True))
    assert values["cpu.busy_s"] > 0
    assert values["local_rank0.minor_faults"] > 0
    assert values["memory.available_bytes"] > 0
    assert values["telemetry.cpu_s"] > 0


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
