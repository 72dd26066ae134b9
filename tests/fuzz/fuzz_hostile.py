"""Files that somebody has made to do harm, and every command that reads them.

`python -m tests.fuzz.fuzz_hostile [--count N] [--from SEED] [--kind KIND]`; `--seed N` repeats one with its output.

HDF5 with other structures (links, external storage, virtual datasets, filters, types, sizes, attributes, values), plans
and records, Parquet, profiles of torch.profiler, references, histories, globs behind `--out`. Defects: an exception
that reaches the user, a file written over, a hang, more than twice the memory of the largest honest file, a secret of
another file in what is printed, a good file beside it that is not read. Each is printed with its seed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gzip
import io
import json
import os
import random
import re
import resource
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpc.model.evidence import look_at_trace
from hpc.model.reference import ReferenceFileError, known_recipes, known_references, read_reference
from hpc.model.spec import SpecError
from hpc.recovery import recover
from launch.jobs.options import LaunchOptions
from launch.sweep import status
from launch.sweep.request import Request
from launch.sweep.submit import FAILURES
from parse import compare, forecast, history, summarize, timeline
from parse.faults import TRACEBACK
from parse.report import __main__ as report
from parse.runs.load import load
from tests.fuzz.damages import flip
from tests.fuzz.hostile_values import spoil_numbers, spoil_relation, spoilt_json
from tests.fuzz.trials import command, require, try_seeds
from tests.unit.ledger_traces import on, per_rank, run_of, trace_of, with_telemetry
from tests.unit.simulated_graph import Mesh, Model, simulate_graph
from tests.unit.test_timeline_kineto import profile, two_nodes
from tests.unit.traces import full_trace, make_run, make_trace, put, put_exit_record, put_plan, repeats

COUNT = 20_000
HANG_S = 240
"""After which even a library that returns to no Python is ended, with the stack."""
GROWTH = 2.0
"""Of the memory that the largest honest files take."""
SECRET = "the-private-key-of-somebody-else"
NAMES = (
    "run", "ranks", "environment", "evidence", "script", "stamps", "samples", "losses", "steps_completed", "blocks",
    "injected_ns", "meetings", "input", "training", "telemetry/values", "telemetry/series", "clock/local_ns",
    "clock/offset_ns", "clock/bound_ns", "clock/barrier_exits_ns", "clock/unix_offset_ns", "clock/domains",
    "telemetry/local_ns", "telemetry/ranks", "host_bound_ns",
    "meeting_calls", "meeting_groups",
)  # fmt: skip
ATTRIBUTES = ("schema", "schema_version", "attempt", "outcome", "recovered", "run_id", "names", "roots", "phases")
TYPES: Sequence[Any] = (
    "i1", "i4", "i8", ">i8", "u8", "f2", "f4", "f8", "c16", "S1", "S70000", "V9", h5py.ref_dtype, h5py.regionref_dtype,
    h5py.string_dtype(), h5py.vlen_dtype(np.int64), h5py.enum_dtype({"a": 1}), [("a", "i8"), ("b", h5py.ref_dtype)],
    "(3,)i8", "?",
)  # fmt: skip
FILTERS: Sequence[Mapping[str, Any]] = (
    {}, {}, {"compression": "gzip"}, {"compression": "lzf"}, {"shuffle": True}, {"fletcher32": True},
    {"scaleoffset": 0}, {"compression": "gzip", "compression_opts": 9, "shuffle": True},
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders of all cases: honest files of every kind, and what no reader may come to."""

    honest: Path
    secret: Path
    pipe: Path


def make_place(folder: Path) -> Place:
    """Honest files of every kind, and a secret, and a pipe that nobody writes to."""
    honest = folder / "honest"
    traces = honest / "sweep" / "traces"
    for name in ("sweep/traces", "sweep/jobs", "sweep/logs", "full", "late"):
        (honest / name).mkdir(parents=True)
    runs = [*repeats(make_run(), 3), make_run(nodes=2)]
    for run in runs:
        put(traces, make_trace(run))
        put_exit_record(traces, run, make_trace(run).outcome)
    put_plan(traces, runs)
    series = per_rank("main_thread_queued_s", {3: 0.30}, usual=0.002)
    for repeat in (1, 2, 3):
        late = trace_of(run_of(repeat=repeat), noise=0.05, seed=repeat, backward=on(3, ms=8.0))
        put(honest / "late", with_telemetry(late, series))
    put(honest / "full", full_trace())
    trace = two_nodes()[0]
    put(honest / "full", trace)
    mesh = Mesh(pp=2, tp=2)
    in_groups = make_run(ranks_per_node=mesh.ranks, measured_steps=20)
    for read in ("full", "late"):
        put(honest / read, simulate_graph(mesh, Model(), np.random.default_rng(1), run=in_groups).trace)
    (honest / "profile.json").write_text(json.dumps(profile(trace, 1)))
    secret, pipe = folder / "secret", folder / "pipe"
    secret.write_text(SECRET)
    os.mkfifo(pipe)
    return Place(honest=honest, secret=secret, pipe=pipe)


