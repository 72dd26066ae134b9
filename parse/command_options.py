"""What several commands of parse do alike: --where, --against, --columns, the progress bar, --out."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from hpc.model.output_option import OutputFile
from hpc.system.atomic import write_output
from hpc.system.sanitize import plain
from parse.logs.path_facts import DEVICE

if TYPE_CHECKING:
    from hpc.model.reference import Reference
    from parse.logs.engine.log_format import LogFormat
    from parse.logs.line_pattern import LinePattern
    from parse.runs.load_logs import HowToRead


T = TypeVar("T")
DEFAULT_THRESHOLD = "3%"
"""Of compare and history."""
WHERE_HELP = "only points with this setting, e.g. backend=torch-ddp, case=2n8g, env.NCCL_ALGO=Ring; may be repeated"


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


def recipe_named(name: str, parser: argparse.ArgumentParser) -> Reference:
    """The recipe of --against; ends the command where there is none."""
    from hpc.model.reference import ReferenceFileError, read_recipe

    try:
        return read_recipe(name)
    except ReferenceFileError as error:
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


def threshold_of(options: argparse.Namespace, parser: argparse.ArgumentParser) -> float:
    """The share that --threshold names; ends the command for other texts."""
    from hpc.model.reference import read_share

    try:
        return read_share(options.threshold)
    except ValueError as error:
        parser.error(f"--threshold: {error}")


def add_out(parser: argparse.ArgumentParser, also: str = "") -> None:
    """Adds --out, where `put_out` writes."""
    parser.add_argument(
        "--out", action=OutputFile, prints=True, type=Path, metavar="FILE",
        help=f"write there, not to standard output (-){also}",
    )  # fmt: skip


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


# The options of rankwise summarize that act on logs alone.

LOG_OPTIONS = (
    "log_format", "pattern", "formats", "warmup", "steps", "window", "speed", "case", "batch_size", "explain",
)  # fmt: skip
"""By the names of `argparse`; None is the value of an option that was not given."""

# What parse.runs.log_attempt offers.
SPEEDS = ("wall-clock", "printed", "protocol")
PATTERN_HELP = (
    "the form of the step lines of all logs: literal text, … for any text, \\n for indented lines below, and fields: "
    "{step}, {samples_per_s}, {tokens_per_s} (all devices; …_per_device), {seconds}, {ms}, {steps_per_s}; {mean_s}, "
    "{mean_ms} of all steps so far; {elapsed_s}, {elapsed_ms}, {elapsed}; {samples}, {tokens} of a step; "
    "{total_samples}, {total_tokens}, {total_billion_tokens}; {interval_s} since {first_step} or the line before; "
    "{mean_samples_per_s}, {mean_tokens_per_s}; {time}, {time?} where there is one; {epoch}, {epoch_steps}, {rank}; "
    "{_} a word; {a|b} one of two texts. "
    "'step {step:d} … {samples_per_s:f} img/s'; may be repeated"
)


def add_formats(group: argparse._ActionsContainer) -> None:
    """Adds --formats."""
    group.add_argument(
        "--formats", action="append", type=Path, metavar="FILE",
        help="formats of your own, a TOML table each, looked for before the known ones (docs/logs.md); may be repeated",
    )  # fmt: skip


def add_log_options(group: argparse._ArgumentGroup) -> None:
    """Adds them to a command line."""
    group.add_argument(
        "--log-format", metavar="NAME", help="the system that all logs are of; default: as each one shows"
    )
    group.add_argument("--pattern", action="append", metavar="LINE", help=PATTERN_HELP)
    add_formats(group)
    group.add_argument(
        "--warmup", type=int, metavar="N", help="steps before the window; default: the system's, mostly 20"
    )
    group.add_argument(
        "--steps", type=int, metavar="N", help="steps, those of the warm-up among them; default: the system's"
    )
    group.add_argument(
        "--window", choices=("protocol", "all"),
        help="all: every step of a log, with all pauses; default: protocol, without pauses",
    )  # fmt: skip
    group.add_argument(
        "--speed", choices=SPEEDS,
        help=f"which speed of a log counts: by its time stamps, by the numbers that it prints, or as the reference "
        f"protocol of its format publishes it, which for some is the arithmetic mean of rates; default: {SPEEDS[0]}",
    )  # fmt: skip
    group.add_argument(
        "--case", metavar="2n8g", help="nodes and GPUs of each, of logs that neither say nor are named so"
    )
    group.add_argument("--batch-size", type=int, metavar="N", help="per device, of logs that do not say it")
    group.add_argument("--explain", type=Path, metavar="FILE", help="shows how the numbers of one log come about")


def how_to_read(options: argparse.Namespace, parser: argparse.ArgumentParser) -> HowToRead | None:
    """The options for logs; None if there are none, so that traces alone need no reader of logs."""
    if not log_options(options):
        return None
    from parse.logs.formats import FORMATS
    from parse.logs.path_facts import PathFacts, case_of
    from parse.logs.window import Protocol
    from parse.runs.load_logs import HowToRead

    if options.pattern and options.log_format is not None:
        parser.error("--pattern and --log-format: both say what a step line is; one of them at a time")
    brought = formats_brought(options.formats or [], parser)
    known = (*(each.name for each in brought), *FORMATS)
    if options.log_format is not None and options.log_format not in known:
        parser.error(f"--log-format {options.log_format}: not one of {', '.join(known)}")
    if options.warmup is not None and options.warmup < 0:
        parser.error(f"--warmup {options.warmup}: must be 0 or more")
    if options.steps is not None and options.steps <= (options.warmup or 0):
        parser.error(
            f"--steps {options.steps}: must be more than the warm-up of {options.warmup or 0}, which is among them"
        )
    if options.batch_size is not None and options.batch_size < 1:
        parser.error(f"--batch-size {options.batch_size}: must be 1 or more")
    case = PathFacts() if options.case is None else case_of(options.case)
    if case is None:
        parser.error(f"--case {options.case}: not of the form 2n8g (nodes, GPUs of each)")
    return HowToRead(
        protocol=Protocol(warmup=options.warmup, total=options.steps, whole=options.window == "all"),
        log_format=options.log_format or "",
        patterns=_patterns(options.pattern or [], parser),
        formats=brought,
        speed=options.speed or SPEEDS[0],
        otherwise=dataclasses.replace(case, batch_size=options.batch_size),
    )


def log_options(options: argparse.Namespace) -> list[str]:
    """The options given that act on logs alone."""
    return [name for name in LOG_OPTIONS if getattr(options, name) is not None]


def only_for_logs(name: str) -> str:
    """The message where no log is read."""
    return f"--{name.replace('_', '-')}: only for logs, and none is read"


def formats_brought(paths: Sequence[Path], parser: argparse.ArgumentParser) -> tuple[LogFormat, ...]:
    """The formats of a person's files."""
    from parse.logs.formats import FORMATS
    from parse.logs.formats.declared import FormatError, formats_of

    brought: dict[str, LogFormat] = {}
    for path in paths:
        try:
            for each in formats_of(path):
                if each.name in FORMATS or each.name in brought:
                    raise FormatError(f"[{each.name}] is the name of another format: give it one of its own")
                brought[each.name] = each
        except FormatError as error:
            parser.error(f"--formats {plain(str(path))}: {plain(str(error))}")
    return tuple(brought.values())


