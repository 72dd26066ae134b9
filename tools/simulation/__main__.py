"""`python -m tools.simulation --ranks 16384 --from traces/`: steps of more ranks than there are, drawn, as a trace."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from math import hypot
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.model.output_option import OutputFolder
from hpc.system.command_line import text_width
from hpc.system.command_parser import CommandParser
from hpc.system.sanitize import deny_world_writing, plain
from hpc.system.text import filled, plural
from hpc.system.version import with_version
from parse.command_options import add_where, conditions, progress_bar

if TYPE_CHECKING:
    from parse.runs.result import Result
    from tools.simulation.measured import StepParts
    from tools.simulation.run import SimulationRequest

DESCRIPTION = (
    "Draws the steps of many ranks from measured traces, or from a stated distribution, and writes them as a trace: "
    "every command reads it, and none takes it for a measurement. Node effect and rank noise stay apart, what lasts "
    "several steps stays whole, the collectives take what they took."
)
EPILOG = """\
examples:
  python -m tools.simulation --ranks 16384 --from traces/
  python -m tools.simulation --ranks 4096 --from traces/ --straggler 777:5 --slow-node 12:1.1
  python -m tools.simulation --ranks 16384 --ranks-per-node 8 --compute 20ms --scatter 1ms --collectives 3ms

Exit status 0: the traces are written; 1: they cannot be, or nothing can be drawn from the PATHs; 2: usage.
"""
MAX_STEPS = 4_000_000
"""Ranks × steps, those of the warm-up among them: below 1 GB of memory."""
STATED = ("compute", "collectives", "scatter", "node_scatter", "data", "optimizer")
UNITS_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
MAX_MS = 1e6
MAX_SCATTER = 3.0
"""Compute is at least so many standard deviations: one time in 740 is below 0 then, and cut off."""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns 0 when the traces are written, 1 when they cannot be, 2 for wrong usage."""
    parser = make_parser()
    options = parser.parse_args(argv)
    deny_world_writing()
    _check(options, parser)
    where = conditions(options.where, parser)
    from hpc.model.trace import TraceError
    from parse.report.summary import TableError, WhereError
    from tools.simulation.measured import NotDrawable
    from tools.simulation.run import SimulationError, write_runs

    try:
        request = _request(options, where)
        lines = write_runs(request, options.out)
    except SimulationError as error:
        parser.error(str(error))
    except (NotDrawable, TableError, TraceError) as error:
        print(plain(str(error)), file=sys.stderr)
        return 2 if isinstance(error, WhereError) else 1
    except OSError as error:
        print(plain(f"{error.filename or options.out}: cannot be written ({error.strerror})"), file=sys.stderr)
        return 1
    for line in lines:
        print(*filled(plain(line), text_width()), sep="\n")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("python -m tools.simulation", description=DESCRIPTION, epilog=EPILOG)
    add = parser.add_argument
    add("--ranks", type=_count, required=True, metavar="N", help="ranks to simulate")
    add(
        "--ranks-per-node", type=_count, metavar="N",
        help="default: as measured; of a stated distribution 8, or all ranks where they are fewer",
    )  # fmt: skip
    add(
        "--steps",
        type=_count,
        default=100,
        metavar="N",
        help="measured steps, behind 20 of warm-up; default: %(default)s",
    )
    add("--repeats", type=_count, default=1, metavar="N", help="runs, each drawn anew; default: %(default)s")
    add("--seed", type=_seed, default=0, metavar="N", help="equal seeds draw equal steps; default: %(default)s")
    add("--out", action=OutputFolder, type=Path, default=Path("simulated"), metavar="DIR",
        help="the folder; default: %(default)s")  # fmt: skip
    add(
        "--straggler", type=_straggler, action="append", default=[], metavar="RANK:MS",
        help="this rank computes so many ms longer in every step; may be repeated",
    )  # fmt: skip
    add(
        "--slow-node", type=_slow_node, action="append", default=[], metavar="NODE:FACTOR",
        help="the ranks of this node compute so many times as long; may be repeated",
    )  # fmt: skip
    measured = parser.add_argument_group("drawn from what was measured")
    measured.add_argument(
        "--from", dest="paths", nargs="+", type=Path, default=[], metavar="PATH",
        help="traces, of whose largest size the ok runs are drawn from",
    )  # fmt: skip
    add_where(parser)
    stated = parser.add_argument_group("drawn from a stated distribution (20ms, 300us, 1.5s)")
    for name, text in (
        ("compute", "mean compute of a step; needed"),
        ("collectives", "what the collectives of a step take that all ranks wait for; needed"),
        ("scatter", "standard deviation of compute from step to step, each rank by itself (normal); default: 0"),
        ("node-scatter", "standard deviation of compute between nodes (normal); default: 0"),
        ("data", "wait for input in every step; default: 0"),
        ("optimizer", "default: 0"),
    ):
        stated.add_argument(f"--{name}", type=_ms, metavar="TIME", help=text)
    return with_version(parser)


