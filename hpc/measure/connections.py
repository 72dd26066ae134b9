"""What the ranks of a script need of a communicator, over TCP connections of their own: for ranks that no MPI connects.

The operations have MPI's names and meaning, and there are no others. Objects travel as JSON, so tuples arrive as lists;
arrays travel as their bytes. All ranks call the collective ones in the same order, so that one connection between two
ranks is enough. Collectives go along a tree: from the ranks of a node to its lowest one, from these to rank 0, nobody
with more than FAN_OUT below it on either way. Other ranks connect where they send each other something. Who connects
proves that it has the key of the launch, and so does who is connected to (HMAC over random numbers).
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NoReturn

from hpc.system.text import first_of, grouped, plural

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

KEY_BYTES = 32
GREETING_S, CONNECT_S = 5.0, 60.0
"""Seconds in all for a process that connects to prove that it has the key, and for ranks that are to connect to each
other."""
MAX_HOSTS_NAMED = 3
"""The maximum of hosts without the key that are named."""
_HEADER = struct.Struct("!iQ")
"""Before each message: its tag, and its length in bytes."""
_GATHER, _SCATTER, _BCAST, _GATHER_ARRAY, _LARGEST, _PLACES, _ABORT = range(-1, -8, -1)
"""Tags; MPI's are positive."""
FAN_OUT = 32
_PART = struct.Struct("!IQ")
"""Before each rank's part of a message: the rank, and the length in bytes."""
_PLACE = struct.Struct("!II")
_PORT_BITS = 16
_SMALL_BYTES = 1 << 16
_KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 6}
"""A host that is gone without a word is noticed after 90 s."""


class ConnectionLost(Exception):
    """Another rank has ended, or cannot be reached any more."""


class WrongKey(Exception):
    """What is at the other end does not have the key of this launch."""


@dataclass(frozen=True)
class Endpoint:
    """Where a rank listens, and the key of the launch."""

    address: str
    port: int
    key: bytes = field(repr=False)


