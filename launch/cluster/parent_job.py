"""The job that a sweep is started in, usually an interactive one. Its variables must not reach other jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping

_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_", "PMIX_", "PMI_")
_OF_A_PERSON = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_MPI_TYPE"})
"""Exceptions from these prefixes: variables that locate Slurm and configure access to it."""


def parent_job_variables(variables: Mapping[str, str] = os.environ) -> list[str]:
    """The names of the variables that Slurm set for the job which this process runs in; none outside of a job.

    A submitted job would inherit them: `srun --pty bash` sets SLURM_CPU_BIND, with which every srun of the new job
    binds its ranks to cores of the old one, or fails.
    """
    if "SLURM_JOB_ID" not in variables:
        return []
    return sorted(name for name in variables if name.startswith(_OF_A_JOB) and name not in _OF_A_PERSON)
