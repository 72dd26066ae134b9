"""What the kernel knows of this node's TCP connections: what they sent, and how long data were on their way meanwhile.

By sock_diag(7), which needs no privilege. A rate that a message achieves says little of a link where a rank waits for
another; the time in which sent data are not yet acknowledged, without that in which the receiver took none, does.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LEAST_BYTES, MOST = 256 << 10, 64
"""A connection that sent less is left out: few bytes show no rate. Of more than MOST those that sent most stay."""
MOST_LOOKS = 64
"""Of so many looks every other one is forgotten, and the next are twice as far apart."""

_LOOPBACK = "127."
_NETLINK_SOCK_DIAG, _BY_FAMILY, _DUMP, _INFO = 4, 20, 0x301, 2
_ERROR, _DONE = 2, 3
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_REQUEST = struct.Struct("=BBBBI48x")
_ESTABLISHED = 1 << 1
_MESSAGE_BYTES, _PORTS, _ADDRESSES = 72, struct.Struct("!HH"), struct.Struct("16s16s")
"""`struct inet_diag_msg` of linux/inet_diag.h: its length, and what it has from byte 4 and 8 on."""
_SENT_BYTES, _ROUND_TRIP_US, _BUSY_US, _INFO_BYTES = 120, 148, 168, 192
"""`struct tcp_info` of linux/tcp.h: where it has `tcpi_bytes_acked`, `tcpi_min_rtt`, and `tcpi_busy_time` with the two
times behind it, in which the receiver's window or the sender's buffer was full. Kernels before 4.10 lack them."""


@dataclass(frozen=True)
class Connection:
    """An established connection: its two ends (address, port), the bytes that the other end has acknowledged, and how
    many seconds there was something to acknowledge, without those in which that end took nothing more; the shortest
    round trip of the last minutes."""

    local: tuple[str, int]
    remote: tuple[str, int]
    sent_bytes: int
    busy_s: float
    round_trip_s: float


def connections() -> Iterator[Connection]:
    """Those of this network namespace between machines. Raises OSError where the kernel does not tell."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as link:
            link.settimeout(1.0)
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ESTABLISHED)
            link.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
            done = False
            while not done:
                done, its = read_reply(link.recv(1 << 20))
                yield from its


def read_reply(reply: bytes) -> tuple[bool, list[Connection]]:
    """Whether it is the last of a dump, and the connections between machines in it. Raises OSError where it is an
    error."""
    its: list[Connection] = []
    while len(reply) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(reply)
        message, reply = reply[_HEADER.size : length], reply[(length + 3) & ~3 :]
        if kind == _DONE:
            return True, its
        if kind == _ERROR:
            code = -struct.unpack_from("=i", message)[0]
            raise OSError(code, "the kernel does not tell its connections")
        connection = _connection(message)
        if connection is not None:
            its.append(connection)
    return False, its


def _connection(message: bytes) -> Connection | None:
    """None of one within this machine, and of a kernel that does not tell how long data were on their way."""
    family = message[0]
    ports, addresses = _PORTS.unpack_from(message, 4), _ADDRESSES.unpack_from(message, 8)
    local, remote = (_address(family, each) for each in addresses)
    info = _attribute(message[_MESSAGE_BYTES:], _INFO)
    if local == remote or local.startswith(_LOOPBACK) or info is None or len(info) < _INFO_BYTES:
        return None
    (sent,), (round_trip_us,) = (
        struct.unpack_from("=Q", info, _SENT_BYTES),
        struct.unpack_from("=I", info, _ROUND_TRIP_US),
    )
    busy_us, window_us, buffer_us = struct.unpack_from("=QQQ", info, _BUSY_US)
    return Connection(
        local=(local, ports[0]), remote=(remote, ports[1]), sent_bytes=sent,
        busy_s=max(0, busy_us - window_us - buffer_us) / 1e6, round_trip_s=round_trip_us / 1e6,
    )  # fmt: skip


def _address(family: int, packed: bytes) -> str:
    """As text; of IPv4 in IPv6 that of IPv4."""
    if family == socket.AF_INET:
        return socket.inet_ntop(family, packed[:4])
    text = socket.inet_ntop(socket.AF_INET6, packed)
    return text.removeprefix("::ffff:") if "." in text else text


def _attribute(content: bytes, kind: int) -> bytes | None:
    while len(content) >= _ATTRIBUTE.size:
        length, its = _ATTRIBUTE.unpack_from(content)
        if its == kind or length < _ATTRIBUTE.size:
            return content[_ATTRIBUTE.size : length] if its == kind else None
        content = content[(length + 3) & ~3 :]
    return None


class ConnectionLog:
    """What was seen of each connection to another machine, in looks that are about as far apart."""

    def __init__(self) -> None:
        self._seen: dict[tuple[tuple[str, int], tuple[str, int]], list[Connection]] = {}
        self._looks, self._problem = 0, ""
        self.every = 1
        """Intervals from one look to the next."""

    def look(self) -> None:
        """Takes what there is now; a reason why that is not possible is a fact."""
        try:
            its = [*connections()]
        except OSError as error:
            self._problem = str(error.strerror or error)
            return
        if self._looks == MOST_LOOKS:
            self._looks, self.every = MOST_LOOKS // 2, 2 * self.every
            self._seen = {ends: [*seen[:-1:2], seen[-1]] for ends, seen in self._seen.items()}
        self._looks += 1
        for each in its:
            self._seen.setdefault((each.local, each.remote), []).append(each)

    def end(self) -> dict[str, Any]:
        """`addresses` of this node, and `sent`: from which to which, the shortest round trip, and of about each quarter
        of it how many bytes, and how long these were on their way, in seconds; the reason where the kernel does not
        tell; empty without any."""
        if not self._seen:
            return {"connections": {"problem": self._problem}} if self._problem else {}
        bulk = sorted(self._seen.values(), key=lambda seen: seen[-1].sent_bytes)[-MOST:]
        return {
            "connections": {
                "addresses": sorted({local for (local, _), _ in self._seen}),
                "sent": [
                    [
                        seen[-1].local[0], seen[-1].remote[0], min(each.round_trip_s for each in seen), *_quarters(seen)
                    ]
                    for seen in bulk if seen[-1].sent_bytes >= LEAST_BYTES
                ],
            }
        }  # fmt: skip


def _quarters(seen: list[Connection]) -> Iterator[list[float]]:
    """What it sent until the look that is next to a quarter of its bytes, and so on; fewer pieces where that is too
    little."""
    last, sent, busy_s = seen[-1], 0, 0.0
    for quarter in (1, 2, 3):
        its = min(seen, key=lambda each: abs(4 * each.sent_bytes - quarter * last.sent_bytes))
        if min(its.sent_bytes - sent, last.sent_bytes - its.sent_bytes) >= LEAST_BYTES:
            yield [its.sent_bytes - sent, round(its.busy_s - busy_s, 6)]
            sent, busy_s = its.sent_bytes, its.busy_s
    yield [last.sent_bytes - sent, round(last.busy_s - busy_s, 6)]
