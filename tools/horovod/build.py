"""Builds Horovod for this interpreter's torch and TensorFlow and this machine's MPI, keeps the wheel, installs it.

`make horovod` runs it. A wheel is stored under a key made of its ingredients, and the hook writes the same into the
wheel: the installed package itself shows whether it is the right one.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ingredients import HERE, HOROVOD, TOOLS, CannotBuild, Ingredients, find_ingredients, search_path

from hpc.backends.horovod_group import built_for

SDIST = "sha256:92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
IMPORT = """
import mpi4py; mpi4py.rc.initialize = False
from mpi4py import MPI
import horovod.{} as hvd
assert hvd.mpi_built(), "Horovod was built without MPI"
words = open("/proc/self/maps").read().split()
libraries = {{word for word in words if "/libmpi.so" in word or "/libmpich.so" in word}}
assert len(libraries) == 1, f"mpi4py loads another MPI than Horovod was built with: {{' '.join(sorted(libraries))}}"
"""


class BuildFailed(Exception):
    """A command failed; the text has the errors in its log and its path."""


def say(text: str) -> None:
    """One line about what is done."""
    print(f"horovod: {text}", flush=True)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Prints the work done and its duration."""
    start = time.monotonic()
    yield
    say(f"{what} in {time.monotonic() - start:.0f} s")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes from building the same; goes with its process, however that ends."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process builds the same: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(argv: Sequence[str], log: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Runs a command with its output in the log. Raises BuildFailed with the first errors in the log, and its end."""
    with log.open("a") as output:
        print(f"$ {' '.join(argv)}", file=output, flush=True)
        start = output.tell()
        none, both = subprocess.DEVNULL, subprocess.STDOUT
        done = subprocess.run(argv, stdin=none, stdout=output, stderr=both, env=environment, check=False)
    if done.returncode != 0:
        lines = [line[:300] for line in log.read_bytes()[start:].decode(errors="replace").splitlines()]
        errors = [at for at, line in enumerate(lines) if re.search(r"\berror: |CMake Error|No space left|Killed", line)]
        shown = "\n".join((*(line for at in errors[:3] for line in lines[at : at + 4]), "…", *lines[-5:]))
        raise BuildFailed(f"{shown}\nhorovod: build failed with {done.returncode}; the above is from {log}")


def kept_wheel(folder: Path) -> Path | None:
    """The wheel in a folder of the cache: a whole one, since it was written beside and then renamed."""
    return next(iter(folder.glob("horovod-*.whl")), None)


def make_environment(folder: Path, log: Path) -> Path:
    """A throw-away environment: the build's tools, and all packages that are seen here. Returns its interpreter."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    run([*PIP, "--python", str(python), "install", *TOOLS], log)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "rankwise.pth").write_text("".join(f"{path}\n" for path in packages))
    return python


def build_environment(python: Path, ingredients: Ingredients, work: Path) -> dict[str, str]:
    """The variables of the build: those of Horovod's settings that the key has, and no others of Horovod's."""
    cuda = ingredients.settings.get("HOROVOD_CUDA_HOME")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")},
        **({"CUDA_HOME": cuda} if cuda else {}),  # torch searches there for its libraries
        **ingredients.settings,
        "CMAKE_GENERATOR": "Unix Makefiles",
        "CMAKE_TOOLCHAIN_FILE": str(HERE / "horovod-toolchain.cmake"),
        "HOROVOD_CMAKE": str(python.parent / "cmake"),
        "MAKEFLAGS": f"-j{min(len(os.sched_getaffinity(0)), 8)}",  # each compiler takes up to 2 GB
        "PATH": search_path(),
        "RANKWISE_BUILT_FOR": json.dumps(dict(ingredients.made_of)),
        "RANKWISE_MPICXX": str(ingredients.mpicxx),
        "TMPDIR": str(work),
    }


def build(folder: Path, ingredients: Ingredients) -> Path:
    """Builds a wheel, imports it once, and only then lets it into the folder of the cache."""
    beside, log = folder / "building", folder / "build.log"
    shutil.rmtree(beside, ignore_errors=True)
    log.write_text(f"{json.dumps(dict(ingredients.made_of), indent=1)}\n")
    with tempfile.TemporaryDirectory(prefix="rankwise-horovod-") as name:
        work = Path(name)
        with timed("got the build's tools"):
            python = make_environment(work / "environment", log)
        pip = [*PIP, "--python", str(python)]
        requirement = work / "requirement.txt"
        requirement.write_text(f"horovod=={HOROVOD} --hash={SDIST}\n")
        how = ["--no-deps", "--no-build-isolation", "--use-pep517", "--no-cache-dir", "--no-binary", "horovod"]
        argv = [*pip, "wheel", "--verbose", *how, "--wheel-dir", str(beside), "--requirement", str(requirement)]
        with timed("built the wheel"):
            run(argv, log, build_environment(python, ingredients, work))
        [wheel] = beside.glob("horovod-*.whl")
        with timed("imported it"):
            run([*pip, "install", "--no-deps", str(wheel)], log)
            for framework in ingredients.frameworks:
                run([str(python), "-c", IMPORT.format(framework)], log)
    cached_wheel = wheel.rename(folder / wheel.name)
    beside.rmdir()
    return cached_wheel


def install_horovod() -> None:
    """Sees to it that what is installed is built for what is here: nothing to do, from the cache, or built."""
    ingredients = find_ingredients()
    against = ", ".join([f"{name} {ingredients.made_of[name]}" for name in ingredients.frameworks])
    what = f"{HOROVOD} for {against}, {ingredients.made_of['mpi']}"
    if built_for() == ingredients.made_of:
        say(f"{what} is installed")
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankwise" / "horovod"
    folder = cache / ingredients.key
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if (wheel := kept_wheel(folder)) is None:
            say(f"building {what}: takes minutes, log in {folder / 'build.log'}")
            wheel = build(folder, ingredients)
        with timed(f"installed {wheel}"):
            run([*PIP, "install", "--force-reinstall", "--no-deps", str(wheel)], folder / "install.log")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit 1 where Horovod could not be built."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--where-possible", action="store_true", help="exit 0 where something for a build is missing")
    options = parser.parse_args(arguments)
    try:
        install_horovod()
    except CannotBuild as missing:
        say(f"not built: {missing}")
        return 0 if options.where_possible else 1
    except BuildFailed as failure:
        print(failure, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that TMPDIR is cleared away
    sys.exit(main())
