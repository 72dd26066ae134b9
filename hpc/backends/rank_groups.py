"""Groups of neighbouring ranks that hold a model together, one part each; known before a framework is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc.model.options import WHOLE, OptionValue
from hpc.model.spec import RunSpec

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World

ALL, NODE = "all", "node"


def check_all_or_size(text: str) -> None:
    """Raises ValueError unless the text is `all`, `node` or a number of ranks."""
    if text not in (ALL, NODE) and not _is_size(text):
        raise ValueError(f"{text[:40]!r} is neither all nor node nor a number of ranks from 1")


def check_node_or_size(text: str) -> None:
    """Raises ValueError unless the text is `node` or a number of ranks."""
    if text != NODE and not _is_size(text):
        raise ValueError(f"{text[:40]!r} is neither node nor a number of ranks from 1")


def _is_size(text: str) -> bool:
    return WHOLE.fullmatch(text) is not None and 1 <= int(text) <= 1_000_000


def group_size(option: OptionValue, run: RunSpec, within: int) -> int:
    """The ranks of a group that an option requests; a number is at most that of the ranks `within` which they are."""
    if option in (ALL, NODE):
        return run.ranks if option == ALL else run.ranks_per_node
    return min(int(option), within)


def misfit(name: str, option: OptionValue, run: RunSpec, within: int) -> str:
    """The reason why the ranks `within` which groups are cannot be split so, and what to do; else empty."""
    size = group_size(option, run, within)
    if within % size == 0:
        return ""
    return f"{name}={option} was requested; {within} ranks make no whole groups of {size}: take a divisor of {within}"


def not_on_one_node(size: int, world: World, comm: Intracomm) -> str:
    """The reason why groups of that size are not each on one node, for all ranks the same; else empty. Collective."""
    nodes = comm.allgather(world.node_rank)
    for first in range(0, len(nodes), size):
        if len(group := set(nodes[first : first + size])) > 1:
            return (
                f"ranks {first} to {first + size - 1} were to be on one node and are on {len(group)}: start the ranks "
                "of each node one after the other, by srun --distribution=block or mpirun --map-by slot"
            )
    return ""
