"""System calls that fail as on a broken disk or file server: the library of faults.c, and its faults."""

from __future__ import annotations

import errno
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")


class InjectorError(RuntimeError):
    """The library cannot be built here; the text is the compiler's error."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The `n`-th matching call fails with this errno, and the `times` - 1 after it; with `times` 0 all after it.

    A call matches by its name (`open`, `write`, ...), by the process that makes it (the module of `python -m MODULE`,
    or a program's name), and where its path contains one of `paths`. Calls are counted over all processes.
    """

    call: str
    error: str
    process: str
    paths: Sequence[str]
    n: int = 1
    times: int = 1

    def __str__(self) -> str:
        often = {0: "and all after", 1: "alone"}.get(self.times, f"and {self.times - 1} after")
        return f"{self.process} {self.call} {self.error} n={self.n} {often}"

    def variables(self, library: Path, state: Path) -> dict[str, str]:
        """The environment in which processes meet the fault; `state` is a new file for the count."""
        code = 0 if self.call == "all" else getattr(errno, self.error)
        facts = {
            "call": self.call, "errno": code, "n": self.n, "times": self.times, "path": "|".join(self.paths),
            "process": self.process,
        }  # fmt: skip
        state.write_bytes(bytes(8))
        return {
            "LD_PRELOAD": str(library),
            "RANKWISE_FAULT": ",".join(f"{name}={value}" for name, value in facts.items() if value != ""),
            "RANKWISE_FAULT_STATE": str(state),
        }


def every_call(paths: Sequence[str]) -> Fault:
    """No fault: every call below these paths is written down."""
    return Fault(call="all", error="", process="", paths=paths)


@dataclass(frozen=True, kw_only=True)
class Injection:
    """A call that failed, or with `every_call` was made: in which process, and the path."""

    process: str
    call: str
    path: str


def injections(state: Path) -> list[Injection]:
    """The injections that the library wrote beside this state file."""
    log = state.with_name(f"{state.name}.log")
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    fields = [line.split(" ", 4) for line in lines]
    return [Injection(process=process, call=call, path=path) for _, process, call, _, path in fields]


def counts(made: Sequence[Injection], areas: Mapping[str, str]) -> dict[tuple[str, str, str], int]:
    """How many calls were made by process, call and area; `areas` has the beginning of its paths by name."""
    return dict(Counter(
        (injection.process, injection.call, area)
        for injection in made for area, start in areas.items() if injection.path.startswith(start)
    ))  # fmt: skip


def build(folder: Path) -> Path:
    """Compiles the library into the folder; its path. Raises InjectorError."""
    library = folder / "faults.so"
    argv = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(SOURCE), "-ldl"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InjectorError(f"cc cannot be run ({error.strerror}): apt-get install gcc") from None
    if done.returncode != 0:
        raise InjectorError(f"{SOURCE.name} does not compile: {done.stderr}")
    return library
