"""A user whom no passwd file knows, without HOME: as in containers and on nodes without a directory service."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess

import pytest

from tests.sweeps import with_checkout

USER = 54321
PREFIX = ("unshare", "--user", f"--map-user={USER}")
"""Runs a command as that user, with the rights of this one."""


def homeless_environ() -> dict[str, str]:
    """The environment for it. Skips the test where this machine has no such user."""
    known = any(entry.pw_uid == USER for entry in pwd.getpwall())
    if known or shutil.which("unshare") is None or subprocess.run([*PREFIX, "true"], check=False).returncode:
        pytest.skip(f"no user namespaces here, or user {USER} has an entry in passwd")
    unset = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_CACHE_HOME")
    return {name: value for name, value in with_checkout(os.environ).items() if name not in unset}
