"""Runs work on a cluster; independent of training."""

from hpc.system.command_line import start

start()
