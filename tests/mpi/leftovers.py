"""What a sweep left on disk: every byte of it, and who may write it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import h5py


def written_by_everybody(*roots: Path) -> list[str]:
    """Files and folders at or below the roots that others than owner and group may write."""
    found = []
    for root in roots:
        for path in (root, *root.rglob("*")):
            with suppress(FileNotFoundError):  # of another run, which ends just now
                mode = path.lstat().st_mode
                if mode & stat.S_IWOTH and not stat.S_ISLNK(mode):
                    found.append(f"{path} {stat.filemode(mode)}")
    return found


def holding(secret: str, *roots: Path) -> list[str]:
    """Files below the roots whose bytes hold the secret, or whose HDF5 does once it is unpacked."""
    found = []
    for path in (path for root in roots for path in root.rglob("*") if path.is_file()):
        with suppress(FileNotFoundError):
            texts = [path.read_bytes(), *(_unpacked(path) if path.suffix == ".h5" else ())]
            if any(secret.encode() in text for text in texts):
                found.append(str(path))
    return found


def node_local() -> list[Path]:
    """This user's folders of node-local storage that are there."""
    return [folder for base in ("/dev/shm", "/tmp") if (folder := Path(base) / f"rankwise-{os.getuid()}").exists()]


def _unpacked(path: Path) -> Iterator[bytes]:
    pieces: list[bytes] = []

    def add(name: str, thing: h5py.Group | h5py.Dataset) -> None:
        pieces.extend((name.encode(), repr(dict(thing.attrs)).encode()))
        if isinstance(thing, h5py.Dataset):
            value = thing[()]
            pieces.append(value if isinstance(value, bytes) else json.dumps(value.tolist(), default=repr).encode())

    with h5py.File(path, "r") as file:
        add("/", file)
        file.visititems(add)
    yield from pieces
