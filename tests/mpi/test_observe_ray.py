"""A script whose ranks are workers of Ray, which do not have the environment of the script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from hpc.model.trace_file import read_trace
from parse.ledger.breakdown import step_breakdown
from parse.term_kinds import CAUSES
from tests.mpi.script_runs import SCRIPTS, by_hand
from tests.waiting import until

pytestmark = [pytest.mark.all, pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")]


@pytest.fixture
def cluster() -> Iterator[dict[str, str]]:
    """The variables by which a script gets to a cluster of two cores that knows nothing of it."""
    env = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    env.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="ray") as folder, Path(folder, "log").open("w+") as log:  # a short path
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus", "2"]
        command += ["--include-dashboard", "false", "--port", "0", "--temp-dir", folder]
        head = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        address = Path(folder) / "ray_current_cluster"
        try:
            until(lambda: address.exists() or head.poll() is not None, "Ray has started", Path(log.name).read_text)
            yield {**{name: env[name] for name in env if name.startswith("RAY_")}, "RAY_ADDRESS": address.read_text()}
        finally:
            head.send_signal(signal.SIGTERM)  # it ends what it has started
            head.wait()


def test_workers_of_ray_are_ranks_and_who_has_its_batch_late_is_seen(tmp_path: Path, cluster: dict[str, str]) -> None:
    script = (str(SCRIPTS / "ray_learners.py"), str(tmp_path / "group"))
    done = by_hand(tmp_path, "--warmup", "10", "--", *script, **cluster)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "traces").glob("*.h5")
    trace = read_trace(path)
    assert trace.stamps.shape == (2, 60, 6)
    arrivals = step_breakdown(trace).arrivals
    assert arrivals is not None
    means = arrivals.parts.mean(axis=0)
    assert CAUSES[int((means[1] - means[0]).argmax())] == "data"
