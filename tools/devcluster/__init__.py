"""A real Slurm of several nodes on one machine, for development and tests."""
