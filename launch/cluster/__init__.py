"""Where jobs run: Slurm, or this machine."""
