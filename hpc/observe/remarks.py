"""In words, what was seen of the steps of a process, and what was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

from hpc.model.timestamps import ABSENT, STAMPS
from hpc.observe import events as e
from hpc.observe.events import ProcessEvents
from hpc.observe.stamps import NO_TIMES, ObservedStep
from hpc.system.text import grouped, plural

TRIED = ("2.4", "2.6", "2.9", "2.13", "2.15")
"""Torch with which the hooks were tried, by `make torch-versions` and, the one of constraints.txt, by all tests: in
their order."""


def untried(version: str) -> str:
    """What a person should know of a torch newer or older than those; empty: nothing."""
    parts = [int(part) for part in version.split("+", maxsplit=1)[0].split(".")[:2] if part.isdigit()]
    tried = [[*map(int, each.split("."))] for each in TRIED]
    if len(parts) == 2 and tried[0] <= parts <= tried[-1]:
        return ""
    named = "functions that are missing or take other arguments are named, other changes may not show"
    return f"hooks were tried with torch {', '.join(TRIED)}; this is {version}: {named}"


def usually_absent(steps: Sequence[ObservedStep]) -> dict[str, str]:
    late = steps[len(steps) // 2 :]
    lacking = {name: Counter(step.absent[name] for step in late if name in step.absent) for name in STAMPS}
    return {name: reasons.most_common(1)[0][0] for name, reasons in lacking.items() if 2 * reasons.total() > len(late)}


def remarks_on_process(recorded: ProcessEvents) -> list[str]:
    facts, remarks = recorded.facts, []
    if any(call.name == e.FURTHER for call in recorded.names):
        remarks.append(
            f"it called in more groups, or by more names or tags, than the {len(recorded.names) - 1} that its record "
            "has room for: of the others it is not known who meets"
        )
    if "torch" in facts and (text := untried(facts["torch"])):
        remarks.append(text)
    remarks += lacking_hooks(facts)
    if "failed" in facts:
        remarks.append(f"a hook raised {facts['failed']}: all hooks were removed; the script went on unmeasured")
    if "keras" in facts:
        version, backend = facts["keras"]
        inside = "waits for other ranks" if backend == "torch" else "waits for data and for other ranks"
        remarks.append(
            f"Keras {version} on {backend}: a step is a batch of fit; {inside} inside of it are not seen apart"
        )
    if unseen := sum(event.kind == e.UPDATE_OUT and event.number == e.UNSEEN for event in recorded.events):
        remarks.append(
            f"{plural(unseen, 'update')} that no hook saw, as of torch.compile(optimizer.step), end with the next "
            "fetch or forward: parameters had changed by then"
        )
    if facts.get("full"):
        remarks.append(f"recording ended after {len(recorded.events)} events: the file was full; hooks went on")
    if facts.get("integers_per_sample", 0) > 1:
        remarks.append(
            f"{TOKENS_HINT}{facts['integers_per_sample']} integers: if they are tokens, --tokens-per-sample "
            f"{facts['integers_per_sample']} has speeds in tokens/s"
        )
    if facts.get("world_size", 1) > 1 and not facts.get("joined", True):
        remarks.append(f"WORLD_SIZE is {facts['world_size']}, but it is in no process group: it trains alone")
    return remarks


def lacking_hooks(facts: Mapping[str, Any]) -> list[str]:
    """A sentence for each hook that the torch of a process has no place for."""
    return [
        f"{name} {reason} in torch {facts.get('torch', '?')}: not seen is {shows}"
        for name, (reason, shows) in facts.get("lacking_hooks", {}).items()
    ]


OTHER_FRAMEWORKS = {"jax": "JAX", "paddle": "PaddlePaddle", "tensorflow": "TensorFlow"}
"""Frameworks other than torch, by the modules whose import leaves a mark (hpc/observe/site)."""
TOKENS_HINT = "a sample has "
"""The begin of a remark that a stated number of tokens makes needless."""
MANY_BACKWARDS = 256
"""So many without an update are no accumulation."""
_BY_LOG = "have it print a line of each step, and read that by `rankwise summarize LOG --pattern` (docs/logs.md)"
TWO_LINES = "docs/observe_hooks.md#two-optional-lines"
_MARK = (
    "have it say where its steps are, by two lines: `for batch in data(loader):` around what it reads and `step()` "
    f"behind each update, with `from rankwise.observe import data, step` ({TWO_LINES})"
)


def why_not_torch(frameworks: Sequence[str]) -> str:
    """`frameworks` as of OTHER_FRAMEWORKS; none: no process imported any."""
    names = " and ".join(OTHER_FRAMEWORKS[name] for name in frameworks)
    what = f"it imports {names} and no torch" if names else f"no process of the script imported torch{_OUT_OF_SIGHT}"
    return f"{what}, and no fit of Keras or reduction of Horovod was seen: {_MARK}"


_OUT_OF_SIGHT = (
    " where hooks could see it (they come by PYTHONPATH: python -I and -E, env -i, sudo, ssh, containers, and workers "
    "of a service that ran before keep them out)"
)
BY_RAY = (
    "it imports Ray: hooks come to workers on this node, by the runtime_env of ray.init(); not on other nodes, by "
    "ray:// or `uv run`, nor where an actor's own runtime_env sets PYTHONPATH"
)


def why_several(count: int, *, joined: bool) -> str:
    """`joined`: one of the processes is in a process group."""
    if not joined:
        return (
            f"{count} processes of one rank's script train, each by itself, in no process group: where they update "
            "shared parameters (hogwild) they have no step in common: have one process train, and measure that; else "
            "start the script once on each rank"
        )
    return (
        f"{count} processes of one rank's script train, and are not the ranks of one process group: a rank "
        "is one process that trains. Start the script once on each rank; one that starts all ranks itself "
        "(mp.spawn) is measured as one launch on one node, by rankwise observe -- SCRIPT.py"
    )


def why_unmeasurable(recorded: ProcessEvents) -> str:
    """What shows before the script has ended that none of its steps will be seen; empty where it may go on to make
    some."""
    counts = Counter(event.kind for event in recorded.events)
    if counts[e.UPDATE_OUT] or counts[e.STEP_END] or counts[e.REPLAY]:
        return ""
    trains = recorded.facts.get("rpc_backward") or counts[e.BACKWARD_IN] >= MANY_BACKWARDS
    return why_none(recorded) if trains else ""


def why_none(recorded: ProcessEvents) -> str:
    """Why there is no step."""
    return "; ".join([_why_none(recorded), *lacking_hooks(recorded.facts)])


def _why_none(recorded: ProcessEvents) -> str:
    counts = Counter(event.kind for event in recorded.events)
    if "argv" in recorded.facts and "torch" not in recorded.facts:
        return f"no step was marked in a process without torch: {_MARK}"
    if recorded.facts.get("rpc"):
        return (
            "it trains by torch.distributed.rpc, whose backwards and updates run in other processes than those that "
            f"ask for them, so that no rank's steps are its own: {_BY_LOG}"
        )
    if counts[e.REPLAY]:
        return (
            f"{plural(counts[e.REPLAY], 'replay')} of CUDA graphs were seen, in which no hook is called: "
            f"step() of rankwise observe marks such steps ({TWO_LINES})"
        )
    if not counts[e.BACKWARD_IN]:
        return (
            "no backward was seen: nothing trains with torch here, or all of it inside a compiled graph; "
            f"step() of rankwise observe marks steps that hooks cannot see ({TWO_LINES})"
        )
    return (
        "backwards and no step of an optimizer were seen: parameters are updated by hand or inside a compiled "
        f"graph; step() of rankwise observe marks such an update ({TWO_LINES})"
    )


_STATED = "--batch-size N states how many samples a rank's step takes, without which there is no speed"


def remarks_on_steps(
    steps: Sequence[ObservedStep], usual: Set[str], looked: int, *, is_pipeline: bool, read_aside: int
) -> list[str]:
    if not steps:
        return []
    late = steps[len(steps) // 2 :]
    pauses = [step.pause for step in steps if step.pause and step.pause.kind != NO_TIMES]
    kinds = Counter(pause.kind for pause in pauses)
    epochs = [step for step in steps[1:] if step.new_epoch]
    skipped = sum(step.skipped for step in steps)
    on_host = [step for step in late if ABSENT not in (step.loader_ns, step.later_ns) and not step.bound_ns]
    behind_ms = sum(step.fetch_ns - step.loader_ns - step.later_ns for step in on_host) / 1e6
    remarks = []
    for kind, count in kinds.items():
        length = sum(pause.end_ns - pause.begin_ns for pause in pauses if pause.kind == kind) / 1e9
        remarks.append(f"{plural(count, 'pause')} for {kind}, {length:.3f} s in all, in no step")
    remarks += [f"{kind} in more than half of the steps is a part of them" for kind in sorted(usual)]
    if read_aside:
        remarks.append(
            f"another thread reads ({read_aside} batches): a step begins where the update before it "
            f"returned, and its data are the wait for that thread{'' if late[-1].fetches else f'; {_STATED}'}"
        )
    elif not any(step.fetches for step in late):
        remarks.append(f"no DataLoader: a step begins where the update before it returned; {_STATED}")
    elif any(step.samples is None for step in late):
        remarks.append(f"how many samples a batch has is not known; {_STATED}")
    elif unread := sum(not step.fetches for step in late):
        remarks.append(f"{unread} of the last {len(late)} steps read nothing: batches are read ahead, or used again")
    if looked:
        remarks.append(
            f"{plural(looked, 'time')} a batch was fetched and its loader restarted: not trained, not counted"
        )
    if epochs:
        remarks.append(f"{plural(len(epochs), 'step')} after the end of an epoch: data includes a new iterator")
    if skipped:
        remarks.append(f"the gradient scaler skipped {skipped} of {len(steps)} updates")
    for count, times in sorted(Counter(step.backwards for step in late).items()):
        if count > 1 and not is_pipeline:  # which has one for each micro-batch
            remarks.append(f"{count} backwards a step in {times} of the last {len(late)} steps")
    if behind_ms > 0:
        fetched = f"fetches behind the last gradient, {behind_ms / len(on_host):.3f} ms a step"
        remarks.append(f"{fetched}, are a part of the update, not of data")
    return remarks


def lacking_stamps(steps: Sequence[ObservedStep]) -> dict[str, int]:
    """A remark for each reason why steps lack stamps, with the last of these steps."""
    lacking = grouped(
        (f"not known {_unknown(names)}: {reason}", number)
        for number, step in enumerate(steps)
        for reason, names in _by_reason(step).items()
    )
    return {f"{reason}: {len(numbers)} of {len(steps)} steps": numbers[-1] for reason, numbers in lacking.items()}


_MOMENTS = dict(
    zip(STAMPS[1:], ("when the forward began", "when the backward began", "when gradients were complete",
                     "when gradients were reduced"), strict=False)
)  # fmt: skip


def _unknown(names: Sequence[str]) -> str:
    """`when the backward began, when gradients were complete`: what these stamps show."""
    moments = [_MOMENTS[name] for name in names]
    return ", ".join(moments) if len(moments) < len(_MOMENTS) else "what is inside of the step"


def _by_reason(step: ObservedStep) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, reason in step.absent.items():
        names.setdefault(reason, []).append(name)
    return names
