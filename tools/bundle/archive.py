"""Writes the archive: sorted names, one time and one owner for all members, so that equal contents give equal bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tools.bundle.wheels import BundleError


def checkout_files(checkout: Path) -> list[str]:
    """The paths of all files that git tracks in the checkout and that exist, sorted. Raises BundleError."""
    names = _git(checkout, "ls-files", "-z").split("\0")
    present = sorted(name for name in names if name and (checkout / name).is_file())
    if links := [name for name in present if (checkout / name).is_symlink()]:
        raise BundleError(f"{links[0]} is a symbolic link: what it leads to would be in the bundle")
    return present


def untracked_files(checkout: Path) -> list[str]:
    """The paths of all files in the checkout that git neither tracks nor ignores, sorted. Raises BundleError."""
    return sorted(filter(None, _git(checkout, "ls-files", "-z", "--others", "--exclude-standard").split("\0")))


def commit_time_unix_s(checkout: Path) -> int:
    """The time of the checkout's commit. Raises BundleError."""
    return int(_git(checkout, "log", "-1", "--format=%ct"))


def checksums(members: Mapping[str, Path | bytes]) -> bytes:
    """The text of SHA256SUMS for these members, which `sha256sum -c` reads."""
    return "".join(f"{_sha256(members[name])}  {name}\n" for name in sorted(members)).encode()


def write_archive(archive: Path, folder: str, members: Mapping[str, Path | bytes], time_unix_s: int) -> None:
    """Writes a .tar.gz with these members in one folder."""
    # Wheels are packed already: more than the lowest level takes minutes and saves nothing.
    with (
        archive.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=1, mtime=time_unix_s) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name, content in sorted(members.items()):
            _add(tar, f"{folder}/{name}", content, time_unix_s)


def _add(tar: tarfile.TarFile, name: str, content: Path | bytes, time_unix_s: int) -> None:
    member = tarfile.TarInfo(name)
    member.mtime = time_unix_s
    if isinstance(content, bytes):
        member.size, member.mode = len(content), 0o644
        tar.addfile(member, io.BytesIO(content))
        return
    state = content.stat()
    member.size, member.mode = state.st_size, 0o755 if state.st_mode & 0o100 else 0o644
    with content.open("rb") as file:
        tar.addfile(member, file)


def _sha256(content: Path | bytes) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git(checkout: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BundleError("git is not installed: a bundle is made from a git checkout") from None
    if done.returncode != 0:
        raise BundleError(f"a bundle is made from a git checkout; git in {checkout}: {done.stderr.strip()}")
    return done.stdout
