"""`rankwise list [KIND]`: what can be named on the command line of a sweep, from the tables; imports no framework."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence

from hpc.model.options import Option
from hpc.model.spec import COLLECTIVES
from hpc.system.command_line import run, text_width
from hpc.system.command_parser import CommandParser
from hpc.system.text import filled, plural
from hpc.system.version import with_version

KINDS = ("backends", "workloads", "data", "sites", "recipes")
DESCRIPTION = """Shows the names of backends, workloads, data, sites and recipes, a line for each;
of one KIND what each of them is, with its options.

Exit status 0: shown; 2: usage.
"""


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser("rankwise list", description=DESCRIPTION)
    parser.add_argument("kind", nargs="?", choices=KINDS, metavar="KIND", help=f"one of {', '.join(KINDS)}")
    return with_version(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the names of each kind; of one kind what each is, with its options."""
    kind = make_parser().parse_args(argv).kind
    for name in KINDS if kind is None else ():
        names, _ = _known(name)
        _print(f"{name}: {', '.join(names)}")
    for line in ["what each is, with its options: rankwise list KIND"] if kind is None else _known(kind)[1]:
        _print(line)
    return 0


def _known(kind: str) -> tuple[list[str], Iterator[str]]:
    """The names of a kind, and the lines that say what each is."""
    match kind:
        case "backends":
            from hpc.backends import BACKENDS

            return list(BACKENDS), _backends()
        case "workloads":
            from hpc.workloads import WORKLOADS

            return list(WORKLOADS), _workloads()
        case "data":
            from hpc.model.options import KINDS as OF_FILES

            return ["synthetic", *(f"{each}:PATH" for each in OF_FILES)], _data()
        case "sites":
            from launch.jobs.site import known_sites

            return list(known_sites()), (f"{name}  {path}" for name, path in known_sites().items())
        case _:
            from hpc.model.reference import known_recipes

            return list(known_recipes()), _recipes()


def _backends() -> Iterator[str]:
    from hpc.backends import BACKENDS, missing_modules

    for name, backend in BACKENDS.items():
        yield f"{name} ({backend.framework}): {'; '.join(missing_modules(name)) or 'installed here'}"
        yield from _options(backend.options)


def _workloads() -> Iterator[str]:
    from hpc.workloads import WORKLOADS

    for name, workload in WORKLOADS.items():
        how = "by --collectives" if name == COLLECTIVES else f"for {', '.join(workload.factories)}"
        yield f"{name} ({how})"
        yield from _options({**workload.options, **workload.file_options})


def _data() -> Iterator[str]:
    from hpc.model.options import KINDS as OF_FILES
    from hpc.model.options import OPTIONS as DATA_OPTIONS
    from hpc.workloads import WORKLOADS

    yield "synthetic"
    for kind in OF_FILES:
        readers = [
            f"{name} ({', '.join(frameworks)})"
            for name, entry in WORKLOADS.items()
            if (frameworks := entry.frameworks_reading(kind))
        ]
        yield f"{kind}:PATH, read by {', '.join(readers)}"
    yield from _options(DATA_OPTIONS)


def _recipes() -> Iterator[str]:
    from hpc.model.reference import known_recipes, known_references

    for name, recipe in known_recipes().items():
        yield f"{name}  {known_references()[name]}"
        yield f"    {recipe.title}: {plural(len(recipe.swept), 'point')}; devices: {recipe.devices}"


def _options(options: Mapping[str, Option]) -> Iterator[str]:
    for name, option in options.items():
        default = ("on" if option.default else "off") if isinstance(option.default, bool) else option.default
        yield f"    {name}: {option.help} (default {default})"


def _print(text: str) -> None:
    """Prints a line of the list, in a terminal as lines that fit it."""
    print(*(filled(text, text_width()) if sys.stdout.isatty() else [text]), sep="\n")


if __name__ == "__main__":
    sys.exit(run(main, "launch.catalog"))
