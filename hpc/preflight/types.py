"""The facts of ranks and nodes at the start of a run, which the checks compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpc.model.spec import RunSpec
from hpc.system.text import grouped


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as the driver shows it, before this run touched it.

    `near_cores` are those of its NUMA node, empty if the kernel does not list them. `processes` describes those that
    compute on it, a text each.
    """

    uuid: str
    name: str
    driver: str
    memory_bytes: int
    used_bytes: int
    pci: str = ""
    near_cores: tuple[int, ...] = ()
    processes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """A node before the start, as one of its ranks reads it.

    `busy_cores` are those that other processes use, `busiest` describes these processes. A field that could not be read
    is None, and `unread` has the reason by name.
    """

    busy_cores: float | None
    busiest: tuple[str, ...]
    memory_bytes: int | None
    memory_free_bytes: int | None
    gpus: int | None
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ImagesSeen:
    """The images that a rank finds at the path of its run. `problem` is the reason why it finds none, else empty.

    `sha256` is the checksum over their names. They are in so many `groups`, which are classes or files by `group`.
    `evaluation` are the held-out images of a whole training, else None.
    """

    problem: str = ""
    images: int = 0
    group: str = "class"
    groups: int = 0
    sha256: str = ""
    evaluation: ImagesSeen | None = None


@dataclass(frozen=True, kw_only=True)
class Transports:
    """NCCL's transports from this rank to others, from its own log: transport → ranks as NCCL numbers them.

    `domain` names the NVLink domain of several nodes that its GPU is in, by fabric and clique; empty for none.
    `unread` is the reason why nothing is known, else empty.
    """

    peers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    version: str = ""
    network: str = ""
    domain: str = ""
    unread: str = ""


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """One rank. `node` is its node's number; `in_sight` the UUIDs of all GPUs that the driver shows it.

    `devices` are the UUIDs of those that it drives, None where unknown, for the reason `devices_unread`. `gpus` are the
    driver's facts about them. `software` are versions by name, `device` is the name of what it computes on.
    `images` are those that it is to train on, None where it reads none.
    """

    rank: int
    node: int
    hostname: str
    cores: tuple[int, ...]
    about_node: NodeFacts | None = None
    in_sight: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    devices_unread: str = ""
    gpus: tuple[Gpu, ...] = ()
    device: str = ""
    software: Mapping[str, str] = field(default_factory=dict)
    images: ImagesSeen | None = None
    transports: Transports | None = None


@dataclass(frozen=True, kw_only=True)
class Launched:
    """The facts from MPI and the launcher's variables at the start; `library` is the MPI that mpi4py loads, empty where
    TCP connects the ranks."""

    size: int
    variables: Mapping[str, str]
    library: str


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All that a check may look at. `ranks` is in the order of ranks, empty before they have met."""

    run: RunSpec
    launched: Launched
    ranks: Sequence[RankFacts] = ()
    expect_transport: str = ""
    simulated: bool = False

    def machines(self) -> dict[str, list[RankFacts]]:
        """The ranks of each machine; simulated nodes share one machine."""
        return grouped((rank.hostname if self.simulated else f"{rank.node}", rank) for rank in self.ranks)