def listen(address: str, backlog: int) -> socket.socket:
    """A socket that listens at this address alone, at a port that the kernel chooses."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=backlog)


def dial(endpoint: Endpoint, rank: int, size: int, limit_s: float) -> socket.socket:
    """Connects to the endpoint as this rank of so many, within the limit in all. Raises OSError, or WrongKey where the
    other end has another."""
    until_s = time.monotonic() + limit_s
    link = socket.create_connection((endpoint.address, endpoint.port), timeout=limit_s)
    try:
        challenge, place = _exactly(link, KEY_BYTES, until_s), _PLACE.pack(rank, size)
        mine = secrets.token_bytes(KEY_BYTES)
        words = challenge + mine + place
        link.sendall(mine + place + _proof(endpoint.key, b"dials", words))
        reply = _exactly(link, KEY_BYTES, until_s)
    except (OSError, EOFError) as error:
        link.close()
        if isinstance(error, EOFError):
            raise WrongKey(f"{endpoint.address}:{endpoint.port} does not take the key of this launch") from None
        raise
    if not hmac.compare_digest(reply, _proof(endpoint.key, b"answers", words)):
        link.close()
        raise WrongKey(f"{endpoint.address}:{endpoint.port} does not have the key of this launch")
    return _ready_for_use(link)


class Door:
    """Admits the ranks of a launch, which prove that they have its key, one after the other.

    Each has GREETING_S in all, however it sends.
    """

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._listener, self._key = listener, key
        self._refused: Counter[str] = Counter()  # by host

    def admit(self, limit_s: float) -> tuple[int, int, socket.socket]:
        """Waits for a rank; returns which one it is, of how many, and the connection. Raises TimeoutError where none
        has come within the limit."""
        until_s = time.monotonic() + limit_s
        while (remaining_s := until_s - time.monotonic()) > 0:
            self._listener.settimeout(remaining_s)
            try:
                link, address = self._listener.accept()
            except TimeoutError:
                break
            except ConnectionError:  # it has gone again
                continue
            try:
                return (*self._greeted(link), _ready_for_use(link))
            except (OSError, EOFError, WrongKey):
                self._refused[str(address[0])] += 1
                link.close()
        raise TimeoutError(f"no rank has come within {limit_s:g} s{self.strangers()}")

    def _greeted(self, link: socket.socket) -> tuple[int, int]:
        """Which rank of how many has connected. Raises OSError, EOFError, or WrongKey where it has another key."""
        until_s, challenge = time.monotonic() + GREETING_S, secrets.token_bytes(KEY_BYTES)
        link.settimeout(GREETING_S)
        link.sendall(challenge)
        greeting = _exactly(link, 2 * KEY_BYTES + _PLACE.size, until_s)
        words, proof = challenge + greeting[:-KEY_BYTES], greeting[-KEY_BYTES:]
        if not hmac.compare_digest(proof, _proof(self._key, b"dials", words)):
            raise WrongKey("it does not have the key of this launch")
        link.sendall(_proof(self._key, b"answers", words))
        rank, size = _PLACE.unpack(greeting[KEY_BYTES : KEY_BYTES + _PLACE.size])
        return rank, size

    def strangers(self) -> str:
        """A phrase about those who connected without the key: how many, and from where; empty where none did."""
        if not self._refused:
            return ""
        hosts = first_of([f"{host} ({count})" for host, count in self._refused.most_common()], MAX_HOSTS_NAMED)
        return f"; {plural(self._refused.total(), 'connection')} without the key of this launch, from {hosts}"


def send_abort(links: Collection[socket.socket], reason: str) -> None:
    """Sends the reason to those who are still there, and closes the connections."""
    text = json.dumps(reason).encode()
    for link in links:
        with suppress(OSError):
            link.settimeout(1.0)
            link.sendall(_HEADER.pack(_ABORT, len(text)) + text)
            link.shutdown(socket.SHUT_WR)
        link.close()


class Connections:
    """The ranks of a launch. `links` are this rank's connections by rank, of rank 0 to all, of others to rank 0; it
    listens at `listener` for others.

    An operation raises ConnectionLost where a rank that it needs is gone, or has ended all ranks by `Abort`.
    """

    def __init__(
        self, rank: int, size: int, links: Mapping[int, socket.socket], listener: socket.socket, key: bytes
    ) -> None:
        self.rank, self.size = rank, size
        self._links, self._listener, self._key = dict(links), listener, key
        self._door = Door(listener, key)
        self._hosts, self.parent, self.children = self._meet()
        self._connect_tree()

    def _meet(self) -> tuple[Sequence[Sequence[str]], int | None, Sequence[int]]:
        """Host names with addresses, and who is beside this rank in the tree; `_places` has by rank which of these it
        is on and the port at which it listens. Through rank 0, to which all have come, and which tells each."""
        self._places = array("Q", [0])
        if self.size == 1:
            return [(socket.gethostname(), "")], None, []
        mine = [socket.gethostname(), *self._listener.getsockname()[:2]]
        if self.rank != 0:
            self.send(0, _PLACES, json.dumps(mine).encode())
            hosts, parent, children = json.loads(self.receive(0, _PLACES))
            self._places = array("Q", self.receive(0, _PLACES))
            return hosts, parent, children
        everyone = [mine, *(json.loads(self.receive(rank, _PLACES)) for rank in range(1, self.size))]
        numbers: dict[tuple[str, str], int] = {}
        places = [(numbers.setdefault((host, address), len(numbers)), port) for host, address, port in everyone]
        self._places = array("Q", [number << _PORT_BITS | port for number, port in places])
        parents = _tree(nodes_of([host for host, *_ in everyone]))
        children = grouped((parent, rank) for rank, parent in enumerate(parents))
        for rank in range(1, self.size):
            about = [*numbers], parents[rank], children.get(rank, [])
            self.send(rank, _PLACES, json.dumps(about).encode())
            self.send(rank, _PLACES, self._places.tobytes())
        return [*numbers], None, children[0]

    @property
    def nodes(self) -> list[int]:
        """By rank the lowest rank on the same host."""
        return nodes_of([self._hosts[place >> _PORT_BITS][0] for place in self._places])

    def _connect_tree(self) -> None:
        """Connects this rank with those beside it in the tree; closes what connected all with rank 0."""
        beside = {*self.children, *([] if self.parent is None else [self.parent])}
        for rank in sorted(beside):
            self._link(rank)
        for rank in [rank for rank in self._links if rank not in beside]:
            self._links.pop(rank).close()

    def Dup(self) -> Connections:
        """This one: messages between two ranks stay in their order, so its users cannot confuse them."""
        return self

    def allgather(self, value: Any) -> list[Any]:
        """The values of all ranks."""
        everyone: list[Any] = self.bcast(self.gather(value))
        return everyone

    def gather(self, value: Any) -> list[Any] | None:
        """The values of all ranks on rank 0, None on others."""
        parts = self._collected(_GATHER, json.dumps(value).encode())
        return None if parts is None else [json.loads(part) for part in parts]

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """That of this rank of rank 0's values, one for each; None on others."""
        if self.parent is None:
            assert values is not None
            parts = {rank: json.dumps(value).encode() for rank, value in enumerate(values)}
        else:
            parts = dict(_parts(self.receive(self.parent, _SCATTER)))
        below: dict[int, list[bytes]] = {child: [] for child in self.children}
        parents = _tree(self.nodes) if below else []
        for rank, content in parts.items():
            if rank != self.rank:
                child = rank
                while (above := parents[child]) != self.rank:
                    assert above is not None
                    child = above
                below[child] += [_PART.pack(rank, len(content)), content]
        for child, contents in below.items():
            self.send(child, _SCATTER, b"".join(contents))
        return json.loads(parts[self.rank])

    def bcast(self, value: Any) -> Any:
        """Rank 0's value."""
        content = json.dumps(value).encode() if self.parent is None else self.receive(self.parent, _BCAST)
        for rank in self.children:
            self.send(rank, _BCAST, content)
        return value if self.parent is None else json.loads(content)

    def Barrier(self) -> None:
        """Returns once all ranks have come."""
        self._collected(_GATHER, b"")
        self.bcast(None)

    def Imaximum(self, array: Any, largest: Any) -> Maximum:
        """The largest of all ranks' int64 in each place, complete once `Test` returns True."""
        return Maximum(self, _view(array), _view(largest))

    def Gather(self, array: Any, everyone: Any) -> None:
        """The arrays of all ranks, one after another, into `everyone` on rank 0; that is None on others."""
        parts = self._collected(_GATHER_ARRAY, _view(array))
        if parts is not None:
            _view(everyone)[:] = b"".join(parts)

    def _collected(self, tag: int, mine: bytes | memoryview) -> list[bytes] | None:
        """What all ranks bring, by rank, on rank 0; None on others."""
        parts = [_PART.pack(self.rank, len(mine)), bytes(mine), *(self.receive(rank, tag) for rank in self.children)]
        if self.parent is None:
            return by_rank(b"".join(parts))
        self.send(self.parent, tag, b"".join(parts))
        return None

    def Send(self, array: Any, dest: int, tag: int) -> None:
        """Sends the array to a rank."""
        self.send(dest, tag, _view(array))

    def Recv(self, array: Any, source: int, tag: int) -> None:
        """Receives from a rank an array of this size."""
        _view(array)[:] = self.receive(source, tag)

    def Send_init(self, array: Any, dest: int, tag: int) -> Persistent:
        """`Start` sends what the array has by then."""
        self._link(dest)
        return Persistent(start=lambda: self.Send(array, dest, tag))

    def Recv_init(self, array: Any, source: int, tag: int) -> Persistent:
        """`Wait` receives into the array."""
        self._link(source)
        return Persistent(finish=lambda: self.Recv(array, source, tag))

    def Abort(self, errorcode: int) -> NoReturn:
        """Ends this rank, and all others as soon as they need another rank."""
        send_abort(self._links.values(), f"connection lost: rank {self.rank} has ended all ranks")
        raise SystemExit(errorcode)

    def send(self, rank: int, tag: int, content: bytes | memoryview) -> None:
        """One message."""
        link, header = self._link(rank), _HEADER.pack(tag, len(content))
        try:
            if len(content) <= _SMALL_BYTES:
                link.sendall(header + content)
            else:
                link.sendall(header)
                link.sendall(content)
        except OSError as error:
            self._raise_abort(link)
            raise _lost(rank, error) from error

    def receive(self, rank: int, tag: int) -> bytes:
        """The next message of this rank, which has this tag."""
        link = self._link(rank)
        try:
            theirs, length = _HEADER.unpack(_exactly(link, _HEADER.size))
            content = _exactly(link, length)
        except (OSError, EOFError) as error:
            raise _lost(rank, error) from error
        if theirs == _ABORT:
            raise ConnectionLost(json.loads(content))
        if theirs != tag:
            raise RuntimeError(f"rank {rank} sent a message {theirs} where rank {self.rank} waits for {tag}")
        return content

    def ready(self, ranks: Collection[int], timeout_s: float | None) -> list[int]:
        """Those of the ranks that have sent something; waits for one, at most so long."""
        links = {id(self._links[rank]): rank for rank in ranks}
        return [links[id(link)] for link in wait([self._links[rank] for rank in ranks], timeout_s)]

    def _link(self, rank: int) -> socket.socket:
        """The connection to this rank: the higher one connects to the lower one, when both first need it."""
        until_s = time.monotonic() + CONNECT_S
        while rank not in self._links:
            try:
                if rank < self.rank:
                    number, port = divmod(self._places[rank], 1 << _PORT_BITS)
                    endpoint = Endpoint(self._hosts[number][1], port, self._key)
                    self._links[rank] = dial(endpoint, self.rank, self.size, CONNECT_S)
                else:
                    dialling, _, link = self._door.admit(until_s - time.monotonic())
                    self._links[dialling] = link
            except (OSError, WrongKey) as error:
                raise _lost(rank, error) from error
        return self._links[rank]

    def _raise_abort(self, link: socket.socket) -> None:
        """Raises ConnectionLost with the reason, where the other end has left one before it closed the connection."""
        with suppress(OSError, EOFError):
            link.settimeout(1.0)
            tag, length = _HEADER.unpack(_exactly(link, _HEADER.size))
            if tag == _ABORT:
                raise ConnectionLost(json.loads(_exactly(link, length)))


