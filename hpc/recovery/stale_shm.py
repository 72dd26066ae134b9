"""Removes shared memory of dead ranks from a node: by name, owner and age, and if no living process uses it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
KNOWN = (
    r"(vader|sm)_segment\..+",  # Open MPI 4, 5
    r"mpich_shar_tmp\w+",
    r"Intel_MPI_\w+",
    r"psm[23]?_shm\..+",  # Omni-Path's PSM
    r"ucx_shm_posix_\w+",
    r"nccl-\w+",
    r"cuda\.shm\..+",
    r"torch_\d+_\w+",  # torch.multiprocessing
    r"psm_[0-9a-f]{8}",  # multiprocessing.shared_memory
    r"sem\.(mp|loky)-[\w-]+",
    r"pymp-\w+",
    r"paddle_\d+_\w+",
    r"__KMP_REGISTERED_LIB_\d+_\d+",  # OpenMP of LLVM and Intel
)
"""Names of the segments of MPI, NCCL and the frameworks; only these are ever removed."""
_NAME = re.compile("|".join(f"(?:{pattern})" for pattern in KNOWN))


def remove_shared_memory(since_ns: int, folder: Path = SHARED_MEMORY) -> list[str]:
    """Removes the segments that known libraries of this user's dead processes left there since that time.

    Returns the names. A segment that a living process maps or has open stays. `since_ns` is a time of this node's file
    systems, Unix nanoseconds.
    """
    segments = [path for path in sorted(folder.iterdir()) if _may_go(path, since_ns)] if folder.is_dir() else []
    if not segments:
        return []
    in_use = set(_files_in_use())
    removed = []
    for path in segments:
        try:
            status = path.lstat()
            if (status.st_dev, status.st_ino) not in in_use:
                path.unlink()
                removed.append(path.name)
        except FileNotFoundError:  # another process was quicker
            continue
    return removed


def _may_go(path: Path, since_ns: int) -> bool:
    """Whether it is a file of this user's with such a name, made or changed since then."""
    if not _NAME.fullmatch(path.name):
        return False
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and _changed_ns(status) >= since_ns


def _changed_ns(status: os.stat_result) -> int:
    return max(status.st_mtime_ns, status.st_ctime_ns)


def _files_in_use() -> Iterator[tuple[int, int]]:
    """(device, inode) of all files that processes of this user map or have open.

    Processes that the kernel hides, other users' and those with more rights, are not of this user's runs.
    """
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            for line in (process / "maps").read_text(errors="replace").splitlines():
                _, _, _, device, inode, *_ = line.split(maxsplit=5)
                major, _, minor = device.partition(":")
                yield os.makedev(int(major, 16), int(minor, 16)), int(inode)
            for name in os.listdir(process / "fd"):  # noqa: PTH208 - a file gone meanwhile must not end the walk
                try:
                    status = os.stat(process / "fd" / name)  # noqa: PTH116
                except OSError:
                    continue
                yield status.st_dev, status.st_ino
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended meanwhile, or is another's
            continue
