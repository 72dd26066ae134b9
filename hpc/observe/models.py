"""The models of a script, searched in its process; and whose gradient DDP had last."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def outermost(below: bool = False) -> list[Any]:
    """The modules with something to train that lie in no other; with those one below, where nobody calls these."""
    # issubclass of the type: isinstance asks a proxy for its class, which can run anything.
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    inner = {id(child) for module in modules for child in _children(module)}
    roots = [module for module in modules if id(module) not in inner and _trains(module)]
    return roots + ([child for root in roots for child in _children(root) if _trains(child)] if below else [])


def _children(module: Any) -> list[Any]:
    try:
        return list(module.children())
    except (AttributeError, RuntimeError):  # not yet initialised
        return []


def _trains(module: Any) -> bool:
    try:
        return any(parameter.requires_grad for parameter in module.parameters())
    except (AttributeError, RuntimeError):
        return False


def facts_of(roots: Sequence[Any]) -> dict[str, Any]:
    """What a process has, as its steps need it: classes of models, strategy, device, rank, bytes of the gradients."""
    parameters = {id(p): p for root in roots for p in root.parameters() if p.requires_grad}
    joined = dist.is_available() and dist.is_initialized()
    return {
        "roots": sorted({type(root).__name__ for root in roots}),
        "ddp": any(isinstance(root, DistributedDataParallel) for root in _ddps(roots)),
        "sharded": any(hasattr(p, "placements") for p in parameters.values()),
        "devices": sorted({p.device.type for p in parameters.values()}),
        "gradient_bytes": sum(
            p.grad.numel() * p.grad.element_size()
            for p in parameters.values()
            if p.grad is not None and not hasattr(p, "placements")
        ),
        "world_size": int(os.environ.get("WORLD_SIZE") or 1),
        "joined": joined,
        "rank": dist.get_rank() if joined else 0,
        "size": dist.get_world_size() if joined else 1,
    }


def _ddps(roots: Sequence[Any]) -> list[Any]:
    return [module for root in roots for module in root.modules() if isinstance(module, DistributedDataParallel)]


def _discard(ids: set[int], key: int) -> Callable[[object], None]:
    return lambda _: ids.discard(key)


class LastGradients:
    """One hook on each parameter whose gradient DDP had last. A hook on all of them takes 0.6 µs each, for ever."""

    def __init__(self) -> None:
        self._roots: list[weakref.ref[Any]] = []
        self._ddps: list[tuple[weakref.ref[Any], list[weakref.ref[Any]]]] = []
        self.hooked: list[int] = []

    @property
    def has_ddp(self) -> bool:
        return bool(self._ddps)

    def keep(self, roots: Sequence[Any], ids: set[int]) -> None:
        """Remembers models without keeping them alive; `ids` loses those that die."""
        known = {id(reference()) for reference in self._roots}
        for root in roots:
            if id(root) not in known:
                self._roots.append(weakref.ref(root, _discard(ids, id(root))))
        seen = {id(reference()) for reference, _ in self._ddps}
        for ddp in _ddps(roots):
            if id(ddp) not in seen:
                parameters = getattr(ddp, "_module_parameters", None) or ddp.module.parameters()
                self._ddps.append((weakref.ref(ddp), [weakref.ref(p) for p in parameters if p.requires_grad]))

    def hook(self, complete: Callable[[Any], None], handles: list[Any]) -> bool:
        """Asks each DDP, and hooks the parameter it names unless that has the hook; returns whether one was hooked."""
        before = len(self.hooked)
        for number, (reference, parameters) in enumerate(self._ddps):
            ddp = reference()
            order = (
                "" if ddp is None else ddp._get_ddp_logging_data().get("prev_iteration_grad_ready_order_indices", "")
            )
            last = int(order.split(",")[-1]) if order else -1
            key = number << 24 | last
            if 0 <= last < len(parameters) and key not in self.hooked:
                parameter = parameters[last]()
                if parameter is not None:
                    handles.append(parameter.register_post_accumulate_grad_hook(complete))
                    self.hooked.append(key)
        return len(self.hooked) > before
