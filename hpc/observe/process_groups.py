"""Which ranks of the world a process group of torch has, what its dimension is called, and pipelines of such ranks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from .events import (
    FROM_ANY,
    MESSAGE,
    MESSAGES,
    NO_ROOT,
    REPLICAS,
    STAGES,
    UNCLEAR,
    BatchRole,
    CollectiveName,
    GroupRecord,
    role_of,
    spelled_ranks,
)

if TYPE_CHECKING:
    from .collectives import AfterImport
    from .observer import Observer


_UNNAMED = ("", "undefined", "default", "default_pg", "mesh_default")
"""Descriptions that torch gives to groups of which nobody says what they are for."""
_OF_MESH, _OF_UNNAMED_MESH = "mesh_", "mesh_dim_"


def ranks_of(group: Any) -> tuple[int, ...] | None:
    """The ranks of the world in a process group, by its own numbers; None for one that torch keeps no ranks of."""
    try:
        return tuple(dist.get_process_group_ranks(group))
    except (KeyError, TypeError, ValueError):
        return None


def named_dimension(group: Any) -> str:
    """The name that a mesh, or whoever made the group, gave it: `tp`; empty: none."""
    described = str(getattr(group, "group_desc", "") or "")
    if described in _UNNAMED or described.removeprefix(_OF_UNNAMED_MESH).isdigit():
        return ""
    return described.removeprefix(_OF_MESH)[:_MAX_CHARACTERS]


_MAX_CHARACTERS = 64


_of_pipelines: WeakSet[Any] = WeakSet()


def is_of_pipeline(group: Any) -> None:
    """Messages in this process group are between the stages of a pipeline."""
    _of_pipelines.add(group or dist.group.WORLD)


def pattern_of(ranks: tuple[int, ...]) -> str:
    """In words, how these ranks lie among all: what a group is called that nobody named."""
    steps = {later - earlier for earlier, later in pairwise(sorted(ranks))}
    if steps == {1}:
        return f"groups of {len(ranks)} neighbours"
    if len(steps) == 1:
        step = steps.pop()
        ending = {1: "st", 2: "nd", 3: "rd"}.get(step % 10 if step % 100 not in (11, 12, 13) else 0, "th")
        return f"every {step}{ending} rank"
    return f"groups of {len(ranks)} ranks"


def collective_of(name: str, group: Any, root: int = NO_ROOT, dimension: str = "") -> CollectiveName | None:
    """A collective of a process group; `root` by the group's own numbers. None in a group of one: nobody meets.

    `dimension` is that of the mesh that the caller has, if any: torch itself has no name for a mesh of all ranks.

    Where all ranks take part and nobody named the group there is no group, nor where its ranks are not known: then the
    name has their number.
    """
    size = _world_size()
    ranks = ranks_of(group)
    if ranks is None:
        its_size = int(group.size())
        if its_size != size:
            return CollectiveName(f"{name} in a group of {its_size}", UNCLEAR)
        return CollectiveName(name, root)
    if len(ranks) == 1 < size:
        return None
    sends = ranks[root] if 0 <= root < len(ranks) else root
    named = named_dimension(group) or dimension
    if len(ranks) == size:
        return CollectiveName(name, sends, GroupRecord(ranks, named) if named and ranks == tuple(range(size)) else None)
    return CollectiveName(name, sends, GroupRecord(ranks, named or pattern_of(ranks)))


def of_replicas(group: Any) -> dict[str, Any]:
    """As a fact: the ranks between which DDP reduces, None for all, and their dimension."""
    return {"ranks": ranks_as_fact(group), "dimension": named_dimension(group) or REPLICAS}


_REDUCING = {
    "FSDPMeshInfo": ("shard_process_group",), "HSDPMeshInfo": ("shard_process_group", "replicate_process_group"),
    "DDPMeshInfo": ("replicate_process_group",), "FullyShardedDataParallel": ("process_group", "_inter_node_pg"),
    "DistributedDataParallel": ("process_group",), "SyncBatchNorm": ("process_group",),
}  # fmt: skip
"""Of torch's classes, the attributes with process groups whose ranks read batches of their own."""


