"""Commands that start ranks, where the machine lacks something."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.cluster.local import what_is_missing
from tests.sweeps import with_checkout
from tests.unit.traces import make_run
from tests.waiting import LIMIT_S

if missing := what_is_missing():
    pytest.skip("; ".join(missing), allow_module_level=True)


def test_the_checks_name_the_file_that_they_cannot_write(tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    run.write_text(json.dumps(make_run().to_json()))
    out = tmp_path / "missing" / "report.json"
    argv = [sys.executable, "-m", "hpc.preflight", "--run", str(run), "--out", str(out)]
    done = subprocess.run(
        argv, env=with_checkout(os.environ), capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 1
    assert done.stderr == f"hpc.preflight: {out}: cannot be written ({os.strerror(errno.ENOENT)})\n"
