"""Reads the operations of pipeline-parallel training from Parquet: a row per operation, as ByteDance publishes them.

Columns, of github.com/ByteDance-Seed/StragglerAnalysis: `dp_rank`, `stage`, `rank` (global), `step`, `optype` (a Kind),
`start_ts` and `duration` in s, `seq_id` (the number of the operation in its kind, worker and step) and `mc` (the chunk
of the model on a stage; -1 where an operation has none). Others are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpc.system.import_guard import install_command
from hpc.system.regular_file import open_regular

if TYPE_CHECKING:
    import pyarrow as pa


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class PipelineTraceError(Exception):
    """A file is no trace of pipeline operations, or of a schedule that cannot be replayed; the text says why."""


class Kind(StrEnum):
    """The kinds of operations, by their names in the file."""

    FORWARD = "forward-compute"
    BACKWARD = "backward-compute"
    FORWARD_SEND = "forward-send"
    FORWARD_RECV = "forward-recv"
    BACKWARD_SEND = "backward-send"
    BACKWARD_RECV = "backward-recv"
    PARAMS_GATHER = "params-all-gather"
    GC = "gc"
    LAYERNORM_REDUCE = "layernorm-grads-all-reduce"
    EMBEDDING_REDUCE = "embedding-grads-all-reduce"
    GRADS_SCATTER = "grads-reduce-scatter"
    CLIP = "optimizer-clip-main-grad"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class Operation:
    """What every data-parallel rank does in every step: the `number`-th operation of a kind on a pipeline stage."""

    stage: int
    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number} of stage {self.stage}"


@dataclass(frozen=True, kw_only=True, eq=False)
class PipelineTrace:
    """Every operation of some steps. A worker is a stage of a data-parallel rank."""

    operations: tuple[Operation, ...]
    """Ordered by stage, kind and number."""
    steps: tuple[int, ...]
    dp_ranks: tuple[int, ...]
    ranks: Ints
    """The global rank of a worker [data-parallel rank, stage]."""
    start_s: Floats
    """Seconds [operation, step, data-parallel rank], on one clock within a step."""
    duration_s: Floats
    """Seconds, as `start_s`."""

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return len(self.ranks[0])


class GroupedBy(StrEnum):
    """What the operations of a group have in common."""

    WORKER = "worker"
    STAGE = "stage"
    DP_RANK = "data-parallel rank"
    KIND = "kind"


@dataclass(frozen=True, kw_only=True)
class OperationGroup:
    """The operations of a worker, a stage, a data-parallel rank, or of kinds. What is None is not restricted."""

    by: GroupedBy
    dp_rank: int | None = None
    stage: int | None = None
    rank: int | None = None
    kinds: tuple[Kind, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class GroupCost:
    """The mean step time with a group's operations changed, in seconds."""

    group: OperationGroup
    without_s: float
    """Replayed with the group's operations alone at their mean or median."""
    alone_s: float
    """Replayed with all operations at their mean or median but the group's."""
    pays_s: float
    """The replayed step less `without_s`."""
    share: float | None
    """`pays_s` over what all stragglers cost; None where these cost nothing to speak of."""


@dataclass(frozen=True)
class StepTime:
    """One step, in seconds."""

    step: int
    recorded_s: float
    replayed_s: float


@dataclass(frozen=True, kw_only=True)
class PipelineResult:
    """What a trace says about stragglers; times are means over steps, in seconds."""

    operations: int
    """Of all workers and steps."""
    stages: int
    dp_ranks: int
    steps: tuple[StepTime, ...]
    recorded_s: float
    """From the first start to the last end."""
    replayed_s: float
    """The recorded operations without the gaps between them."""
    ideal_s: float
    """Without stragglers: every operation at the mean or median of its kind."""
    loss_s: float
    """`replayed_s` less `ideal_s`: what stragglers cost."""
    loss_margin_s: float | None
    """Half of the 95 % interval of `loss_s`, over steps; None for one step."""
    has_stragglers: bool
    """Whether the loss is 1 % of a step or more, and larger than its margin."""
    costs: tuple[GroupCost, ...]
    """The group that pays most first, of all groupings."""
    omitted: tuple[tuple[GroupedBy, int], ...]
    """The number of groups that were not replayed, where there are many."""


