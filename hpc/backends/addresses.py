"""IPv4 addresses by which ranks reach each other: loopback where they share a network stack, else one interface."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.backends import InvalidRun
from hpc.system.host import LOOPBACK

if TYPE_CHECKING:
    from hpc.measure.connections import Communicator

_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT, _HIGHEST_PORT = 10_000, 65_535
_TRIES = 100
_DISCARD_PORT = 9
_SIOCGIFADDR = 0x8915


class PortTaken(Exception):
    """A port was free when chosen and taken when the framework bound it; the next attempt chooses another."""


def share_a_stack(comm: Communicator) -> tuple[bool, tuple[str, ...]]:
    """Whether all ranks share one network stack, so that loopback reaches all; and their hosts. Collective."""
    stacks, hosts = zip(*comm.allgather((_network_stack(), socket.gethostname())), strict=True)
    return len(set(stacks)) == 1, hosts


def requested_interface(gpu: bool) -> str | None:
    """The interface in the environment variable that NCCL or gloo reads; None where that names none.

    To NCCL and RCCL a name without `=` before it is the beginning of names: `hsn` is hsn0 and its like.
    """
    requested = os.environ.get("NCCL_SOCKET_IFNAME" if gpu else "GLOO_SOCKET_IFNAME", "")
    names = tuple(name for name in requested.removeprefix("=").split(",") if name)
    if not names or requested.startswith("^"):
        return None
    begins = names if gpu and not requested.startswith("=") else ()
    return next((name for name in _addresses() if begins and name.startswith(begins)), names[0])


def endpoints(comm: Communicator, interface: str | None) -> list[str]:
    """`address:port` of every rank, for frameworks that need the ports before they start. Collective.

    The ports are outside the kernel's ephemeral range. Ranks of one host cannot choose the same one,
    because each keeps its own bound until all have chosen; from then until the framework binds it, it can be lost
    (PortTaken).
    """
    shared, hosts = share_a_stack(comm)
    address = LOOPBACK if shared else reachable_address(interface, hosts)
    with _bound_port() as listener:
        return comm.allgather(f"{address}:{listener.getsockname()[1]}")


def endpoint_of_first(comm: Communicator, interface: str | None) -> tuple[str, str]:
    """The address of rank 0 and a port of it, as of `endpoints`, known to all. Collective."""
    places = comm.gather((_network_stack(), socket.gethostname()))
    endpoint = ("", "")
    if places is not None:
        stacks, hosts = zip(*places, strict=True)
        address = LOOPBACK if len(set(stacks)) == 1 else reachable_address(interface, hosts)
        with _bound_port() as listener:
            endpoint = address, str(listener.getsockname()[1])
    address, port = comm.bcast(endpoint)
    return address, port


def _bound_port() -> socket.socket:
    """A socket bound to a free port on all interfaces."""
    low, high = map(int, _PORT_RANGE.read_text().split())
    below = low - _LOWEST_PORT >= _HIGHEST_PORT - high
    first, stop = (_LOWEST_PORT, low) if below else (high + 1, _HIGHEST_PORT + 1)
    if stop - first < _TRIES:
        raise InvalidRun(
            f"{_PORT_RANGE} is {low} {high}: no ports are left that the kernel does not hand out by itself"
        )
    for port in random.SystemRandom().sample(range(first, stop), _TRIES):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.bind(("", port))
        except OSError:
            sock.close()
            continue
        return sock
    raise PortTaken(f"{_TRIES} ports of {socket.gethostname()} between {first} and {stop} were tried, none was free")


def _network_stack() -> str:
    """Identifies this process's network stack: boot id and network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return f"{socket.gethostname()}/{os.getpid()}"


def reachable_address(interface: str | None, hosts: tuple[str, ...]) -> str:
    """The address by which other hosts reach this one. Raises InvalidRun where none can be determined."""
    addresses = _addresses()
    if interface is not None:
        if interface not in addresses:
            raise InvalidRun(
                f"interface {interface} was requested (GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME); "
                f"{socket.gethostname()} has {', '.join(f'{n} {a}' for n, a in addresses.items())}"
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
            "name the interface that the nodes share by GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, in a sweep by "
            "--env GLOO_SOCKET_IFNAME=eth0"
        )
    return towards


def address_here(name: str) -> str | None:
    """The address of the name, where it is one of this host's; else None."""
    address = _resolve(name)
    return address if address in _addresses().values() else None


def _resolve(host: str) -> str | None:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None


def _address_towards(address: str | None) -> str | None:
    """This host's own address on the route to another one; sends no packet."""
    if address is None or address.startswith("127."):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((address, _DISCARD_PORT))
        except OSError:
            return None
        return str(sock.getsockname()[0])


def interface_towards(address: str) -> str:
    """The interface through which this host reaches the address. Raises InvalidRun where there is none."""
    local_address = _address_towards(address)
    for name, its_address in _addresses().items():
        if its_address == local_address:
            return name
    raise InvalidRun(f"{socket.gethostname()} has no interface that leads to rank 0 at {address}")


def _addresses() -> dict[str, str]:
    """The IPv4 address of every interface that has one, by interface name."""
    by_interface = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name))
            try:
                by_interface[name] = socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24])
            except OSError:  # an interface without an IPv4 address
                continue
    return by_interface
