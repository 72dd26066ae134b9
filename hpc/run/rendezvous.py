"""How the ranks of a launch find each other: by MPI, or by TCP where the launcher's MPI does not connect them.

For TCP, rank 0 listens and writes address, port and a random key to a file in the folder of the traces. All nodes see
that folder anyway, and the file is this user's alone: who has the key belongs to the launch. torchrun's own store takes
in whoever connects, and Slurm has none. The file is named after the launch, and removed once all ranks are connected.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import secrets
import socket
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from hpc.backends import InvalidRun
from hpc.backends.addresses import address_here, reachable_address, requested_interface
from hpc.measure.connections import (
    KEY_BYTES,
    ConnectionLost,
    Connections,
    Door,
    Endpoint,
    WrongKey,
    dial,
    listen,
    send_abort,
)
from hpc.measure.world import LaunchError, start_mpi
from hpc.recovery.journal import name_ranks
from hpc.system.host import loopback_address, no_loopback
from hpc.system.job_facts import Launch, scheduled_job, scheduler_launch

if TYPE_CHECKING:
    from hpc.measure.connections import Communicator

JOIN_S = 120.0
"""Seconds in which all ranks must be connected."""
_NOTE_S = 10.0
"""Seconds between two notes of who is waited for."""
_LOOK_S, _GREETING_LIMIT_S = 0.1, 30.0
_OTHER_FILES = 1024
_MPI_RANKS = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "MV2_COMM_WORLD_RANK")
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_NRANKS", "MV2_COMM_WORLD_SIZE")
TORCHRUN = "TORCHELASTIC_RUN_ID"
"""A variable that torchrun sets for its ranks."""


def connect(traces: Path, environ: Mapping[str, str] = os.environ, *, leave_mpi: bool = False) -> Communicator:
    """The ranks of this launch, connected by MPI where its launcher starts ranks of MPI's, else by TCP.

    `leave_mpi`: by TCP wherever the launcher says which rank this is, since MPI is the script's own: it can be started
    once in a rank. Raises LaunchError where they cannot meet: one rank is never taken for several.
    """
    launch = launch_of(environ, socket.gethostname())
    if leave_mpi:
        launch = launch or _by_open_mpi(environ, socket.gethostname())
        if launch is not None:
            return join(launch, traces)
    # torchrun's ranks inherit MPI's variables from it, and would all take its place; and without such variables Open
    # MPI 4 ends a process of Slurm's that starts it.
    if launch is not None and (TORCHRUN in environ or not any(name in environ for name in _MPI_RANKS)):
        return join(launch, traces)
    started = max((int(environ[name]) for name in _MPI_SIZES if environ.get(name, "").isdigit()), default=1)
    try:
        comm = start_mpi()
    except LaunchError as error:
        if launch is None and started > 1:
            raise LaunchError(f"mpiexec has started {started} ranks, which only MPI connects: {error}") from None
        return join(launch or Launch(launcher="", rank=0, size=1, one_node=True, identity=""), traces)
    if comm.size == 1 and launch is not None and launch.size > 1:
        return join(launch, traces)
    if comm.size == 1 and started > 1:
        raise LaunchError(
            f"mpiexec has started {started} ranks, and MPI sees one: it is not of the MPI that mpi4py loads. Start "
            "them by that MPI's own mpiexec, by srun or by torchrun"
        )
    return comm


def launch_of(environ: Mapping[str, str], host: str) -> Launch | None:
    """The launch by the variables of torchrun, or of a step of the scheduler's; None where neither did."""
    try:
        if "RANK" in environ and "WORLD_SIZE" in environ:
            return _by_torchrun(environ, host)
        launch = scheduler_launch(environ)
        if launch is not None and not _by_mpiexec(environ, launch.size):
            return launch
    except ValueError as error:
        raise LaunchError(f"the launcher's variables name no rank: {error}") from None
    return None


def is_alone(environ: Mapping[str, str]) -> bool:
    """Whether no launcher has started this process."""
    return launch_of(environ, "") is None and not any(name in environ for name in _MPI_SIZES)


def _by_mpiexec(environ: Mapping[str, str], size: int) -> bool:
    """Whether an mpiexec inside a step of `size` ranks started this process, whose ranks are others than the step's."""
    return any(environ.get(name, str(size)) != str(size) for name in _MPI_SIZES)


