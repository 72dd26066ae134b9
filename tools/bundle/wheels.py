"""The wheels that a target machine needs: what pip downloads for it, checked against the target's own markers.

pip selects wheels by the target, but evaluates markers such as `python_version >= "3.12"` for the Python that runs it.
Requirements are therefore followed through the downloaded wheels once more, with the target's values.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesParser
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename
from packaging.version import Version

GLIBC_MINOR = 28
"""Wheels may need glibc 2.28, of Red Hat 8, and no newer one: the wheels of torch, numpy and h5py need as much."""
LEGACY_PLATFORMS = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Older names of platforms, by the minor version of their glibc (PEP 600)."""

_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_UNREACHABLE = re.compile(r"Retrying \(|connection broken|Could not fetch URL|ProxyError|Max retries exceeded")


class BundleError(Exception):
    """The bundle cannot be made; the text says why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The machine that the bundle is installed on: Linux with glibc, this Python (`3.12`), this architecture."""

    python: str
    machine: str

    def __str__(self) -> str:
        return f"CPython {self.python} on Linux {self.machine} with glibc 2.{GLIBC_MINOR}"

    @property
    def pip_options(self) -> list[str]:
        """The options of pip that select wheels for this machine, the newest platform first."""
        names = [f"manylinux_2_{minor}" for minor in range(GLIBC_MINOR, 4, -1)] + [*LEGACY_PLATFORMS.values()]
        platforms = [argument for name in names for argument in ("--platform", f"{name}_{self.machine}")]
        return ["--only-binary=:all:", "--implementation", "cp", "--python-version", self.python, *platforms]

    def applies(self, requirement: Requirement, extra: str = "") -> bool:
        """Whether the requirement's marker holds on this machine with any patch release of its Python."""
        if requirement.marker is None:
            return True
        environment = {
            "implementation_name": "cpython", "os_name": "posix", "platform_machine": self.machine,
            "platform_python_implementation": "CPython", "platform_release": "", "platform_system": "Linux",
            "platform_version": "", "python_version": self.python, "sys_platform": "linux", "extra": extra,
        }  # fmt: skip
        return any(
            requirement.marker.evaluate({**environment, "python_full_version": full, "implementation_version": full})
            for full in (f"{self.python}.0", f"{self.python}.99")
        )


