"""The table of workloads, each with a factory per framework that it is written for."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from hpc.model.collective_plan import OPTIONS as COLLECTIVE_OPTIONS
from hpc.model.options import (
    DALI,
    IMAGE_FOLDER,
    TFRECORD,
    Option,
    OptionValue,
    data_source,
    read_options,
)
from hpc.model.options import OPTIONS as DATA_OPTIONS
from hpc.model.spec import COLLECTIVES, RunSpec, is_user_code
from hpc.workloads import schedule
from hpc.workloads.delays import parse_delays
from hpc.workloads.user_code import code_digest

__all__ = ["CHANNELS_LAST", "WORKLOADS", "WorkloadEntry", "code_digest", "is_user_code", "load_factory", "table_flops"]

_USER_MODULE = "rankwise_user_workload"
CHANNELS_LAST = {"channels_last": Option(default=True, help="NHWC memory format for 4-D tensors")}
"""An option of the torch backends that the images of `resnet50` follow."""


@dataclass(frozen=True, kw_only=True)
class WorkloadEntry:
    """`factories` maps frameworks to "module:Class"; `steps` are those of a run, warm-up included, and of the warm-up,
    where its reference has others than the reference protocol, `batch_size` is that of a device without a request.
    `reads` has, by framework, the kinds of files that it trains on besides synthetic samples, `max_classes` how many
    classes these may have; `file_options` are those that only runs on files have. `flops` is the "module:function"
    of the FLOPs of a run's training sample by the table of its layers, empty where there is none."""

    factories: Mapping[str, str]
    options: Mapping[str, Option] = field(default_factory=dict)
    steps: tuple[int, int] | None = None
    batch_size: int = 128
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_classes: int = 0
    file_options: Mapping[str, Option] = field(default_factory=dict)
    flops: str = ""

    def frameworks_reading(self, kind: str) -> list[str]:
        """The frameworks in which the workload trains on files of this kind."""
        return [framework for framework, kinds in self.reads.items() if kind in kinds]


_READ_IMAGES = {
    "torch": (IMAGE_FOLDER, DALI),
    "tensorflow": (IMAGE_FOLDER, TFRECORD),
    "paddle": (IMAGE_FOLDER,),
}

WORKLOADS: Mapping[str, WorkloadEntry] = {
    "resnet50": WorkloadEntry(
        factories={
            "torch": "hpc.workloads.torch_models:TorchResNet50",
            "tensorflow": "hpc.workloads.tensorflow_models:TensorFlowResNet50",
            "paddle": "hpc.workloads.paddle_models:PaddleResNet50",
        },
        options={
            "image_size": Option(
                default=224, minimum=1, maximum=65_536, help="height and width of the images in pixels", small="64"
            ),
            "recipe": Option(default="ngc", choices=("ngc", "pytorch-examples"), help="training recipe (reference)"),
        },
        file_options={
            **schedule.OPTIONS,
        },
        reads=_READ_IMAGES,
        max_classes=1000,
        flops="hpc.workloads.resnet50:flops_per_sample",
    ),
    "arcface": WorkloadEntry(
        factories={
            "torch": "hpc.workloads.torch_arcface:TorchArcFace",
            "paddle": "hpc.workloads.paddle_arcface:PaddleArcFace",
        },
        options={
            "classes": Option(default=85_742, minimum=1, help="number of classes", small="1000"),
            "margin": Option(default="arcface", choices=("arcface", "cosface"), help="margin of the loss"),
            "head": Option(
                default="sharded",
                choices=("sharded", "replicated"),
                help="sharded: each rank holds its share of the classes; replicated: all, averaged as other gradients",
            ),
            "sample_ratio": Option(
                default=1.0, minimum=1e-6, maximum=1, help="share of the classes that a step trains (partial FC)"
            ),
            "image_size": Option(
                default=112, minimum=1, maximum=65_536, help="height and width of the images in pixels", small="32"
            ),
            "dropout": Option(default=0.4, maximum=0.99, help="dropout before the embedding"),
        },
        steps=(150, 50),
        flops="hpc.workloads.arcface:flops_per_sample",
    ),
    "mlp": WorkloadEntry(
        factories={
            "torch": "hpc.workloads.torch_models:TorchMLP",
            "tensorflow": "hpc.workloads.tensorflow_models:TensorFlowMLP",
            "paddle": "hpc.workloads.paddle_models:PaddleMLP",
        },
        options={
            "width": Option(default=256, minimum=1, help="features of each hidden layer"),
            "depth": Option(default=2, maximum=100_000, help="number of hidden layers"),
        },
        file_options={
            "image_size": Option(
                default=8, minimum=1, maximum=65_536, help="height and width of the images from files in pixels"
            ),
            **schedule.OPTIONS,
        },
        reads=_READ_IMAGES,
        max_classes=10,
        flops="hpc.workloads.mlp:flops_per_sample",
    ),
    "gpt": WorkloadEntry(
        factories={"torch": "hpc.workloads.torch_gpt:TorchGPT"},
        options={
            "size": Option(
                default="125m", choices=("tiny", "125m", "1b", "8b"), help="parameters of the decoder", small="tiny"
            ),
            "sequence_length": Option(default=2048, minimum=1, maximum=2**20, help="tokens of a sequence", small="64"),
            "activation_checkpointing": Option(
                default=False, help="keep each layer's input only, and compute the rest again in backward"
            ),
        },
        batch_size=8,
    ),
    "delay": WorkloadEntry(
        factories={"numpy": "hpc.workloads.delay:DelayWorkload", "torch": "hpc.workloads.torch_delay:TorchDelay"},
        options={
            "data_ms": Option(
                default="0", help="sleep before the batch is ready: MS, or MS@rank=R;scatter=D;…", check=parse_delays
            ),
            "compute_ms": Option(default="10", help="sleep in forward and backward", check=parse_delays),
            "transfer_ms": Option(default="0", help="sleep in the reduction of every rank", check=parse_delays),
            "update_ms": Option(default="0", help="sleep in the optimizer", check=parse_delays),
        },
    ),
    COLLECTIVES: WorkloadEntry(
        factories=dict.fromkeys(("numpy", "torch", "tensorflow", "paddle"), "hpc.workloads.collectives:Collectives"),
        options=COLLECTIVE_OPTIONS,
    ),
}


