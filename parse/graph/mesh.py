"""Ranks in the order of their mesh: a row for each place in all dimensions but one, whose places are the columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpc.model.groups import GROUP, MESSAGE, NAME
from hpc.model.trace import Ints
from parse.graph.step_graph import NONE, StepCalls


@dataclass(frozen=True, kw_only=True, eq=False)
class RankMesh:
    """`ranks` [row, column], NONE where there is none; rows and columns by names as `pp 0, dp 1` and `tp 0`, a single
    row without one."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    ranks: Ints


@dataclass(frozen=True, eq=False)
class _Axis:
    """A dimension as an axis: the place of each rank [rank] in its group, and how far apart in rank neighbours are."""

    name: str
    places: Ints
    stride: int


def rank_mesh(calls: StepCalls) -> RankMesh | None:
    """The mesh of the groups of a step; None where no dimension cuts the ranks into groups.

    A pipeline's places are how many messages a rank is behind its first stage; they are of the rows, then come the
    dimensions from the largest groups on as long as they tell more ranks apart. What is left is the number of a copy.
    """
    axes, known = list[_Axis](), np.zeros((len(calls.calls), 0), np.int64)
    for axis in _axes(calls):
        further = np.column_stack([known, axis.places])
        if len(np.unique(further, axis=0)) > len(np.unique(known, axis=0)):
            axes.append(axis)
            known = further
    if not axes:
        return None
    copies = _copies(known)
    if copies.any():
        axes.append(_Axis("replica", copies, len(known) - 1))
    across = min(axes, key=lambda axis: axis.stride)
    down = [axis for axis in sorted(axes, key=lambda axis: -axis.stride) if axis is not across]
    rows, row_of = _named(down, len(known))
    columns, column_of = _named([across], len(known))
    ranks = np.full((len(rows), len(columns)), NONE)
    ranks[row_of, column_of] = np.arange(len(known))
    return RankMesh(rows=rows, columns=columns, ranks=ranks)


def _axes(calls: StepCalls) -> list[_Axis]:
    """Those of dimensions whose groups have several ranks, not all, and none in common: the pipeline first, then those
    with the largest groups."""
    ranks, axes = len(calls.calls), list[tuple[int, _Axis]]()
    message = calls.names.index(MESSAGE) if MESSAGE in calls.names else NONE
    if calls.depths.max(initial=0) > 0:
        is_message = calls.calls.reshape(-1, 4)[calls.members[calls.starts], NAME] == message
        pipeline = next(calls.dimensions[at] for at in calls.dimension[is_message].tolist())
        axes.append((ranks, _Axis(pipeline, np.maximum(calls.depths, 0), ranks)))
    for number, name in enumerate(calls.dimensions):
        used = (calls.call_dimension == number) & (calls.calls[..., NAME] != message)
        groups = [calls.groups[at].ranks for at in np.unique(calls.calls[..., GROUP][used]).tolist()]
        members = [rank for group in groups for rank in group]
        if len({*members}) != len(members) or not groups or not 1 < max(map(len, groups)) < ranks:
            continue
        places = np.zeros(ranks, np.int64)
        for group in groups:
            places[list(group)] = np.arange(len(group))
        stride = min(int(np.diff(sorted(group)).min()) for group in groups if len(group) > 1)
        if all(name != axis.name for _, axis in axes):
            axes.append((max(map(len, groups)), _Axis(name, places, stride)))
    return [axis for _, axis in sorted(axes, key=lambda each: -each[0])]


def _copies(known: Ints) -> Ints:
    """How many ranks before it have the same places [rank]."""
    copies, seen = np.zeros(len(known), np.int64), dict[tuple[int, ...], int]()
    for rank, places in enumerate(map(tuple, known.tolist())):
        copies[rank] = seen.get(places, 0)
        seen[places] = seen.get(places, 0) + 1
    return copies


def _named(axes: Sequence[_Axis], ranks: int) -> tuple[tuple[str, ...], Ints]:
    """The names of all places in these axes, in their order, and the number of each rank's [rank]."""
    places = np.column_stack([np.zeros(ranks, np.int64), *(axis.places for axis in axes)])
    of_rows, row_of = np.unique(places, axis=0, return_inverse=True)
    names = [", ".join(f"{axis.name} {at}" for axis, at in zip(axes, its[1:], strict=True)) for its in of_rows.tolist()]
    return tuple(names), row_of.ravel()
