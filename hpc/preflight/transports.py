"""NCCL's transports between ranks, from its own log (NCCL_DEBUG=INFO). RCCL, which stands in for it on AMD GPUs, reads
the same variables and writes the same words."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from pathlib import Path

from hpc.preflight.types import Transports
from hpc.system.regular_file import open_regular

# `… NCCL INFO Channel 00/0 : 8[0] -> 17[1] [send] via NET/IB/0/GDRDMA`; for long with a bus id in the brackets.
_CONNECTED = re.compile(
    r"NCCL INFO Channel \d+(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?"
    r"(?: \[(send|receive)\])? via ([^\n\r]+)"
)
# CollNet's have one rank.
_COLLNET = re.compile(r"NCCL INFO Coll(?:Net)? \d+(?:/\d+)? : (\d+) \[(?:send|receive)\] via (COLLNET/[^\n\r]+)")
# NVLink's switches, which add and copy, are set up; then there may be no channel to another rank of the node.
_NVLS = re.compile(r"NCCL INFO NVLS comm 0x\w+ headRank ")
# `host:pid:thread [0] NCCL INFO ncclCommInitRankConfig comm 0x5f rank 0 nranks 8 … - Init START`; RCCL has
# ` comm 0x5f nRanks 08` behind each connection.
_THREAD = re.compile(r":(\d+) \[\w+\] NCCL INFO")
_COMMUNICATOR = re.compile(r"comm 0x\w+ rank \d+ nranks (\d+) .*- Init (START|COMPLETE)")
_RANKS = re.compile(r" comm 0x\w+ nRanks (\d+)")
_VERSION = re.compile(
    r"[NR]CCL version (?:: )?(\d\S*)"
)  # `RCCL version 2.18.3+hip6.0 …`, `RCCL version : 2.21.5-HEAD:…`
_NETWORK = re.compile(r"NCCL INFO Using network (\S[^\n\r]*)")
# `MNNVL busId 0x1801000 fabric UUID 5e1f….9ac0… cliqueId 0x7ffe state 3 healthMask 0x0`: of a GPU in an NVLink domain
# of several nodes; state 3 is NVML_GPU_FABRIC_STATE_COMPLETED.
_DOMAIN = re.compile(r"NCCL INFO MNNVL busId \S+ fabric UUID (\S+) cliqueId (\S+) state 3\b")
_NO_DOMAIN = re.compile(r"[0.]+")
MNNVL = "P2P/MNNVL"
"""The name of NVLink where it goes between nodes."""
_LOGGING_LEVELS = ("INFO", "TRACE", "ABORT")
MAX_WARNINGS = 20
LONGEST_BYTES = 64 << 20
"""Only the first part of a longer log (level TRACE) is read: it has the connections."""


def enable_nccl_log(path: Path, environ: MutableMapping[str, str] = os.environ, requested: Collection[str] = ()) -> str:
    """Makes NCCL log its connections to this file, unless somebody has set its variables. Before NCCL is loaded.

    A level at which NCCL does not say how it connects is raised, with another file, where the run has not `requested`
    these variables: a cluster's image, profile or plugin presets them. Returns the name of the file as NCCL_DEBUG_FILE
    has it, empty where NCCL logs nothing or to the rank's output.
    """
    level = environ.get("NCCL_DEBUG", "").upper()
    is_preset = bool(level) and level not in _LOGGING_LEVELS and not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & {*requested}
    if is_preset or ("NCCL_DEBUG" not in environ and "NCCL_DEBUG_FILE" not in environ):
        environ["NCCL_DEBUG"] = "INFO"
        environ["NCCL_DEBUG_FILE"] = str(path).replace("%", "%%")
    level = environ.get("NCCL_DEBUG", "").upper()
    return environ.get("NCCL_DEBUG_FILE", "") if level in _LOGGING_LEVELS else ""


def unread_reason(environ: Mapping[str, str] = os.environ) -> str:
    """The reason why NCCL's log cannot be read, from the NCCL_DEBUG settings of a person; empty where it can."""
    level, file = environ.get("NCCL_DEBUG", "not set"), environ.get("NCCL_DEBUG_FILE", "")
    if level.upper() not in _LOGGING_LEVELS:
        return f"NCCL_DEBUG is {level}, at which NCCL does not say how it connects: leave it unset, or set INFO"
    if not file:
        return f"NCCL_DEBUG={level} goes to the rank's output: set NCCL_DEBUG_FILE too, or neither"
    return ""


def file_of(name: str, hostname: str, pid: int) -> Path:
    """The file that NCCL writes for a process: %h is the host's short name, %p the process number."""
    short = re.sub(r"[%/]", "-", hostname.partition(".")[0])
    known = {"h": short, "p": str(pid), "%": "%"}
    return Path(re.sub(r"%(.)", lambda match: known.get(match[1], match[0]), name))


