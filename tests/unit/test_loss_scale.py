"""The option `loss_scale`."""

from __future__ import annotations

import pytest

from hpc.backends import InvalidRun
from hpc.backends.loss_scale import static_scale


def test_a_scale_is_dynamic_or_a_number() -> None:
    assert static_scale("dynamic") is None
    assert static_scale("1024") == 1024


@pytest.mark.parametrize("option", ["0", "-1", "inf", "nan", "soon"])
def test_what_is_neither_is_refused(option: str) -> None:
    with pytest.raises(InvalidRun, match="must be dynamic or a number above 0"):
        static_scale(option)
