"""Each function of torch that hooks use is missing, or takes other arguments: scripts go on, and a remark names it."""

from __future__ import annotations

import importlib
import io
import sys
import types
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpc.observe import events, recording, stacks
from hpc.observe.events import Recorder, read_events
from hpc.observe.patches import Patches
from hpc.observe.remarks import remarks_on_process

torch = pytest.importorskip("torch")

Install = Callable[..., dict[str, Any]]
PASS_ON = {
    "backward", "save", "async_save", "synchronize", "init_rpc",
    *(f"_PipelineStageBase.backward_{half}one_chunk" for half in ("", "weight_")),
}  # fmt: skip
"""Their hooks look at no argument, and pass on whatever these take."""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Hooks this process, of whose torch `names` are absent, or `other`; trains, and returns lacking hooks by names."""
    from hpc.observe import hooks, observer

    monkeypatch.setattr(events, "Recorder", partial(Recorder, capacity=4096))
    monkeypatch.setattr(stacks, "register", lambda folder: None)
    dist = torch.distributed
    importlib.import_module("torch.distributed.fsdp")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def after_import(module: str, then: Callable[[], None]) -> None:
        importlib.import_module(module)
        then()

    def installed(names: Collection[str] = (), other: Any = None) -> dict[str, Any]:
        for path in tmp_path.iterdir():
            path.unlink()
        with monkeypatch.context() as change:
            for method in ("replace", "look_for"):
                change.setattr(Patches, method, _of_another(getattr(Patches, method), names, other))
            register = Patches.register
            change.setattr(
                Patches,
                "register",
                lambda o, its, module, *rest: register(o, its, _stub(its, other) if its in names else module, *rest),
            )
            hooks.install(str(tmp_path), after_import)
            current = recording.current
            assert isinstance(current, observer.Observer)
            try:
                current.device_facts["name"] = "cpu:0"
                device: Any = types.SimpleNamespace(event_type=torch.cuda.Event, current_stream=int, training_stream=0)
                hooks._hook_device(current, device)
                assert train() == 2
                recorded = read_events(next(tmp_path.glob("*.events")))
            finally:
                current.remove()
                recording.current = None
        assert "failed" not in recorded.facts, recorded.facts["failed"]
        remarks = remarks_on_process(recorded)
        lacking: dict[str, Any] = dict(recorded.facts.get("lacking_hooks", {}))
        assert all(any(text.startswith(f"{each} ") for text in remarks) for each in lacking)
        return lacking

    yield installed
    dist.destroy_process_group()


def _of_another(method: Callable[..., Any], names: Collection[str], other: Any) -> Callable[..., Any]:
    """The same with stubs in the places of what has these names."""

    def call(o: Any, owner: Any, its: str, *rest: Any) -> Any:
        stub = _stub(its, other)
        if its in names:
            owner = type("Stub", (), vars(stub)) if method.__name__ == "look_for" else stub
        return method(o, owner, its, *rest)

    return call


def _stub(name: str, other: Any) -> Any:
    stub = types.SimpleNamespace()
    if other:
        *path, last = name.split(".")
        setattr(stub, last, other)
        for part in path:
            stub = types.SimpleNamespace(**{part: stub})
    return stub


def train() -> int:
    """Steps of a script."""
    data = torch.utils.data.TensorDataset(torch.randn(8, 4))
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))
    )
    optimizer, scaler, steps = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu"), 0
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4):
        loss = model(batch).square().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        torch.save(model.state_dict(), io.BytesIO())
        steps += 1
    return steps


def used(install: Install, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, str], dict[str, Any]]:
    """What is not seen without each function, by its name, of those that hooks miss; what this torch lacks."""
    names: dict[str, str] = {}
    with monkeypatch.context() as change:

        def noted(method: Callable[..., Any], place: int) -> Callable[..., Any]:
            def call(o: Any, *values: Any) -> Any:
                shows = values[3] if len(values) > 3 else ""
                names.update({values[place]: shows} if shows else {})
                return method(o, *values)

            return call

        for method, place in (("replace", 1), ("look_for", 1), ("register", 0)):
            change.setattr(Patches, method, noted(getattr(Patches, method), place))
        return names, install()


@pytest.mark.parametrize("together", [True, pytest.param(False, marks=pytest.mark.all)], ids=["all", "each"])
@pytest.mark.parametrize(
    ("other", "reason"),
    [(None, "is not there"), pytest.param(lambda: None, "takes other arguments", marks=pytest.mark.all)],
    ids=["missing", "other"],
)
def test_scripts_go_on_without_functions_of_torch_and_remarks_name_them(
    install: Install, monkeypatch: pytest.MonkeyPatch, other: Any, reason: str, together: bool
) -> None:
    shows, lacks = used(install, monkeypatch)
    assert {"_broadcast_coalesced", "_BaseDataLoaderIter.__next__", "_get_ddp_logging_data", "send"} <= shows.keys()
    assert len(shows) > 25
    changed = [name for name in shows if not (other and name in PASS_ON)]
    for names in [changed] if together else [[name] for name in changed]:
        expected = {name: [reason, shows[name]] for name in names}
        expected |= {name: its for name, its in lacks.items() if name not in names}
        assert {name.removeprefix("Stub."): its for name, its in install(names, other).items()} == expected


def functional(**changes: Any) -> Any:
    """torch's functional collectives with some others; None: without it."""
    module = importlib.import_module("torch.distributed._functional_collectives")
    names = {name: each for name, each in {**vars(module), **changes}.items() if each is not None}
    return types.SimpleNamespace(**names)


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "_are_we_tracing", "_maybe_wrap_tensor", "wait_tensor"])
def test_functional_collectives_are_hooked_together_or_not_at_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:

    from hpc.observe.collectives import FUNCTIONAL, hook_functional

    called = name.replace("_", "-") if name == "all_reduce" else name
    for module, reason in (
        (functional(), ""),
        (functional(**{name: None}), f"has no {called}"),
        (functional(**{name: lambda tensor, *, tag: None}), f"has another {name}"),
    ):
        o: Any = Patches()
        monkeypatch.setitem(sys.modules, FUNCTIONAL, module)
        hook_functional(o)
        assert [lacking for lacking, _ in o.lacking.values()] == ([reason] if reason else [])
        assert len(o.patches) > 5 if not reason else not o.patches


