"""How work gets on to a cluster. Knows nothing of training."""

from hpc.system.command_line import start

start()