def _by_torchrun(environ: Mapping[str, str], host: str) -> Launch:
    rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    one_node = int(environ.get("LOCAL_WORLD_SIZE", "0")) == size
    names = (TORCHRUN, "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    # A launch on one node has loopback's address, and so have those of other nodes.
    variables = [environ.get(name, "") for name in names]
    parts = ["torchrun", *variables, _job_id(environ), str(size), host if one_node else ""]
    return Launch(
        launcher="torchrun", rank=rank, size=size, one_node=one_node, identity="\n".join(parts),
        address=environ.get("MASTER_ADDR", ""),
    )  # fmt: skip


def _job_id(environ: Mapping[str, str]) -> str:
    job = scheduled_job(environ)
    return "" if job is None else job.job_id


def _by_open_mpi(environ: Mapping[str, str], host: str) -> Launch | None:
    """The launch by Open MPI's mpiexec, which names it; None where another started this process."""
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE")
    if not all(environ.get(name) for name in names):
        return None
    rank, size, namespace = (environ[name] for name in names)
    one_node = environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == size
    parts = ["mpiexec", namespace, size, _job_id(environ), host if one_node else ""]
    return Launch(launcher="mpiexec", rank=int(rank), size=int(size), one_node=one_node, identity="\n".join(parts))


def rendezvous_file(traces: Path, launch: Launch) -> Path:
    """Where rank 0 of the launch says how to reach it."""
    return traces / f".rendezvous.{hashlib.sha256(launch.identity.encode()).hexdigest()[:16]}.json"


def join(launch: Launch, traces: Path, limit_s: float = JOIN_S) -> Connections:
    """The connected ranks of the launch. Raises LaunchError where not all connect within the limit."""
    try:
        if launch.size == 1:
            return Connections(0, 1, {}, socket.socket(), b"")  # which accepts no connection
        path = rendezvous_file(traces, launch)
        traces.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=traces) as file:  # other ranks only read there, and would wait for rank 0's file
            file.write(b"as rank 0 writes")
            file.flush()
        if launch.rank:
            return _visit(launch, path, limit_s)
        with _files_for(launch.size):
            return _host(launch, path, limit_s)
    except (ConnectionLost, InvalidRun) as error:
        raise LaunchError(str(error)) from None
    except OSError as error:
        reason = error.strerror or str(error)
        fix = "" if error.filename is None else ": name a folder that can be written"
        raise LaunchError(f"the ranks cannot meet in --traces {traces} ({reason}){fix}") from None


@contextmanager
def _files_for(size: int) -> Iterator[None]:
    """Lets rank 0 have a connection to each of so many ranks, until they have met, as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < size + _OTHER_FILES:
        needed = size + _OTHER_FILES
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard < 0 else min(needed, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _host(launch: Launch, path: Path, limit_s: float) -> Connections:
    """Rank 0: waits for all others."""
    key, begin_s = secrets.token_bytes(KEY_BYTES), time.monotonic()
    until_s, note_s = begin_s + limit_s, begin_s + _NOTE_S
    try:
        address = _address(launch)
        listener = listen(address, launch.size)
    except (InvalidRun, OSError) as error:
        _leave_reason(launch, path, str(error), until_s)
        raise
    door = Door(listener, key)
    links: dict[int, socket.socket] = {}
    try:
        _write_private(path, {"address": address, "port": listener.getsockname()[1], "key": key.hex()})
        while len(links) < launch.size - 1:
            try:
                rank, size, link = door.admit(max(0.01, min(note_s, until_s) - time.monotonic()))
            except TimeoutError:
                missing = [rank for rank in range(1, launch.size) if rank not in links]
                if note_s < until_s:
                    _note(f"waits for {name_ranks(missing)} of {launch.size}", limit_s, path, door.strangers())
                    note_s += _NOTE_S
                    continue
                raise LaunchError(
                    f"{name_ranks(missing)} of {launch.size} did not come within {limit_s:g} s: each looks in {path} "
                    f"for the place of rank 0, {address}:{listener.getsockname()[1]}. --traces must name a folder that "
                    f"all nodes share, and that address must be one that they reach{door.strangers()}"
                ) from None
            if size != launch.size or not 0 < rank < size or rank in links:
                text = (
                    f"a second rank {rank} of {size} has come to a launch of {launch.size} ranks: two launches by "
                    f"{launch.launcher} name themselves alike; give each --traces of its own"
                )
                send_abort([link], text)
                raise LaunchError(text)
            links[rank] = link
    except BaseException as error:
        send_abort(links.values(), str(error) or type(error).__name__)
        listener.close()
        raise
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    return Connections(0, launch.size, links, listener, key)


def _leave_reason(launch: Launch, path: Path, reason: str, until_s: float) -> None:
    """Rank 0, which cannot be reached: leaves the reason in the place of its address until all others have read it.

    It then removes their marks: so they know it from the reason of a launch that was killed, and none ends before, at
    which the launcher might end this rank.
    """
    unread, note_s = [_read_mark(path, rank) for rank in range(1, launch.size)], time.monotonic() + _NOTE_S
    marks = list(unread)
    try:
        _remove(marks)  # of a launch that was killed
        _write_private(path, {"reason": reason})
        while (unread := _absent(unread)) and time.monotonic() < until_s:
            if time.monotonic() > note_s:
                print(f"rank 0 of {launch.size} cannot start: {reason}", file=sys.stderr, flush=True)
                note_s = until_s
            time.sleep(_LOOK_S)
    finally:
        _remove([path, *marks])


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink(missing_ok=True)


def _absent(files: Sequence[Path]) -> list[Path]:
    """Those of some files of a folder that are not there; a network file system may remember what was there before."""
    present = {path for file in files[:1] for path in file.parent.iterdir()}
    return [file for file in files if file not in present]


def _read_mark(path: Path, rank: int) -> Path:
    """The file by which a rank says that it has read a reason of rank 0's, until rank 0 removes it."""
    return path.with_name(f"{path.name}.{rank}")


