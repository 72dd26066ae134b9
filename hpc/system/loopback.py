"""The address by which processes of one host meet."""

from __future__ import annotations

import socket
from contextlib import suppress

LOOPBACK, LOOPBACK_6 = "127.0.0.1", "::1"
_ANY_PORT = 9


def loopback_address() -> str:
    """The address of this host's loopback interface: IPv6's where it has none of IPv4; empty where it has neither."""
    for family, address in ((socket.AF_INET, LOOPBACK), (socket.AF_INET6, LOOPBACK_6)):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
            sock.connect((address, _ANY_PORT))  # sends nothing, and fails where the interface is down
            return address
    return ""


def no_loopback() -> str:
    """What is missing, and what to do, where `loopback_address` gives none."""
    return (
        f"{socket.gethostname()} has no loopback interface, by which processes of one machine meet: neither {LOOPBACK} "
        f"nor {LOOPBACK_6} can be reached; `ip link set lo up`, as root, brings it up"
    )
