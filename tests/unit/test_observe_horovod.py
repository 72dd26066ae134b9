"""Hooks on Horovod's functions: a script calls them as it likes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from hpc.observe import events as e
from hpc.observe import horovod_calls, recording


def test_a_call_may_have_any_of_horovods_arguments_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def allreduce(tensor: str, average: bool | None = None, name: str = "", op: str = "") -> tuple[str, str, str]:
        return tensor, name, op

    o = recording.ProcessRecording(str(tmp_path))
    monkeypatch.setattr(recording, "current", o)
    try:
        call = horovod_calls._Calls(SimpleNamespace(is_initialized=lambda: False)).of_call("all-reduce")(allreduce)
        assert call("loss", name="average loss", op="sum") == ("loss", "average loss", "sum")
    finally:
        o.remove()
    (path,) = tmp_path.glob("*.events")
    assert [event.kind for event in e.read_events(path).events] == [e.COLLECTIVE_IN, e.COLLECTIVE_OUT]
