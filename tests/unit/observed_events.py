"""Events of a script as a test writes them: each call takes a millisecond, so that every time is known."""

from __future__ import annotations

from typing import Any

from hpc.observe import events as e
from hpc.observe.events import CollectiveName, HookEvent, ProcessEvents
from hpc.observe.stamps import ObservedStep, ObservedSteps, Pause
from hpc.observe.steps import steps_of

MS = 1_000_000
TRAIN, VALIDATION, OTHER = 1, 2, 3
DDP: dict[str, Any] = {"ddp": True, "size": 2, "joined": True, "devices": ["cpu"]}


class Script:
    """Writes events; every one a millisecond after the one before, the first at 1 ms."""

    def __init__(self, **facts: Any) -> None:
        self.events: list[HookEvent] = []
        self.facts = facts
        self.names: list[CollectiveName] = []
        self.ns = 0

    def at(self, kind: int, which: int = 0, number: int = 0) -> int:
        """Adds an event; returns its time."""
        self.ns += MS
        self.events.append(HookEvent(self.ns, kind, which, number))
        return self.ns

    def sleep(self, ms: int) -> None:
        self.ns += ms * MS

    def play(self, moves: str, times: int = 1) -> Script:
        """Calls these methods, so many times; the script itself."""
        for move in times * moves.split():
            getattr(self, move)()
        return self

    def fetch(self, loader: int = TRAIN, samples: int = 8) -> int:
        began = self.at(e.FETCH_IN, loader)
        self.at(e.FETCH_OUT, loader, samples)
        return began

    def iterate(self, loader: int = TRAIN) -> int:
        """A new iterator."""
        began = self.at(e.ITERATE_IN, loader)
        self.at(e.ITERATE_OUT, loader)
        return began

    def exhaust(self, loader: int = TRAIN) -> int:
        """The fetch that finds the loader exhausted."""
        began = self.at(e.FETCH_IN, loader)
        self.at(e.FETCH_END, loader)
        return began

    def forward(self, *, armed: bool = True) -> int:
        began = self.at(e.FORWARD_IN)
        if self.facts.get("ddp") and armed:
            self.at(e.ARMED)
        return began

    def backward(self, *, gradient: bool = True) -> tuple[int, int, int]:
        """When it began, the last gradient came, it returned."""
        began = self.at(e.BACKWARD_IN)
        last = self.at(e.GRADIENT) if self.facts.get("ddp") and gradient else -1
        return began, last, self.at(e.BACKWARD_OUT)

    def update(self, optimizer: int = 1) -> int:
        self.at(e.UPDATE_IN, optimizer)
        return self.at(e.UPDATE_OUT, optimizer)

    def micro(self, loader: int = TRAIN, samples: int = 8, *, armed: bool = True) -> tuple[int, int, int]:
        """A micro batch; what `backward` returns."""
        self.fetch(loader, samples)
        self.forward(armed=armed)
        return self.backward()

    def step(self, loader: int = TRAIN, samples: int = 8, optimizer: int = 1) -> int:
        """When its update returned."""
        self.micro(loader, samples)
        return self.update(optimizer)

    def evaluate(self, batches: int = 3, loader: int | None = VALIDATION) -> None:
        for _ in range(batches):
            if loader is not None:
                self.fetch(loader)
            self.at(e.EVALUATE_IN)
            self.at(e.EVALUATE_OUT)

    def mark(self) -> int:
        """`step()` of the script."""
        return self.at(e.STEP_END)

    def save(self) -> None:
        self.at(e.SAVE_IN)
        self.at(e.SAVE_OUT)

    def collective(
        self,
        name: str,
        *,
        size: int = 64,
        root: int = e.NO_ROOT,
        waited: bool = True,
        group: e.GroupRecord | None = None,
    ) -> tuple[int, ...]:
        """When it was called, waited for and had."""
        named = CollectiveName(name, root, group)
        if named not in self.names:
            self.names.append(named)
        which, place = self.names.index(named), len(self.events)
        called = self.at(e.COLLECTIVE_IN, which, size)
        if not waited:
            return (called,)
        return called, self.at(e.COLLECTIVE_WAIT, which, place), self.at(e.COLLECTIVE_OUT, which, place)

    def observed(self, *, by_calls: bool = False) -> ObservedSteps:
        recorded = ProcessEvents(process=1, events=self.events, facts=self.facts, names=self.names)
        return steps_of(recorded, by_calls=by_calls)


def reasons(steps: tuple[ObservedStep, ...]) -> set[str]:
    """Why time stamps of these steps are absent."""
    return {reason for step in steps for reason in step.absent.values()}


def pauses(observed: ObservedSteps) -> dict[int, Pause]:
    """By the numbers of the steps that they are before."""
    return {number: step.pause for number, step in enumerate(observed.steps) if step.pause}


def samples(observed: ObservedSteps) -> list[int | None]:
    """Of each step."""
    return [step.samples for step in observed.steps]
