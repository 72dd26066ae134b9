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
    by_rank: dict[int, Path] = {}
    groups: set[tuple[int, str]] = set()
    training = 0
    for path in folder.glob("*.events"):
        with suppress(OSError, EventFileError):  # one that is being made does not train
            if steps_counted(path):
                training += 1
                facts = read_facts(path)
                if facts.get("joined"):
                    by_rank[int(facts["rank"])] = path
                    groups.add((int(facts["size"]), str(facts["rendezvous"])))
    if training < 2 or len(groups) != 1 or sorted(by_rank) != [*range(training)] or groups.pop()[0] != training:
        return ()
    return [by_rank[rank] for rank in sorted(by_rank)]


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
