"""Which column of a table holds which quantity: as the option `--columns` names them, or as known tables have them."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SIZES = {
    "case": "nodes and GPUs of each as one word, 2n8g; or all GPUs, 16g",
    "nodes": "nodes",
    "gpus": "GPUs of all nodes",
    "gpus_per_node": "GPUs of each node; without nodes, of one",
}
SPEEDS = {
    "speed": "samples/s of all GPUs",
    "speed_per_gpu": "samples/s of one GPU",
    "tokens_per_s": "tokens/s of all GPUs",
    "tokens_per_s_per_gpu": "tokens/s of one GPU",
}
FURTHER = {
    "speedup": "as printed, to be checked",
    "batch_size": "samples per step of one GPU",
    "global_batch_size": "samples per step of all GPUs; the same in all rows is strong scaling",
    "scaling": "the word weak or strong",
    "precision": "precision",
    "backend": "system that trained",
    "workload": "model",
    "interval_low": "lower end of the speed's interval, as printed",
    "interval_high": "its upper end",
    "interval_coverage": "how often such an interval holds, as a share",
    "setting": "what else tells rows apart; may be repeated",
}
PER_GPU = "_per_gpu"
SETTING = "setting"
QUANTITIES = (*SIZES, *SPEEDS, *FURTHER)


class ColumnsError(ValueError):
    """`--columns` names no columns of a table; the text has the part and what to do."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The head of the column of each quantity, and those of settings."""

    heads: Mapping[str, str]
    settings: tuple[str, ...] = ()

    @property
    def speed(self) -> str:
        """The quantity that is the speed."""
        return next(name for name in SPEEDS if name in self.heads)

    @property
    def in_tokens(self) -> bool:
        """Whether the speeds count tokens, not samples."""
        return self.speed.startswith("tokens")

    @property
    def all(self) -> tuple[str, ...]:
        """All heads, as they are named."""
        return (*self.heads.values(), *self.settings)

    def missing(self, heads: Sequence[str]) -> list[str]:
        """The named heads that a table with these does not have."""
        present = {normal(head) for head in heads}
        return [head for head in self.all if normal(head) not in present]


def normal(head: str) -> str:
    """The head as it is compared: letters of either case and any blanks are the same."""
    return " ".join(head.casefold().split())


def read_columns(texts: Sequence[str]) -> Columns:
    """The columns of `nodes=Nodes,gpus=GPUs,speed=img/s`; a part with a comma in it is quoted. Raises ColumnsError."""
    heads: dict[str, str] = {}
    settings: list[str] = []
    try:
        parts = next(csv.reader([",".join(texts)], skipinitialspace=True))
    except csv.Error as error:
        raise ColumnsError(str(error)) from None
    for part in parts:
        name, sign, head = part.partition("=")
        name = name.strip()
        if not sign or name not in QUANTITIES:
            raise ColumnsError(f"{part!r}: not of the form QUANTITY=COLUMN with one of {', '.join(QUANTITIES)}")
        if name == SETTING:
            settings.append(head)
        elif name in heads:
            raise ColumnsError(f"{name} is named twice: {heads[name]!r} and {head!r}")
        else:
            heads[name] = head
    speeds = [name for name in SPEEDS if name in heads]
    if len(speeds) != 1:
        named = f"{', '.join(speeds)} are" if speeds else "none is"
        raise ColumnsError(f"one column of speeds is needed ({', '.join(SPEEDS)}), {named} named")
    if not heads.keys() & {"case", "gpus", "gpus_per_node"}:
        raise ColumnsError("the column of sizes is not named: case, gpus, or gpus_per_node with nodes")
    return Columns(heads=heads, settings=tuple(settings))


REQUESTED = "requested"
"""The column of our CSV that has all settings, `backend=torch-ddp; batch_size=64; …`."""
_OF_CSV = (
    "nodes=nodes,gpus=devices,backend=backend,workload=workload,precision=precision,scaling=scaling,"
    f"batch_size=batch_size_per_device,global_batch_size=global_batch_size,setting={REQUESTED},"
    "interval_coverage=interval_coverage,"
)
RUNS = "runs (ok/total)"
KNOWN = tuple(
    read_columns([text])
    for text in (
        # parse.summarize --format csv, in each unit, and --format markdown.
        f"{_OF_CSV}interval_low=interval_low,interval_high=interval_high,speed=median_speed",
        f"{_OF_CSV}interval_low=interval_low_tokens,interval_high=interval_high_tokens,tokens_per_s=median_speed_tokens",
        f"case=case,speed=median (samples/s),setting={RUNS}",
        f"case=case,tokens_per_s=median (tokens/s),setting={RUNS}",
        # The reports of the reference systems.
        "nodes=node_num,gpus=gpu_num,speed=samples/s,speedup=speedup",
        "gpus_per_node=gpu_num_per_node,batch_size=batch_size_per_device,speed=samples/s(PyTorch),speedup=speedup",
        "case=节点-GPU,speed=samples/s,speedup=加速比",
        "case=,speed=吞吐(images/sec),speedup=加速比",
    )
)
"""Columns of tables that are read without `--columns`."""

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