def known_roles(parameters: Iterable[Any]) -> list[list[Any]]:
    """As a fact: the groups of several ranks whose role is known, each with its ranks, dimension and role.

    By what reduces gradients or shards these parameters, and by the names of the dimensions of meshes.
    """
    roles: dict[tuple[int, ...], tuple[str, BatchRole]] = {}
    meshes = []
    for thing in gc.get_objects():
        if type(thing) is DeviceMesh and thing.mesh_dim_names:
            meshes.append(thing)
        for attribute in _REDUCING.get(type(thing).__name__, ()):
            group = getattr(thing, attribute, None)
            if group is not None and (ranks := ranks_of(group)):
                roles.setdefault(ranks, (named_dimension(group) or REPLICAS, BatchRole.DATA))
    for name, ranks in (its for mesh in meshes for its in _dimensions(mesh)):
        if role := role_of(name):
            roles[ranks] = (name, role)
    sharded = {id(p.device_mesh): p for p in parameters if hasattr(p, "placements")}
    for parameter in sharded.values():
        for placement, (name, ranks) in zip(parameter.placements, _dimensions(parameter.device_mesh), strict=False):
            if placement.is_shard():
                roles.setdefault(ranks, (name or "tp", BatchRole.MODEL))
    return [[spelled_ranks(ranks), *its] for ranks, its in roles.items() if len(ranks) > 1]


