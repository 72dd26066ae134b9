"""`rankwise watch [FOLDER | JOBID]`: runs while they go on, from the copies of their journals."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from glob import escape
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hpc.model.files import BEGIN, EXIT, PARTIAL, TRACE, AttemptFiles
from hpc.model.outcome import RecordError, read_begin_record
from hpc.model.output_option import OutputFile
from hpc.system.atomic import write_atomic
from hpc.system.command_line import run, text_width
from hpc.system.command_parser import CommandParser
from hpc.system.sanitize import deny_world_writing, plain
from hpc.system.text import filled, plural
from hpc.system.version import with_version

if TYPE_CHECKING:
    from hpc.model.reference import Reference
    from hpc.model.spec import RunSpec
    from parse.live.recent import LiveRun, RunLook

DESCRIPTION = (
    "Shows every run that goes on: its step, its speed over the last steps against earlier runs of the same point, the "
    "time that it still takes, and whom its ranks wait for, once that is sure. Reads the copies that helpers of the "
    "nodes make, of sweeps and of scripts under rankwise observe (docs/sweeps.md); Ctrl-C ends it."
)
EPILOG = """\
Exit status 1: the folder or a reference cannot be read, or the metrics cannot be written; 2: usage.
"""
LOOK_S = 5.0
"""Seconds between looks."""
Expected = tuple[float | None, str]
"""A speed in the run's unit, and where it is from, or why there is none."""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; looks until it is interrupted."""
    options = make_parser().parse_args(argv)
    deny_world_writing()
    is_job = (options.place.isdigit() or options.place.startswith("local-")) and not Path(options.place).exists()
    folder, job = (Path(), options.place) if is_job else (Path(options.place), "")
    from hpc.model.reference import ReferenceFileError

    try:
        return watch(Watching(folder, job, options.against), options.metrics, Console(soft_wrap=True))
    except (ReferenceFileError, OSError) as error:
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        print(plain(reason), file=sys.stderr)
        return 1


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("rankwise watch", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "place", nargs="?", default=".", metavar="FOLDER | JOBID",
        help="a sweep's folder or its traces/, or a job of the one here, whose runs alone are shown (default: here)",
    )  # fmt: skip
    parser.add_argument(
        "--against", type=Path, metavar="PATH",
        help="where expected speeds are from: a folder of traces of the same points, or a reference's TOML file "
        "(default: earlier runs of the same point in the folder)",
    )  # fmt: skip
    parser.add_argument(
        "--metrics", action=OutputFile, type=Path, metavar="FILE",
        help="write each look as OpenMetrics text, whole, for node_exporter's textfile collector (FILE.prom)",
    )  # fmt: skip
    return with_version(parser)


class Watching:
    """The runs of a folder that go on, of one `job` or of all, and the speeds that are expected of them."""

    def __init__(self, folder: Path, job: str = "", against: Path | None = None) -> None:
        self._folder, self._against = folder, against if against is not None and against.is_dir() else folder
        self._job, self._runs, self._expected = job, dict[str, "LiveRun"](), dict[str, Expected]()
        self._reference: Reference | None = None
        if against is not None and not against.is_dir():
            from hpc.model.reference import read_reference

            self._reference = read_reference(against, threshold=0.5)

    @property
    def traces(self) -> Path:
        """Its traces; a sweep that has just begun makes the folder of them."""
        return _traces_of(self._folder)

    def look(self) -> list[RunLook]:
        """Each run that has begun and not ended. Raises OSError where the folder cannot be read."""
        from parse.live.recent import LiveRun  # slow, so after --help

        names = {path.name for path in self.traces.iterdir()}
        stems = {name.removesuffix(kind) for kind in (BEGIN, PARTIAL) for name in names if name.endswith(kind)}
        open_stems = sorted(stem for stem in stems if not {f"{stem}{EXIT}", f"{stem}{TRACE}"} & names)
        known, self._runs = self._runs, {}
        for stem in open_stems:
            with suppress(ValueError):  # another's file
                files = AttemptFiles.of_stem(self.traces, stem)
                if stem in known or self._is_watched(files):
                    self._runs[stem] = known.get(stem) or LiveRun(files)
        return [each.look() for each in self._runs.values()]

    def _is_watched(self, files: AttemptFiles) -> bool:
        try:
            return not self._job or read_begin_record(files.begin_record).job_id.partition("_")[0] == self._job
        except RecordError:  # it is being written, or gone
            return False

    def expected(self, look: RunLook) -> Expected:
        """The speed that is expected of the run."""
        if look.run is None:
            return None, ""
        point = look.stem.rpartition("_r")[0]
        paths = sorted(_traces_of(self._against).glob(f"{escape(point)}_r*{TRACE}"))
        key = f"{look.stem} {len(paths)}"
        if key not in self._expected:
            of = self._reference
            self._expected[key] = _measured_before(paths) if of is None else _referred(look.run, of)
        return self._expected[key]


