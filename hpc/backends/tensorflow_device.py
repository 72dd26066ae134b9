"""The device of a rank in TensorFlow: its choice, threads, abilities and facts."""

from __future__ import annotations

import ctypes
import uuid
from typing import TYPE_CHECKING, Any

from hpc.backends import InvalidRun
from hpc.backends import device as checks
from hpc.backends.facts import CPU_DEVICE, DeviceFacts
from hpc.workloads.tensorflow_base import tf

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

CPU = "/CPU:0"


def device_of_rank(run: RunSpec, world: World, comm: Intracomm) -> str:
    """TensorFlow's name of this rank's device, the only one that it sees from now on. Collective."""
    if run.gpus_per_node == 0:
        tf.config.set_visible_devices([], "GPU")
        return CPU
    checks.check_one_gpu_per_rank(run)
    gpus = tf.config.list_physical_devices("GPU")
    name, build = f"TensorFlow {tf.__version__}", "a CUDA build (pip install tensorflow[and-cuda])"
    checks.check_sees_gpus(len(gpus), run, world, name, tf.test.is_built_with_cuda(), build)
    index = checks.index_of_rank(world, len(gpus))
    checks.check_not_shared(world, comm, _uuid(index))
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
        checks.check_cpu_precision(precision, fp16_slowdown=7)
    else:
        details = _details()
        checks.check_gpu_precision(
            precision, details.get("device_name", "the GPU"), details.get("compute_capability", (0, 0))
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
    """The UUID of a GPU by its number, from the CUDA driver API: TensorFlow does not expose it."""
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