@dataclass(frozen=True)
class Wheel:
    """A wheel file, named as PEP 427 says."""

    path: Path

    @property
    def name(self) -> NormalizedName:
        return parse_wheel_filename(self.path.name)[0]

    @property
    def version(self) -> Version:
        return parse_wheel_filename(self.path.name)[1]

    @property
    def glibc_minor(self) -> int:
        """The oldest glibc 2.x that the wheel runs with, by its platform tags; 0 if it contains no machine code."""
        legacy = {name: minor for minor, name in LEGACY_PLATFORMS.items()}
        minors = []
        for tag in parse_wheel_filename(self.path.name)[3]:
            if tag.platform == "any":
                return 0
            if named := re.match(r"manylinux_2_(\d+)_", tag.platform):
                minors.append(int(named[1]))
            elif (name := tag.platform.partition("_")[0]) in legacy:
                minors.append(legacy[name])
        if not minors:
            raise BundleError(f"{self.path.name} is for no platform of glibc")
        return min(minors)

    @cached_property
    def requires(self) -> list[Requirement]:
        """All requirements that the wheel's metadata states, with their markers."""
        with zipfile.ZipFile(self.path) as archive:
            [name] = [each for each in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", each)]
            metadata = BytesParser().parsebytes(archive.read(name))
        return [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]

    def read(self, member: str) -> str:
        """The text of a file in the wheel."""
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(member).decode()


def project_requirements(checkout: Path, target: Target, extras: Sequence[str]) -> list[Requirement]:
    """What the project needs on the target with these extras, and what builds it: of the frameworks the versions in
    constraints.txt. Raises BundleError.

    `checkout` is a copy of the project that may be written to: its build leaves files in it.
    """
    report = checkout.parent / "report.json"
    wanted = ["--dry-run", "--ignore-installed", "--no-deps", "--report", str(report), str(checkout)]
    done = _run_pip(checkout.parent, "install", *wanted)
    if done.returncode != 0:
        raise BundleError(_reason(done.stderr, f"pip cannot read the requirements of {checkout.name}"))
    metadata = json.loads(report.read_text())["install"][0]["metadata"]
    known = metadata["provides_extra"]
    if unknown := sorted(set(extras) - set(known)):
        raise BundleError(f"unknown extras: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    stated = [Requirement(line) for line in metadata["requires_dist"]]
    stated = [each for each in stated if any(target.applies(each, extra) for extra in ("", *extras))]
    lines = (checkout / "constraints.txt").read_text().splitlines()
    tested = [Requirement(line) for line in lines if not line.startswith("#")]
    for each in stated:
        for constraint in tested:
            if canonicalize_name(constraint.name) == canonicalize_name(each.name):
                each.specifier &= constraint.specifier
    build = tomllib.loads((checkout / "pyproject.toml").read_text())["build-system"]["requires"]
    return [Requirement(_without_marker(each)) for each in [*stated, *map(Requirement, build)]]


def collect(wanted: Sequence[Requirement], target: Target, folder: Path) -> list[Wheel]:
    """Downloads into the folder the wheels that the requirements need on the target, sorted. Raises BundleError."""
    requested = sorted({str(each) for each in wanted})
    while True:
        folder.mkdir()
        download(requested, target, folder)
        wheels = {wheel.name: wheel for wheel in map(Wheel, folder.glob("*.whl"))}
        needed, missing = follow(wanted, wheels, target)
        if not missing:
            break
        if missing <= set(requested):
            raise BundleError(f"pip has downloaded no wheel for {', '.join(sorted(missing))}, which were requested")
        requested = sorted({*requested, *missing})
        for wheel in wheels.values():
            wheel.path.unlink()
        folder.rmdir()
    for name in wheels.keys() - needed:  # what only the Python that runs pip would need
        wheels[name].path.unlink()
    return sorted((wheels[name] for name in needed), key=lambda wheel: wheel.path.name)


def download(requested: Sequence[str], target: Target, folder: Path) -> None:
    """Has pip download wheels for the target. Raises BundleError, which names a package without a wheel.

    Prints a note where pip took all wheels from other places than an index that it could not reach.
    """
    done = _run_pip(folder.parent, "download", *target.pip_options, "--dest", str(folder), *requested)
    if done.returncode == 0:
        if lines := [line for line in done.stderr.splitlines() if _UNREACHABLE.search(line)]:
            print(
                f"bundle: note: pip could not reach a package index, at least at first: {lines[-1]}",
                file=sys.stderr,
                flush=True,
            )
        return
    named = re.search(r"No matching distribution found for ([^;\n]+)", done.stderr)
    if named is None:
        raise BundleError(_reason(done.stderr, f"pip cannot download the wheels for {target}"))
    name = named[1].strip()
    reason = _reason(done.stderr, f"no wheel of {name} for {target}")
    if _UNREACHABLE.search(done.stderr):
        raise BundleError(reason)
    raise BundleError(
        f"{reason}\nWhere it exists as source only, or for other versions of Python only: build a wheel on a machine "
        f"like the cluster's (pip wheel --no-deps '{name}' --wheel-dir built, then auditwheel repair where it contains "
        'machine code), and name its folder: make bundle … PIP_FIND_LINKS="$PWD/built"'
    )


def follow(
    wanted: Sequence[Requirement], wheels: Mapping[NormalizedName, Wheel], target: Target
) -> tuple[set[NormalizedName], set[str]]:
    """The names of the wheels that the requirements reach on the target, and the requirements that no wheel meets."""
    needed: set[NormalizedName] = set()
    missing: set[str] = set()
    seen: set[tuple[NormalizedName, str]] = set()
    pending = list(wanted)
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        wheel = wheels.get(name)
        if wheel is None or not requirement.specifier.contains(wheel.version, prereleases=True):
            missing.add(_without_marker(requirement))
            continue
        needed.add(name)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                pending += [each for each in wheel.requires if target.applies(each, extra)]
    return needed, missing


def _without_marker(requirement: Requirement) -> str:
    return str(requirement).partition(";")[0].strip()


def _run_pip(temporary: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs pip as configured here: its index, or PIP_INDEX_URL and PIP_EXTRA_INDEX_URL, decide what is downloaded.

    Its progress is shown on a terminal only. It unpacks in `temporary`, where a killed pip leaves gigabytes.
    """
    environ = {**os.environ, "LC_ALL": "C.UTF-8", "TMPDIR": str(temporary)}
    progress = None if sys.stdout.isatty() else subprocess.DEVNULL
    return subprocess.run(
        [*_PIP, *arguments], env=environ, stdin=subprocess.DEVNULL, stdout=progress, stderr=subprocess.PIPE, text=True,
        errors="replace", check=False,
    )  # fmt: skip


def _reason(stderr: str, problem: str) -> str:
    """The problem with the last lines in which pip explains it, and whether the package index was reached."""
    retries = [line for line in stderr.splitlines() if "Retrying (" in line]
    others = [line for line in stderr.splitlines() if line not in retries and "is ignored: it is neither" not in line]
    heading = f"the package index cannot be reached: {problem}" if _UNREACHABLE.search(stderr) else problem
    return "\n  ".join([f"{heading}; pip:", *retries[-1:], *others[-6:]])