def _dimensions(mesh: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name of each dimension of a mesh, empty: none, and the ranks of this rank's group in it."""
    names = mesh.mesh_dim_names or ("",) * mesh.ndim
    for at, name in enumerate(names):
        try:
            ranks = ranks_of(mesh.get_group(at))
        except (RuntimeError, KeyError):  # a mesh that describes ranks, and was made without process groups
            continue
        if ranks:
            yield name[:_MAX_CHARACTERS], ranks


def ranks_as_fact(group: Any) -> list[int] | None:
    """The ranks of a process group; None: all."""
    ranks = ranks_of(group) or ()
    return None if len(ranks) == _world_size() else list(ranks)


def _world_size() -> int:
    try:
        return dist.get_world_size()
    except ValueError:  # there is no group of all ranks
        return 0


def message_of(group: Any, peer: int = -1, tag: int = 0, *, sends: bool) -> CollectiveName | None:
    """A message to or from a rank, by the numbers of its process group. None where a rank sends to itself.

    The dimension is that of the process group.
    """
    ranks = ranks_of(group)
    if ranks is None or not 0 <= peer < len(ranks):
        return CollectiveName(f"{MESSAGE} in a group of {int(group.size())}", UNCLEAR)
    mine, other = dist.get_rank(), ranks[peer]
    if mine == other:
        return None
    pair = (mine, other) if sends else (other, mine)
    return CollectiveName(MESSAGE, pair[0], GroupRecord(pair, _of_messages(group), tag))


def _of_messages(group: Any) -> str:
    return named_dimension(group) or (STAGES if group in _of_pipelines else _of_mesh(group) or MESSAGES)


_of_meshes: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _of_mesh(group: Any) -> str:
    """What a mesh of one dimension calls it, which torch keeps in the mesh alone where that has all ranks; empty: none,
    or several do."""
    if group not in _of_meshes:  # all objects are looked through: once for each process group
        names = {
            mesh.mesh_dim_names[0]
            for mesh in gc.get_objects()
            if type(mesh) is DeviceMesh and mesh.ndim == 1 and mesh.mesh_dim_names and _is_of(group, mesh)
        }
        _of_meshes[group] = names.pop()[:_MAX_CHARACTERS] if len(names) == 1 else ""
    return _of_meshes[group]


def _is_of(group: Any, mesh: DeviceMesh) -> bool:
    try:
        return bool(mesh.get_group() == group)
    except RuntimeError:  # a mesh that describes ranks, and was made without process groups
        return False


def message_from_any(group: Any, tag: int) -> CollectiveName:
    """A message of which the sender is not known before it is there: of all ranks that could send it."""
    ranks = ranks_of(group) or ()
    its = GroupRecord(ranks, _of_messages(group), tag) if ranks else None
    return CollectiveName(FROM_ANY, UNCLEAR, its)


# Hooks on torch.distributed.pipelining: what messages are for, the shape of a schedule, the backwards of a stage.


_STAGE, _SCHEDULES = "torch.distributed.pipelining.stage", "torch.distributed.pipelining.schedules"


def hook_pipelines(o: Observer, after_import: AfterImport, make_backward: Callable[[Any], Any]) -> None:
    """Hooks stages and schedules once a script imports them; `make_backward` makes what records a backward."""
    after_import(_STAGE, lambda: _hook_stages(o, make_backward))
    after_import(_SCHEDULES, lambda: _hook_schedules(o))


def _hook_stages(o: Observer, make_backward: Callable[[Any], Any]) -> None:
    if o.off:
        return
    stages, halves = sys.modules[_STAGE], "backwards in halves, which schedules without bubbles make"
    o.replace(stages, "_PipelineStageBase.backward_one_chunk", make_backward, "backwards of a pipeline's stages")
    # Schedules without bubbles ask autograd for one half of a backward at a time, by other functions of its.
    o.replace(stages, "_PipelineStageBase.backward_weight_one_chunk", make_backward, halves)


def _hook_schedules(o: Observer) -> None:
    """A schedule knows its stages when it is made."""
    if o.off:
        return
    shapes: list[dict[str, Any]] = []

    def record(schedule: Any) -> None:
        try:
            its = getattr(schedule, "_stages", None) or [schedule._stage]
            is_of_pipeline(its[0].group)
            shape = _shape(schedule, its)
        except AttributeError as error:
            o.lacks(type(schedule).__name__, f"has no {error.name}", _SHAPE)
            return
        if shape not in shapes and len(shapes) < _MAX_SCHEDULES:
            shapes.append(shape)
            o.recorder.state(pipelines=shapes)

    def make(original: Any) -> Any:
        def begin(schedule: Any, *values: Any, **named: Any) -> None:
            original(schedule, *values, **named)
            try:
                if not o.off:
                    record(schedule)
            except Exception as error:  # noqa: BLE001 - the script must not end for a hook
                o.failed(error)

        return begin

    for name in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
        o.replace(sys.modules[_SCHEDULES], f"{name}.__init__", make, _SHAPE)


_MAX_SCHEDULES, _SHAPE = 8, "which stages of a pipeline are where"


def _shape(schedule: Any, stages: list[Any]) -> dict[str, Any]:
    """As a fact: the schedule's class, its micro-batches and stages, those of this rank with their layers (0: not
    known), its ranks (None: all)."""
    return {
        "schedule": type(schedule).__name__,
        "microbatches": int(schedule._n_microbatches),
        "stages": int(stages[0].num_stages),
        "its_stages": [int(stage.stage_index) for stage in stages],
        "layers": sum(layers) if all(layers := [_layers(stage.submod) for stage in stages]) else 0,
        "ranks": ranks_as_fact(stages[0].group),
    }


def _layers(module: Any) -> int:
    """How many layers a module has: those of the longest list of modules, on the first level that has lists, which have
    parameters; 1 of a module without others, 0: not known."""
    nn = sys.modules["torch"].nn
    level = [module]
    while level:
        lists = [its for its in level if isinstance(its, nn.Sequential | nn.ModuleList | nn.ModuleDict)]
        if lists:
            return max(sum(next(each.parameters(), None) is not None for each in its.children()) for its in lists)
        level = [child for its in level for child in its.children()]
    return 0 if next(module.children(), None) is not None else 1
