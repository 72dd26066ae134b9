"""Tries hooks and backends with other releases of torch, each in an environment of its own: make torch-versions.

An environment takes all but torch from the one that runs this. A wheel for CPUs is taken where torch's own index can be
reached; PyPI's for Linux brings CUDA with it, 3 GB to load and 7 GB on disk each. Ends with 1 where a test fails or a
release cannot be had.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

from hpc.observe.remarks import TRIED

CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
TESTS = (
    "tests/unit/test_other_torch.py::test_scripts_go_on_without_functions_of_torch_and_remarks_name_them[missing-all]",
    "tests/unit/test_other_torch.py::test_scripts_go_on_without_functions_of_torch_and_remarks_name_them[other-all]",
    "tests/unit/test_other_torch.py::test_functional_collectives_are_hooked_together_or_not_at_all",
    "tests/mpi/test_observe.py::test_a_ddp_loop_is_seen_and_its_losses_are_bit_equal",
    "tests/mpi/test_observe.py::test_a_gradient_scaler_skips_updates",
    "tests/mpi/test_observe_ddp.py::test_ddp_reduces_in_the_backwards_before_which_it_was_armed",
    "tests/mpi/test_observe_ddp.py::test_a_batch_of_messages_is_waited_for_as_a_whole",
    "tests/mpi/test_contract.py::test_two_ranks_keep_the_contract[torch-ddp-joined:3:fp32]",
)
"""Of each kind of hook one, and of the backends the one that all of these releases have."""
PIPELINE = (
    "tests/mpi/test_observe_groups.py::"
    "test_a_pipeline_sends_forth_and_back_and_its_gradients_are_complete_at_the_last_backward"
)
NO_PIPELINE = ("2.4", "2.6", "2.9")
"""Without any hook, too, their 1F1B hangs over gloo, or aborts (2.9)."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.torch_versions")
    others = [version for version in TRIED if not metadata.version("torch").startswith(f"{version}.")]
    parser.add_argument("versions", nargs="*", default=others, help="such as 2.4, of which the latest is taken")
    versions = parser.parse_args().versions
    results = {version: try_with(version, Path(f".venv-torch-{version}")) for version in versions}
    for version, result in results.items():
        print(f"torch {version}: {result or 'passed'}")
    if news := [version for version in versions if version not in TRIED and not results[version]]:
        print(f"hpc/observe/remarks.py does not name {', '.join(news)}, which passed: add it to TRIED")
    return int(any(results.values()))


def try_with(version: str, folder: Path) -> str:
    """What went wrong; empty: nothing."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder.resolve())}))
    (site / "project.pth").write_text(
        f"{Path.cwd()}\nimport site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    if not any(site.glob(f"torch-{version}.*.dist-info")) and (reason := _install(python, version)):
        return f"NOT TRIED: it cannot be had: {reason}"
    loaded = subprocess.run(
        [str(python), "-c", "import torch; print(torch.__version__)"], text=True, capture_output=True, check=False
    )
    if loaded.returncode or not loaded.stdout.startswith(f"{version}."):
        reason = loaded.stdout.strip() or loaded.stderr.strip().splitlines()[-1]
        return f"NOT TRIED: what was imported is {reason}"
    print(f"== torch {loaded.stdout.strip()}", flush=True)
    tests = TESTS if version in NO_PIPELINE else (*TESTS, PIPELINE)
    done = subprocess.run([str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], check=False)
    return f"FAILED: pytest ended with {done.returncode}" if done.returncode else ""


def _install(python: Path, version: str) -> str:
    """Why pip cannot; empty: it has."""
    words = [
        str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1",
        "--extra-index-url", CPU_WHEELS, f"torch=={version}.*",
    ]  # fmt: skip
    # A machine's constraints may cap torch.
    done = subprocess.run(
        words, env={**os.environ, "PIP_CONSTRAINT": os.devnull}, text=True, stderr=subprocess.PIPE, check=False
    )
    return (done.stderr.strip().splitlines() or ["pip says nothing"])[-1] if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
