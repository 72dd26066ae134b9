"""Ranks that a script starts itself, as torch.multiprocessing.spawn does: one launch, each spawned process a rank."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from hpc.measure.connections import ConnectionLost, Connections
from hpc.observe.events import EventFileError, read_facts, steps_counted


def spawned_ranks(folder: Path) -> Sequence[Path]:
    """The files of events of the processes that train, in the order of their ranks, where these are several and all of
    one process group; empty where they are not."""
    training = [path for path in folder.glob("*.events") if _trains(path)]
    if len(training) < 2:
        return ()
    by_rank: dict[int, Path] = {}
    groups: set[tuple[int, str]] = set()
    for path in training:
        with suppress(OSError, EventFileError):
            facts = read_facts(path)
            if facts.get("joined"):
                by_rank[int(facts["rank"])] = path
                groups.add((int(facts["size"]), str(facts["rendezvous"])))
    size = len(training)
    if len(groups) != 1 or sorted(by_rank) != [*range(size)] or groups.pop()[0] != size:
        return ()
    return [by_rank[rank] for rank in sorted(by_rank)]


def _trains(path: Path) -> bool:
    try:
        return steps_counted(path) > 0
    except OSError:  # it is being made
        return False


def own_folder(path: Path, rank: int) -> Path:
    """Moves a file of events, and what has its name, to a folder of this rank; returns that."""
    folder = path.parent / f"rank{rank}"
    folder.mkdir(mode=0o700)
    for each in path.parent.glob(f"{path.stem}.*"):
        each.rename(folder / each.name)
    return folder


def as_ranks(size: int, call: Callable[[Connections], None]) -> None:
    """Has so many threads call this, each as a rank that is connected with the others. Raises what the first of them
    raised; the others have lost their connections by then."""
    links: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for rank in range(1, size):
        links[0][rank], links[rank][0] = socket.socketpair()

    def as_rank(rank: int) -> None:
        with socket.socket() as nobody:  # connects later
            try:
                call(Connections(rank, size, links[rank], nobody, b""))
            finally:
                for link in links[rank].values():
                    link.close()

    with ThreadPoolExecutor(size) as pool:
        ended = [pool.submit(as_rank, rank) for rank in range(size)]
    errors = [error for future in ended if (error := future.exception()) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, ConnectionLost)), errors[0])
