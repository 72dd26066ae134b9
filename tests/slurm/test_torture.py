"""Ten runs killed at random steps; `make torture` kills a hundred."""

from __future__ import annotations

import pytest

from tests.torture.run import main


def test_of_ten_killed_runs_nothing_is_lost_that_was_promised(
    slurm_installed: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """A cluster of its own, because nodes lose their power. What is printed has the seed that kills the same again."""
    status = main(["--kills", "10"])
    printed = capfd.readouterr()
    assert status == 0, printed.out + printed.err
