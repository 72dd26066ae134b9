"""hpc.node_agent.connections: what the kernel tells of TCP connections between machines."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from hpc.node_agent import connections as module
from hpc.node_agent.connections import Connection, ConnectionLog, connections, read_reply

KIB = 1024
MINE, THEIRS = "10.0.0.1", "10.0.0.2"


def message(
    local: str, remote: str, sent: int, busy_us: int, window_us: int = 0, buffer_us: int = 0, info_bytes: int = 232
) -> bytes:
    """As of a dump by sock_diag(7), with an attribute before that of tcp_info."""
    family = socket.AF_INET if ip_address(local).version == 4 else socket.AF_INET6
    info = bytearray(232)
    struct.pack_into("=Q", info, 120, sent)
    struct.pack_into("=I", info, 148, 35)
    struct.pack_into("=QQQ", info, 168, busy_us, window_us, buffer_us)
    ends = b"".join(ip_address(each).packed.ljust(16, b"\0") for each in (local, remote))
    content = struct.pack("=BBBB", family, 1, 0, 0) + struct.pack("!HH", 4000, 5000) + ends + bytes(12 + 20)
    content += struct.pack("=HHBxxx", 5, 8, 0) + struct.pack("=HH", 4 + info_bytes, 2) + bytes(info[:info_bytes])
    return struct.pack("=IHHII", 16 + len(content), 20, 2, 1, 0) + content


def done() -> bytes:
    return struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)


def test_a_connection_has_both_ends_its_bytes_and_how_long_they_were_on_their_way() -> None:
    """Not as long as the receiver took nothing, or the sender had not enough room."""
    last, (its,) = read_reply(message(MINE, THEIRS, 4 << 20, 900_000, 200_000, 100_000) + done())
    assert last
    assert its == Connection((MINE, 4000), (THEIRS, 5000), 4 << 20, pytest.approx(0.6), pytest.approx(35e-6))


def test_addresses_of_ipv4_are_the_same_in_ipv6() -> None:
    _, its = read_reply(message(f"::ffff:{MINE}", f"::ffff:{THEIRS}", 1, 1) + message("fd00::1", "fd00::2", 1, 1))
    assert [(each.local[0], each.remote[0]) for each in its] == [(MINE, THEIRS), ("fd00::1", "fd00::2")]


@pytest.mark.parametrize(
    "content",
    [message(MINE, MINE, 1, 1), message("127.0.0.1", "127.0.1.1", 1, 1), message(MINE, THEIRS, 1, 1, info_bytes=104)],
    ids=["of one machine", "loopback", "of an old kernel"],
)
def test_what_shows_no_link_is_left_out(content: bytes) -> None:
    assert read_reply(content) == (False, [])


def test_a_kernel_that_refuses_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="does not tell"):
        read_reply(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -2))

    def refuse() -> Iterator[Connection]:
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr(module, "connections", refuse)
    log = ConnectionLog()
    log.look()
    assert log.end() == {"connections": {"problem": "Protocol not supported"}}


def seen(monkeypatch: pytest.MonkeyPatch, *looks: list[Connection]) -> ConnectionLog:
    """What a log has seen that looks as often as it says."""
    log = ConnectionLog()
    for at, each in enumerate(looks):
        monkeypatch.setattr(module, "connections", lambda each=each: iter(each))
        if at % log.every == 0:
            log.look()
    return log


@pytest.mark.parametrize("count", [1, 5, 63, 65, 1000])
def test_what_was_sent_is_told_in_quarters_that_add_up(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that is gone at the end."""
    looks = [
        [Connection((MINE, 1), (THEIRS, 2), 1000 * KIB * (at + 1), 0.1 * (at + 1), 1e-5 * (1 + (at + 3) % 5))]
        for at in range(count)
    ]
    log = seen(monkeypatch, *looks, [])
    facts, last = log.end()["connections"], 1 + (count - 1) // log.every * log.every
    assert facts["addresses"] == [MINE]
    ((local, remote, round_trip_s, *pieces),) = facts["sent"]
    assert (local, remote) == (MINE, THEIRS)
    assert round_trip_s == pytest.approx(1e-5, rel=4)
    assert sum(piece[0] for piece in pieces) == 1000 * KIB * last
    assert sum(piece[1] for piece in pieces) == pytest.approx(0.1 * last)
    assert len(pieces) == min(count, 4)
    if count > 4:
        assert [piece[0] for piece in pieces] == pytest.approx([1000 * KIB * last / 4] * 4, rel=0.1 if count > 5 else 1)


def test_what_sent_little_is_not_told_and_of_very_many_those_that_sent_most(monkeypatch: pytest.MonkeyPatch) -> None:
    its = [Connection((MINE, port), (THEIRS, 2), port * 256 * KIB, 1.0, 1e-5) for port in range(100)]
    sent = seen(monkeypatch, its).end()["connections"]["sent"]
    assert [entry[3][0] // (256 * KIB) for entry in sent] == [*range(36, 100)]
    assert seen(monkeypatch, its[:1]).end()["connections"]["sent"] == []
    assert seen(monkeypatch, []).end() == {}


def test_this_kernel_tells_none_within_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        ports = {server.getsockname()[1], client.getsockname()[1]}
        assert ports.isdisjoint(end[1] for each in connections() for end in (each.local, each.remote))
