"""`rankwise collective-trace PATH…`: who comes last to the collectives that NCCL Inspector or torch recorded."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpc.system.command_line import run, text_width
from hpc.system.command_parser import CommandParser
from hpc.system.sanitize import plain
from hpc.system.version import with_version

DESCRIPTION = (
    "Matches the collectives that all ranks of a run recorded, by group and number, and says who comes last to them "
    "and how long the others wait, as far as kernel times and clocks show it; and whose records are missing."
)
EPILOG = """\
Files of NCCL Inspector (HOST-pidN.log, one per process), dumps of torch's flight recorder (nccl_trace_rank_N),
profiles of torch.profiler (*.json, *.json.gz) or structured logs of torchtitan (*.jsonl), one per rank, of one run,
or folders with them; one kind
(docs/collectives.md).

Exit status 0: collectives were read; 1: none could be; 2: usage.
"""
FORMATS = ("text", "json")
MAX_BOUND_MS = 1e9
"""Clocks that are farther apart than 11 days are set by nobody."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 0 if collectives were read, else 1; exits with 2 on wrong usage."""
    options = make_parser().parse_args(argv)
    from parse.arrivals.flight_dump import is_flight_dump, read_flight_dumps
    from parse.arrivals.inspector import is_inspector, read_inspector  # slow, so after --help
    from parse.arrivals.phases import is_phase_log, read_phase_logs
    from parse.arrivals.profiles import is_profile_name, read_profiles
    from parse.arrivals.result import RecordingError, arrivals
    from parse.arrivals.text import as_json, text

    bound_ns = None if options.clock_bound is None else round(options.clock_bound * 1e6)
    kinds = {
        "files of NCCL Inspector": (is_inspector, read_inspector),
        "structured logs of torchtitan": (is_phase_log, read_phase_logs),
        "dumps of torch's flight recorder": (is_flight_dump, read_flight_dumps),
        "profiles of torch.profiler": (is_profile_name, read_profiles),
    }
    try:
        paths = _files(options.paths)
        files: dict[str, list[Path]] = {kind: [] for kind in kinds}
        for path in paths:
            if kind := _first(path, {kind: is_of for kind, (is_of, _) in kinds.items()}):
                files[kind].append(path)
        present = [kind for kind, its in files.items() if its]
        # Any *.json of a folder may be a profile, or something else beside records that are known by what is in them.
        if len(present) > 1 and (present[1] != "profiles of torch.profiler" or {*files[present[1]]} & {*options.paths}):
            raise RecordingError(f"{' and '.join(present)} are among the paths; give one kind")
        if not present:
            raise RecordingError(
                f"none of {len(paths)} files is of NCCL Inspector (HOST-pidN.log), a dump of torch's flight recorder "
                "(nccl_trace_rank_N), a structured log of torchtitan (*.jsonl) or a profile of torch.profiler (*.json)"
            )
        result = arrivals(kinds[present[0]][1](files[present[0]]), bound_ns)
    except (RecordingError, OSError) as error:
        where = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        print(plain(f"{where}"), file=sys.stderr)
        return 1
    sys.stdout.write(as_json(result) if options.format == "json" else text(result, text_width()))
    sys.stdout.flush()
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("rankwise collective-trace", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="files of all ranks, or folders with them")
    parser.add_argument(
        "--clock-bound", type=_milliseconds, metavar="MS",
        help="the clocks of all hosts agree within as much (PTP, for example): begins are compared across hosts, too",
    )  # fmt: skip
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: %(default)s")
    return with_version(parser)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < MAX_BOUND_MS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of milliseconds from 0 on")
    return value


def _first(path: Path, kinds: Mapping[str, Callable[[Path], bool]]) -> str | None:
    """The first kind that the file is of; names a file that cannot be read on standard error."""
    from parse.logs.engine.log_format import LogError

    try:
        return next((kind for kind, is_of in kinds.items() if is_of(path)), None)
    except LogError as error:
        print(plain(f"not read: {error}"), file=sys.stderr)
    except OSError as error:
        print(plain(f"not read: {path}: {error.strerror}"), file=sys.stderr)
    return None


def _files(paths: Sequence[Path]) -> list[Path]:
    """The named files, and all in the named folders, in the order of their names. Raises OSError for others, and for
    folders that cannot be read."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            walk = os.walk(path, onerror=_refuse)
            files += [Path(folder) / name for folder, _, names in walk for name in names if name[0] != "."]
        else:
            path.stat()
            files.append(path)
    return sorted(dict.fromkeys(files))


def _refuse(error: OSError) -> None:
    raise error


if __name__ == "__main__":
    sys.exit(run(main, "parse.collective_trace"))
