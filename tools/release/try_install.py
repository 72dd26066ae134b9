"""Installs a wheel and a source archive into empty environments of the Python that runs this, and uses them.

Needs the standard library alone: python3.13 tools/release/try_install.py WHEEL SDIST TRACE FOLDER
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

COMPLETIONS = (
    "share/bash-completion/completions/rankwise", "share/zsh/site-functions/_rankwise",
    "share/fish/vendor_completions.d/rankwise.fish",
)  # fmt: skip
USE = "import rankwise, sys; print(len(rankwise.load(sys.argv[1]).points))"


def main(argv: Sequence[str]) -> int:
    """Exit status 0 where all is as it should be; else RuntimeError says what is not."""
    wheel, sdist, trace, folder = (Path(each).resolve() for each in argv)
    files = [_install(wheel, folder / "wheel"), _install(sdist, folder / "source", "--no-deps")]
    _run(folder, folder / "wheel" / "bin" / "python", "-m", "pip", "check")
    _use(folder / "wheel", trace, folder / "empty", wheel.name.split("-")[1])
    if files[0] != files[1]:
        raise RuntimeError(f"wheel and source archive install other files: {sorted({*files[0]} ^ {*files[1]})}")
    print(f"Python {sys.version.split()[0]}: {len(files[0])} files, the same of wheel and source archive; used")
    return 0


def _install(archive: Path, environment: Path, *options: str) -> list[str]:
    """The files of the package in an environment that has it and what it needs."""
    venv.create(environment, with_pip=True)
    _run(environment, environment / "bin" / "python", "-m", "pip", "install", "--quiet", *options, archive)
    return sorted(_installed(environment))


def _use(environment: Path, trace: Path, folder: Path, version: str) -> None:
    """From an empty folder: the version, a table and a page of a trace, the same trace in Python; completions."""
    folder.mkdir()
    rankwise, python = environment / "bin" / "rankwise", environment / "bin" / "python"
    _expect(_run(folder, rankwise, "--version"), f"Rankwise {version}")
    _expect(_run(folder, rankwise, "summarize", trace), "runs ok")
    _run(folder, rankwise, "report", trace, "--out", "page.html")
    _expect((folder / "page.html").read_text(), "<script")
    _expect(_run(folder, python, "-c", USE, trace), "1")
    for completion in COMPLETIONS:
        _expect((environment / completion).read_text(), "summarize")
    _run(folder, "bash", "-n", environment / COMPLETIONS[0])


def _installed(environment: Path) -> list[str]:
    """The files of the package, but for what pip writes and compiles."""
    (record,) = environment.glob("lib/python*/site-packages/rankwise-*.dist-info/RECORD")
    names = [line.split(",")[0] for line in record.read_text().splitlines()]
    return [name for name in names if "__pycache__" not in name and ".dist-info/" not in name]


def _run(folder: Path, *command: str | Path) -> str:
    """What the command prints. Raises RuntimeError where it fails."""
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def _expect(text: str, part: str) -> None:
    if part not in text:
        raise RuntimeError(f"{part!r} is not in\n{text[:2000]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
