"""The command line of `python -m hpc.sweep`: measures, or runs the subcommand in the first argument."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from hpc.model.options import Option, OptionError
from hpc.model.spec import COLLECTIVES, SpecError
from hpc.system.command_line import as_called, called, importing, text_width
from hpc.system.sanitize import deny_world_writing, plain
from hpc.system.text import filled, plural
from launch.sweep.arguments import read_arguments
from launch.sweep.request import Request
from launch.sweep.spec import AUTO


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. 0: every run is ok (or was submitted); 1: a run or a submission failed; 2: usage, or an
    acceptance test that could not measure."""
    try:
        request = read_arguments(sys.argv[1:] if argv is None else argv)
    except SpecError as error:
        return _refuse(error, 2)
    if request.subcommand == "list":
        return _list()
    deny_world_writing()
    with importing():
        from launch.sweep import submit  # imported here: --help does not need it

    try:
        return _run(request)
    except (SpecError, OptionError) as error:
        return _refuse(error, 2)
    except submit.FAILURES as error:
        return _refuse(error, 1)


def _run(request: Request) -> int:
    with importing():
        from launch.sweep import accept, auto_repeats, find_max, retry, status, submit

    if request.subcommand in ("status", "cancel"):
        return (status.show if request.subcommand == "status" else status.cancel)(request)
    if request.accepted is not None:
        return accept.accept(request.accepted, request)
    if request.subcommand == "retry":
        wanted = retry.matching(request)
        if not request.sweeps:
            return retry.retry(wanted)
    if request.sought:
        return find_max.find_max(request)
    is_auto = any(sweep.repeats == AUTO for sweep in request.sweeps)
    return (auto_repeats.sweep_until_known if is_auto else submit.sweep)(request)


def _refuse(error: BaseException, status: int) -> int:
    text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    command = called("hpc.sweep")
    text = text.removeprefix(f"{command.partition(' ')[2]} ")  # the subcommand: not `rankwise retry: retry …`
    print(f"{command}: {as_called(plain(text))}", file=sys.stderr)
    return status


def _list() -> int:
    """Prints what can be named, from the tables; imports no framework."""
    from hpc.backends import BACKENDS, missing_modules
    from hpc.model.data_source import KINDS
    from hpc.model.data_source import OPTIONS as DATA_OPTIONS
    from hpc.model.reference import known_recipes, known_references
    from hpc.workloads import WORKLOADS
    from launch.jobs.site import known_sites

    _print("backends:")
    for name, backend in BACKENDS.items():
        missing = missing_modules(name)
        trains = f"; trains {', '.join(backend.workloads)}" if backend.workloads else ""
        _print(f"  {name} ({backend.framework}{trains}): {'; '.join(missing) or 'installed here'}")
        _print_options(backend.options)
    _print("workloads:")
    for name, workload in WORKLOADS.items():
        how = "by --collectives" if name == COLLECTIVES else f"for {', '.join(workload.factories)}"
        _print(f"  {name} ({how})")
        _print_options({**workload.options, **workload.file_options})
    _print("data:")
    _print("  synthetic")
    for kind in KINDS:
        readers = [
            f"{name} ({', '.join(frameworks)})"
            for name, entry in WORKLOADS.items()
            if (frameworks := entry.frameworks_reading(kind))
        ]
        _print(f"  {kind}:PATH, read by {', '.join(readers)}")
    _print_options(DATA_OPTIONS)
    _print("sites:")
    for name, path in known_sites().items():
        _print(f"  {name}  {path}")
    _print("recipes:")
    for name, recipe in known_recipes().items():
        _print(f"  {name}  {known_references()[name]}")
        _print(f"      {recipe.title}: {plural(len(recipe.swept), 'point')}; devices: {recipe.devices}")
    return 0


def _print_options(options: Mapping[str, Option]) -> None:
    for name, option in options.items():
        default = ("on" if option.default else "off") if isinstance(option.default, bool) else option.default
        _print(f"      {name}: {option.help} (default {default})")


def _print(text: str) -> None:
    """Prints a line of the list, in a terminal as lines that fit it."""
    print(*(filled(text, text_width()) if sys.stdout.isatty() else [text]), sep="\n")
