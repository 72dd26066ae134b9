"""Commands as a user without rights: whom folders are closed to, also where the tests are run by root."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweeps import with_checkout

WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Root without these is a user like any other to the folders that it owns."""


def without_rights(
    closed: Path, *arguments: str, path: str, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs this Python with these arguments and this PATH, by somebody who may not search the folder `closed`."""
    prefix = WITHOUT_RIGHTS if os.geteuid() == 0 else ()
    listing = subprocess.run([*prefix, "ls", f"{closed}/."], capture_output=True, text=True, check=False)
    if "Permission denied" not in listing.stderr:
        pytest.skip(f"this user cannot be kept out of a closed folder: {listing.stderr.strip() or 'ls reads it'}")
    environ = {**with_checkout(os.environ), "PATH": path, **(env or {})}
    # setpriv itself is not on the PATH under test.
    argv = [sys.executable, *arguments]
    if prefix:
        argv = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environ.items()), *argv]
        environ = dict(os.environ)
    return subprocess.run([*prefix, *argv], cwd=cwd, env=environ, capture_output=True, text=True, check=False)
