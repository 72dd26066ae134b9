"""Where torch's ranks meet: a socket on one interface that rank 0 binds and keeps, told to the others over MPI."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported under a condition of torch's

from hpc.backends import InvalidRun

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_SIOCGIFADDR = 0x8915
_ANY_PORT = 9


def open_store(comm: Intracomm, asked_interface: str | None) -> tuple[TCPStore, str]:
    """The store that all ranks share, and the interface of this rank that leads to it. Collective.

    Ranks that share a network stack meet on loopback. Else on `asked_interface` of rank 0, else on the address of
    its host name, else on the one that leads to another host. IPv4.
    """
    stacks, hosts = zip(*comm.allgather((_network_stack(), socket.gethostname())), strict=True)
    one_stack = len(set(stacks)) == 1
    listener = None
    if comm.rank == 0:
        address = "127.0.0.1" if one_stack else _own_address(asked_interface, hosts)
        # Bound here, and handed over open: TCPStore alone would listen on every interface of the host.
        listener = socket.create_server((address, 0), backlog=max(128, comm.size))
        host, port = listener.getsockname()
        comm.bcast((host, port))
    else:
        host, port = comm.bcast(None)
    store = TCPStore(
        host,
        port,
        world_size=comm.size,
        is_master=comm.rank == 0,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    return store, "lo" if one_stack else (asked_interface or _interface_towards(host))


def _network_stack() -> tuple[str, str]:
    """Names the network stack that this process sees: this boot of this kernel, this network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, str(Path("/proc/self/ns/net").readlink())
    except OSError:
        return socket.gethostname(), str(os.getpid())


def _own_address(interface: str | None, hosts: tuple[str, ...]) -> str:
    """The address that other hosts find this one by. Raises InvalidRun where there is none to be found."""
    addresses = _addresses()
    if interface is not None:
        if interface not in addresses:
            raise InvalidRun(
                f"interface {interface} was asked for (GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME); "
                f"{hosts[0]} has {', '.join(f'{n} {a}' for n, a in addresses.items())}"
            )
        return addresses[interface]
    here = socket.gethostname()
    named = _resolve(here)
    if named is not None and not named.startswith("127."):
        return named
    other = next(host for host in hosts if host != here) if set(hosts) != {here} else here
    towards = _address_towards(_resolve(other))
    if towards is None:
        raise InvalidRun(
            f"{here} knows no address of its own but {named}, and no way to {other}: "
            "name the interface that the nodes share, --env GLOO_SOCKET_IFNAME=eth0 (or NCCL_SOCKET_IFNAME)"
        )
    return towards


def _resolve(host: str) -> str | None:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None


def _address_towards(address: str | None) -> str | None:
    """This host's own address on the way to another one; nothing is sent."""
    if address is None or address.startswith("127."):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, _ANY_PORT))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _interface_towards(address: str) -> str:
    """The interface by which this host reaches an address. Raises InvalidRun where there is none."""
    own = _address_towards(address)
    for name, its_address in _addresses().items():
        if its_address == own:
            return name
    raise InvalidRun(f"{socket.gethostname()} has no interface that leads to rank 0 at {address}")


def _addresses() -> dict[str, str]:
    """Every interface with an IPv4 address, and that address."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name))
            try:
                found[name] = socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
            except OSError:  # an interface without an IPv4 address
                continue
    return found
