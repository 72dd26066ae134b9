"""How many events of a step a device notes: what hooks cost there is this number times the price of one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hpc.backends import missing_modules
from hpc.model.spec import SCRIPT
from hpc.observe import events as e
from hpc.observe.events import ProcessEvents
from tests.mpi.observed import run

pytestmark = pytest.mark.skipif(bool(missing_modules(SCRIPT)), reason="; ".join(missing_modules(SCRIPT)))

USUAL_FROM = 6
"""Steps before are of the search for models and of the parameter that DDP has last."""
BACKWARD = {"fetch_in": 1, "forward_in": 1, "backward_in": 1, "backward_out": 1}
UPDATE = {"update_in": 1, "update_out": 1}
DDP = {**BACKWARD, "gradient": 1, **UPDATE}
GROUPS = 5
COLLECTIVES = 3 * GROUPS - 1
"""Of FSDP2: an all-gather in the forward, one in the backward but for the root's, a reduce-scatter."""
WAITS = {"collective_in": COLLECTIVES, "collective_wait": COLLECTIVES, "collective_out": 2 * COLLECTIVES}
"""Each is done on a stream of its own, for which the training's stream waits."""
FSDP2 = {**BACKWARD, **WAITS, **UPDATE}


def backwards(of_step: dict[str, int], number: int) -> dict[str, int]:
    """The events of a step that accumulates the gradients of so many backwards."""
    return {kind: count if kind in UPDATE else number * count for kind, count in of_step.items()}


def counts(recorded: ProcessEvents) -> list[dict[str, int]]:
    """Of each step, from update to update, how many events of a kind the device has noted."""
    steps: list[Counter[str]] = [Counter()]
    noted = {event.number for event in recorded.device if event.kind == e.DEVICE_TIME}
    for place, event in enumerate(recorded.events):
        if place in noted:
            steps[-1][e.KINDS[event.kind]] += 1
        if event.kind == e.UPDATE_OUT:
            steps.append(Counter())
    return [dict(step) for step in steps[USUAL_FROM:-1]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ddp"], DDP),
        pytest.param(["ddp", "buffers"], DDP | {"collective_in": 1, "collective_out": 1}, marks=pytest.mark.all),
        pytest.param(["ddp", "accumulates"], backwards(DDP, 3), marks=pytest.mark.all),
        pytest.param(["fsdp2"], FSDP2, marks=pytest.mark.all),
        pytest.param(["fsdp2", "accumulates"], backwards(FSDP2, 3), marks=pytest.mark.all),
    ],
    ids=" ".join,
)
def test_events_a_step(tmp_path: Path, words: list[str], expected: dict[str, int]) -> None:
    ended = run(tmp_path, "counted.py", *words, ranks=2)
    assert ended.statuses == [0, 0], ended.errors
    for recorded in ended.recorded:
        steps = counts(recorded)
        assert len(steps) >= 4
        assert steps == [expected] * len(steps)