class Maximum:
    """A maximum under way: up the tree each rank sends the largest of those below it and its own, down the tree that of
    all comes back, `into` this."""

    def __init__(self, ranks: Connections, mine: memoryview, into: memoryview) -> None:
        self._ranks, self._into = ranks, into
        self._parts = [bytes(mine)]
        self._awaited = {*ranks.children}
        self._is_complete = False
        if not self._awaited:
            self._pass_up()

    def Test(self, timeout_s: float = 0.0) -> bool:
        """Whether it is complete; waits, at most so long, where it is not."""
        while not self._is_complete:
            ready = self._ranks.ready(self._awaited, timeout_s)
            if not ready:
                return False
            for rank in ready:
                content = self._ranks.receive(rank, _LARGEST)
                self._awaited.discard(rank)
                if rank == self._ranks.parent:
                    self._end(content)
                else:
                    self._parts.append(content)
            if not self._awaited and not self._is_complete:
                self._pass_up()
        return True

    def _pass_up(self) -> None:
        """All below have come."""
        largest = array("q", map(max, *(array("q", part) for part in (self._parts[0], *self._parts)))).tobytes()
        if self._ranks.parent is None:
            self._end(largest)
        else:
            self._ranks.send(self._ranks.parent, _LARGEST, largest)
            self._awaited = {self._ranks.parent}

    def _end(self, largest: bytes) -> None:
        for rank in self._ranks.children:
            self._ranks.send(rank, _LARGEST, largest)
        self._into[:] = largest
        self._is_complete = True


