"""The daemons of a development cluster: started one by one, waited for, quoted where they end at once."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.devcluster import config, processes
from tools.devcluster.config import ACCOUNTING, CONTROLLER, DATABASE, LOOPBACK, DevClusterError, Host, Shape

INSTALL = "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge libpmix-dev"
INSTALL_ACCOUNTING = (
    "apt-get install -y --no-install-recommends slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core"
)
_PROGRAMS = (CONTROLLER, "slurmd", "srun", "sbatch", "sinfo", "scontrol")
_ACCOUNTING_PROGRAMS = (ACCOUNTING, "mariadbd", "mariadb-install-db", "sacct")


class Daemons:
    """The daemons of the cluster in the folder `root`, whose files are written; `confs` identify its processes."""

    def __init__(self, root: Path, shape: Shape, host: Host, confs: Sequence[str]) -> None:
        self._root, self._shape, self._host, self._confs = root, shape, host, confs
        self._conf = root / "slurm.conf"

    def alive(self) -> set[str]:
        return set(processes.daemon_processes(self._confs).values())

    def start_accounting(self) -> None:
        """Starts the database, created at the first start in this folder, and slurmdbd.

        The database has no network and no password: its socket is in a folder that only its owner can enter.
        """
        folder = self._root / "database"
        options = ["--no-defaults", f"--datadir={folder}/data", *([] if os.getuid() else ["--user=root"])]
        if not (folder / "data/mysql").is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            with (self._root / "log/mariadb-install-db.out").open("w") as log:
                argv = ["mariadb-install-db", *options, "--skip-test-db"]
                done = subprocess.run(argv, env=self._environ, stdout=log, stderr=log, check=False)
            if done.returncode != 0:
                raise DevClusterError(f"mariadb-install-db: {self._end_of_log('mariadb-install-db')}")
        socket_path = folder / "socket"
        small = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0"]
        private = ["--skip-networking", "--skip-grant-tables", f"--socket={socket_path}", f"--pid-file={folder}/pid"]
        self._spawn(DATABASE, None, ["mariadbd", *options, *private, *small])
        self.until(lambda: _connects(socket_path), [DATABASE])
        self._spawn(ACCOUNTING, None, [f"MYSQL_UNIX_PORT={socket_path}", "slurmdbd", "-D"])
        self.until(lambda: self.answers(ACCOUNTING), [ACCOUNTING, DATABASE])

    def start_controller(self, *, fresh: bool) -> None:
        """Starts the controller and waits until it answers; `fresh` forgets the jobs of an earlier start.

        The last job's id is not forgotten: an id given twice would let the results of an old job be taken for those of
        a new one.
        """
        forget = ["-c", "-i"] if fresh else []  # -i: whatever saved state is broken
        self._spawn(CONTROLLER, None, [CONTROLLER, "-D", *forget, "-f", str(self._conf)])
        # A slurmd that finds no controller retries after 1, 2, 4 seconds.
        self.until(lambda: self.answers(CONTROLLER), [CONTROLLER])

    def start_node(self, name: str) -> None:
        """Starts a node's slurmd and does not wait."""
        ahead_s = config.CLOCK_DISTANCE_S * (1 + self._shape.node_names.index(name)) if self._shape.clocks else None
        self._spawn(name, ahead_s, ["slurmd", "-D", "-f", str(self._conf), "-N", name])

    def answers(self, name: str) -> bool:
        """Whether a process listens on the daemon's port."""
        file, pattern = "slurm.conf", rf"^NodeName={name} .* Port=(\d+)"
        if name == CONTROLLER:
            pattern = r"^SlurmctldPort=(\d+)"
        elif name == ACCOUNTING:
            file, pattern = "slurmdbd.conf", r"^DbdPort=(\d+)"
        match = re.search(pattern, (self._root / file).read_text(), re.MULTILINE)
        with socket.socket() as client:
            return match is not None and client.connect_ex((LOOPBACK, int(match[1]))) == 0

    def until(self, ready: Callable[[], bool], names: Sequence[str], deadline_s: float = 60) -> None:
        """Waits; raises DevClusterError after the deadline, or five seconds after one of these daemons has ended."""
        begin_s = time.monotonic()
        seen_s = dict.fromkeys(names, begin_s)
        missed = dict.fromkeys(names, 0)
        while not ready():
            now_s = time.monotonic()
            alive = self.alive()
            missed = {name: 0 if name in alive else missed[name] + 1 for name in names}
            seen_s |= dict.fromkeys(alive & seen_s.keys(), now_s)
            # A busy machine shows them late, and so does one that was suspended.
            if ended := [name for name in names if now_s - seen_s[name] > 5 and missed[name] > 5]:
                raise DevClusterError(f"{ended[0]} ended at once: {self._end_of_log(ended[0])}")
            if now_s - begin_s > deadline_s:
                raise DevClusterError(f"{', '.join(names)} not ready after {deadline_s:.0f} s; logs: {self._root}/log")
            time.sleep(0.02)

    @property
    def _environ(self) -> dict[str, str]:
        return config.client_env(os.environ, self._conf, config.mpi_env(self._host))

    def _spawn(self, name: str, clock_s: int | None, argv: Sequence[str]) -> None:
        env = {**self._environ, processes.MARK: name}
        # Set again by env, so that it comes last: slurmstepd writes its title over the variables before SLURM_CONF.
        argv = ["env", "-u", processes.MARK, f"{processes.MARK}={name}", *argv]
        log = self._root / f"log/{name}.out"
        host = processes.DaemonHost(
            name=name, hosts=self._root / f"hosts/{name}", clock_s=clock_s, shared=self._host.shared,
            storage=self._host.own_storage and name in self._shape.node_names,
            private=(self._root / "spool" / name, self._root / "tmp" / name),
        )  # fmt: skip
        processes.spawn(argv, env, log, host if self._host.own_names else None)

    def _end_of_log(self, name: str) -> str:
        lines = (self._root / f"log/{name}.out").read_text(errors="replace").splitlines()
        return " | ".join(lines[-3:]) or f"its log in {self._root}/log is empty"


def missing_programs(*, accounting: bool = False) -> str:
    """Empty if Slurm (and its `accounting`) is installed; else what is missing and the command that installs it."""
    path = config.client_env(os.environ, Path(), {})["PATH"]
    for programs, command in ((_PROGRAMS, INSTALL), (_ACCOUNTING_PROGRAMS if accounting else (), INSTALL_ACCOUNTING)):
        if missing := [name for name in programs if shutil.which(name, path=path) is None]:
            what = "Slurm" if programs is _PROGRAMS else "Slurm's accounting"
            return f"{what} is not installed here (missing: {', '.join(missing)}): {command}"
    return ""


def _connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0
