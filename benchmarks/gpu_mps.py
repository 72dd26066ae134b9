"""Two processes on one GPU, whose kernels run at once where MPS is there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MPS = "nvidia-cuda-mps-control"


@contextmanager
def side_by_side(folder: Path) -> Iterator[Callable[[], str]]:
    """Runs MPS, by which kernels of two processes run at once; what it gives says why they do not, empty where they do.

    Else the GPU gives them time slices: a kernel of one makes the other's take longer, too.
    """
    folder.mkdir()
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    try:
        daemon = subprocess.Popen([MPS, "-f"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError as error:
        text = f"time slices, without MPS: {error}"
        yield lambda: text
        return

    def reason() -> str:
        done = subprocess.run([MPS], input="get_server_list\n", capture_output=True, text=True, check=False)
        return "" if done.stdout.strip().isdigit() else f"time slices: MPS has no server; {done.stderr.strip()}"

    try:
        yield reason
    finally:
        daemon.terminate()
        daemon.wait()
