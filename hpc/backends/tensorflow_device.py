"""The device of a rank in TensorFlow: which one, its threads, what it can do, what it is."""

from __future__ import annotations

import ctypes
import uuid
from typing import TYPE_CHECKING, Any

from hpc.backends import InvalidRun
from hpc.backends.facts import CPU_DEVICE, DeviceFacts
from hpc.workloads.tensorflow_base import tf

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

CPU = "/CPU:0"
_AMPERE = (8, 0)


def device_of_rank(run: RunSpec, world: World, comm: Intracomm) -> str:
    """TensorFlow's name of this rank's device, the only one that it sees from now on. Collective."""
    if run.gpus_per_node == 0:
        tf.config.set_visible_devices([], "GPU")
        return CPU
    if run.gpus_per_node != run.ranks_per_node:
        raise InvalidRun(
            f"{run.gpus_per_node} GPUs and {run.ranks_per_node} ranks per node were asked for; "
            f"{run.backend} drives one GPU per rank"
        )
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        reason = "no driver or no visible GPU" if tf.test.is_built_with_cuda() else "it was built without CUDA"
        raise InvalidRun(
            f"{run.gpus_per_node} GPUs per node were asked for; TensorFlow {tf.__version__} finds none on "
            f"{world.hostname} ({reason}). Install a CUDA build (pip install tensorflow[and-cuda]), or state "
            "gpus_per_node = 0 in the site"
        )
    place, needed = (world.rank, world.size) if world.nodes_simulated else (world.local_rank, world.local_size)
    index = 0 if len(gpus) == 1 else place  # one visible GPU: the launcher has bound each rank to its own
    if index >= len(gpus):
        raise InvalidRun(f"{needed} ranks of {world.hostname} need a GPU each; rank {world.rank} sees {len(gpus)}")
    mine = (world.hostname, _uuid(index))
    sharing = [rank for rank, theirs in enumerate(comm.allgather(mine)) if theirs == mine]
    if len(sharing) > 1:
        raise InvalidRun(f"ranks {', '.join(map(str, sharing))} share one GPU of {world.hostname}: bind one to each")
    tf.config.set_visible_devices(gpus[index], "GPU")
    tf.config.experimental.set_memory_growth(gpus[index], True)
    return "/GPU:0"


def set_threads(run: RunSpec) -> None:
    """`cpus_per_rank` threads compute, unless the run itself sets one of the variables for that.

    As many operations may run beside each other, and two at least: where one alone may, a person's tf.py_function that
    calls a tf.function waits for itself for ever.
    """
    computing = int(run.env.get("TF_NUM_INTRAOP_THREADS") or run.env.get("OMP_NUM_THREADS") or run.cpus_per_rank)
    tf.config.threading.set_intra_op_parallelism_threads(computing)
    tf.config.threading.set_inter_op_parallelism_threads(
        int(run.env.get("TF_NUM_INTEROP_THREADS") or max(2, computing))
    )


def check_precision(precision: str, device: str) -> None:
    """Raises InvalidRun where the device lacks the precision: it is never replaced by another one."""
    if device == CPU:
        if precision == "tf32":
            raise InvalidRun("precision tf32 was asked for; it is a mode of NVIDIA GPUs from Ampere on, not of CPUs")
        if precision == "amp-fp16":
            raise InvalidRun(
                "precision amp-fp16 was asked for; a CPU has no fp16 training path worth the name (about 7 times "
                "slower than fp32): take fp32 or bf16"
            )
    elif precision in ("tf32", "bf16") and (details := _details()).get("compute_capability", (0, 0)) < _AMPERE:
        raise InvalidRun(
            f"precision {precision} was asked for; {details.get('device_name', 'the GPU')} is before Ampere"
        )


def versions() -> dict[str, Any]:
    """Versions of the libraries that determine the speed; None for one that this TensorFlow lacks."""
    built = tf.sysconfig.get_build_info()
    return {
        "tensorflow": tf.__version__,
        "keras": tf.keras.__version__,
        "cuda": built.get("cuda_version"),
        "cudnn": built.get("cudnn_version"),
    }


def describe_device(device: str) -> DeviceFacts:
    if device == CPU:
        return CPU_DEVICE
    (visible,) = tf.config.get_visible_devices("GPU")
    details = _details()
    return DeviceFacts(
        kind="gpu",
        name=details.get("device_name"),
        uuid=_uuid(tf.config.list_physical_devices("GPU").index(visible)),
        capability=".".join(map(str, details.get("compute_capability", ()))),
    )


def _details() -> dict[str, Any]:
    (visible,) = tf.config.get_visible_devices("GPU")
    return dict(tf.config.experimental.get_device_details(visible))


def _uuid(index: int) -> str:
    """The id of a GPU by its number, from the driver (CUDA driver API): TensorFlow does not tell it."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, its_bytes = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    for status in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), index),
        driver.cuDeviceGetUuid(its_bytes, device),
    ):
        if status:
            raise InvalidRun(f"the NVIDIA driver does not name GPU {index}: CUDA error {status}")
    return str(uuid.UUID(bytes=bytes(its_bytes)))