TRAINED = ("resnet50", "mlp")
"""Workloads that can be trained to a target."""
OF_TRAININGS = (*schedule.OPTIONS,)
"""Options of whole trainings alone."""


def reference_steps(workload: str) -> tuple[int, int] | None:
    """Steps of a run and of its warm-up in the workload's reference; None where the reference protocol is its own."""
    return WORKLOADS[workload].steps if workload in WORKLOADS else None


def reference_batch_size(workload: str) -> int:
    """Samples per device of a run whose request names no batch size; a person's own file has the usual number."""
    return WORKLOADS[workload].batch_size if workload in WORKLOADS else WorkloadEntry.batch_size


def workload_options(run: RunSpec) -> dict[str, OptionValue]:
    """The options of the run's workload; a person's own file has none."""
    if is_user_code(run.workload):
        return {}
    entry = WORKLOADS[run.workload]
    return options_in({**entry.options, **(entry.file_options if data_source(run.data) else {})}, run)


def options_of_files(workload: str, data: str) -> Mapping[str, Option]:
    """The options that files bring, for a workload that reads them; none for other data. Raises as `data_source`."""
    source = data_source(data)
    if source is None:
        return {}
    return {**DATA_OPTIONS, **(WORKLOADS[workload].file_options if workload in WORKLOADS else {})}


def options_in(table: Mapping[str, Option], run: RunSpec) -> dict[str, OptionValue]:
    """The options of a table, requested by the run or default; other options of the run are left out."""
    return read_options(table, {name: text for name, text in run.options.items() if name in table})


def load_factory(workload: str, framework: str) -> Any:
    """The factory of a workload for a framework; for a person's own file, the attribute after the colon."""
    if is_user_code(workload):
        path, _, attribute = workload.partition(":")
        module_spec = importlib.util.spec_from_file_location(_USER_MODULE, Path(path))
        if module_spec is None or module_spec.loader is None:
            raise ImportError(f"{path} cannot be loaded as a Python module")
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[_USER_MODULE] = module  # where dataclasses and pickles of its classes look for it
        module_spec.loader.exec_module(module)
        return getattr(module, attribute)
    return _attribute(WORKLOADS[workload].factories[framework])


def table_flops(run: RunSpec) -> int | None:
    """The FLOPs of a training sample by the table of the workload's layers; None where there is none."""
    entry = WORKLOADS.get(run.workload)
    flops: int | None = _attribute(entry.flops)(run) if entry is not None and entry.flops else None
    return flops


def _attribute(place: str) -> Any:
    """What `module:attribute` names."""
    where, _, attribute = place.partition(":")
    return getattr(import_module(where), attribute)