def _patterns(texts: Sequence[str], parser: argparse.ArgumentParser) -> tuple[LinePattern, ...]:
    from parse.logs.line_pattern import LinePattern, PatternError, pattern_format

    patterns: list[LinePattern] = []
    for text in texts:
        try:
            patterns.append(LinePattern(text))
            pattern_format(tuple(patterns))
        except PatternError as error:
            parser.error(f"--pattern {plain(text)!r}: {plain(str(error))}")
    return tuple(patterns)


MAX_WORK = 1e18
"""No training takes more samples or tokens."""


def positive(text: str) -> float:
    """A number above 0, up to MAX_WORK. Raises ArgumentTypeError for what is none."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MAX_WORK:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0, up to {MAX_WORK:g}")
    return value


# The options of the commands that forecast: which sizes, for how much work, and what is known of the machine.

MAX_NODES = 1_000_000
"""No machine has as many nodes."""
MAX_SIZES = 100
MILLION = 1e6


def add_devices_per_node(group: argparse._ActionsContainer) -> None:
    """Adds what inputs may not say of the machine."""
    group.add_argument(
        "--devices-per-node", type=whole, metavar="N", help="where no input says it: what a table in devices lacks"
    )


def sizes(text: str) -> tuple[int, ...]:
    """Numbers of nodes or devices, from `8,16,64`."""
    parts = text.split(",")
    if len(parts) > MAX_SIZES:
        raise argparse.ArgumentTypeError(f"{len(parts)} sizes: at most {MAX_SIZES}")
    return tuple(sorted({*map(whole, parts)}))


def nodes_and_devices(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers of nodes and of devices, from `8,16,256g`."""
    parts = text.split(",")
    devices = ",".join(part.removesuffix("g") for part in parts if part.endswith("g"))
    nodes = ",".join(part for part in parts if not part.endswith("g"))
    return sizes(nodes) if nodes or not devices else (), sizes(devices) if devices else ()


