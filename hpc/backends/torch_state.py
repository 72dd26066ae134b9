"""What a torch training needs to go on elsewhere, as NumPy arrays: model, optimizer, loss scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from hpc.model.training_state import State, check_shapes


def state_of(module: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None) -> State:
    """Parameters and buffers by torch's names, the optimizer's tensors by parameter, the scaler's values."""
    arrays = {f"model.{name}": _array(value) for name, value in module.state_dict().items()}
    values: dict[str, Any] = {} if scaler is None else {"scaler": scaler.state_dict()}
    for at, parameter in enumerate(_parameters(optimizer)):
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                arrays[f"optimizer.{at}.{name}"] = _array(value)
    return State(arrays=arrays, values=values)


def load_state(
    state: State, module: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None
) -> None:
    """Puts a state where `state_of` took it from. Raises ValueError where it is of another model or optimizer."""
    of_model = {name.removeprefix("model."): value for name, value in state.arrays.items() if name.startswith("model.")}
    check_shapes(of_model, {name: tuple(value.shape) for name, value in module.state_dict().items()})
    if (scaler is None) != ("scaler" not in state.values):
        raise ValueError("it is of another precision: only one of the two scales the loss")
    with torch.no_grad():
        for name, value in module.state_dict().items():
            value.copy_(torch.from_numpy(of_model[name]))
    parameters = list(_parameters(optimizer))
    for name, array in state.arrays.items():
        if name.startswith("optimizer."):
            _, at, key = name.split(".", 2)
            parameter = parameters[int(at)]
            value = torch.from_numpy(array)
            # In the layout of the parameter, as the optimizer itself makes it.
            held = torch.empty_like(parameter) if value.shape == parameter.shape else torch.empty_like(value)
            optimizer.state[parameter][key] = held.copy_(value)
    if scaler is not None:
        scaler.load_state_dict(dict(state.values["scaler"]))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _array(value: torch.Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = value.detach().cpu().contiguous().numpy().copy()
    return array
