"""`rankwise timeline TRACE… --out t.json.gz`: runs as a timeline for Perfetto, all nodes on one time axis."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.model.output_option import OutputFile
from hpc.system.command_line import run, text_width
from hpc.system.command_parser import CommandParser
from hpc.system.sanitize import deny_world_writing, plain
from hpc.system.text import filled, plural
from hpc.system.version import with_version

if TYPE_CHECKING:
    from parse.trace_events.kineto import Drawn
    from parse.trace_events.timeline_file import DrawnRun, Timeline

DESCRIPTION = (
    "Draws runs for https://ui.perfetto.dev (open the file there; nothing is uploaded): a track per rank, grouped by "
    "node, with the phases of each step on the global clock; the clocks' bounds; the straggler of each step, with "
    "arrows to the ranks that wait for it. What the clocks' bounds do not prove is not drawn (docs/timeline.md)."
)
EPILOG = """\
Examples:
  rankwise timeline traces/2n1g_….1.h5 --out t.json.gz
  rankwise timeline traces/2n1g_….1.h5 --out t.json.gz --steps 20:29 --kineto profiles/

Exit status 0: written; 1: it could not be written, or not all of it; 2: usage.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 0 if everything that was named is in the file, else 1; exits with 2 on wrong usage."""
    options = make_parser().parse_args(argv)
    deny_world_writing()
    from parse.trace_events.timeline_file import TimelineError, trace_files, write_timeline  # slow, so after --help

    try:
        timeline = write_timeline(trace_files(options.traces), options.out, options.steps, options.kineto)
    except (TimelineError, OSError) as error:
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        for line in reason.splitlines():
            print(plain(line), file=sys.stderr)
        return 1
    for line in _lines(timeline, options.out):
        print(*filled(plain(line), text_width()), sep="\n")
    for line in timeline.refusals:
        print(plain(line), file=sys.stderr)
    return 1 if timeline.refusals else 0


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("rankwise timeline", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="traces (*.h5), or folders of them")
    parser.add_argument(
        "--out", action=OutputFile, type=Path, required=True, metavar="FILE",
        help="the file to write; packed if it ends with .gz",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=_steps, metavar="FIRST:LAST", help="these steps, both included, counted from 0; default: all"
    )
    parser.add_argument(
        "--kineto", type=Path, metavar="DIR",
        help="a folder with profiles of torch.profiler of these runs, a file per rank, to draw beside them",
    )  # fmt: skip
    return with_version(parser)


def _steps(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST:LAST, for example 20:29")
    return int(match[1]), int(match[2])


def _lines(timeline: Timeline, out: Path) -> list[str]:
    lines = [line for each in timeline.runs for line in _of_run(each)]
    size = f", {timeline.bytes / 1e6:.2f} MB" if timeline.bytes else ""
    return [f"{out}: {plural(timeline.events, 'event')}{size}; open it at https://ui.perfetto.dev", *lines]


def _of_run(drawn: DrawnRun) -> list[str]:
    figures = drawn.figures
    text = (
        f"{drawn.name}: {plural(drawn.nodes, 'node')}, {plural(drawn.ranks, 'rank')}, {plural(figures.steps, 'step')}"
    )
    if figures.compared:
        shown = "a rank provably waits for another" if figures.in_groups else "one rank is provably the last"
        text += f"; in {figures.provable} {shown}, {figures.without_order} have no provable order"
    elif drawn.ranks > 1:
        text += "; ranks are not compared: their stamps do not show who waits for whom"
    if figures.disordered:
        text += f"; {figures.disordered} steps of ranks have stamps that contradict one another, drawn without phases"
    if figures.meetings_left_out:
        text += f"; {plural(figures.meetings_left_out, 'collective')} across two phases left out"
    if figures.waits_left_out:
        text += f"; {plural(figures.waits_left_out, 'wait')} within others left out"
    return [text, *(_of_profile(each) for each in drawn.profiles)]


def _of_profile(drawn: Drawn) -> str:
    left_out = [
        f"{count} {reason}"
        for count, reason in ((drawn.out_of_range, "outside of these steps"), (drawn.untimed, "untimed"))
        if count
    ]  # fmt: skip
    return (
        f"  {drawn.placed.profile.path}: rank {drawn.placed.rank}, {plural(drawn.events, 'event')}, "
        f"± {drawn.bound_ns / 1e3:.1f} µs beside the profiler's own error"
        f"{''.join(f'; {each}' for each in left_out)}"
    )


if __name__ == "__main__":
    sys.exit(run(main, "parse.timeline"))
