"""Checks of a sweep's files: world-writable paths, and files that contain a secret."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import h5py


def written_by_everybody(*roots: Path) -> list[str]:
    """World-writable files and folders at or below the roots, with their modes."""
    writable = []
    for root in roots:
        for path in (root, *below(root)):
            with suppress(FileNotFoundError):  # of another run, which ends just now
                mode = path.lstat().st_mode
                if mode & stat.S_IWOTH and not stat.S_ISLNK(mode):
                    writable.append(f"{path} {stat.filemode(mode)}")
    return writable


def below(root: Path) -> Iterator[Path]:
    """All files and folders below the root. Folders of other runs end meanwhile, on which `rglob` raises."""
    for folder, folders, files in os.walk(root):
        yield from (Path(folder, name) for name in (*folders, *files))


def holding(secret: str, *roots: Path) -> list[str]:
    """Files below the roots that contain the secret, in their bytes or in unpacked HDF5."""
    matches = []
    for path in (path for root in roots for path in below(root) if path.is_file()):
        with suppress(FileNotFoundError):
            texts = [path.read_bytes(), *(_unpacked(path) if path.suffix == ".h5" else ())]
            if any(secret.encode() in text for text in texts):
                matches.append(str(path))
    return matches


def node_local() -> list[Path]:
    """This user's existing folders in node-local storage."""
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
