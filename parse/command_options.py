"""What several commands of parse do alike: --where, --against, the room for text, the progress bar, --out."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from hpc.system.atomic import write_output
from hpc.system.sanitize import plain

if TYPE_CHECKING:
    from hpc.model.recipe import Recipe

T = TypeVar("T")
DEFAULT_THRESHOLD = "3%"
"""Of parse.compare and parse.history."""
WHERE_HELP = "only points that ask for this, e.g. backend=torch-ddp, case=2n8g, env.NCCL_ALGO=Ring; may be repeated"


BASE_HELP = (
    "what speedups are measured against: the point of this case, e.g. 1n8g, in each setting that has it; else, and by "
    "default, 1n1g or the smallest case that there is"
)


def add_base(parser: argparse.ArgumentParser) -> None:
    """Adds --base, the case that speedups are measured against."""
    parser.add_argument("--base", type=_case, metavar="CASE", help=BASE_HELP)


def _case(text: str) -> str:
    """The text, if a point can have it for its case."""
    if re.fullmatch(r"([1-9][0-9]{0,8}n)?[1-9][0-9]{0,8}g", text) is None:
        raise argparse.ArgumentTypeError(f"{text}: not of the form 2n8g, or 16g where logs have no nodes")
    return text


def add_where(parser: argparse.ArgumentParser) -> None:
    """Adds --where, whose values `conditions` reads."""
    parser.add_argument("--where", action="append", default=[], metavar="NAME=VALUE", help=WHERE_HELP)


def conditions(texts: Sequence[str], parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The wanted values of each name of --where NAME=VALUE; ends the command for other texts."""
    where: dict[str, list[str]] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            parser.error(f"--where {text}: not of the form NAME=VALUE")
        where.setdefault(name, []).append(value)
    return where


def recipe_named(name: str, parser: argparse.ArgumentParser) -> Recipe:
    """The recipe of --against; ends the command where there is none."""
    from hpc.model.recipe import RecipeError, read_recipe

    try:
        return read_recipe(name)
    except RecipeError as error:
        parser.error(f"--against: {error}")


class ProgressBar(Protocol):
    """Yields what it is given, and shows how far that is."""

    def __call__(self, items: Sequence[T]) -> Iterable[T]: ...


def progress_bar() -> ProgressBar | None:
    """The bar for files that are read; None where standard error is no terminal."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console
    from rich.progress import track

    return lambda items: track(items, "reading", console=Console(stderr=True), transient=True)


def put_out(out: Path | None, text: str) -> bool:
    """Writes the text to --out, else to standard output.

    Returns False, and prints the reason, where it cannot be written.
    """
    if out is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return True
    try:
        write_output(out, text)
    except OSError as error:
        print(plain(f"{out}: cannot be written ({error.strerror})"), file=sys.stderr)
        return False
    return True