def test_a_schedule_with_other_attributes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from hpc.observe import process_groups

    class Schedule:
        def __init__(self) -> None:
            self._stage = types.SimpleNamespace(group=Schedule, num_stages=1)

    stub, states = types.SimpleNamespace(PipelineScheduleSingle=Schedule), list[tuple[Any, ...]]()
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining.schedules", stub)

    class Observer(Patches):
        def failed(self, error: Exception) -> None:
            states.append((error,))

    o: Any = Observer()
    process_groups._hook_schedules(o)
    Schedule()
    assert not states and o.lacking["Schedule"][0] == "has no _n_microbatches"
    assert o.lacking["PipelineScheduleMulti.__init__"][0] == "is not there"


def test_the_layers_of_a_stage_are_those_of_its_first_list() -> None:
    from hpc.observe.process_groups import _layers

    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, *members: Any) -> None:
            super().__init__()
            self.first, self.members = nn.Linear(2, 2), nn.ModuleList(members)

    pair = [nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)]
    assert _layers(nn.Sequential(*pair)) == 2
    assert _layers(Block(*(Block(nn.Linear(2, 2)) for _ in range(3)))) == 3
    assert _layers(nn.ModuleDict({"only": nn.Sequential(*pair)})) == 1
    assert _layers(nn.Linear(2, 2)) == 1
    assert _layers(nn.TransformerEncoderLayer(4, 2)) == 0
