"""Differences between the environments of two measurements: devices, drivers, versions, options in effect, nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hpc.system.groups import grouped
from parse.comparison.types import Difference
from parse.report.provenance import MACHINE
from parse.report.summary import identifying_values
from parse.result import Result


def differences(pairs: Mapping[str, tuple[Result, Result]], ignored: Collection[str] = ()) -> tuple[Difference, ...]:
    """The facts and the settings in effect in which the two results of a pair differ, by the name of the pair; ignored
    settings are among them. A fact that neither side states is no difference."""
    points: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for point, (base, new) in pairs.items():
        facts = _facts(base, ignored), _facts(new, ignored)
        for name in dict.fromkeys((*facts[0], *facts[1])):
            values = facts[0].get(name, ()), facts[1].get(name, ())
            if values[0] != values[1]:
                points.setdefault((name, *values), []).append(point)
    every = [*pairs]
    return tuple(
        Difference(name=name, base=base, new=new, points=() if concerned == every else tuple(concerned))
        for (name, base, new), concerned in sorted(points.items(), key=lambda item: _order(item[0][0]))
    )


def _order(name: str) -> tuple[int, str]:
    """Machines first, then versions and options."""
    names = [*MACHINE.values()]
    return (names.index(name), "") if name in names else (len(names), name)


def _facts(result: Result, ignored: Collection[str]) -> dict[str, tuple[str, ...]]:
    facts = {name: tuple(sorted(values)) for name, values in result.facts.items()}
    options = grouped(pair for machine in result.machines for pair in machine.options.items())
    hosts = sorted({host for machine in result.machines for host in machine.hosts})
    requested = identifying_values(result)
    return {
        **facts,
        **{f"option.{name}": tuple(sorted({*values})) for name, values in options.items()},
        **({"hosts": tuple(hosts)} if hosts else {}),
        **{name: (requested[name],) for name in ignored if name in requested},
    }
