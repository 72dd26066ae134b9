"""How the values of a sweep's own options are read; each raises SpecError for a text that is none."""

from __future__ import annotations

import re
from typing import Literal

from hpc.model.data_source import data_source
from hpc.model.spec import SpecError
from hpc.system.sanitize import is_secret
from launch.jobs.options import table, text, whole
from launch.jobs.site import ENV_NAME, NO_ENV_NAME
from launch.sweep.repeats import AUTO

MAX_RUNS = 100_000
"""A plan of more runs is refused: that many attempts of a minute take ten weeks, one after the other."""
NODES, RANKS = whole(1, 1_000_000), whole(1, 10_000)
_REPEATS = whole(1, MAX_RUNS)
_CASE = re.compile(r"(\d+)n(\d+)g")


def read_case(name: str, case: object) -> tuple[int, int]:
    """A case, as 2n8g, to nodes and ranks per node."""
    match = _CASE.fullmatch(str(case).strip())
    if not match:
        raise SpecError(f"cases: {case!r} is not of the form 2n8g (nodes, ranks per node)")
    return NODES("nodes", match[1]), RANKS("ranks_per_node", match[2])


def read_data(name: str, value: object) -> str:
    """A request for data that some workload knows."""
    data = text(name, value)
    data_source(data)
    return data


def read_percent(name: str, value: object) -> float:
    """A percentage; a share, as 0.759, is refused."""
    try:
        percent = float(str(value))
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 100 or isinstance(value, bool):
        raise SpecError(f"{name}: {str(value)[:40]!r} is no percentage, from 0 to 100")
    if 0 < percent <= 1:
        raise SpecError(
            f"{name}: {percent:g} would be {percent:g} percent of the images; for a share, ask for {100 * percent:g}"
        )
    return percent


def read_repeats(name: str, value: object) -> int | Literal["auto"]:
    """A number of runs, or `auto`."""
    if value == AUTO:
        return AUTO
    try:
        repeats: int = _REPEATS(name, value)
    except SpecError as error:
        raise SpecError(f"{error}, or {AUTO}") from None
    return repeats


def read_ci(name: str, value: object) -> float:
    """A half width as a share, from `1%` or `0.01`."""
    from parse.comparison.reference import read_share  # imported here: --help does not need it

    try:
        return read_share(text(name, value))
    except ValueError as error:
        raise SpecError(f"{name}: {error}") from None


def read_env(name: str, value: object) -> dict[str, tuple[str, ...]]:
    """Environment variables of the runs, none of which may hold a secret."""
    env = table(name, value)
    for variable, values in env.items():
        if not ENV_NAME.fullmatch(variable):
            raise SpecError(f"env: {variable!r} {NO_ENV_NAME}")
        if any(is_secret(variable, each) for each in values):
            raise SpecError(
                f"env: {variable} looks like a secret, and what is set for runs is written into scripts, plans and "
                "traces: export it where you start the sweep instead, jobs inherit it, or keep it in a file that only "
                "you can read"
            )
    return env