def _check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Ends the command where options contradict one another, or what is needed is missing."""
    given = [name for name in STATED if getattr(options, name) is not None]
    if options.paths and given:
        parser.error(f"--from and --{given[0].replace('_', '-')}: measured or stated, not both")
    if not options.paths and options.where:
        parser.error("--where: of the traces of --from, and none are named")
    if not options.paths and (options.compute is None or options.collectives is None):
        parser.error("--from PATH is missing, or --compute TIME and --collectives TIME: what steps are drawn from")
    for option, placed in (("straggler", options.straggler), ("slow-node", options.slow_node)):
        if len(dict(placed)) < len(placed):
            parser.error(f"--{option}: the same one twice")
    scatter = hypot(options.scatter or 0.0, options.node_scatter or 0.0)
    if scatter > (options.compute or 0.0) / MAX_SCATTER and given:
        parser.error(
            f"a scatter of {scatter:g} ms about {options.compute:g} ms: a normal distribution has times below 0 then; "
            f"{options.compute / MAX_SCATTER:g} ms at most"
        )
    if options.ranks * (options.steps + 20) > MAX_STEPS:
        at_most = MAX_STEPS // options.ranks - 20
        way = f"--steps {at_most} at most" if at_most > 0 else f"--ranks {MAX_STEPS // 21} at most"
        parser.error(f"--ranks {options.ranks} --steps {options.steps}: more than fits into 1 GB of memory; {way}")


def _request(options: argparse.Namespace, where: dict[str, list[str]]) -> SimulationRequest:
    """What is to be drawn. Raises NotDrawable, WhereError, TraceError."""
    from tools.simulation.draws import InjectedDelays, StatedSteps
    from tools.simulation.run import SimulationRequest

    late = InjectedDelays(ranks=dict(options.straggler), nodes=dict(options.slow_node))
    parts, of = _measured(options.paths, where) if options.paths else ((), None)
    steps = StatedSteps(**{name: getattr(options, name) or 0.0 for name in STATED}) if not options.paths else None
    return SimulationRequest(
        ranks=options.ranks, ranks_per_node=options.ranks_per_node, steps=options.steps, repeats=options.repeats,
        seed=options.seed, delays=late, stated=steps, parts=parts, like=of.run if of else None,
        source=_named(of) if of else _stated_source(options),
    )  # fmt: skip


def _measured(paths: Sequence[Path], where: dict[str, list[str]]) -> tuple[Sequence[StepParts], Result]:
    """The ok runs of the largest size of the one setting that the traces have."""
    from hpc.model.trace_file import open_trace
    from parse.report.reading import read_summary
    from parse.report.summary import choose, labels
    from parse.runs.result import by_setting, simulated_label
    from tools.simulation.measured import NotDrawable, read_parts

    summary, _ = read_summary(paths, "traces", progress=progress_bar())
    names = ", ".join(map(str, paths))
    results = [result for result in choose(summary.results, where) if any(run.trace for run in result.ok)]
    if not results:
        reasons = "; ".join((*summary.refusals, *summary.remarks)[:3])
        raise NotDrawable(f"{names}: no ok run with a trace{f': {reasons}' if reasons else ''}")
    if label := simulated_label(results):
        raise NotDrawable(f"{names}: {label}; steps are drawn from measured ones")
    settings = by_setting(results)
    if len(settings) > 1:
        listed = ", ".join(labels([points[-1] for points in settings.values()])[:5])
        raise NotDrawable(f"{names}: {len(settings)} settings ({listed}): choose one by --where NAME=VALUE")
    largest = max(results, key=lambda result: result.devices)
    parts = []
    for each in largest.ok:
        if each.trace is not None:
            with open_trace(each.trace) as trace:
                parts.append(read_parts(trace))
    return parts, largest


def _stated_source(options: argparse.Namespace) -> str:
    given = [f"{name.replace('_', '-')} {value:g} ms" for name in STATED if (value := getattr(options, name))]
    return f"a stated distribution: {', '.join(given)}"


def _named(result: Result) -> str:
    run = result.run
    return f"{plural(len(result.ok), 'run')} of {result.requested.case} {run.backend} {run.workload_name}"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {10**9 - 1:,}")
    return int(text)


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {10**18 - 1:,}")
    return int(text)


def _ms(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(us|µs|ms|s)", text, re.ASCII)
    if match is None or float(match[1]) * UNITS_MS[match[2]] > MAX_MS:
        raise argparse.ArgumentTypeError(f"{text!r} is no time like 20ms, 300us or 1.5s, 1000s at most")
    return float(match[1]) * UNITS_MS[match[2]]


def _straggler(text: str) -> tuple[int, float]:
    return _placed(text, "RANK:MS, for example 777:5", 0.0, MAX_MS)


def _slow_node(text: str) -> tuple[int, float]:
    return _placed(text, "NODE:FACTOR, for example 12:1.1", 1.0, 1000.0)


def _placed(text: str, form: str, above: float, maximum: float) -> tuple[int, float]:
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9}(?:\.\d{1,9})?)", text, re.ASCII)
    if match is None or not above < float(match[2]) <= maximum:
        raise argparse.ArgumentTypeError(f"{text!r} is not {form}: above {above:g} and up to {maximum:g}")
    return int(match[1]), float(match[2])


if __name__ == "__main__":
    sys.exit(main())