# HDF5


def _shape(rng: random.Random) -> tuple[int, ...]:
    sizes = (0, 1, 2, 3, 6, 15, 16, 100, 10**5, 2**31, 10**15, 2**62)
    return tuple(
        rng.choice(sizes[:9] if rng.random() < 0.8 else sizes) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 32)))
    )


def _other_dataset(file: h5py.File, name: str, rng: random.Random) -> None:
    shape, dtype = _shape(rng), rng.choice(TYPES)
    chunked = bool(shape) and all(shape) and rng.random() < 0.5
    how: dict[str, Any] = dict(rng.choice(FILTERS)) if chunked else {}
    if chunked:
        how["chunks"] = tuple(min(length, 64) for length in shape)
    if rng.random() < 0.2:
        how["fillvalue"] = 7
    file.create_dataset(name, shape, dtype, **how)


def _other_link(file: h5py.File, name: str, rng: random.Random, place: Place) -> None:
    targets = ("/", name, "/nothing", "run", "clock", "..", str(place.secret))
    outside = (str(place.secret), str(place.pipe), "/dev/zero", file.filename, "nothing.h5")
    kind = rng.choice(("soft", "external", "hard", "type", "group"))
    if kind == "soft":
        file[name] = h5py.SoftLink(rng.choice(targets))
    elif kind == "external":
        file[name] = h5py.ExternalLink(rng.choice(outside), rng.choice(targets))
    elif kind == "hard":
        file[name] = file[rng.choice(("/", "clock", "run" if name != "run" else "ranks"))]
    elif kind == "type":
        file[name] = np.dtype("i8")
    else:
        file.create_group(name)


def _elsewhere(file: h5py.File, name: str, of: tuple[tuple[int, ...], Any], rng: random.Random, place: Place) -> None:
    """The content is another file's: by external storage or as a virtual dataset."""
    shape, dtype = of
    path = str(rng.choice((place.secret, place.pipe, Path("/dev/zero"), Path(file.filename))))
    shape = shape or (1,)
    if rng.random() < 0.5:
        file.create_dataset(name, shape, dtype, external=[(path, rng.choice((0, 1 << 40)), h5py.h5f.UNLIMITED)])
        return
    layout = h5py.VirtualLayout(shape, dtype)
    layout[...] = h5py.VirtualSource(rng.choice((path, ".")), rng.choice((name, "run")), shape)
    file.create_virtual_dataset(name, layout)


def _other_attribute(file: h5py.File, rng: random.Random) -> None:
    owner = file[rng.choice(("/", "/", "stamps", "meetings", "input", "injected_ns"))]
    name = rng.choice(ATTRIBUTES)
    values: Sequence[Any] = (
        0, -1, 3, 2**62, 1e308, "x", np.bytes_("ok"), np.bytes_(b"\xff"), h5py.Empty("i8"), np.zeros(3),
        np.zeros((3, 3)), np.zeros(100_000), np.array([b"a", b"\xff"]), ["a"], True, np.void(b"ab"), file.ref,
    )  # fmt: skip
    if rng.random() < 0.2:
        owner.attrs.pop(name, None)
    else:
        owner.attrs[name] = rng.choice(values)


def _edit(file: h5py.File, rng: random.Random, place: Place) -> None:
    """One change of the structure."""
    name = rng.choice([each for each in NAMES if each in file] or ["nothing"])
    kind = rng.choice(
        (
            "attribute",
            "gone",
            "dataset",
            "dataset",
            "link",
            "elsewhere",
            "numbers",
            "relation",
            "relation",
            "text",
            "text",
        )
    )
    if kind == "attribute" or name == "nothing" or not isinstance(file.get(name), h5py.Dataset):
        _other_attribute(file, rng)
        return
    stored = file[name]
    is_text, shape, dtype = stored.dtype.kind in "SO", stored.shape, stored.dtype
    if kind in ("numbers", "relation", "text") and not (
        stored.is_virtual or stored.external or stored.nbytes > 1 << 20
    ):
        content = stored[()]
        if not is_text:
            stored[()] = (spoil_relation if kind == "relation" else spoil_numbers)(content, rng)
            return
        text = content.decode(errors="replace") if isinstance(content, bytes) else "{}"
        del file[name]
        encoded = spoilt_json(text if text[:1] in ("{", "[") else '"x"', rng).encode(errors="replace")
        file.create_dataset(name, data=np.bytes_(encoded) if rng.random() < 0.95 else encoded.decode())
        return
    del file[name]
    if kind == "dataset":
        _other_dataset(file, name, rng)
    elif kind == "link":
        _other_link(file, name, rng, place)
    elif kind == "elsewhere":
        _elsewhere(file, name, (shape, dtype), rng, place)