WHOLE = ("dp_rank", "stage", "rank", "step", "seq_id", "mc")
"""Columns of whole numbers."""
TIMES = ("start_ts", "duration")
KIND = "optype"
MAX_OPERATIONS = 10_000_000
"""More are refused: each takes about 250 bytes of memory."""
MAX_OF_A_STEP = 250_000
"""More operations of a step of a data-parallel rank are refused; each is a step of Python in every replay."""
MAX_SECONDS = 1e10
BATCH_ROWS = 1 << 16
NO_PYARROW = f"pyarrow, which reads Parquet, is not installed here: {install_command('parquet')}"

Columns = dict[str, npt.NDArray[Any]]


def read_pipeline_trace(path: Path) -> PipelineTrace:
    """The operations in a file, the same ones for every step and data-parallel rank.

    Raises PipelineTraceError where the file is no such trace or pyarrow is missing, OSError where it cannot be read.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise PipelineTraceError(NO_PYARROW) from None
    with open_regular(path) as file:
        try:
            with parquet.ParquetFile(file) as source:
                _check_columns(source.schema_arrow)
                _check_rows(source.metadata.num_rows)
                parts, rows = [], 0
                for batch in source.iter_batches(BATCH_ROWS, columns=[*WHOLE, *TIMES, KIND]):
                    batch.validate(full=True)
                    parts.append(_columns(batch))
                    rows += batch.num_rows
                    _check_rows(rows)  # whatever the file says of itself
                _check_rows(rows)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise PipelineTraceError(f"it cannot be read as Parquet ({reason})") from None
    return _trace({name: np.concatenate([part.pop(name) for part in parts]) for name in [*parts[0]]})


def _check_rows(rows: int) -> None:
    """Raises PipelineTraceError where there are none, or too many."""
    if not rows:
        raise PipelineTraceError("it holds no operation")
    if rows > MAX_OPERATIONS:
        raise PipelineTraceError(f"it holds {rows} operations; {MAX_OPERATIONS} are read at most")


def _check_columns(schema: pa.Schema) -> None:
    """Raises PipelineTraceError unless the columns are there, of the right types."""
    from pyarrow import types

    missing = [name for name in (*WHOLE, *TIMES, KIND) if name not in schema.names]
    if missing:
        raise PipelineTraceError(f"it is no trace of pipeline operations: columns are missing: {', '.join(missing)}")
    for name in (*WHOLE, *TIMES, KIND):
        if schema.names.count(name) > 1:
            raise PipelineTraceError(f"it has several columns {name}")
        field = schema.field(name).type
        if name == KIND:
            texts = field.value_type if types.is_dictionary(field) else field
            suits = types.is_string(texts) or types.is_large_string(texts)
        else:
            suits = types.is_integer(field) if name in WHOLE else types.is_floating(field)
        if not suits:
            wanted = "texts" if name == KIND else "whole numbers" if name in WHOLE else "floating-point numbers"
            raise PipelineTraceError(f"column {name} holds {field}, not {wanted}")


def _columns(batch: pa.RecordBatch) -> Columns:
    """The columns of some rows as arrays of int64 and float64; kinds as their place in Kind."""
    import pyarrow as pa

    for name in (*WHOLE, *TIMES, KIND):
        if batch.column(name).null_count:
            raise PipelineTraceError(f"column {name} has empty values")
    whole = {name: batch.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False) for name in WHOLE}
    times = {name: batch.column(name).cast(pa.float64()).to_numpy(zero_copy_only=False) for name in TIMES}
    kinds = batch.column(KIND)
    if not pa.types.is_dictionary(kinds.type):
        kinds = kinds.dictionary_encode()
    return {**whole, **times, KIND: _kind_places(kinds.dictionary.to_pylist(), kinds.indices.to_numpy())}


def _kind_places(names: list[str], rows: Ints) -> Ints:
    """The place in Kind of each row, which has a place in `names`; these may hold some that no row has."""
    known = {kind.value: place for place, kind in enumerate(Kind)}
    for place in np.unique(rows).tolist():
        if names[place] not in known:
            raise PipelineTraceError(
                f"operations of kind {str(names[place])[:80]} are not known, but {', '.join(known)}"
            )
    return np.array([known.get(name, -1) for name in names], np.int64)[rows]


def _trace(columns: Columns) -> PipelineTrace:
    """The trace in columns [row]. Raises PipelineTraceError where they hold no complete one."""
    _check_values(columns)
    steps, step = np.unique(columns["step"], return_inverse=True)
    dp_ranks, dp_rank = np.unique(columns["dp_rank"], return_inverse=True)
    numbers, number = np.unique(columns["seq_id"], return_inverse=True)
    stage = columns["stage"]
    stages = int(stage.max()) + 1
    if len(np.unique(stage)) < stages:
        raise PipelineTraceError(f"it has operations of {len(np.unique(stage))} stages, numbered up to {stages - 1}")
    keys, operation = np.unique((stage * len(Kind) + columns[KIND]) * len(numbers) + number, return_inverse=True)
    if len(keys) > MAX_OF_A_STEP:
        raise PipelineTraceError(f"a step has {len(keys)} operations; {MAX_OF_A_STEP} are read at most")
    kinds = list(Kind)
    operations = tuple(
        Operation(key // len(numbers) // len(kinds), kinds[key // len(numbers) % len(kinds)], number)
        for key, number in zip(keys.tolist(), numbers[keys % len(numbers)].tolist(), strict=True)
    )
    cells = len(steps) * len(dp_ranks)
    places = operation * cells + step * len(dp_ranks) + dp_rank
    order = np.argsort(places)
    if (problem := _incomplete(places[order], len(operations) * cells)) is not None:
        place, count = problem
        at, rank = divmod(place % cells, len(dp_ranks))
        raise PipelineTraceError(
            f"{operations[place // cells]} is there {count} times in step {steps[at]} of data-parallel rank "
            f"{dp_ranks[rank]}: every step of every data-parallel rank must have the same operations"
        )
    shape = (len(operations), len(steps), len(dp_ranks))
    start_s, duration_s = (columns[name][order].reshape(shape) for name in TIMES)
    return PipelineTrace(
        operations=operations, steps=tuple(steps.tolist()), dp_ranks=tuple(dp_ranks.tolist()),
        ranks=_ranks(columns["rank"], dp_rank, stage, (len(dp_ranks), stages)), start_s=start_s, duration_s=duration_s,
    )  # fmt: skip


def _incomplete(places: Ints, total: int) -> tuple[int, int] | None:
    """The first of the places 0 to `total` that is not once in `places`, which ascend, and how often it is."""
    repeated = np.flatnonzero(places[1:] == places[:-1])
    if len(repeated):
        place = places[repeated[0]]
        return int(place), int((places == place).sum())
    if len(places) == total:
        return None
    absent = np.flatnonzero(places != np.arange(len(places)))
    return int(absent[0]) if len(absent) else len(places), 0


def _ranks(rank: Ints, dp_rank: Ints, stage: Ints, shape: tuple[int, int]) -> Ints:
    """The global rank of each worker [data-parallel rank, stage]."""
    ranks = np.empty(shape, np.int64)
    ranks[dp_rank, stage] = rank
    if (ranks[dp_rank, stage] != rank).any():
        raise PipelineTraceError("a stage of a data-parallel rank has operations of several ranks")
    return ranks


def _check_values(columns: Columns) -> None:
    """Raises PipelineTraceError for values that no trace has."""
    for name in ("dp_rank", "stage", "seq_id"):
        if (least := int(columns[name].min())) < 0:
            raise PipelineTraceError(f"column {name} has {least}")
    if int(columns["mc"].max()) > 0:
        raise PipelineTraceError("its stages have several chunks of the model (an interleaved schedule): not supported")
    for name in TIMES:
        if not (np.abs(columns[name]) < MAX_SECONDS).all():  # false for NaN, too
            raise PipelineTraceError(f"column {name} has values that are no seconds (NaN, infinite, or above 1e10)")
    if (columns["duration"] < 0).any():
        raise PipelineTraceError("column duration has negative values")
    if not columns["duration"].any():
        raise PipelineTraceError("no operation takes any time")
