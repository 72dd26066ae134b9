"""Reads what was measured, anywhere: no torch, no MPI, no scheduler."""

from hpc.system.command_line import start

start()
