"""The job that a sweep is started in, if it is: an interactive one, as a rule. Its variables are not for other jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping

_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_", "PMIX_", "PMI_")
_OF_A_PERSON = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_MPI_TYPE"})
"""Of these names those that say where Slurm is and how to speak to it."""


def variables_of_the_enclosing_job(variables: Mapping[str, str] = os.environ) -> list[str]:
    """The names of variables that Slurm gave the job which this process runs in; none outside of a job.

    A job submitted with them takes them for its own: `srun --pty bash` leaves SLURM_CPU_BIND, by which every srun of
    the new job binds its ranks to cores of the old one, or fails.
    """
    if "SLURM_JOB_ID" not in variables:
        return []
    return sorted(name for name in variables if name.startswith(_OF_A_JOB) and name not in _OF_A_PERSON)