def spoil_trace(path: Path, rng: random.Random, place: Place) -> None:
    """Another structure, other values, or another version of the format."""
    if rng.random() < 0.1:
        beside = path.with_name("other")
        with h5py.File(path) as old, h5py.File(beside, "w", libver=rng.choice(("earliest", "latest"))) as new:
            for name in old:
                old.copy(name, new)
            new.attrs.update(old.attrs)
        beside.replace(path)
    # Not every change can be made of every dataset; what was made until then stands.
    with contextlib.suppress(Exception), h5py.File(path, "r+", libver=("earliest", "latest")) as file:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            with contextlib.suppress(
                ValueError, TypeError, OSError, KeyError, RuntimeError, MemoryError, OverflowError
            ):
                _edit(file, rng, place)
    if rng.random() < 0.05:
        flip(path, rng)
    if rng.random() < 0.03:
        os.truncate(path, 1 << 40)


# The kinds


def hostile_trace(out: Path, rng: random.Random, place: Place) -> Sequence[str]:
    traces = out / "traces"
    shutil.copytree(place.honest / "sweep" / "traces", traces)
    name = rng.choice([*sorted(path.name for path in (place.honest / "full").glob("*.h5")), "1n1g"])
    source = next(traces.glob("1n1g*_r3.1.h5")) if name == "1n1g" else place.honest / "full" / name
    target = traces / source.name
    if target != source:
        shutil.copy(source, target)
    spoil_trace(target, rng, place)
    loaded = load([traces])
    require(len(loaded.attempts) >= (3 if name == "1n1g" else 4), "good traces beside it are not read")
    look_at_trace(target)
    return _commands(rng, traces, out, place) if rng.random() < 0.5 else []


def hostile_ledger(out: Path, rng: random.Random, place: Place) -> Sequence[str]:
    """A run with a straggler and telemetry, or in groups of ranks, which are read once more for what explains it."""
    shutil.copytree(place.honest / "late", out / "traces")
    spoil_trace(rng.choice(sorted((out / "traces").glob("*.h5"))), rng, place)
    if rng.random() < 0.2:
        return ["report", str(out / "traces"), "--out", str(out / "page.html")]
    return ["summarize", str(out / "traces"), "--ledger", *rng.choice(([], ["--what-if"], ["--format", "json"]))]


def hostile_records(out: Path, rng: random.Random, place: Place) -> Sequence[str]:
    """A plan or a record with other values."""
    shutil.copytree(place.honest / "sweep", out / "sweep")
    traces = out / "sweep" / "traces"
    for path in rng.sample(sorted(traces.glob("*.json")), rng.choice((1, 1, 2))):
        path.write_text(spoilt_json(path.read_text(), rng))
    require(len(load([traces]).attempts) >= 4, "good traces beside it are not read")
    if rng.random() < 0.3:
        try:
            status.show(Request(launch=LaunchOptions(out=out / "sweep")))
        except (*FAILURES, SpecError) as error:
            print(error)
    return _commands(rng, traces, out, place)


def _commands(rng: random.Random, traces: Path, out: Path, place: Place) -> Sequence[str]:
    """One of the commands that read traces, as its arguments."""
    good = str(place.honest / "sweep" / "traces")
    page = str(out / "page.html")
    choices: Sequence[Sequence[str]] = (
        ["summarize", str(traces)], ["summarize", str(traces), "--format", rng.choice(("json", "csv", "markdown"))],
        ["summarize", str(traces), "--ledger"], ["summarize", str(traces), "--ledger", "--format", "json"],
        ["report", str(traces), "--out", page], ["timeline", str(traces), "--out", str(out / "timeline.json.gz")],
        ["compare", good, str(traces)], ["compare", str(traces), good], ["history", str(traces), good],
        ["recover", str(traces)],
    )  # fmt: skip
    return rng.choice(choices)


