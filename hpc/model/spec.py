"""The specification of a run, of the machine it is for, and the plan of a sweep."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from hpc.model.typed import TypeMismatchError, read_fields
from hpc.system.regular_file import MAX_INTEGER, MIN_INTEGER
from hpc.system.sanitize import REDACTED, arguments_without_secrets, is_secret

Thing = TypeVar("Thing")

PRECISIONS = ("fp32", "tf32", "bf16", "amp-fp16")
SCALINGS = ("weak", "strong")
TIMINGS = ("phases", "step")
PLACEMENTS = ("separate", "nested")
DATA_CACHES = ("off", "device")
PLAN_VERSION = 2
"""Schema of the plan; the only one that is read."""
MIN_WARMUP_STEPS = 5
"""Clock synchronisation and garbage collection happen this many steps before measured ones (docs: measurement)."""
SAMPLES, TOKENS = "samples", "tokens"
"""What a speed counts per second. A sample of an image workload is an image, that of a language model a token."""
_OF_TOKENS = ("gpt",)
"""The workloads whose samples are tokens; their batch size counts sequences."""
SYNTHETIC, UNKNOWN_DATA = "synthetic", "unknown"
"""The training data: made by a workload of this project, or read by a user's own file."""
COLLECTIVES = "collectives"
"""The workload that is no training but the collectives of a backend by themselves."""
NO_SYNC = "no-sync"
"""The diagnostic run whose gradients are not reduced, as in DDP's `no_sync`."""
SCRIPT = "script"
"""The backend of a person's own training script, which runs unchanged and is observed."""
UNKNOWN = "unknown"
"""The precision of a script, which alone decides it."""
SIMULATED = "simulated"
"""The backend of runs that nobody made: releases up to 0.2 could draw their steps."""
DRAWN = "its steps were drawn by a release up to 0.2, not measured: measure, or forecast from sizes that were"
SCRIPT_STEPS = 100_000
"""The steps of a script that are recorded where it runs to its end."""
FIND_MAX = "find-max"
"""A try whether a value of a setting fits into the memory."""
BATCH_SIZE = "batch-size"
"""The setting that `find-max` seeks by this name; all others are options of the backend or the workload."""
MAX_COUNT, MAX_RANKS, MAX_BLOCKS = 10**9, 1 << 20, 100_000
"""Beyond every machine and every run. A description of a run may come from anywhere, and sizes follow from it."""


class SpecError(ValueError):
    """A request that cannot be run; the text has the request, what there is, and what is valid."""


def is_user_code(workload: str) -> bool:
    """Whether the workload is a person's own file, `path/to/file.py:Factory`."""
    return workload.partition(":")[0].endswith(".py")


def without_folder(workload: str) -> str:
    """The workload as others may read it: of a person's own file the name, without the folders above it."""
    return workload.rpartition("/")[2] if is_user_code(workload) else workload


def check_arguments(arguments: Sequence[str]) -> None:
    """Raises SpecError for arguments that no script can be given, or that must not be written down."""
    if any("\0" in argument for argument in arguments):
        raise SpecError("an argument of the script has a NUL character")
    if secret := secret_arguments(arguments):
        raise SpecError(
            f"{', '.join(secret)} among the script's arguments: that looks like a secret, and a sweep writes arguments "
            "into plans, run files and traces. Let the script read it from a variable that you export where you start "
            "the sweep (jobs inherit it), or from a file that only you can read"
        )


def secret_arguments(arguments: Sequence[str]) -> list[str]:
    """Those of the arguments that look like a secret, as they may be shown."""
    shown = arguments_without_secrets(arguments)
    return [
        f"{shown[at - 1]} {text}" if at and text == REDACTED and shown[at - 1].startswith("-") else text
        for at, (text, argument) in enumerate(zip(shown, arguments, strict=True))
        if text != argument
    ]


EXPORTED = "export it where you start the sweep instead, jobs inherit it, or keep it in a file that only you can read"


def check_settings(name: str, settings: Mapping[str, Sequence[str]], remedy: str = EXPORTED) -> None:
    """Raises SpecError where one of these values of `--env` or `--option` must not be written down."""
    if secret := [key for key, values in settings.items() if any(is_secret(key, value) for value in values)]:
        raise SpecError(
            f"{name}: {', '.join(secret)} looks like a secret, and what is set for runs is written into scripts, plans "
            f"and traces: {remedy}"
        )