def read_transports(name: str, hostname: str, pid: int, ranks: int = 0) -> Transports:
    """The transports in the NCCL log of this process so far; `name` as enable_nccl_log returned it, `ranks` as `parse`
    takes them."""
    path = file_of(name, hostname, pid)
    try:
        with open_regular(path) as file:
            text = file.read(LONGEST_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return Transports(unread=f"NCCL wrote nothing to {path}: the backend does not use it, or not yet")
    except OSError as error:
        return Transports(unread=f"{path}: {error.strerror}")
    transports = parse(text.splitlines(), ranks)
    if not transports.peers and not transports.network:
        return Transports(unread=f"{path} does not say how NCCL connects (NCCL_DEBUG_SUBSYS must hold INIT)")
    return transports


def warnings(name: str, hostname: str, pid: int) -> list[str]:
    """The last warnings in the NCCL log of this process: they go there and not to the rank's output."""
    try:
        with open_regular(file_of(name, hostname, pid)) as file:
            lines = [line for line in file if b"NCCL WARN" in line][-MAX_WARNINGS:]
            return [line.decode(errors="replace").rstrip("\n") for line in lines]
    except OSError:
        return []


def parse(lines: Iterable[str], ranks: int = 0) -> Transports:
    """The connections in one rank's log: its transports for sending, and those for receiving over networks.

    Each communicator numbers its ranks by itself. Where the log names their sizes, only peers in those of all `ranks`
    of the run (0: of any size) have the run's numbers; of others the transport is known, and no peer.
    """
    connections: list[tuple[str, int | None, int | None]] = []  # transport, peer, size of the communicator
    sizes: dict[str, int] = {}  # that the thread connects
    every_size: set[int] = set()
    version = network = domain = ""
    for line in lines:
        thread = match[1] if (match := _THREAD.search(line)) else ""
        if match := _CONNECTED.search(line):
            sender, receiver, direction, via = match.groups()
            size = int(match[1]) if (match := _RANKS.search(via)) else sizes.get(thread)
            connections.append((kind_of(via), int(sender if direction == "receive" else receiver), size))
        elif match := _COLLNET.search(line):
            connections.append((kind_of(match[2]), None, None))
        elif _NVLS.search(line):
            connections.append(("NVLS", None, None))
        elif match := _COMMUNICATOR.search(line):
            every_size.add(int(match[1]))
            sizes = {each: size for each, size in sizes.items() if each != thread}
            sizes |= {thread: int(match[1])} if match[2] == "START" else {}
        elif match := _VERSION.search(line):
            version = match[1]
        elif match := _NETWORK.search(line):
            network = match[1].strip()
        elif (match := _DOMAIN.search(line)) and not _NO_DOMAIN.fullmatch(match[1]):
            domain = f"{match[1]}/{match[2]}"
    peers: dict[str, set[int]] = {kind: set() for kind, *_ in sorted(connections, key=lambda each: each[0])}
    for kind, peer, size in connections:
        if peer is not None and (not ranks or ({size} if size else every_size) <= {1, ranks}):
            peers[kind].add(peer)
    return Transports(
        peers={name: tuple(sorted(its)) for name, its in peers.items()}, version=version, network=network, domain=domain
    )


def kind_of(via: str) -> str:
    """The transport without adapter, proxy and buffers: `NET/IB/0/GDRDMA/Shared` becomes `NET/IB/GDRDMA`."""
    via = via.partition(" comm 0x")[0]  # RCCL adds its communicator: `P2P/IPC comm 0x95cdeb0 nRanks 08`
    kind, _, rest = via.strip().partition("/")
    parts = rest.split("/")
    if kind in ("NET", "COLLNET"):
        direct = "/GDRDMA" if any(part.startswith("GDRDMA") for part in parts) else ""
        return f"{kind}/{parts[0]}{direct}"
    return kind if kind == "SHM" else f"{kind}/{parts[0]}"


def goes_by_network(kind: str) -> bool:
    """Whether it leaves the node."""
    return kind.startswith(("NET/", "COLLNET/"))


def fits(kind: str, expected: str) -> bool:
    """Whether a way is the promised one, or of several as `mnnvl+ib` one of these: `ib` is NET/IB, NET/IBext and the
    like, `ib/gdrdma` only from GPU to adapter directly; other words are looked for in NCCL's name of the way
    (`socket`, `libfabric`; `mnnvl` for NVLink between nodes)."""
    return any(_is(kind.lower(), promised) for promised in expected.lower().split("+"))


def _is(kind: str, promised: str) -> bool:
    name, _, direct = promised.strip().partition("/")
    network = (*kind.split("/"), "")[1]
    named = network.startswith("ib") if name == "ib" else name in network
    return named and (not direct or kind.endswith(f"/{direct}"))
