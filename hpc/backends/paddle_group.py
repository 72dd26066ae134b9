"""Paddle's group of ranks, made from MPI's communicator: variables first, then Paddle, then the group."""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING, Any

from hpc.backends import InvalidRun
from hpc.backends.addresses import LOOPBACK, PortTaken, endpoints, interface_towards, requested_interface

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

_NEEDLESS = (
    "No ccache found",
    "When training, we now always track global mean and variance",
    "The program will return to single-card operation",
)
"""Python warnings that Paddle always gives: at import, in batch norm, and with one rank."""
_NOISE = ("Modified FLAGS detected", "FLAGS(name=", "==========", "OMP_NUM_THREADS set to", "PLEASE USE OMP_NUM")
_LOOK_AGAIN_S = 0.01


def import_paddle(run: RunSpec, world: World, comm: Intracomm, gpu: int | None) -> Any:
    """The module `paddle`, imported after the variables that it reads at import are set. Collective."""
    _set_variables(run, world, endpoints(comm, requested_interface(gpu is not None)), gpu)
    at_termination = signal.getsignal(signal.SIGTERM)
    for message in _NEEDLESS:
        warnings.filterwarnings("ignore", message=message)
    with _without_noise():
        import paddle
    if at_termination is not None:
        # Paddle's own handler prints a C++ traceback on SIGTERM, which every process whose peer has failed gets.
        signal.signal(signal.SIGTERM, at_termination)
    return paddle


def _set_variables(run: RunSpec, world: World, addresses: list[str], gpu: int | None) -> None:
    """Sets ranks and addresses from MPI; leaves other variables as they are."""
    os.environ.update(
        PADDLE_TRAINER_ID=str(world.rank),
        PADDLE_TRAINERS_NUM=str(world.size),
        PADDLE_CURRENT_ENDPOINT=addresses[world.rank],
        PADDLE_TRAINER_ENDPOINTS=",".join(addresses),
        PADDLE_MASTER=addresses[0],  # if set, Paddle uses it as the rendezvous instead of the first endpoint
        PADDLE_DISTRI_BACKEND=transport(gpu),  # unset, a Paddle without CUDA silently makes no group
    )
    if "OMP_NUM_THREADS" not in run.env:
        os.environ["OMP_NUM_THREADS"] = str(run.cpus_per_rank)
    if gpu is None:
        host = addresses[0].rpartition(":")[0]
        interface = requested_interface(gpu is not None) or ("lo" if host == LOOPBACK else interface_towards(host))
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    else:
        os.environ.update({"FLAGS_selected_gpus": str(gpu)})
        # Sizes never change: the fastest kernels are sought once, in warm-up.
        os.environ.setdefault("FLAGS_cudnn_exhaustive_search", "1")
    # Paddle's other store, its default, aborts the process where its port is taken.
    os.environ.setdefault("FLAGS_tcp_store_using_libuv", "0")
    if "GLOG_v" not in os.environ:
        os.environ.setdefault("GLOG_minloglevel", "1")  # warnings and above: not every socket that is opened


def transport(gpu: int | None) -> str:
    return "gloo" if gpu is None else "nccl"


def open_group(paddle: Any, world: World, gpu: int | None) -> None:
    """Forms the group of all ranks. Raises PortTaken where rank 0's address is taken, InvalidRun where none is made."""
    address = os.environ["PADDLE_MASTER"]
    if world.rank:
        _await_listener(address)
    try:
        with _without_noise():
            paddle.distributed.init_parallel_env()
    except ValueError as error:
        if world.rank == 0 and "Bind network" in str(error):
            raise PortTaken(f"{address} was free when rank 0 chose it and is taken now that Paddle binds it") from error
        raise
    if not paddle.distributed.is_initialized():
        raise InvalidRun(f"Paddle made no group of the {world.size} ranks, and would train each by itself")
    group = (paddle.distributed.get_rank(), paddle.distributed.get_world_size(), paddle.distributed.get_backend())
    if group != (world.rank, world.size, transport(gpu).upper()):
        raise InvalidRun(
            f"Paddle says rank {group[0]} of {group[1]} by {group[2]}; requested were rank {world.rank} of "
            f"{world.size} by {transport(gpu).upper()}"
        )


def _await_listener(address: str) -> None:
    """Returns once rank 0 listens. Paddle itself would retry only after three seconds."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port))).close()
        except ConnectionRefusedError:
            time.sleep(_LOOK_AGAIN_S)
        else:
            return


@contextmanager
def _without_noise() -> Iterator[None]:
    """Hides the lines that Paddle writes at every start, and shows all its other lines."""
    output = io.StringIO()
    try:
        with redirect_stderr(output):
            yield
    finally:
        lines = output.getvalue().splitlines(keepends=True)
        sys.stderr.writelines(line for line in lines if not any(noise in line for noise in _NOISE))
