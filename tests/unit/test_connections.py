"""The connections between ranks that MPI does not connect: threads stand for the ranks."""

from __future__ import annotations

import itertools
import json
import resource
import secrets
import socket
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpc.measure import connections
from hpc.measure.connections import (
    KEY_BYTES,
    ConnectionLost,
    Connections,
    Door,
    Endpoint,
    WrongKey,
    dial,
    listen,
    union,
)
from hpc.measure.world import LaunchError, world_of
from hpc.model.typed import read_fields
from hpc.node_agent.agent import start_agent
from hpc.preflight.types import Gpu, ImagesSeen, NodeFacts, RankFacts, Transports
from hpc.run import rendezvous
from hpc.run.rendezvous import connect, join, launch_of, rendezvous_file
from hpc.run.script_process import Agreement
from hpc.script import _split
from hpc.system import host as loopback
from tests.unit.connected_ranks import LIMIT_S, launch, together

TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip
SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "7",
         "SLURM_STEP_ID": "0"}  # fmt: skip


@pytest.mark.parametrize("fan_out", [1, 2, 32])
def test_every_operation_has_mpis_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fan_out: int) -> None:
    """Whoever is above and below whom: in a chain, in two levels, all below rank 0."""
    monkeypatch.setattr(connections, "FAN_OUT", fan_out)

    def of_rank(comm: Connections) -> Any:
        rank, size = comm.rank, comm.size
        assert {*comm._links} == {*comm.children} | ({comm.parent} if rank else set())
        assert comm.parent == ((rank - 1) // fan_out if rank else None)
        assert comm.allgather({"rank": rank, "list": [1.5]}) == [{"rank": r, "list": [1.5]} for r in range(4)]
        assert comm.gather(f"rank {rank}") == (["rank 0", "rank 1", "rank 2", "rank 3"] if rank == 0 else None)
        assert comm.bcast(rank + 7) == 7
        assert comm.scatter([{"of": number} for number in range(size)] if rank == 0 else None) == {"of": rank}
        assert union(comm, [rank // 2, 7]) == {0, 1, 7}
        comm.Barrier()
        large = np.full(1 << 18, rank, np.float64)
        all_large = np.empty((size, 1 << 18)) if rank == 0 else None
        comm.Gather(large, all_large)
        assert all_large is None or (all_large == np.arange(4)[:, None]).all()
        assert Agreement(comm).largest(rank, -rank, 10) == [3, 0, 10]
        if rank == 3:  # not by way of rank 0
            comm.Send(np.array([2.5]), 2, 79)
        elif rank == 2:
            comm.Recv(received := np.zeros(1), 3, 79)
            assert received == 2.5
        world = world_of(comm)
        assert (world.local_rank, world.local_size, world.nodes) == (rank, 4, 1)
        assert world_of(comm, 2).node_rank == rank // 2
        return comm._listener.getsockname()[0]

    assert together(4, tmp_path, of_rank) == ["127.0.0.1"] * 4
    assert not list(tmp_path.iterdir())


def test_what_ranks_send_for_a_helper_and_a_look_grows_as_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send = Connections.send

    def counted(comm: Connections, rank: int, tag: int, content: bytes | memoryview) -> None:
        sent.append(len(content) if tag != connections._PLACES else 0)
        send(comm, rank, tag, content)

    monkeypatch.setattr(Connections, "send", counted)
    run: Any = SimpleNamespace(telemetry="off", gpus_per_node=0)

    def of_rank(comm: Connections) -> None:
        world = replace(world_of(comm), local_rank=comm.rank % 2, node_rank=comm.rank // 2)
        assert start_agent(comm, world, run, [], tmp_path, tmp_path, 0) is None
        Agreement(comm).largest(comm.rank, 1, 2, 3)

    totals = []
    for size in (4, 8, 16):
        sent.clear()
        assert together(size, tmp_path, of_rank) == [None] * size
        totals.append(sum(sent))
    assert totals[2] - totals[1] < 2.5 * (totals[1] - totals[0])


def test_ranks_of_a_node_are_below_its_lowest_one_and_these_below_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "FAN_OUT", 2)
    hosts = ["a", "b", "a", "b", "c", "d", "a", "a"]
    assert connections.nodes_of(hosts) == [0, 1, 0, 1, 4, 5, 0, 0]
    assert connections._tree([0, 1, 0, 1, 4, 5, 0, 0]) == [None, 0, 0, 1, 0, 1, 0, 2]
    parents = connections._tree(connections.nodes_of([f"host {rank % 64}" for rank in range(2048)]))
    assert all(parent is not None and parent < rank for rank, parent in enumerate(parents) if rank)
    assert max(Counter(parents).values()) <= 2 * 2


def test_an_end_reaches_all_along_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a chain: whoever loses one beside it ends the next."""
    monkeypatch.setattr(connections, "FAN_OUT", 1)

    def of_rank(comm: Connections) -> Any:
        return comm.Abort(4) if comm.rank == 3 else _aborting(comm)

    *lost, ended = together(4, tmp_path, of_rank)
    assert isinstance(ended, SystemExit)
    assert [str(each) for each in lost] == [
        f"connection lost: rank {rank + 1} has ended all ranks" for rank in range(3)
    ]


def test_rank_0_may_open_a_file_for_each_rank_until_they_have_met() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        with rendezvous._files_for(hard):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard - 1, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_rank_that_ends_ends_all_others_with_the_reason(tmp_path: Path) -> None:
    def of_rank(comm: Connections) -> Any:
        if comm.rank == 2:
            comm.Abort(4)
        return comm.allgather(comm.rank) if comm.rank else _aborting(comm)

    lost_0, lost_1, ended = together(3, tmp_path, of_rank)
    assert isinstance(ended, SystemExit)
    assert ended.code == 4
    assert str(lost_0) == "connection lost: rank 2 has ended all ranks"
    assert str(lost_1) == "connection lost: rank 0 has ended all ranks"


def _aborting(comm: Connections) -> Any:
    """As a rank does that loses another one: it ends those that are connected to it."""
    try:
        return comm.allgather(0)
    except ConnectionLost as error:
        with pytest.raises(SystemExit):
            comm.Abort(1)
        return error


def test_ranks_of_a_host_meet_by_ipv6_where_loopback_has_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    monkeypatch.setattr(loopback, "LOOPBACK", "192.0.2.1")  # of documentation: no host has it
    places = together(2, tmp_path, lambda comm: comm.allgather(comm._links[1 - comm.rank].getsockname()[0]))
    assert places == [["::1", "::1"]] * 2


def test_a_rank_that_is_gone_without_a_word_is_noticed(tmp_path: Path) -> None:
    def of_rank(comm: Connections) -> Any:
        if comm.rank == 0:
            return comm.allgather(0)
        for link in comm._links.values():
            link.close()
        return "gone"

    lost, _ = together(2, tmp_path, of_rank)
    assert str(lost).startswith("connection lost to rank 1")


@pytest.mark.parametrize("key", [b"another".ljust(KEY_BYTES), None])
def test_who_has_not_the_key_is_refused_and_the_ranks_meet_all_the_same(tmp_path: Path, key: bytes | None) -> None:
    path = rendezvous_file(tmp_path, launch(0, 2))
    with ThreadPoolExecutor(1) as threads:
        host = threads.submit(join, launch(0, 2), tmp_path, LIMIT_S)
        while not path.exists():
            time.sleep(0.01)
        assert path.stat().st_mode & 0o777 == 0o600
        place = json.loads(path.read_text())
        if key is None:  # no greeting at all
            with socket.create_connection((place["address"], place["port"])) as stranger:
                stranger.sendall(bytes(200))
        else:
            with pytest.raises(WrongKey, match="does not take the key"):
                dial(Endpoint(place["address"], place["port"], key), 1, 2, LIMIT_S)
        with ThreadPoolExecutor(1) as other:
            visitor = other.submit(join, launch(1, 2), tmp_path, LIMIT_S)
            assert (host.result().size, visitor.result().rank) == (2, 1)


def test_one_without_the_key_keeps_no_rank_out() -> None:
    with listen("127.0.0.1", 8) as listener, ThreadPoolExecutor(1) as threads:
        address, port = listener.getsockname()
        door = Door(listener, b"k" * KEY_BYTES)
        silent, other = (socket.create_connection((address, port)) for _ in range(2))
        silent.shutdown(socket.SHUT_WR)
        other.sendall(bytes(2 * KEY_BYTES + 8))
        dialled = threads.submit(dial, Endpoint(address, port, b"k" * KEY_BYTES), 7, 8, LIMIT_S)
        rank, size, link = door.admit(LIMIT_S)
        assert (rank, size) == (7, 8)
        assert door.strangers() == "; 2 connections without the key of this launch, from 127.0.0.1 (2)"
        for each in (silent, other, link, dialled.result()):
            each.close()


def test_one_that_sends_a_byte_now_and_then_has_no_more_time_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GREETING_S", 0.0)
    with listen("127.0.0.1", 8) as listener, socket.create_connection(listener.getsockname()) as stranger:
        stranger.sendall(b"x")
        with pytest.raises(TimeoutError, match="no rank has come within 2 s; 1 connection without the key"):
            Door(listener, b"k" * KEY_BYTES).admit(2.0)


def test_a_host_without_the_key_is_refused() -> None:
    with listen("127.0.0.1", 1) as listener, ThreadPoolExecutor(1) as threads:
        pretended = Endpoint("127.0.0.1", listener.getsockname()[1], b"k" * KEY_BYTES)

        def pretend() -> None:
            link, _ = listener.accept()
            link.sendall(bytes(KEY_BYTES))
            link.recv(1 << 10)
            link.sendall(bytes(KEY_BYTES))
            link.close()

        host = threads.submit(pretend)
        with pytest.raises(WrongKey, match="does not have the key"):
            dial(pretended, 1, 2, LIMIT_S)
        host.result()


def test_ranks_that_do_not_come_are_named_to_all_that_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    come: list[int] = []

    admit = Door.admit

    def admit_one(door: Door, limit_s: float) -> tuple[int, int, socket.socket]:
        if come:
            raise TimeoutError
        come.append(1)
        return admit(door, LIMIT_S)

    monkeypatch.setattr(Door, "admit", admit_one)
    size_of = {0: 4, 1: 4}
    with ThreadPoolExecutor(2) as threads:
        joining = [threads.submit(join, launch(rank, size), tmp_path, LIMIT_S) for rank, size in size_of.items()]
        messages = [str(future.exception()) for future in joining]
    assert messages[0] == messages[1]
    assert messages[0].startswith("ranks 2-3 of 4 did not come within 600 s: each looks in")
    assert "--traces must name a folder that all nodes share" in messages[0]
    notes = capfd.readouterr().err.splitlines()
    assert len(notes) == LIMIT_S / 10 - 1
    assert all(note.startswith("waits for ranks 2-3 of 4, for 600 s in all: the ranks meet by") for note in notes)
    assert not list(tmp_path.iterdir())


def test_a_rank_that_finds_no_rank_0_names_the_place(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"rank 1 of 2 did not reach rank 0 within 0 s: looked in .*no such file"):
        join(launch(1, 2), tmp_path, 0)


def test_a_second_launch_of_the_same_name_is_refused(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        host = threads.submit(join, launch(0, 3), tmp_path, LIMIT_S)
        other = threads.submit(join, launch(1, 2), tmp_path, LIMIT_S)
        assert str(host.exception()).startswith("a second rank 1 of 2 has come to a launch of 3 ranks")
        assert str(other.exception()) == str(host.exception())


@pytest.mark.parametrize(
    "content",
    ['{"address": "127.0.0.1", "port": 1, "key": "00"}', '{"reason": "no such interface"}', "{", "[]", "1", "\x00"],
)
def test_a_stale_or_damaged_file_is_passed_over(tmp_path: Path, content: str) -> None:
    path = rendezvous_file(tmp_path, launch(0, 2))
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(LaunchError, match="rank 1 of 2 did not reach rank 0"):
        join(launch(1, 2), tmp_path, 0)
    assert together(2, tmp_path, lambda comm: comm.allgather(comm.rank)) == [[0, 1], [0, 1]]
    assert not list(tmp_path.iterdir())


def test_a_file_that_others_can_read_is_not_trusted(tmp_path: Path) -> None:
    with listen("127.0.0.1", 1) as listener:
        address, port = listener.getsockname()
        path = rendezvous_file(tmp_path, launch(0, 2))
        path.write_text(json.dumps({"address": address, "port": port, "key": secrets.token_hex(KEY_BYTES)}))
        path.chmod(0o644)
        with pytest.raises(LaunchError, match="it is not of this user alone"):
            join(launch(1, 2), tmp_path, 0)


def test_why_rank_0_cannot_start_reaches_all_others_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "none0")

    def message(rank: int) -> str:
        with pytest.raises(LaunchError) as caught:
            join(replace(launch(rank, 3), one_node=False), tmp_path, LIMIT_S)
        return str(caught.value)

    with ThreadPoolExecutor(3) as threads:
        of_0, *others = threads.map(message, range(3))
    assert of_0.startswith("interface none0 was requested")
    assert others == [f"rank 0: {of_0}"] * 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_sees_by_itself_that_the_folder_takes_no_file(rank: int) -> None:
    with pytest.raises(LaunchError, match=r"cannot meet in --traces /proc \(.*\): name a folder that can be written"):
        join(launch(rank, 2), Path("/proc"), LIMIT_S)


def test_a_launch_is_known_by_its_launchers_variables() -> None:
    by_torchrun, by_slurm = launch_of(TORCHRUN, "a"), launch_of(SLURM, "a")
    assert by_torchrun is not None
    assert (by_torchrun.rank, by_torchrun.size, by_torchrun.one_node) == (1, 4, False)
    assert by_slurm is not None
    assert (by_slurm.rank, by_slurm.size, by_slurm.one_node) == (3, 4, False)
    assert launch_of({**SLURM, **TORCHRUN}, "a") != by_slurm
    assert launch_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "a") is None  # a batch script
    assert launch_of({**SLURM, "PMI_SIZE": "8"}, "a") is None  # mpiexec in a step
    with pytest.raises(LaunchError, match="variables name no rank: rank 4 of 4"):
        launch_of({**TORCHRUN, "RANK": "4"}, "a")
    with pytest.raises(LaunchError, match="name no rank"):
        launch_of({**TORCHRUN, "RANK": "one"}, "a")


def test_launches_at_the_same_time_have_other_names() -> None:
    single_node = {**TORCHRUN, "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}
    launches = [
        launch_of(variables, host)
        for variables, host in (
            (TORCHRUN, "a"), ({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}, "a"), (single_node, "a"),
            (single_node, "b"), ({**TORCHRUN, "MASTER_PORT": "29501"}, "a"), (SLURM, "a"),
            ({**SLURM, "SLURM_STEP_ID": "1"}, "a"),
        )
    ]  # fmt: skip
    assert len({launch.identity for launch in launches if launch}) == len(launches)
    assert launch_of(TORCHRUN, "b") == launches[0]


@pytest.mark.parametrize(
    ("variables", "mpi_sees", "result"),
    [
        ({}, 1, "mpi"),
        ({}, None, "tcp 0 of 1"),
        (TORCHRUN, 1, "tcp 1 of 4"),
        (TORCHRUN, 4, "tcp 1 of 4"),
        ({**TORCHRUN, "PMIX_RANK": "0"}, 2, "tcp 1 of 4"),  # torchrun by srun
        ({"RANK": "1", "WORLD_SIZE": "4", "PMIX_RANK": "1"}, 4, "mpi"),
        ({"RANK": "1", "WORLD_SIZE": "4", "PMIX_RANK": "1"}, 1, "tcp 1 of 4"),
        ({"RANK": "1", "WORLD_SIZE": "4"}, 4, "tcp 1 of 4"),
        ({**SLURM, "PMIX_RANK": "3"}, 4, "mpi"),
        ({**SLURM, "PMI_RANK": "3", "PMI_SIZE": "4"}, 1, "tcp 3 of 4"),
        ({**SLURM, "PMIX_RANK": "3"}, None, "tcp 3 of 4"),
        (SLURM, 4, "tcp 3 of 4"),  # --mpi=none
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 4, "mpi"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 1, "mpiexec has started 4 ranks, and MPI sees one"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, None, "mpiexec has started 4 ranks, which only MPI connects: no MPI here"),
    ],
)
def test_mpi_connects_where_it_can_and_one_rank_never_stands_for_several(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], mpi_sees: int | None, result: str
) -> None:
    class Mpi:
        size = mpi_sees

    def start() -> Any:
        if mpi_sees is None:
            raise LaunchError("no MPI here")
        return Mpi()

    monkeypatch.setattr(rendezvous, "start_mpi", start)
    monkeypatch.setattr(rendezvous, "join", lambda launch, traces: f"tcp {launch.rank} of {launch.size}")
    try:
        comm: Any = connect(Path(), variables)
        assert result == ("mpi" if isinstance(comm, Mpi) else comm)
    except LaunchError as error:
        assert str(error).startswith(result)


def test_facts_of_ranks_travel_as_json() -> None:
    node = NodeFacts(busy_cores=None, busiest=("a",), memory_bytes=1, memory_free_bytes=0,
                     gpus=None, unread={"busy_cores": "hidden"})  # fmt: skip
    gpu = Gpu(uuid="u", name="n", driver="d", memory_bytes=1, used_bytes=0, near_cores=(1, 2), processes=("p",))
    images = ImagesSeen(images=3, evaluation=ImagesSeen(problem="none"))
    facts = RankFacts(rank=0, node=0, hostname="h", cores=(0, 1), about_node=node, in_sight=("u",), gpus=(gpu,),
                      images=images, software={"torch": "2"}, transports=Transports(peers={"ib": (1, 2)}))  # fmt: skip
    assert RankFacts(**read_fields(RankFacts, json.loads(json.dumps(asdict(facts))))) == facts
    few = RankFacts(rank=1, node=0, hostname="h", cores=(0,))
    assert RankFacts(**read_fields(RankFacts, json.loads(json.dumps(asdict(few))))) == few


@pytest.mark.parametrize(
    ("words", "options", "script"),
    [
        ("-- train.py -- --a", "", "train.py -- --a"),
        ("--steps 4 --site=x -- train.py --steps 3", "--steps 4 --site=x", "train.py --steps 3"),
        ("train.py -- --a", "", "train.py -- --a"),  # as torchrun -m hpc.observe -- train.py -- --a leaves it
        ("--steps 4 train.py", "--steps 4", "train.py"),
        ("--steps 4", "--steps 4", ""),
        ("--mistyped -- train.py", "--mistyped", "train.py"),
        ("--help", "--help", ""),
        ("", "", ""),
    ],
)
def test_options_end_where_the_script_begins(words: str, options: str, script: str) -> None:
    assert _split(words.split()) == (options.split(), script.split())


def test_a_host_that_sends_a_byte_now_and_then_holds_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever got the port of a rank 0 that is gone; its first byte takes most of the time that the rank has."""
    now_s = itertools.count(100.0, 15.0)
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    with listen("127.0.0.1", 1) as listener, ThreadPoolExecutor(1) as threads:
        address, port = listener.getsockname()
        dialled = threads.submit(dial, Endpoint(address, port, b"k" * KEY_BYTES), 1, 2, 20.0)
        link, _ = listener.accept()
        with link:
            link.sendall(b"x")
            with pytest.raises(TimeoutError):
                dialled.result()