def _traces_of(folder: Path) -> Path:
    return folder / "traces" if (folder / "traces").is_dir() else folder


def _measured_before(paths: Sequence[Path]) -> Expected:
    from parse.runs.load import load
    from parse.runs.result import results

    measured = [result for result in results(load(paths)) if result.median_speed is not None] if paths else []
    if not measured:
        return None, "no earlier run of its point is here"
    return measured[0].median_speed, f"the median of {plural(len(measured[0].ok), 'run')} of its point"


def _referred(spec: RunSpec, reference: Reference) -> Expected:
    from hpc.model.run_fields import RunFields
    from parse.report.summary import identifying_values
    from parse.runs.attempt import RequestedRun
    from parse.runs.result import Result

    requested = RequestedRun(run=RunFields.of(spec), run_id=spec.run_id)
    its = Result(requested=requested, runs=(), planned_runs=None)
    values = identifying_values(its).items()
    fitting = [each for each in reference.points if each.unit == its.unit and each.settings.items() <= values]
    if len(fitting) == 1:
        return fitting[0].speed, reference.title
    return None, f"{reference.title} has {'several speeds' if fitting else 'no speed'} of its point"


def watch(watching: Watching, metrics: Path | None, console: Console, looks: int = 0) -> int:
    """Shows each look: in a terminal in place of the one before, else where what is said of a run has changed. So many
    looks, 0: for ever. Raises OSError where the folder cannot be read, or the metrics cannot be written."""
    printed: dict[str, object] = {}
    with Live(console=console, auto_refresh=False) as screen:
        for made in count(1):
            seen = [(look, watching.expected(look)) for look in watching.look()]
            if metrics is not None:
                from parse.live.recent import openmetrics

                write_atomic(metrics, openmetrics([(look, speed) for look, (speed, _) in seen]))
            if console.is_terminal:
                screen.update(_shown(seen, watching.traces), refresh=True)
            else:
                if not seen and made == 1:
                    print(plain(f"no run goes on in {watching.traces}"), flush=True)
                for look, expected in seen:
                    news = (look.delay.ranks, look.delay.cause) if look.delay else (look.run is None, _finding(look))
                    if printed.get(look.stem) != news:
                        print(*_lines(look, expected), sep="\n", flush=True)
                        printed[look.stem] = news
            if made == looks:
                break
            time.sleep(LOOK_S)
    return 0


def _shown(seen: Sequence[tuple[RunLook, Expected]], traces: Path) -> Text:
    shown = Text(f"{time.strftime('%H:%M:%S')} {plural(len(seen), 'run')} in {plain(str(traces))}")
    for look, expected in seen:
        head, *rest = _lines(look, expected)
        shown.append(f"\n{head}")
        for line in rest:
            style = "bold red" if look.delay is not None and line is rest[-1] else ""
            shown.append("\n" + "\n".join(filled(line, text_width())), style)
    return shown


def _lines(look: RunLook, expected: Expected) -> list[str]:
    """What is said of a run: its name, how far and how fast it is, whom its ranks wait for."""
    lines = [f"{look.stem}, {_age(look.age_s)}"]
    if look.run is not None:
        parts = [f"step {look.step:,}{'' if look.steps is None else f' of {look.steps:,}'}"]
        speed, source = expected
        if look.speed is not None:
            share = f"{look.speed / speed * 100:.0f} % of {speed:,.1f}" if speed else "expected: none"
            parts.append(f"{look.speed:,.1f} {look.run.unit}/s ({share}, {source})")
        if look.remaining_s is not None:
            parts.append(f"{_duration(look.remaining_s)} to go")
        lines.append(f"  {'; '.join(parts)}")
    return [*map(plain, lines), plain(f"  {_finding(look)}")]


def _finding(look: RunLook) -> str:
    """Whom its ranks wait for, or what hinders saying that."""
    if look.delay is not None:
        return f"{look.delay.text}, {plural(look.delay.steps, 'step')} to step {look.delay.last_step}; sure"
    if look.reason:
        return look.reason
    if look.run is None:
        return "too old to say more" if look.age_s < float("inf") else "nothing to say yet"
    if look.limit_ms is None:
        return "no rank is named so far"
    from parse.say.numbers import ms

    return f"no rank is named; one that is late by {ms(look.limit_ms)} in every step would be"


def _age(seconds: float) -> str:
    return "no copies yet" if seconds == float("inf") else f"copied {_duration(seconds)} ago"


def _duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    sys.exit(run(main, "parse.watch"))