def _visit(launch: Launch, path: Path, limit_s: float) -> Connections:
    """Other ranks: look for rank 0. A file of a launch that was killed leads nowhere until rank 0 writes its own."""
    mark = _read_mark(path, launch.rank)
    try:
        return _look_for_host(launch, path, mark, limit_s)
    finally:
        _remove([mark])


def _look_for_host(launch: Launch, path: Path, mark: Path, limit_s: float) -> Connections:
    begin_s, read_reason = time.monotonic(), ""
    until_s, note_s = begin_s + limit_s, begin_s + _NOTE_S
    while True:
        try:
            place = _read_private(path)
            if "reason" in place:
                if not read_reason:
                    mark.touch(0o600)
                read_reason = str(place["reason"])
                raise ValueError(f"rank 0 could not start, of this launch or of one before: {read_reason}")
            endpoint = Endpoint(str(place["address"]), int(place["port"]), bytes.fromhex(place["key"]))
            limit_of_one_s = min(max(_LOOK_S, until_s - time.monotonic()), _GREETING_LIMIT_S)
            link = dial(endpoint, launch.rank, launch.size, limit_of_one_s)
            break
        except FileNotFoundError:
            reason = "no such file"
        except (OSError, WrongKey, ValueError, KeyError) as error:
            reason = f"{type(error).__name__}: {error}"
        if read_reason and _absent([mark]):
            raise LaunchError(f"rank 0: {read_reason}")
        if time.monotonic() > until_s:
            raise LaunchError(
                f"rank {launch.rank} of {launch.size} did not reach rank 0 within {limit_s:g} s: looked in {path} "
                f"({reason}). Rank 0 did not start, and its output says why, or --traces names no folder that all "
                "nodes share"
            )
        if launch.rank == 1 and time.monotonic() > note_s:  # one of them speaks for all
            _note(f"waits for rank 0 of {launch.size} ({reason})", limit_s, path)
            note_s += _NOTE_S
        time.sleep(_LOOK_S)
    return Connections(launch.rank, launch.size, {0: link}, listen(link.getsockname()[0], launch.size), endpoint.key)


def _note(what: str, limit_s: float, path: Path, beside: str = "") -> None:
    print(f"{what}, for {limit_s:g} s in all: the ranks meet by {path}{beside}", file=sys.stderr, flush=True)


def _address(launch: Launch) -> str:
    """The address at which rank 0 listens: loopback on one node, else that of the network that the nodes share."""
    if launch.one_node:
        if not (address := loopback_address()):
            raise LaunchError(no_loopback())
        return address
    interface = requested_interface(gpu=True) or requested_interface(gpu=False)
    if interface is None and launch.address and (nearest := address_here(launch.address)):
        return nearest
    here = socket.gethostname()
    return reachable_address(interface, (here, launch.address or here))


def _write_private(path: Path, place: Mapping[str, object]) -> None:
    """Writes what only this user can read, from its first byte on."""
    part = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(place, file)
    part.replace(path)


def _read_private(path: Path) -> Mapping[str, Any]:
    """What rank 0 has written. Raises OSError or ValueError where that is not there, or is another's."""
    list(path.parent.iterdir())  # a network file system may remember that the file was absent: this reads it again
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
        status = os.fstat(file.fileno())
        with TemporaryFile(dir=path.parent) as mine:  # a file system may show this user by another number
            is_mine = status.st_uid == os.fstat(mine.fileno()).st_uid
        if not (stat.S_ISREG(status.st_mode) and is_mine) or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError("it is not of this user alone")
        place = json.load(file)
    if not isinstance(place, dict):
        raise ValueError("it names no place")
    return place