@dataclass(frozen=True, kw_only=True)
class RunSetting:
    """What is known of a field of a run beside its name, type and default: the text of documents, errors and checks.

    `zero` is what 0 means where that is no count; without it a number is at least `minimum`. `is_column`: points are
    told apart by it, in tables and by `--where`.
    """

    meaning: str
    choices: tuple[str, ...] = ()
    minimum: int = 1
    maximum: int = MAX_COUNT
    zero: str = ""
    is_column: bool = True

    def check(self, name: str, value: Any) -> None:
        """Raises SpecError for a value that no run can have."""
        if self.choices and value not in self.choices:
            raise SpecError(f"{name} {value!r} is not one of {', '.join(self.choices)}")
        if not isinstance(value, int | float):
            return
        if value < (0 if self.zero else self.minimum):
            least = f"0 ({self.zero}) or more" if self.zero else f"at least {self.minimum}"
            raise SpecError(f"{name} is {value}; it must be {least}")
        if value > self.maximum:
            raise SpecError(f"{name} is {value}; it can be {self.maximum} at most")


def _setting(meaning: str, default: Any = dataclasses.MISSING, **known: Any) -> Any:
    """A field of a run with its RunSetting."""
    metadata = {"setting": RunSetting(meaning=meaning, **known)}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run: every requested setting that can change a speed, and the number of the repeat.

    A setting is a field with its meaning, limits and default; the options of a sweep, the columns of tables, the plan
    and the description in a trace have it by the same name. docs/formats.md lists them.
    """

    # fmt: off
    nodes: int = _setting("nodes of the run")
    ranks_per_node: int = _setting("MPI ranks on each node")
    gpus_per_node: int = _setting("GPUs that it uses on each node", zero="no GPU", is_column=False)
    backend: str = _setting("framework and strategy; `script` is a person's own training script, which runs unchanged")
    workload: str = _setting("what is trained: a name, FILE.py:FACTORY, or the path of the script")
    batch_size: int = _setting(
        "samples of a step: of each device with weak scaling, of all with strong; 0 where a script's are not stated")
    precision: str = _setting(f"one of {', '.join(PRECISIONS)}; `{UNKNOWN}` of a script, which decides it")
    scaling: str = _setting("what the batch size is of", choices=SCALINGS)
    cpus_per_rank: int = _setting("threads of each rank")
    warmup_steps: int = _setting("first steps, which no number counts", minimum=0)
    measured_steps: int = _setting("steps after the warm-up; a script may end before it has made all")
    data: str = _setting(f"`{SYNTHETIC}`, KIND:PATH of files, or `{UNKNOWN_DATA}` of a person's own code", SYNTHETIC)
    data_cache: str = _setting(
        "`device`: one batch of the files is loaded and trained on in every step", "off", choices=DATA_CACHES)
    epochs: int = _setting(
        "of a whole training, at most: after the measured steps, in the first epoch of an attempt, it goes on", 0,
        zero="no whole training")
    target_accuracy: float = _setting(
        "percent of the held-out images that end a whole training once they are recognised", 0.0,
        zero="no target", maximum=100)
    eval_every: int = _setting("epochs from one evaluation of a whole training to the next", 1)
    timing: str = _setting(
        "`phases` stamps six borders of a step, `step` its begin, batch and end, with the fused step in between",
        "phases", choices=TIMINGS)
    block_steps: int = _setting("measured steps of a block, at most", 0, zero="one block")
    reduction: str = _setting("`off` in a no-sync run: the same ranks and work without gradient reduction", "on",
                              choices=("on", "off"))
    telemetry: str = _setting(
        "whether a helper reads clocks, power and counters beside the ranks; `idle` up to release 0.2", "on",
        choices=("on", "off", "idle"))
    placement: str = _setting(
        "`separate`: each node count has its own allocation; `nested`: all are in the largest one's", "separate",
        choices=PLACEMENTS)
    search: str = _setting("the setting whose largest value that fits `find-max` seeks", "")
    seed: int = _setting("of weights, synthetic data and orders", minimum=MIN_INTEGER, maximum=MAX_INTEGER)
    site: str = _setting("name of the cluster")
    container: str = _setting("image of the backend", "")
    code_digest: str = _setting("of a person's own workload file and of its imports from the same folder", "")
    arguments: Sequence[str] = _setting("of the script", ())
    repeat: int = _setting("number of the run of its point, from 1", is_column=False)
    tokens_per_sample: int = _setting(
        "of a script whose samples are counted in tokens", 0, zero="its samples are no tokens", is_column=False)
    options: Mapping[str, str] = _setting("of backend and workload, by `--option`", {}, is_column=False)
    env: Mapping[str, str] = _setting("environment variables set for the run", {}, is_column=False)
    job_options: Mapping[str, str] = _setting(
        "further options of job and launcher that can change a speed", {}, is_column=False)
    by_nodes: Sequence[str] = _setting(
        "names of both, as `env.NAME`, that the site sets by number of nodes", (), is_column=False)
    # fmt: on

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", tuple(self.arguments))
        object.__setattr__(self, "by_nodes", tuple(self.by_nodes))
        if self.data == SYNTHETIC and is_user_code(self.workload):
            object.__setattr__(self, "data", UNKNOWN_DATA)
        object.__setattr__(self, "target_accuracy", float(self.target_accuracy))
        for name, setting in RUN_SETTINGS.items():
            if not (name == "batch_size" and self.is_script and self.batch_size == 0):
                setting.check(name, getattr(self, name))
        if self.warmup_steps < MIN_WARMUP_STEPS:
            raise SpecError(
                f"warm-up is {self.warmup_steps} steps; it must be at least {MIN_WARMUP_STEPS}, because the clocks are "
                f"synchronised {MIN_WARMUP_STEPS} steps before the measured ones"
            )
        precisions = (UNKNOWN,) if self.is_script else PRECISIONS
        if self.precision not in precisions:
            raise SpecError(f"precision {self.precision!r} is not one of {', '.join(precisions)}")
        if self.scaling == "strong" and self.batch_size % self.devices:
            raise SpecError(
                f"strong scaling: the global batch of {self.batch_size} samples does not divide by the "
                f"{self.devices} devices of {self.case}"
            )
        self._require_bounds()

    def _require_bounds(self) -> None:
        """Raises SpecError for what no machine has and no search sought."""
        if max(self.ranks, self.devices) > MAX_RANKS or self._block_count > MAX_BLOCKS:
            raise SpecError(
                f"{self.ranks} ranks, {self.devices} devices, {self._block_count} blocks of steps: there can be "
                f"{MAX_RANKS}, {MAX_RANKS} and {MAX_BLOCKS} at most"
            )
        if self.search not in ("", BATCH_SIZE):
            sought = self.options.get(self.search, "")
            if not sought.isdecimal() or len(sought) > len(str(MAX_INTEGER)):
                raise SpecError(
                    f"search is {self.search!r}; it must be {BATCH_SIZE} or an option of the run that is a whole number"
                )

    @property
    def is_script(self) -> bool:
        """Whether the run is a person's own training script, unchanged."""
        return self.backend == SCRIPT

    @property
    def ranks(self) -> int:
        """The number of MPI processes."""
        return self.nodes * self.ranks_per_node

    @property
    def devices_per_node(self) -> int:
        """GPUs, or CPU ranks, that share the work on a node; more than its ranks where one rank drives several."""
        return max(self.ranks_per_node, self.gpus_per_node)

    @property
    def devices(self) -> int:
        """The number of GPUs, or CPU ranks, that share the work."""
        return self.nodes * self.devices_per_node

    @property
    def blocks(self) -> list[list[int]]:
        """The measured blocks, [first step, one past the last], as equal as possible.

        MIN_WARMUP_STEPS unmeasured steps precede each; the clocks are synchronised before these.
        """
        count = self._block_count
        blocks, stop = [], self.warmup_steps - MIN_WARMUP_STEPS
        for block in range(count):
            first = stop + MIN_WARMUP_STEPS
            stop = first + self.measured_steps // count + (block < self.measured_steps % count)
            blocks.append([first, stop])
        return blocks

    @property
    def steps(self) -> int:
        """All steps of the run: warm-up, measured, and those through which blocks are entered."""
        return self.warmup_steps + self.measured_steps + MIN_WARMUP_STEPS * (self._block_count - 1)

    @property
    def _block_count(self) -> int:
        return -(-self.measured_steps // (self.block_steps or self.measured_steps))

    @property
    def diagnostic(self) -> str:
        """The kind of a run that is no point: `no-sync` (gradients are not reduced), `collectives`, or `find-max` (a
        try whether a value fits); empty for a training."""
        return diagnostic_of(self)

    @property
    def local_batch_size(self) -> int:
        """Samples per device and step."""
        return self.batch_size // self.devices if self.scaling == "strong" else self.batch_size

    @property
    def rank_batch_size(self) -> int:
        """Samples per rank and step: those of all devices that it drives, one but for torch-dp."""
        return self.local_batch_size * self.devices // self.ranks

    @property
    def global_batch_size(self) -> int:
        """Samples per step over all devices."""
        return self.local_batch_size * self.devices

    @property
    def unit(self) -> str:
        """What it counts as samples: `samples` or `tokens`."""
        return TOKENS if self.workload in _OF_TOKENS or self.tokens_per_sample else SAMPLES

    @property
    def case(self) -> str:
        """Nodes and devices per node in the field's shorthand: `2n8g`."""
        return f"{self.nodes}n{self.devices_per_node}g"

    @cached_property
    def point_id(self) -> str:
        """Readable name plus digest of all settings except the repeat; safe as a file name."""
        # Ids stay from version to version: a field that is added later is left out while it holds its default.
        settings = {
            name: value for name, value in self._values().items() if name != "repeat" and value != _DEFAULTS[name]
        }
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
        sizes = () if self.is_script else (f"b{self.batch_size}", self.precision)
        parts = (self.case, self.backend, self.workload, *sizes, digest)
        return "_".join(_slug(part) for part in parts)

    @cached_property
    def run_id(self) -> str:
        """The point and the repeat: `2n8g_torch-ddp_resnet50_b128_fp32_0a1b2c3d4e_r1`."""
        return f"{self.point_id}_r{self.repeat}"

    def baseline(self, **of_site: Any) -> RunSpec:
        """The same run on one rank of one node: what speedup is measured against where it is there. `of_site` are the
        fields that the site gives to it; without them it lacks what depends on the number of nodes."""
        size = {"nodes": 1, "ranks_per_node": 1, "gpus_per_node": min(1, self.gpus_per_node)}
        return dataclasses.replace(self, **{**without_by_nodes(self), **size, **of_site})

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the ids that they make."""
        return {"run_id": self.run_id, "point_id": self.point_id, **self._values()}

    def repeated(self, repeat: int) -> RunSpec:
        """The same point at another repeat, without repeated checks: plans have many of these."""
        run = copy.copy(self)
        object.__setattr__(run, "repeat", repeat)
        vars(run)["point_id"] = self.point_id
        vars(run).pop("run_id", None)
        return run

    def _values(self) -> dict[str, Any]:
        """Every field by its name; much faster than dataclasses.asdict, which copies each value deeply."""
        values = {name: getattr(self, name) for name in _DEFAULTS}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunSpec:
        """The run that `to_json` wrote. Raises SpecError where a field is missing or the ids do not fit the fields."""
        ids = ("run_id", "point_id")
        try:
            spec = cls(
                **read_fields(
                    cls, {name: each for name, each in values.items() if name not in ids}, "the description of a run"
                )
            )
        except TypeMismatchError as error:
            raise SpecError(str(error)) from None
        if values.get("run_id", spec.run_id) != spec.run_id:
            raise SpecError(
                f"the run calls itself {values['run_id']} but its settings make {spec.run_id}: "
                "it was changed by hand; change the sweep instead and plan again"
            )
        return spec


def without_by_nodes(run: Any) -> dict[str, Any]:
    """The fields of a run, or of anything that has its fields, without what the site sets by the number of nodes."""
    names = run.by_nodes
    if not names:
        return {}
    env = {name: value for name, value in run.env.items() if f"env.{name}" not in names}
    return {"env": env, "job_options": {name: v for name, v in run.job_options.items() if name not in names}}


def diagnostic_of(run: Any) -> str:
    """As RunSpec.diagnostic, of anything that has the fields of a run."""
    if run.workload == COLLECTIVES:
        return COLLECTIVES
    return NO_SYNC if run.reduction == "off" else FIND_MAX if run.search else ""


_DEFAULTS: Mapping[str, Any] = {
    field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    for field in dataclasses.fields(RunSpec)
}
"""Every field of a run with its default, MISSING where it has none."""
RUN_SETTINGS: Mapping[str, RunSetting] = {each.name: each.metadata["setting"] for each in dataclasses.fields(RunSpec)}
"""What is known of every field of a run, by its name."""
USUAL = {name: value for name, value in _DEFAULTS.items() if isinstance(value, str) and RUN_SETTINGS[name].choices}
"""Settings that are named only where a point departs from these values."""
USUAL_NUMBERS = {name: value for name, value in _DEFAULTS.items() if isinstance(value, int | float)}
"""Numbers that no column has where a point has these values: what they are of was not requested."""
_BEFORE = {"nodes": ("case",), "backend": ("devices", "unit"), "cpus_per_rank": ("on",)}
"""Columns that follow from other fields, by the field that they stand before."""
SETTINGS = tuple(
    column for name, each in RUN_SETTINGS.items() if each.is_column for column in (*_BEFORE.get(name, ()), name)
)
"""The settings of a point, by the names of columns and `--where`, in their order."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The machine that the runs are for, as far as sizes depend on it. Never the login node.

    `containers` names the image of each backend that has one, `code_digests` the digest of each workload that is a
    user's own file, `env` and `job_options` what the site gives to every run, `by_nodes` the same for those numbers of
    nodes that get others, `varying` the names in which they differ (RunSpec.by_nodes), `reduced` the parts of the
    machine that runs cannot use.
    """

    site: str
    gpus_per_node: int
    cpus_per_node: int | None = None
    nodes_simulated: bool = False
    containers: Mapping[str, str] = field(default_factory=dict)
    code_digests: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    job_options: Mapping[str, str] = field(default_factory=dict)
    by_nodes: Mapping[int, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    varying: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()

    def of_site(self, nodes: int, env: Mapping[str, str]) -> dict[str, Any]:
        """The fields of a run on so many nodes that the site gives to it, with the variables `env` over its own."""
        fields = self.by_nodes.get(nodes, {"env": self.env, "job_options": self.job_options})
        names = tuple(name for name in self.varying if name.removeprefix("env.") not in env)
        return {"env": {**fields["env"], **env}, "job_options": fields["job_options"], "by_nodes": names}


_OF_TARGET = (
    "site", "gpus_per_node", "cpus_per_node", "nodes_simulated", "containers", "code_digests", "env", "job_options",
    "by_nodes",
)  # fmt: skip
"""The target as a plan records it."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep decided for its target: the runs in order, and the sizes made small because no GPU is there. `code` is
    the version and the digest of the code that planned it, `command` the command line: no part of any id."""

    target: Target
    runs: tuple[RunSpec, ...]
    reduced: tuple[str, ...] = ()
    code: str = ""
    command: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sweep_id(self) -> str:
        """Digest of the requested runs, independent of their order."""
        ids = "\n".join(sorted(run.run_id for run in self.runs))
        return hashlib.sha256(ids.encode()).hexdigest()[:10]

    def to_json(self) -> dict[str, Any]:
        """The content of `traces/plan.<sweep id>.json`."""
        return {
            "schema": "rankwise-plan",
            "schema_version": PLAN_VERSION,
            "sweep_id": self.sweep_id,
            "target": {name: value for name, value in dataclasses.asdict(self.target).items() if name in _OF_TARGET},
            "reduced": list(self.reduced),
            "code": self.code,
            "command": dict(self.command),
            "runs": [run.to_json() for run in self.runs],
        }


def shuffled(things: Iterable[Thing], seed: int, name: str) -> list[Thing]:
    """The things in an order that comes from the seed and the name, the same everywhere and for ever; each thing's
    text must be its own."""
    return sorted(things, key=lambda thing: hashlib.sha256(f"{seed} {name} {thing}".encode()).digest())


def _slug(text: str) -> str:
    """The text, or the last part of a path, with only characters that are safe in file names."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text.rsplit("/", 1)[-1]).strip("-.")[:40] or "x"


# Which steps of a script are measured: those behind the warm-up, in blocks that no pause interrupts.


def script_blocks(warmup_steps: int, steps: int, paused: Iterable[int]) -> list[list[int]]:
    """The measured blocks, [first step, one past the last], of the first `steps` steps.

    `paused` are the steps before which the script did something else on any rank. As between the blocks of any run,
    MIN_WARMUP_STEPS unmeasured steps follow such a pause.
    """
    blocks, first = [], warmup_steps
    for border in [*sorted({step for step in paused if step < steps}), steps]:
        if border > first:
            blocks.append([first, border])
        if border < steps:
            first = max(first, border + MIN_WARMUP_STEPS)
    return blocks


def without_last(blocks: Iterable[Sequence[int]], steps: Collection[int]) -> list[list[int]]:
    """The blocks without those of their last steps that are in `steps`."""
    shorter = [[first, stop - (stop - 1 in steps)] for first, stop in blocks]
    return [[first, stop] for first, stop in shorter if stop > first]