@dataclass(frozen=True)
class Persistent:
    """What `Send_init` and `Recv_init` return."""

    start: Callable[[], None] = lambda: None
    finish: Callable[[], None] = lambda: None

    def Start(self) -> None:
        self.start()

    def Wait(self) -> None:
        self.finish()

    def Free(self) -> None:
        """There is nothing to free."""


def union(comm: Communicator, numbers: Iterable[int]) -> set[int]:
    """The numbers that any rank has. Collective."""
    everyone = comm.gather([*numbers])
    return {*comm.bcast(None if everyone is None else sorted({number for its in everyone for number in its}))}


def by_rank(content: bytes) -> list[bytes]:
    """The parts of a message in the order of their ranks."""
    return [part for _, part in sorted(_parts(content))]


def _parts(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The parts of a message that each have their _PART before them, and whose they are."""
    at = 0
    while at < len(content):
        rank, length = _PART.unpack_from(content, at)
        at += _PART.size + length
        yield rank, content[at - length : at]


def nodes_of(hosts: Sequence[str]) -> list[int]:
    """By rank the lowest rank on a host of this name."""
    first: dict[str, int] = {}
    return [first.setdefault(host, rank) for rank, host in enumerate(hosts)]


def _tree(nodes: Sequence[int]) -> list[int | None]:
    """By rank the one above it, which is lower: of its node, or of the lowest ranks of nodes; None of rank 0."""
    ways = grouped((node, rank) for rank, node in enumerate(nodes))
    parents: list[int | None] = [None] * len(nodes)
    for way in (*ways.values(), [*ways]):
        for at, rank in enumerate(way[1:]):
            parents[rank] = way[at // FAN_OUT]
    return parents


def _proof(key: bytes, side: bytes, words: bytes) -> bytes:
    return hmac.digest(key, side + words, "sha256")


def _ready_for_use(link: socket.socket) -> socket.socket:
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in _KEEPALIVE.items():
        link.setsockopt(socket.IPPROTO_TCP, option, seconds)
    return link


def _exactly(link: socket.socket, count: int, until_s: float | None = None) -> bytes:
    """So many bytes. Raises EOFError where the other end has closed the connection before, TimeoutError where they have
    not come by that time, in however small parts."""
    content = bytearray(count)
    view, received = memoryview(content), 0
    while received < count:
        if until_s is not None:
            if (remaining_s := until_s - time.monotonic()) <= 0:
                raise TimeoutError("timed out")
            link.settimeout(remaining_s)
        if not (more := link.recv_into(view[received:])):
            raise EOFError("its end is closed")
        received += more
    return bytes(content)


def _view(array: Any) -> memoryview:
    return memoryview(array).cast("B") if array.nbytes else memoryview(b"")


def _lost(rank: int, error: BaseException) -> ConnectionLost:
    return ConnectionLost(f"connection lost to rank {rank} ({error})")


if TYPE_CHECKING:
    Communicator = Intracomm | Connections
