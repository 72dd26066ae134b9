"""Spack's own py-submitit ends at 1.4.6."""

from spack.package import version
from spack_repo.builtin.packages.py_submitit.package import PySubmitit as Builtin


class PySubmitit(Builtin):
    """Python toolbox for submitting jobs to Slurm."""

    version("1.5.4", sha256="7100848bd1cdda79c7196e54ee830793ae75fd7adde0c5bef738d72360a07508")