def hostile_history(out: Path, rng: random.Random, place: Place) -> Sequence[str]:
    """Days of measurements, some of them hostile."""
    for day in ("a", "b", "c"):
        shutil.copytree(place.honest / "sweep" / "traces", out / day)
        if rng.random() < 0.6:
            spoil_trace(rng.choice(sorted((out / day).glob("*.h5"))), rng, place)
        if rng.random() < 0.4:
            path = rng.choice(sorted((out / day).glob("*.json")))
            path.write_text(spoilt_json(path.read_text(), rng))
    (out / "d").symlink_to(rng.choice((place.pipe, place.secret, out / "d", out)))
    form = rng.choice(("text", "json", "csv"))
    return ["history", *(str(out / day) for day in "abc"), "--format", form]


def hostile_profile(out: Path, rng: random.Random, place: Place) -> Sequence[str]:
    """A profile with other values, and packed ones that are small and become large."""
    profiles = out / "profiles"
    profiles.mkdir()
    text = spoilt_json((place.honest / "profile.json").read_text(), rng)
    if rng.random() < 0.05:
        text = '{"traceEvents": [' + " " * (1 << 24) + "]}"
    if rng.random() < 0.05:
        text = '{"traceEvents": [{"ph": "X", "name": "' + "x" * (1 << 22) + '"}]}'
    content = text.encode(errors="replace")
    packed = rng.random() < 0.4
    path = profiles / f"rank1.json{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    if rng.random() < 0.1:
        flip(path, rng)
    if rng.random() < 0.1:
        (profiles / "rank0.json").symlink_to(rng.choice((place.pipe, place.secret, path)))
    run = str(sorted((place.honest / "full").glob("2n1g*.h5"))[0])
    return ["timeline", run, "--kineto", str(profiles), "--out", str(out / "timeline.json.gz")]


def hostile_reference(out: Path, rng: random.Random, place: Place) -> Sequence[str]:
    """Expected speeds with other values and tables: of points, or of a recipe."""
    path = out / "reference.toml"
    numbers = ("1", "-1", "0", "1e400", "nan", "inf", "1" * 4000, "0x" + "f" * 4000, "1e-320", '"3%"', '"9e999%"',
               "true", "[1]", "{}", "2026-01-01", '"x"', '"' + "x" * 70_000 + '"')  # fmt: skip

    def number(usual: str) -> str:
        return rng.choice(numbers) if rng.random() < 0.25 else usual

    lines = [f"title = {number(chr(34) + 'all' + chr(34))}"]
    for nodes in (1, 2):
        case = number(f'"{nodes}n1g"')
        lines += ["[[point]]", f"settings = {number(f'{{ case = {case} }}')}", f"speed = {number('40.0')}"]
        lines += [f"source = {number(chr(34) + 'here' + chr(34))}"]
        if rng.random() < 0.5:
            lines += [f"tolerance = {number('0.03')}"]
        if rng.random() < 0.2:
            lines += [f"{rng.choice(('batch_size', 'option.a', 'nodes', 'unit', 'source', 'x'))} = {number('4')}"]
    text = "\n".join(lines) + "\n"
    if rng.random() < 0.5:
        text = known_references()[rng.choice([*known_recipes()])].read_text()
        values = [*re.finditer(r'(?<== )(?:"[^"\n]*"|-?[0-9.]+|\[[^\[\]\n]*\])', text)]
        for value in sorted(rng.sample(values, rng.choice((1, 1, 2, 3))), key=re.Match.start, reverse=True):
            text = text[: value.start()] + rng.choice(numbers) + text[value.end() :]
    if rng.random() < 0.1:
        text = rng.choice(
            ("a = " + "[" * 100_000, "a = " + "[" * 300 + "]" * 300, "[" + "a." * 5000 + "a]\n", "\0", text[:9])
        )
    path.write_text(text)
    if rng.random() < 0.1:
        flip(path, rng)
    with contextlib.suppress(ReferenceFileError):
        read_reference(path, 0.03)
    traces = str(place.honest / "sweep" / "traces")
    return ["compare", traces, "--reference", str(path), "--format", rng.choice(("text", "json"))]


