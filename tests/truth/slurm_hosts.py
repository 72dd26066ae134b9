"""A real Slurm on hosts with networks of their own: the controller on the first of them, a slurmd on each."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from benchmarks.network import Network, NetworkError, Paths
from tools.devcluster import config

CPUS, MEMORY_MB, START_S = 8, 32_000, 120
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NETWORK = {
    "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "tap0",
    "OMPI_MCA_oob_tcp_if_include": "tap0", "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # One way to reduce, whatever the size: left alone, Open MPI takes another one for 256 kB on two, three and four
    # hosts, and a round trip more for parts above 64 KiB.
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
    "OMPI_MCA_btl_tcp_eager_limit": "1048576",
}  # fmt: skip
OWN_STORAGE = 'mount -t tmpfs tmp /tmp && mount -t tmpfs shm /dev/shm && exec "$@"'
"""What the shell does before a slurmd: its jobs keep files below /tmp whose names do not have the host's."""


class SlurmHosts:
    """Hosts h0, h1, … of one network and their Slurm, while it is entered. Raises NetworkError."""

    def __init__(self, paths: Paths, hosts: int) -> None:
        self._network, self._hosts = Network(paths, hosts), hosts
        self._root = tempfile.TemporaryDirectory(prefix="rw-slurm-", dir="/var/tmp")
        self._folder = Path(self._root.name)
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def site_file(self) -> Path:
        return self._folder / "site.toml"

    def __enter__(self) -> SlurmHosts:
        self._network.__enter__()
        try:
            self._start()
        except BaseException:
            self._stop(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(kind, error, trace)

    def run(self, *argv: object, timeout_s: float = 60) -> str:
        """What a client command printed, which runs on the first host. Raises NetworkError."""
        try:
            done = subprocess.run(
                self._command(0, *argv), capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise NetworkError(f"{argv[0]} was not done within {timeout_s:g} s") from None
        if done.returncode:
            raise NetworkError(f"{' '.join(map(str, argv))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def _command(self, host: int, *argv: object) -> list[str]:
        return self._network.command(host, "env", f"PATH={PATH}", f"SLURM_CONF={self._folder / 'slurm.conf'}", *argv)

    def _start(self) -> None:
        for name in ("state", "log", *(f"spool/h{host}" for host in range(self._hosts))):
            (self._folder / name).mkdir(parents=True)
        (self._folder / "slurm.conf").write_text(self._slurm_conf())
        env = "".join(f'{name} = "{value}"\n' for name, value in NETWORK.items())
        self.site_file.write_text(
            f'name = "hosts"\ngpus_per_node = 0\ncpus_per_node = {CPUS}\nlauncher = "mpirun"\nmpi = "openmpi"\n'
            f"time_limit_min = 60\n[env]\n{env}"
        )
        self._start_daemon(0, "slurmctld", "-D", "-c", "-i")
        for host in range(self._hosts):
            self._start_daemon(
                host, "unshare", "--mount", "sh", "-c", OWN_STORAGE, "sh", "slurmd", "-D", "-N", f"h{host}"
            )
        begin_s = time.monotonic()
        while (states := self._states()) != ["idle"] * self._hosts:
            if time.monotonic() - begin_s > START_S:
                printed = (self._folder / "log/daemons").read_text(errors="replace")
                raise NetworkError(
                    f"Slurm's hosts are {', '.join(states) or 'unknown'} after {START_S} s: {printed[-2000:]}"
                )
            time.sleep(0.5)

    def _states(self) -> list[str]:
        try:
            return self.run("sinfo", "-h", "-N", "-o", "%T").split()
        except NetworkError:  # the controller does not answer yet
            return []

    def _start_daemon(self, host: int, *argv: str) -> None:
        with (self._folder / "log/daemons").open("ab") as log:
            self._daemons.append(subprocess.Popen(self._command(host, *argv), stdout=log, stderr=log))

    def _stop(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._network.__exit__(kind, error, trace)  # ends all that runs on the hosts
        for daemon in self._daemons:
            daemon.wait()
        self._root.cleanup()

    def _slurm_conf(self) -> str:
        return f"""\
ClusterName=hosts
{config.FIXED_CONF}SlurmctldHost=h0
SlurmUser=root
SlurmdUser=root
StateSaveLocation={self._folder}/state
SlurmdSpoolDir={self._folder}/spool/%n
SlurmctldPidFile={self._folder}/slurmctld.pid
SlurmdPidFile={self._folder}/slurmd-%n.pid
SlurmctldLogFile={self._folder}/log/slurmctld.log
SlurmdLogFile={self._folder}/log/slurmd-%n.log
DefMemPerCPU={MEMORY_MB // CPUS}
AccountingStorageType=accounting_storage/none
NodeName=h[0-{self._hosts - 1}] CPUs={CPUS} RealMemory={MEMORY_MB} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
