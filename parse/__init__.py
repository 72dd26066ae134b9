"""Reads measurements on any machine: needs no torch, no MPI, no scheduler."""

from hpc.system.command_line import start

start()