def hostile_glob(out: Path, rng: random.Random, place: Place) -> Sequence[str]:
    """--out before a glob, or a link to one of its files: the shell names a file to be read as the one to write."""
    shutil.copytree(place.honest / "sweep", out / "sweep")
    for name in ("a.log", "b.log", "c.log", "a.csv", "b.csv"):
        (out / "sweep" / "logs" / name).write_text(f"devices,speed\n1,{name}\n")
    form = rng.choice(("traces/*.h5", "traces/*", "traces/*.json", "logs/*.log", "logs/*.csv", "logs/*", "*/*"))
    before = {path: path.read_bytes() for path in (out / "sweep").rglob("*") if path.is_file()}
    first, *others = sorted(path for path in (out / "sweep").glob(form) if path.is_file())
    first = rng.choice((first, first.parent / ".." / first.parent.name / first.name, out / "link"))
    if first.name == "link":
        first.symlink_to(rng.choice(others))
    command, *options = rng.choice(
        (["timeline"], ["report"], ["report", "--format", "latex"], ["summarize"], ["summarize", "--format", "json"],
         ["compare"], ["history"], ["forecast", "--nodes", "4"])
    )  # fmt: skip
    paths = others[:2] if command == "compare" else rng.choice((others, [out / "sweep"], [*others, first]))
    with contextlib.suppress(SystemExit):
        MAINS[command]([*options, "--out", str(first), *map(str, paths)])
    require(all(path.read_bytes() == content for path, content in before.items()), f"{command} wrote over {first}")
    return []


MAINS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "summarize": summarize.main, "report": report.main, "timeline": timeline.main, "compare": compare.main,
    "history": history.main, "recover": recover.main, "forecast": forecast.main,
}  # fmt: skip
KINDS: Mapping[str, tuple[int, Callable[[Path, random.Random, Place], Sequence[str]]]] = {
    "trace": (37, hostile_trace), "ledger": (3, hostile_ledger), "records": (14, hostile_records),
    "history": (3, hostile_history), "profile": (28, hostile_profile),
    "reference": (11, hostile_reference), "glob": (3, hostile_glob),
}  # fmt: skip
"""The kinds with their shares in a hundred."""


def kind_of(seed: int) -> str:
    """The kind of that seed."""
    return random.Random(-1 - seed).choices([*KINDS], [share for share, _ in KINDS.values()])[0]


def check(seed: int, out: Path, place: Place, kind: str | None = None) -> str:
    """Makes the files of that seed and has a command read them; what was printed. Raises Defect, and the fault that the
    net around each run and file would turn into a line."""
    os.environ[TRACEBACK] = "1"
    rng = random.Random(seed)
    printed = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        command = KINDS[kind or kind_of(seed)][1](out, rng, place)
        if command:
            with contextlib.suppress(SystemExit):
                MAINS[command[0]](command[1:])
    printed.seek(0)
    text = printed.read()
    require("Traceback" not in text, "a traceback is printed")
    require(SECRET not in text, "the secret is printed")
    for path in out.glob("*.html"):
        require(SECRET not in path.read_text(), "the secret is on the page")
    return text


def peak_bytes() -> int:
    """The most memory that this process ever had (getrusage(2))."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read_honest(place: Place, out: Path) -> None:
    """All commands, of honest files: the memory that they take is the measure."""
    traces, full = str(place.honest / "sweep" / "traces"), str(place.honest / "full")
    for argv in (
        ["summarize", traces, full, "--ledger"], ["report", traces, full, "--out", str(out / "page.html")],
        ["timeline", full, "--out", str(out / "timeline.json.gz")], ["compare", traces, traces],
        ["history", traces, traces],
    ):  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            MAINS[argv[0]](argv[1:])


def run(
    first: int, count: int, folder: Path, *, kind: str | None = None, failures: int = 10, show: bool = False
) -> int:
    """Tries so many seeds; prints what fails. Returns how many did."""
    place, out = make_place(folder), folder / "out"
    read_honest(place, folder)
    limit = int(GROWTH * peak_bytes())

    def attempt(seed: int) -> str:
        nonlocal limit
        out.mkdir()
        faulthandler.dump_traceback_later(HANG_S, exit=True, file=2)
        try:
            text = check(seed, out, place, kind)
            require(peak_bytes() <= limit, f"takes {peak_bytes() >> 20} MiB; twice the honest ones is {limit >> 20}")
        finally:
            limit = max(limit, peak_bytes())
            faulthandler.cancel_dump_traceback_later()
            shutil.rmtree(out, ignore_errors=True)
        if show:
            print(text)
        return kind or kind_of(seed)

    failed = try_seeds(
        first, count, attempt, lambda seed: kind or kind_of(seed), failures=failures, on_warning="ignore"
    )
    print(f"at most {peak_bytes() >> 20} MiB, allowed {limit >> 20}")
    return failed


def main() -> int:
    """Command line: 0 where nothing failed."""
    faulthandler.enable()
    return command(
        __doc__, COUNT,
        lambda options, first, count, folder: run(
            first, count, folder, kind=options.kind, failures=options.failures, show=options.seed is not None
        ),
        ("--kind", {"choices": [*KINDS], "help": "this kind alone"}),
        ("--failures", {"type": int, "default": 10, "help": "ends after so many"}),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
