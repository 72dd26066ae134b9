"""The command line of `python -m hpc.sweep`: measures, or does what the first argument asks for."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc.model.options import MAX_WHOLE, Option, OptionError
from hpc.model.spec import COLLECTIVES, SpecError
from hpc.system.command_line import importing
from hpc.system.sanitize import deny_world_writing, plain
from launch.sweep.arguments import Request, read_arguments
from launch.sweep.config import ACTIONS, LAUNCH_KEYS, assignments, read_config
from launch.sweep.spec import SweepSpec

if TYPE_CHECKING:
    from launch.sweep import submit


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. 0: every run is ok (or was submitted); 1: a run or a submission failed; 2: usage."""
    try:
        request = read_arguments(sys.argv[1:] if argv is None else argv)
    except SpecError as error:
        return _refuse(error, 2)
    if request.subcommand == "list":
        return _list()
    deny_world_writing()
    with importing():
        from launch.sweep import submit  # what the command line is for; --help needs none of it

    try:
        return _run(request)
    except (SpecError, OptionError) as error:
        return _refuse(error, 2)
    except submit.FAILURES as error:
        return _refuse(error, 1)


def _refuse(error: BaseException, status: int) -> int:
    print(f"hpc.sweep: {plain(str(error))}", file=sys.stderr)
    return status


def _run(request: Request) -> int:
    """Measures, or shows or cancels what was submitted; the exit status."""
    with importing():
        from launch.sweep import status, submit

    asked, settings = _merge(request.options)
    if request.subcommand in ("status", "cancel"):
        spec = SweepSpec.from_mapping(asked) if asked else None
        return (status.cancel if request.subcommand == "cancel" else status.show)(spec, settings)
    how = _how(request, settings)
    return submit.sweep(SweepSpec.from_mapping(asked), settings, how)


def _list() -> int:
    """Prints what can be named, from the tables; imports no framework."""
    from hpc.backends import BACKENDS, missing_modules
    from hpc.workloads import WORKLOADS
    from launch.jobs.site import known_sites

    print("backends:")
    for name, backend in BACKENDS.items():
        missing = missing_modules(name)
        print(f"  {name} ({backend.framework}): {'; '.join(missing) or 'installed here'}")
        _print_options(backend.options)
    print("workloads:")
    for name, workload in WORKLOADS.items():
        how = "by --collectives" if name == COLLECTIVES else f"for {', '.join(workload.factories)}"
        print(f"  {name} ({how})")
        _print_options(workload.options)
    print("sites:")
    for name, path in known_sites().items():
        print(f"  {name}  {path}")
    return 0


def _print_options(options: Mapping[str, Option]) -> None:
    for name, option in options.items():
        default = ("on" if option.default else "off") if isinstance(option.default, bool) else option.default
        print(f"      {name}: {option.help} (default {default})")


def _how(request: Request, settings: Mapping[str, str]) -> submit.SweepOptions:
    """What is done with the sweep. Raises SpecError where that cannot be."""
    from launch.sweep.rerun import RerunRequest, outcomes_to_retry
    from launch.sweep.submit import SweepOptions

    most = settings.get("max_jobs")
    if most is not None and (not (most.isascii() and most.isdigit()) or not 1 <= int(most[:12]) <= MAX_WHOLE):
        raise SpecError(f"--max-jobs {most!r} is no number of jobs, from 1 to {MAX_WHOLE}")
    on = {name: bool(request.options[name] or settings.get(name)) for name in ACTIONS}
    return SweepOptions(
        dry_run=on["dry_run"],
        detach=on["detach"],
        max_jobs=None if most is None else int(most),
        rerun=RerunRequest(
            retry=() if request.outcomes is None else outcomes_to_retry(request.outcomes),
            if_changed=on["rerun_if_changed"],
            force=on["force"],
        ),
    )


def _merge(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Config file and command line as one: what is measured, and where. Raises SpecError on what neither knows.

    What a config file says of ACTIONS is among the settings.
    """
    values = {} if arguments["config"] is None else read_config(Path(arguments["config"]))
    for name, value in arguments.items():
        if name in ("config", *ACTIONS) or value is None:
            continue
        if name in ("option", "env"):
            table = "options" if name == "option" else "env"
            values[table] = {**values.get(table, {}), **assignments(name, value)}
        else:
            values[name] = value
    settings = {key: values.pop(key) for key in (*LAUNCH_KEYS, *ACTIONS) if key in values}
    return values, {key: _setting(key, value) for key, value in settings.items()}


def _setting(name: str, value: Any) -> str:
    if name in ("nodelist", "exclude") and isinstance(value, list):
        return ",".join(_setting(name, one) for one in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise SpecError(f"{name} is {value!r}, not a text or a number")
    return str(value)
