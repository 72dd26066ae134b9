"""Rows of OSU and perftest in which `nan` is printed: named, and no numbers."""

from __future__ import annotations

import pytest

from parse.logs.network_tests import Refusal, network_tests
from tests.unit.logs.benchmark_lines import OSU_LATENCY, WRITE


@pytest.mark.parametrize("text", [OSU_LATENCY.replace("20.77", "-nan"), WRITE.replace("44276.64", "nan")])
def test_a_row_of_nan_is_named(text: str) -> None:
    (test,) = network_tests(text, "x.txt", devices=8, nodes=2)
    assert [row.reason for row in test.refused] == [Refusal.NO_NUMBER]
