"""The option `--columns` of the commands that read tables."""

from __future__ import annotations

import argparse

from parse.tables.columns import FURTHER, SIZES, SPEEDS, ColumnsError, read_columns

COLUMNS_HELP = (
    "which column of a table (CSV or Markdown) holds which quantity: 'gpus=GPUs,speed=img/s'. Sizes: "
    f"{', '.join(f'{name} ({text})' for name, text in SIZES.items())}; speeds: "
    f"{', '.join(f'{name} ({text})' for name, text in SPEEDS.items())}; further: "
    f"{', '.join(f'{name} ({text})' for name, text in FURTHER.items())}. Of several tables those count that have all "
    "of the columns. Without it tables that parse.summarize writes are read"
)


def add_columns(group: argparse._ActionsContainer) -> None:
    """Adds --columns, which `take_columns` reads."""
    group.add_argument("--columns", action="append", metavar="QUANTITY=COLUMN,…", help=COLUMNS_HELP)


def take_columns(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Makes `options.columns` the Columns that it names, None without it. Ends the command for other texts."""
    if options.columns is not None:
        try:
            options.columns = read_columns(options.columns)
        except ColumnsError as error:
            parser.error(f"--columns: {error}")


def take_columns_of_paths(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """As `take_columns`, for commands with --kind: with --columns the PATHs are tables."""
    if options.columns is not None:
        if options.kind not in ("auto", "table"):
            parser.error(f"--columns --kind {options.kind}: columns are of tables")
        options.kind = "table"
    take_columns(options, parser)
