"""How work gets on to a cluster. Knows nothing of training."""

from hpc.command_line import start

start()
