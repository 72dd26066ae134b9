"""Hooks on torch.distributed.pipelining: what messages are for, the shape of a schedule, the backwards of a stage."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .process_groups import is_of_pipeline, ranks_as_fact

if TYPE_CHECKING:
    from .collectives import AfterImport
    from .observer import Observer

_STAGE, _SCHEDULES = "torch.distributed.pipelining.stage", "torch.distributed.pipelining.schedules"


def hook(o: Observer, after_import: AfterImport, make_backward: Callable[[Any], Any]) -> None:
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
