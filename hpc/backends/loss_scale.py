"""The option `loss_scale` of amp-fp16, the same in every framework."""

from __future__ import annotations

from hpc.backends import InvalidRun
from hpc.model.options import OptionValue


def static_scale(option: OptionValue) -> float | None:
    """The scale that stays, or None for the dynamic one. Raises InvalidRun where the option is neither."""
    if option == "dynamic":
        return None
    try:
        scale = float(option)
    except ValueError:
        scale = 0.0
    if not 0 < scale < float("inf"):
        raise InvalidRun(f"loss_scale is {option!r}; it must be dynamic or a number above 0")
    return scale
