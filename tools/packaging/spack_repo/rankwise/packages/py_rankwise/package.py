"""Spack: spack repo add tools/packaging/spack_repo/rankwise; spack install py-rankwise."""

from spack.package import depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyRankwise(PythonPackage):
    """Measures how distributed deep-learning training scales on Slurm clusters, and why not better."""

    pypi = "rankwise/rankwise-0.4.0.tar.gz"

    license("Apache-2.0")

    version("0.4.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")

    variant("mpi", default=True, description="measure under MPI; a login node needs none")
    variant("torch", default=False, description="the backends of PyTorch")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-h5py@3.10:", type=("build", "run"))
    depends_on("py-jinja2@3.1:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-rich@13.7:", type=("build", "run"))
    depends_on("py-submitit@1.5:1", type=("build", "run"))
    depends_on("py-mpi4py@4.1:", type=("build", "run"), when="+mpi")
    depends_on("py-nvidia-ml-py@12.535:", type=("build", "run"), when="+mpi")
    depends_on("py-torch@2.6:", type=("build", "run"), when="+torch")
