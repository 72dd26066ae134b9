"""The leaves: features beside the way of sweep, observe, summarize and report. `python -m tests.leaves` writes a table.

A leaf has one door. Its files are no part of the core: nothing of the core imports them but through the door.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc.backends import TRAINERS

ROOT = Path(__file__).parents[1]
PACKAGES = ("hpc", "launch", "parse")
DOCUMENT = ROOT / "docs" / "structure.md"
HEAD = "| leaf | lines | door |\n"
NEWLINES = "\n\n"
NEAREST = 100
"""Lines are rounded to these, so that a table of them outlives most commits."""


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """`door` is the module by which a command or the core reaches the leaf, or the file that holds it as data.

    `paths` are its files and folders of the product, `tests` its tests, as globs below ROOT. `stands_on` are the
    leaves that it needs: taking one of these off takes this one off, too.
    """

    name: str
    door: str
    paths: tuple[str, ...]
    tests: tuple[str, ...] = ()
    stands_on: tuple[str, ...] = ()

    def files(self) -> list[Path]:
        """Its files of the product, in the order of their names."""
        files = {ROOT / path for path in self.paths if (ROOT / path).is_file()}
        folders = (ROOT / path for path in self.paths if (ROOT / path).is_dir())
        files |= {file for folder in folders for file in folder.rglob("*") if file.suffix in (".py", ".toml", ".json")}
        return sorted(files)

    def lines(self) -> int:
        """Lines of its files, data included."""
        return sum(len(file.read_text().splitlines()) for file in self.files())


COMMANDS = (
    Leaf(
        name="accept",
        door="launch.sweep.accept",
        paths=("launch/sweep/accept.py",),
        tests=("tests/unit/test_accept.py",),
        stands_on=("compare", "doctor"),
    ),
    Leaf(
        name="find-max",
        door="launch.sweep.find_max",
        paths=("launch/sweep/find_max.py",),
        tests=("tests/unit/test_find_max.py",),
    ),
    Leaf(
        name="auto repeats",
        door="launch.sweep.auto_repeats",
        paths=("launch/sweep/auto_repeats.py",),
        tests=("tests/unit/test_auto_repeats.py",),
        stands_on=("compare",),
    ),
    Leaf(
        name="recipes",
        door="launch.sweep.recipes",
        paths=("launch/sweep/recipes.py",),
        tests=("tests/unit/test_recipes.py",),
    ),
    Leaf(
        name="retry",
        door="launch.sweep.retry",
        paths=("launch/sweep/retry.py",),
        tests=("tests/unit/test_retry.py",),
    ),
    Leaf(
        name="doctor",
        door="launch.doctor.command",
        paths=("launch/doctor",),
        tests=("tests/unit/test_doctor.py",),
    ),
    Leaf(
        name="watch",
        door="parse.watch",
        paths=("parse/watch.py", "parse/live"),
        tests=("tests/unit/test_watch.py", "tests/truth/equal_looks.py"),
    ),
    Leaf(
        name="timeline",
        door="parse.timeline",
        paths=(
            "parse/timeline.py",
            "parse/trace_events/step_pieces.py",
            "parse/trace_events/timeline_file.py",
        ),
        tests=("tests/unit/test_timeline*.py",),
        stands_on=("collectives' traces",),
    ),
    Leaf(
        name="collectives' traces",
        door="parse.collective_trace",
        paths=(
            "parse/collective_trace.py",
            "parse/arrivals",
            "parse/trace_events/event_file.py",
            "parse/trace_events/kineto.py",
        ),
        tests=("tests/unit/arrivals/test_*.py",),
    ),
    Leaf(
        name="forecast",
        door="parse.forecast",
        paths=("parse/forecast.py", "parse/extrapolation", "parse/page/forecast.py"),
        tests=("tests/unit/test_forecast*.py",),
    ),
    Leaf(
        name="section of a paper",
        door="parse.page.paper",
        paths=("parse/page/paper.py",),
        tests=("tests/unit/test_paper.py",),
        stands_on=("forecast",),
    ),
    Leaf(
        name="compare",
        door="parse.compare",
        paths=("parse/compare.py", "parse/comparison"),
        tests=("tests/unit/test_comparison*.py", "tests/unit/test_machine.py"),
    ),
    Leaf(
        name="history",
        door="parse.history",
        paths=("parse/history.py", "parse/trend", "parse/page/history.py"),
        tests=("tests/unit/test_history*.py", "tests/unit/test_trend.py"),
        stands_on=("compare",),
    ),
    Leaf(
        name="export",
        door="parse.export.__main__",
        paths=("parse/export",),
        tests=("tests/unit/test_export.py",),
    ),
    Leaf(
        name="airank",
        door="parse.airank",
        paths=("parse/airank.py",),
        tests=("tests/unit/test_airank*.py",),
    ),
)
"""Leaves behind a command or an option."""


def backends() -> Iterator[Leaf]:
    """One leaf for each backend that trains: its entry in the table of backends is the door."""
    for name, entry in TRAINERS.items():
        module = entry.where.partition(":")[0]
        path = module.replace(".", "/") + ".py"
        yield Leaf(name=name, door=module, paths=(path,), stands_on=_COLLECTIVES_OF.get(name, ()))


_COLLECTIVES_OF = {"torch-fsdp": ("torch-ddp",)}
"""Backends whose collectives alone are those of another."""


LOG_TESTS = "tests/unit/logs"
"""Of all families: they read one or the other."""


def log_families() -> Iterator[Leaf]:
    """One leaf for each family of log formats: a file of declarations, which is its own door."""
    folder = ROOT / "parse" / "logs" / "formats"
    for file in sorted(folder.glob("*.toml")):
        if file.stem != "shared":
            path = file.relative_to(ROOT).as_posix()
            yield Leaf(name=f"logs: {file.stem}", door=path, paths=(path,), tests=(f"{LOG_TESTS}/test_*.py",))


def leaves() -> list[Leaf]:
    """All leaves."""
    return [*COMMANDS, *backends(), *log_families()]


def table() -> str:
    """The table of docs/structure.md: a leaf, its lines to the nearest hundred, its door."""
    rows = [f"| {leaf.name} | {max(NEAREST, _rounded(leaf.lines())):,} | `{leaf.door}` |\n" for leaf in leaves()]
    return "".join([HEAD, "|---|---:|---|\n", *rows])


def _rounded(lines: int) -> int:
    return round(lines / NEAREST) * NEAREST


def main() -> None:
    """Writes the table into docs/structure.md, in the place of the one that is there."""
    before, _, rest = DOCUMENT.read_text().partition(HEAD)
    DOCUMENT.write_text(f"{before}{table()}\n{rest.partition(NEWLINES)[2]}")


if __name__ == "__main__":
    main()
