"""Slurm and this machine, as clusters that run jobs."""
