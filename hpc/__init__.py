"""The description of runs, and the programs that run on the nodes."""

import sys

# The first statement of every command: an old interpreter could not even parse most of the modules.
if sys.version_info < (3, 11):  # noqa: UP036 - an older Python gets a message
    raise SystemExit(f"Rankwise needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}")

from hpc.system.command_line import start

start()
