"""Addresses that ranks find each other by: which interface, which ports."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hpc.backends import InvalidRun, addresses
from hpc.backends.addresses import PortTaken, endpoints, requested_interface


class AloneComm:
    """Stands for a communicator of one rank."""

    rank, size = 0, 1

    def allgather(self, value: object) -> list[object]:
        return [value]


@pytest.fixture
def port_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's range of ports that it hands out by itself, as a file to write to."""
    path = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(addresses, "_PORT_RANGE", path)
    return path


def port() -> int:
    (endpoint,) = endpoints(AloneComm(), None)  # type: ignore[arg-type]  # one rank is all that is needed of it
    host, _, number = endpoint.rpartition(":")
    assert host == "127.0.0.1"
    return int(number)


@pytest.mark.parametrize(
    ("kernel", "lowest", "highest"),
    [("32768\t60999\n", 10_000, 32_767), ("10500 40000\n", 40_001, 65_535), ("1024 20000\n", 20_001, 65_535)],
)
def test_ports_lie_outside_the_kernels_own_range(port_range: Path, kernel: str, lowest: int, highest: int) -> None:
    port_range.write_text(kernel)
    assert all(lowest <= port() <= highest for _ in range(20))


def test_a_kernel_that_hands_out_all_ports_is_refused(port_range: Path) -> None:
    port_range.write_text("1024 65535\n")
    with pytest.raises(InvalidRun, match="1024 65535: no ports are left"):
        port()


def test_a_port_in_use_is_skipped(port_range: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port_range.write_text("32768 60999\n")
    with socket.socket() as somebody:
        somebody.bind(("", 0))
        taken = somebody.getsockname()[1]
        free = port()

        class Chosen:
            def sample(self, _: range, __: int) -> list[int]:
                return [taken, free]

        monkeypatch.setattr(addresses.random, "SystemRandom", Chosen)
        assert port() == free
        monkeypatch.setattr(Chosen, "sample", lambda *_: [taken])
        with pytest.raises(PortTaken, match="none was free"):
            port()


@pytest.mark.parametrize(("variable", "interface"), [("ib0", "ib0"), ("=ib0,eth0", "ib0"), ("^lo", None), ("", None)])
def test_the_interface_of_nccl_or_gloo_is_used(
    variable: str, interface: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", variable)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert requested_interface(gpu=True) == interface
    assert requested_interface(gpu=False) == "lo"


@pytest.mark.parametrize(
    ("variable", "interface"),
    [("hsn", "hsn0"), ("ib,hsn1", "hsn1"), ("=hsn", "hsn"), ("hsn1,", "hsn1"), ("eth", "eth"), ("^hsn", None)],
)
def test_a_name_is_the_beginning_of_names_to_nccl_as_sites_with_slingshot_have_it(
    variable: str, interface: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "_addresses", lambda: {"lo": "127.0.0.1", "hsn0": "10.0.0.1", "hsn1": "10.0.0.2"})
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", variable)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "hsn")
    assert requested_interface(gpu=True) == interface
    assert requested_interface(gpu=False) == "hsn"  # gloo knows whole names only
