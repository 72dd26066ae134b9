"""hpc.preflight.transports: NCCL's own words of many versions, and what a person's settings make of its log."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from hpc.model.findings import State
from hpc.preflight.transports import (
    enable_nccl_log,
    file_of,
    fits,
    goes_by_network,
    kind_of,
    parse,
    read_transports,
    unread_reason,
    warnings,
)
from tests.unit.preflight_facts import findings, seen

# From a log published with Baidu's AI-Rank (ResNet50, 4 nodes with 8 V100 each, NCCL 2.7 of 2020): rank 8's own lines.
PUBLISHED = """\
box-0787:5362:5362 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
box-0787:5362:5362 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE ; OOB xgbe0:10.127.44.144<0>
box-0787:5362:5362 [0] NCCL INFO Using network IB
box-0787:5362:5982 [0] NCCL INFO Trees [0] 9/-1/-1->8->17|17->8->9/-1/-1 [1] 9/-1/-1->8->-1|-1->8->9/-1/-1
box-0787:5362:5982 [0] NCCL INFO Channel 00 : 2[41000] -> 8[3f000] [receive] via NET/IB/0
box-0787:5362:5982 [0] NCCL INFO Channel 00 : 8[3f000] -> 9[40000] via P2P/IPC
box-0787:5362:5982 [0] NCCL INFO Channel 00 : 8[3f000] -> 17[40000] [send] via NET/IB/0
box-0787:5362:5982 [0] NCCL INFO Channel 00 : 17[40000] -> 8[3f000] [receive] via NET/IB/0
box-0787:5362:5982 [0] NCCL INFO Channel 01 : 2[41000] -> 8[3f000] [receive] via NET/IB/0
box-0787:5362:5982 [0] NCCL INFO Channel 01 : 8[3f000] -> 9[40000] via P2P/IPC
"""
# Written after the formats in NCCL's source (src/transport/{net,p2p,shm,coll_net,nvls}.cc, src/init.cc), MADE UP.
OF_2_18 = """\
n0:1:1 [0] NCCL INFO cudaDriverVersion 12020
NCCL version 2.18.5+cuda12.2
n0:1:1 [0] NCCL INFO Using network Socket
n0:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct
n0:1:9 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/Socket/1
n0:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/Socket/1/Shared
"""
# Lines of three ranks on MI250X (github.com/ROCm/rccl/issues/1026), below the head of another log
# (github.com/ROCm/rccl-tests/issues/163), both shortened.
OF_RCCL = """\
z292:58192:58192 [3] NCCL INFO ROCr version 1.14
RCCL version : 2.21.5-HEAD:9a0e6a1
HIP version  : 6.3.42134-a9a80e791
ROCm version : 6.3.3.0-74-cbc70b5
Librccl path : /opt/rocm-6.3.3/lib/librccl.so.1
z292:58192:58200 [2] NCCL INFO Using network Socket
g1072:1:2 [2] NCCL INFO Channel 03/0 : 3[ce000] -> 6[c9000] [receive] via NET/Socket/2 comm 0x9b02320 nRanks 08
g1064:11146:11197 [3] NCCL INFO Channel 03/0 : 3[ce000] -> 6[c9000] [send] via NET/Socket/2 comm 0xaa09f20 nRanks 08
g1064:11145:11195 [2] NCCL INFO Channel 01/0 : 2[c9000] -> 0[c1000] via P2P/IPC comm 0x10a5a9f0 nRanks 08
g1064:11145:11195 [2] NCCL INFO Channel 01/0 : 2[c9000] -> 3[ce000] via P2P/IPC comm 0x10a5a9f0 nRanks 08
"""
OF_2_27 = """\
n0:1:1 [0] NCCL INFO NCCL version 2.27.5+cuda12.9
n0:1:1 [0] NCCL INFO Using network AWS Libfabric
[2025-05-01 10:00:00] n0:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
n0:1:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/CE
n0:1:9 [0] NCCL INFO Channel 02/0 : 0[0] -> 5[5] via P2P/indirect/3[3]
n0:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/2(5)/GDRDMA(PCI)/Shared
n0:1:9 [0] NCCL INFO CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA
n0:1:1 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)
n0:1:1 [0] NCCL INFO Connected NVLS tree
"""


@pytest.mark.parametrize(
    ("text", "peers", "version", "network"),
    [
        (PUBLISHED, {"NET/IB": (2, 17), "P2P/IPC": (9,)}, "", "IB"),
        (OF_2_18, {"NET/Socket": (2, 3), "SHM": (1,)}, "2.18.5+cuda12.2", "Socket"),
        (
            OF_2_27,
            {"COLLNET/SHARP/GDRDMA": (), "NET/AWS Libfabric/GDRDMA": (8,), "P2P/CUMEM": (1,), "P2P/indirect": (5,)},
            "2.27.5+cuda12.9",
            "AWS Libfabric",
        ),
        (OF_RCCL, {"NET/Socket": (3, 6), "P2P/IPC": (0, 3)}, "2.21.5-HEAD:9a0e6a1", "Socket"),
        ("", {}, "", ""),
    ],
)
def test_what_nccl_says_of_its_connections(
    text: str, peers: dict[str, tuple[int, ...]], version: str, network: str
) -> None:
    parsed = parse(text.splitlines())
    assert (parsed.peers, parsed.version, parsed.network) == (peers, version, network)


# Two communicators, one after the other in the main thread, then connections at the first call in threads of their
# own: after the formats in NCCL's source (src/init.cc, src/transport/nvls.cc), MADE UP.
OF_TWO_GROUPS = """\
n0:1:1 [0] NCCL INFO ncclCommInitRankConfig comm 0x5f rank 0 nranks 4 cudaDev 0 busId 1 commId 0x1 - Init START
n0:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 3[1] [send] via NET/IB/0
n0:1:1 [0] NCCL INFO ncclCommInitRankConfig comm 0x5f rank 0 nranks 4 cudaDev 0 busId 1 commId 0x1 - Init COMPLETE
n0:1:1 [0] NCCL INFO ncclCommSplit comm 0x6f rank 0 nranks 2 cudaDev 0 busId 1 parent 0x5f - Init START
n0:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct
n0:1:1 [0] NCCL INFO ncclCommSplit comm 0x6f rank 0 nranks 2 cudaDev 0 busId 1 parent 0x5f - Init COMPLETE
n0:1:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] [send] via NET/IB/0
"""
NVLS = "n0:1:1 [0] NCCL INFO NVLS comm 0x5f headRank 0 nHeads 8 nvlsRanks 8 buffSize 1048576 nvlsPerRankSize 201326592"


def test_peers_have_the_runs_numbers_in_communicators_of_all_ranks_alone() -> None:
    """Of the others the transport stays; a connection whose communicator is not known is none to rank 1."""
    parsed = parse(OF_TWO_GROUPS.splitlines(), 4)
    assert parsed.peers == {"NET/IB": (3,), "SHM": ()}
    results = findings(seen({0: {"transports": parsed}}))
    assert "rank 0 on node0 goes by SHM" in results["transport_in_node"].text
    assert parse(OF_RCCL.splitlines(), 8).peers == {"NET/Socket": (3, 6), "P2P/IPC": (0, 3)}
    assert parse(OF_RCCL.splitlines(), 16).peers == {"NET/Socket": (), "P2P/IPC": ()}


def test_nvlinks_switches_are_a_way_inside_a_node() -> None:
    transports = {"transports": parse([NVLS], 4)}
    results = findings(seen(dict.fromkeys(range(4), transports)))
    assert results["transport_in_node"].state is State.OK
    assert results["transport_in_node"].text == "by NVLS"


@pytest.mark.parametrize(
    ("via", "kind"),
    [
        ("P2P/direct pointer/read", "P2P/direct pointer"),
        ("P2P/MNNVL", "P2P/MNNVL"),
        ("NET/IBext_v10/3/GDRDMA", "NET/IBext_v10/GDRDMA"),
        ("P2P/direct pointer comm 0x95cdeb0 nRanks 08", "P2P/direct pointer"),
        ("NET/AWS Libfabric/1/GDRDMA comm 0x95cdeb0 nRanks 16", "NET/AWS Libfabric/GDRDMA"),
    ],
)
def test_ways_differ_by_what_matters(via: str, kind: str) -> None:
    assert kind_of(via) == kind
    assert goes_by_network(kind) is via.startswith("NET")


@pytest.mark.parametrize(
    ("kind", "expected", "fit"),
    [
        ("NET/IB", "ib", True),
        ("NET/IBext_v10/GDRDMA", "ib", True),
        ("NET/IB/GDRDMA", "ib/gdrdma", True),
        ("NET/IB", "ib/gdrdma", False),
        ("NET/Socket", "ib", False),
        ("NET/Socket", "socket", True),
        ("NET/AWS Libfabric/GDRDMA", "Libfabric", True),
        ("NET/AWS Libfabric", "ib", False),
        ("P2P/MNNVL", "mnnvl", True),
        ("P2P/MNNVL", "ib", False),
        ("NET/IB", "mnnvl", False),
        ("NET/IB/GDRDMA", "mnnvl+ib/gdrdma", True),
        ("NET/Socket", "mnnvl+ib", False),
    ],
)
def test_a_promise_is_kept_or_broken(kind: str, expected: str, fit: bool) -> None:
    assert fits(kind, expected) is fit


def test_nccl_is_set_to_write_and_a_persons_settings_stay(tmp_path: Path) -> None:
    environ = {"PATH": "/bin"}
    name = enable_nccl_log(tmp_path / "100%" / "rank3.nccl", environ)
    assert environ == {"PATH": "/bin", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": name}
    assert file_of(name, "node7", 42) == tmp_path / "100%" / "rank3.nccl"
    assert file_of("/logs/nccl.%h.%p", "node7.example.org", 42) == Path("/logs/nccl.node7.42")
    for theirs in ({"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG": "INFO"}, {"NCCL_DEBUG_FILE": "/tmp/x"}):
        value = dict(theirs)
        assert enable_nccl_log(tmp_path, value, requested=theirs) == ""
        assert value == theirs
        assert unread_reason(value)
    theirs = {"NCCL_DEBUG": "trace", "NCCL_DEBUG_FILE": "/logs/%h/%p.%%.%x"}
    assert enable_nccl_log(tmp_path, theirs) == "/logs/%h/%p.%%.%x"
    assert file_of("/logs/%h/%p.%%.%x", "n1", 7) == Path("/logs/n1/7.%.%x")
    assert unread_reason(theirs) == ""


def test_a_quiet_level_that_a_cluster_presets_is_raised(tmp_path: Path) -> None:
    preset = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/run/plugin/fifo"}  # soperator's plugin sets both in each step
    name = enable_nccl_log(tmp_path / "rank0", preset, requested=["OMP_NUM_THREADS"])
    assert preset == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": name} and file_of(name, "n", 1) == tmp_path / "rank0"


def test_a_log_is_read_or_refused_with_the_reason(tmp_path: Path) -> None:
    name = f"{tmp_path}/nccl.%h.%p"
    assert "wrote nothing" in read_transports(name, "n0", 1).unread
    path = tmp_path / "nccl.n0.1"
    path.write_text("n0:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n")
    assert "NCCL_DEBUG_SUBSYS must hold INIT" in read_transports(name, "n0.example.org", 1).unread
    path.write_bytes(OF_2_18.encode() + b"\xff\xfe a torn li")
    assert read_transports(name, "n0", 1).peers == {"NET/Socket": (2, 3), "SHM": (1,)}
    assert warnings(name, "n0", 1) == []
    path.write_text("n0:1:1 [0] NCCL INFO x\nn0:1:1 [0] misc/ibvwrap.cc:94 NCCL WARN Call to ibv_open_device failed\n")
    assert warnings(name, "n0", 1) == ["n0:1:1 [0] misc/ibvwrap.cc:94 NCCL WARN Call to ibv_open_device failed"]
    path.unlink()
    assert warnings(name, "n0", 1) == []
    path.mkdir()
    assert os.strerror(21) in read_transports(name, "n0", 1).unread


# Lines of an NVLink rack after the formats in NCCL's source (src/transport/p2p.cc, src/init.cc), MADE UP.
RACK = "h:1:2 [0] NCCL INFO MNNVL busId 0x1801000 fabric UUID 5e1f.9ac0 cliqueId 0x7ffe state 3 healthMask 0x0"
BY_NVLINK = [RACK, "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] via P2P/MNNVL"]
FALLEN_BACK = [RACK, "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA"]


@pytest.mark.parametrize(
    ("lines", "promised", "transport", "in_node"),
    [
        (BY_NVLINK, "mnnvl", "NCCL goes from node to node by P2P/MNNVL", "by P2P/MNNVL"),
        (BY_NVLINK, "ib", "rank 0 on node0 goes by P2P/MNNVL", "by P2P/MNNVL"),
        (FALLEN_BACK, "mnnvl", "the site promises mnnvl; rank 0 on node0 goes by NET/IB/GDRDMA", "to rank 2"),
        (FALLEN_BACK, "mnnvl+ib", "NCCL goes from node to node by NET/IB/GDRDMA", "goes by NET/IB/GDRDMA to rank 2"),
    ],
)
def test_nvlink_between_nodes(lines: list[str], promised: str, transport: str, in_node: str) -> None:
    """A rack's ranks that reach one another by the network have fallen back, whatever the site promises."""
    idle = parse([RACK])
    facts = seen({0: {"transports": parse(lines)}} | {at: {"transports": idle} for at in (1, 2, 3)})
    results = findings(dataclasses.replace(facts, expect_transport=promised))
    assert transport in results["transport"].text and in_node in results["transport_in_node"].text
    assert (results["transport_in_node"].state is State.FAILED) == (lines is FALLEN_BACK)
