"""The files of a release.

build writes dist/rankwise-VERSION.tar.gz and the wheel that is made of it, from the files that git tracks and the
completions of shells, and has twine check both; dist/packaging has the recipes with the archive's sum. check installs
both files into empty environments of each Python that pyproject.toml names, and uses them; a Python that is not here is
named, and is a failure.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.bundle.archive import checkout_files

ROOT = Path(__file__).parents[2]
PACKAGING, NO_SUM = ROOT / "tools" / "packaging", "0" * 64
"""Recipes of other package managers, and what stands in them for the sum of a source archive that is to be built."""
TRACE = ROOT / "tests" / "golden" / "trace_v2.h5"
PLACES = (
    "~/.pyenv/versions/{version}*/bin/python{version}",
    "~/.local/share/uv/python/*-{version}*/bin/python{version}",
)
"""Where interpreters lie that no PATH has."""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("what", choices=("build", "check"))
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder of the files (dist)")
    parser.add_argument("--no-isolation", action="store_true", help="build with the setuptools that is here")
    parser.add_argument("--python", action="append", default=[], help="an interpreter, tried before those of PATH")
    options = parser.parse_args(argv)
    if options.what == "build":
        return build(options.out, isolation=not options.no_isolation)
    return check(options.out, options.python)


def build(out: Path, *, isolation: bool = True) -> int:
    """Writes both files and checks them; the exit status."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "rankwise"
        for name in checkout_files(ROOT):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
        (source / "completions").mkdir()
        for shell, name in {"bash": "rankwise", "zsh": "_rankwise", "fish": "rankwise.fish"}.items():
            argv = [sys.executable, "-m", "rankwise", "completion", shell]
            text = subprocess.run(argv, cwd=ROOT, capture_output=True, check=True).stdout
            (source / "completions" / name).write_bytes(text)
        command = [sys.executable, "-m", "build", "--outdir", str(out.resolve()), str(source)]
        subprocess.run([*command, *([] if isolation else ["--no-isolation"])], stdout=subprocess.DEVNULL, check=True)
    files = archives(out)
    for file in files:
        print(f"{_sum_of(file)}  {file}")
    for recipe in (path for path in PACKAGING.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        copy = out / "packaging" / recipe.relative_to(PACKAGING)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(recipe.read_text().replace(NO_SUM, _sum_of(files[1])))
    return subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], check=False
    ).returncode


def _sum_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def archives(out: Path) -> tuple[Path, Path]:
    """The wheel and the source archive of this version. Raises FileNotFoundError."""
    from hpc.system.version import __version__

    wheel, sdist = out / f"rankwise-{__version__}-py3-none-any.whl", out / f"rankwise-{__version__}.tar.gz"
    for file in (wheel, sdist):
        if not file.is_file():
            raise FileNotFoundError(f"{file} is not there: make release")
    return wheel, sdist


def check(out: Path, pythons: Sequence[str]) -> int:
    """Tries both files on each Python; 0 where every one is here and all is well."""
    files, bad = archives(out), 0
    for version in supported():
        python = interpreter(version, pythons)
        if python is None:
            print(f"Python {version}: NOT TRIED, no interpreter of it is here (--python FILE names one)", flush=True)
            bad += 1
            continue
        start = time.monotonic()
        with TemporaryDirectory() as folder:
            argv = [python, Path(__file__).with_name("try_install.py"), *files, TRACE, folder]
            done = subprocess.run([*map(str, argv)], capture_output=True, text=True, check=False)
        print(f"{python}: {time.monotonic() - start:.0f} s: {(done.stdout + done.stderr).strip()}", flush=True)
        bad += done.returncode != 0
    return int(bad > 0)


def supported() -> list[str]:
    """The versions of Python that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [each for line in project["classifiers"] for each in re.findall(r"Python :: (3\.\d+)$", line)]


def interpreter(version: str, pythons: Sequence[str] = ()) -> str | None:
    """A Python of this version that runs and can make environments; None where none is here."""
    on_path = shutil.which(f"python{version}")
    places = [place.format(version=version).removeprefix("~/") for place in PLACES]
    others = [str(path) for place in places for path in sorted(Path.home().glob(place), reverse=True)]
    for python in (*pythons, *([on_path] if on_path else []), *others):
        program = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return os.fspath(python)
    return None


if __name__ == "__main__":
    sys.exit(main())