def whole(text: str) -> int:
    """A size. Raises ArgumentTypeError for what is none."""
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or not 1 <= int(text) <= MAX_NODES:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: a whole number from 1 to {MAX_NODES:,} is needed")
    return int(text)


# Which column of a table holds which quantity: as the option `--columns` names them, or as known tables have them.


SIZES = {
    "case": "nodes and GPUs of each as one word, 2n8g; or all GPUs, 16g",
    "nodes": "nodes",
    "gpus": "GPUs of all nodes",
    "gpus_per_node": "GPUs of each node; without nodes, of one",
}
SPEED_COLUMNS = {
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
QUANTITIES = (*SIZES, *SPEED_COLUMNS, *FURTHER)


class ColumnsError(ValueError):
    """`--columns` names no columns of a table; the text has the part and what to do."""


_SIZE_IN_HEAD = re.compile(
    rf"(?<![\w.])(?:(?P<times>\d{{1,5}}) ?[x×] ?)?(?P<each>\d{{1,6}}) ?(?:x ?)?{DEVICE}\b", re.IGNORECASE
)


def size_in_head(head: str) -> str:
    """The number of devices in the head of a column, `128 GPUs` or `2x8 A100`; empty where it says none, or two."""
    sizes = {int(match["times"] or 1) * int(match["each"]) for match in _SIZE_IN_HEAD.finditer(head)}
    return str(*sizes) if len(sizes) == 1 and "node" not in head.lower() else ""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The head of the column of each quantity, and those of settings. `further` are the heads of more columns of the
    quantity that is the speed; `column` tells the rows of one from those of another."""

    heads: Mapping[str, str]
    settings: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    column: str = ""

    @property
    def each(self) -> tuple[Columns, ...]:
        """The same with one column of speeds each."""
        speeds = {head: _SIZE_IN_HEAD.sub("#", head) for head in (self.heads[self.speed], *self.further)}
        apart = len({*speeds.values()}) > 1
        return tuple(
            Columns(heads={**self.heads, self.speed: head}, settings=self.settings, column=text if apart else "")
            for head, text in speeds.items()
        )

    @property
    def speed(self) -> str:
        """The quantity that is the speed."""
        return next(name for name in SPEED_COLUMNS if name in self.heads)

    @property
    def in_tokens(self) -> bool:
        """Whether the speeds count tokens, not samples."""
        return self.speed.startswith("tokens")

    @property
    def all(self) -> tuple[str, ...]:
        """All heads, as they are named."""
        return (*self.heads.values(), *self.settings, *self.further)

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
    further: list[str] = []
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
        elif name in SPEED_COLUMNS and name in heads:
            further.append(head)
        elif name in heads:
            raise ColumnsError(f"{name} is named twice: {heads[name]!r} and {head!r}")
        else:
            heads[name] = head
    speeds = [name for name in SPEED_COLUMNS if name in heads]
    if len(speeds) != 1:
        named = f"{', '.join(speeds)} are" if speeds else "none is"
        raise ColumnsError(f"one column of speeds is needed ({', '.join(SPEED_COLUMNS)}), {named} named")
    is_sized = heads.keys() & {"case", "gpus", "gpus_per_node"}
    if not is_sized and not all(map(size_in_head, (heads[speeds[0]], *further))):
        raise ColumnsError(
            "no column of sizes is named (case, gpus, or gpus_per_node with nodes), nor are they in the head of each "
            "column of speeds, as `128 GPUs`"
        )
    return Columns(heads=heads, settings=tuple(settings), further=tuple(further))


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
        # rankwise summarize --format csv, in each unit, and --format markdown.
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
    f"{', '.join(f'{name} ({text})' for name, text in SPEED_COLUMNS.items())}; further: "
    f"{', '.join(f'{name} ({text})' for name, text in FURTHER.items())}. Of several tables those count that have all "
    "of the columns. A speed may be named again; sizes may be in its heads, `128 GPUs`. Without it tables that "
    "rankwise summarize writes are read"
)


PATHS_HELP = "folders or files; default: the folder traces, where it is here"


def paths_or_traces(paths: list[Path]) -> list[Path]:
    """The paths of a command line; where there is none, the folder into which a sweep here writes, if there is one."""
    return paths or [folder for folder in (Path("traces"),) if folder.is_dir()]


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
