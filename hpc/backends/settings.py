"""The options that hold in a run: what was asked, else the defaults of its backend and its workload."""

from __future__ import annotations

from hpc.backends import BACKENDS
from hpc.model.options import OptionValue, read_options
from hpc.model.spec import RunSpec
from hpc.workloads import WORKLOADS, is_user_code


def options_of_run(run: RunSpec) -> dict[str, OptionValue]:
    """Every option that the run's backend and workload know, with its value. Raises OptionError on an unknown one."""
    of_workload = {} if is_user_code(run.workload) else WORKLOADS[run.workload].options
    return read_options({**BACKENDS[run.backend].options, **of_workload}, run.options)
