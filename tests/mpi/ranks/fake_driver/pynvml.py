"""A FAKE of the module pynvml, imported in place of the real one: a node with two idle GPUs that do not exist."""

from types import SimpleNamespace


class NVMLError(Exception):
    pass


def nvmlInit() -> None:
    pass


def nvmlShutdown() -> None:
    pass


def nvmlSystemGetDriverVersion() -> str:
    return "580.65"


def nvmlDeviceGetCount() -> int:
    return 2


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetUUID(gpu: int) -> str:
    return f"GPU-{gpu}aaaaaaa-0000-0000-0000-000000000000"


def nvmlDeviceGetName(gpu: int) -> str:
    return "NVIDIA H200"


def nvmlDeviceGetMemoryInfo(gpu: int) -> SimpleNamespace:
    return SimpleNamespace(total=140 << 30, used=1 << 29)


def nvmlDeviceGetPciInfo(gpu: int) -> SimpleNamespace:
    return SimpleNamespace(busId=f"00000000:F{gpu}:00.0")


def nvmlDeviceGetComputeRunningProcesses(gpu: int) -> list[SimpleNamespace]:
    return []
