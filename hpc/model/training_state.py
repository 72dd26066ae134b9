"""All that a training needs to go on elsewhere, in no framework's own form."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class State:
    """All that a training needs to go on: arrays by name, and values that JSON holds."""

    arrays: Mapping[str, npt.NDArray[np.generic]]
    values: Mapping[str, Any] = field(default_factory=dict)

    def sha256(self) -> str:
        """The checksum over names and contents of all arrays."""
        digest = hashlib.sha256()
        for name, array in self.arrays.items():
            digest.update(f"{name} {array.dtype} {array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def check_shapes(stored: Mapping[str, npt.NDArray[np.generic]], here: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ValueError where a stored model has not the names and shapes of the one that is here."""
    if missing := sorted({*here} ^ {*stored}):
        raise ValueError(f"it is of another model: only one of the two has {', '.join(missing[:3])}")
    for name, shape in here.items():
        if tuple(stored[name].shape) != shape:
            raise ValueError(
                f"it is of another model: {name} is {list(stored[name].shape)} there and {list(shape)} here"
            )
