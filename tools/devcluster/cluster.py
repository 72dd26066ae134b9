"""A real Slurm of several nodes on this machine: one slurmctld and a slurmd per node, on the loopback interface alone.

Every node has a host name of its own, and with `--clocks` a CLOCK_MONOTONIC of its own, so that jobs, MPI and the
measurement of clocks work as on a cluster. CPUs, GPUs and memory are as many as requested, whatever the machine has.
Every node has its own /dev/shm, /tmp and spool folder, where this machine allows mounting.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from hpc.system.tool import run_tool
from tools.devcluster import config, processes
from tools.devcluster.config import CONTROLLER, LOOPBACK, DevClusterError, Host, Shape
from tools.devcluster.daemons import Daemons, missing_programs

USABLE = frozenset({"idle", "mixed", "allocated", "completing"})
_LOCK = ".devcluster.lock"


def default_root() -> Path:
    """The folder of the cluster that is meant where none is named."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankwise" / "devcluster"


class DevCluster:
    """One development cluster; its folder holds its configuration, state and logs, and other processes can use it.

    `host` has the abilities of this machine; set once the cluster was started or returned by `running`.
    """

    host: Host

    def __init__(self, root: Path | None = None, shape: Shape | None = None) -> None:
        try:
            self.root = (default_root() if root is None else root.expanduser()).resolve()
        except RuntimeError as error:  # ~name without a home folder; a loop of links
            raise DevClusterError(f"--root {root}: {error}") from None
        self.shape = shape or Shape()
        config.check_root(self.root)

    @classmethod
    def running(cls, root: Path | None = None) -> DevCluster:
        """The cluster that runs in this folder. Raises DevClusterError where none does."""
        cluster = cls(root)
        if not cluster.is_running():
            raise DevClusterError(f"no cluster runs in {cluster.root}: rankwise devcluster start --help")
        cluster._recall()
        return cluster

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def conf(self) -> Path:
        """The configuration of daemons and jobs; SLURM_CONF with this value marks the cluster's processes."""
        return self.root / "slurm.conf"

    @property
    def site_file(self) -> Path:
        return self.root / "site.toml"

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a client command, derived from this process's."""
        conf = self._confs[0 if self.host.address == LOOPBACK else 1]
        return config.client_env(os.environ, conf, config.mpi_env(self.host))

    def is_running(self) -> bool:
        return CONTROLLER in self.daemons()

    def daemons(self) -> set[str]:
        return set(processes.daemon_processes(self._confs).values())

    def states(self) -> dict[str, str]:
        """By node: its Slurm state (`idle`, `mixed`, `down*`; the star marks a node that does not respond)."""
        printed = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N|%T")
        return dict(line.strip().split("|") for line in printed.splitlines())

    def run(self, *argv: str | Path, cwd: Path | None = None, timeout_s: float = 120) -> str:
        """Runs a client command and returns its output; raises DevClusterError if it fails."""
        command = [str(argument) for argument in argv]
        answer = run_tool(command, env=self.environ, cwd=cwd, timeout_s=timeout_s)
        if not answer.ok:
            status = "" if answer.exit_status is None else f"exit status {answer.exit_status}: "
            error = answer.stderr.strip() or answer.stdout.strip() or answer.describe()  # scontrol uses both streams
            raise DevClusterError(f"{' '.join(command)}: {status}{error}")
        return answer.stdout

    def start(self) -> bool:
        """Starts the cluster and waits until its nodes are idle; False: it ran already.

        Raises DevClusterError if a cluster of another shape runs, Slurm is missing, or a daemon does not come up.
        """
        if missing := missing_programs(accounting=self.shape.accounting):
            raise DevClusterError(missing)
        with self._locked():
            if self.is_running():
                self._join()
                return False
            self._end_all()
            self.host = self._look_at_host()
            try:
                self._write_files()
                self._start_daemons()
            except BaseException:
                self._end_all()
                raise
            return True

    def stop(self) -> bool:
        """Ends every process of the cluster and of its jobs; False if there was none."""
        if not (self.root / _LOCK).exists():
            return False
        with self._locked():
            return self._end_all()

    def kill_node(self, name: str) -> None:
        """Simulates a power loss: ends the node's processes and deletes its storage; Slurm notices after a while."""
        self._check_node(name)
        processes.send(self._pids_of(name)(), signal.SIGSTOP)  # none sees another one die, and acts on it
        processes.end(self._pids_of(name), patience_s=0)
        for folder in (self.root / "spool" / name, self.root / "tmp" / name):
            shutil.rmtree(folder)
            folder.mkdir()

    def start_node(self, name: str) -> None:
        """Starts a killed node, and waits until Slurm takes jobs for it again."""
        self._check_node(name)
        if name in self.daemons():
            raise DevClusterError(f"{name} runs already")
        daemons = self._daemons
        daemons.start_node(name)
        daemons.until(lambda: daemons.answers(name) and self.states()[name] in USABLE, [name])

    def kill(self, name: str) -> None:
        """Kills a daemon (SIGKILL): the controller, `slurmdbd` or `mariadbd`; nodes and jobs go on."""
        processes.end(self._pids_of(name), patience_s=0)

    def start_controller(self) -> None:
        """Starts a killed controller with its jobs, and waits until it answers."""
        if CONTROLLER in self.daemons():
            raise DevClusterError("the controller runs already")
        self._daemons.start_controller(fresh=False)
        self.states()

    def freeze(self, name: str) -> None:
        """Stops every process of a node or a daemon (SIGSTOP): clients connect and get no answer."""
        processes.send(self._pids_of(name)(), signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Continues the processes that `freeze` stopped."""
        processes.send(self._pids_of(name)(), signal.SIGCONT)

    def local_storage(self, name: str) -> Path:
        """The node's own storage, as a path for this process while the node runs; without one, the machine's."""
        self._check_node(name)
        if not self.host.own_storage:
            return Path(config.STORAGE)
        daemons = processes.daemon_processes(self._confs).items()
        pids = [pid for pid, daemon in daemons if daemon == name]
        if not pids:
            raise DevClusterError(f"{name} does not run, and its storage is gone with it")
        return Path(f"/proc/{min(pids)}/root{config.STORAGE}")

    def _pids_of(self, name: str) -> Callable[[], list[int]]:
        self._check_daemon(name)
        everything = processes.Processes(self._confs, own_names=self.host.own_names)
        return lambda: [pid for pid, node in everything.alive().items() if node == name]

    def _join(self) -> None:
        requested = self.shape
        self._recall()
        if self.shape != requested:
            raise DevClusterError(
                f"a cluster of {self.shape} runs in {self.root}, requested was one of {requested}: stop it first "
                "(rankwise devcluster stop), or name another folder with --root"
            )

    def _look_at_host(self) -> Host:
        if self.shape.clocks and (refused := processes.namespaces_refused(clocks=True)):
            raise DevClusterError(f"clocks of their own were requested; time namespaces are refused here: {refused}")
        host = processes.this_host(self.root)
        host.check()
        return host

    def _write_files(self) -> None:
        for folder in ("spool", "tmp", "run", "log", "hosts", "dev"):
            shutil.rmtree(self.root / folder, ignore_errors=True)
        node_folders = [f"{kind}/{name}" for kind in ("spool", "tmp") for name in self.shape.node_names]
        for folder in ("state", "run", "log", "hosts", "dev", *node_folders):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        for k in range(self.shape.gpus):
            (self.root / f"dev/gpu{k}").symlink_to("/dev/null")
        # Job ids grow with time, even if the folder was deleted; Slurm's end at 2^26.
        first_job_id = int(time.time()) % 60_000_000
        ports = processes.free_ports(1 + self.shape.nodes + self.shape.accounting)
        texts = config.files(self.host, self.shape, self.root, ports=ports, first_job_id=first_job_id)
        for path, text in texts.items():
            (self.root / path).write_text(text)
        if self.shape.accounting:
            (self.root / "slurmdbd.conf").chmod(0o600)  # slurmdbd refuses other modes

    def _start_daemons(self) -> None:
        daemons = self._daemons
        if self.shape.accounting:
            daemons.start_accounting()
        daemons.start_controller(fresh=True)
        names = self.shape.node_names
        for name in names:
            daemons.start_node(name)
        daemons.until(lambda: self.states() == dict.fromkeys(names, "idle"), [CONTROLLER, *names])

    @property
    def _daemons(self) -> Daemons:
        return Daemons(self.root, self.shape, self.host, self._confs)

    def _end_all(self) -> bool:
        try:
            own_names = config.remembered((self.root / "cluster.json").read_text())[0].own_names
        except (DevClusterError, FileNotFoundError):
            own_names = False  # processes of no namespace certainly belong to the cluster
        return processes.end(processes.Processes(self._confs, own_names=own_names).alive, patience_s=2)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Locks starting and stopping; the lock file also marks the folder as a cluster's."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            # Listed once, because the lock is the first file that another starter makes.
            if (names := {path.name for path in self.root.iterdir()}) and _LOCK not in names:
                raise DevClusterError(f"{self.root} holds other files: name a new or empty folder with --root")
            lock = (self.root / _LOCK).open("a")
        except OSError as error:
            raise DevClusterError(f"{self.root} cannot be used: {error.strerror}") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _check_node(self, name: str) -> None:
        if name not in self.shape.node_names:
            raise DevClusterError(f"{name!r} is no node of this cluster: {', '.join(self.shape.node_names)}")

    def _check_daemon(self, name: str) -> None:
        known = config.daemon_names(self.shape)
        if name not in known:
            raise DevClusterError(f"{name!r} is no daemon of this cluster: {', '.join(known)}")

    @property
    def _confs(self) -> tuple[str, str]:
        return str(self.conf), str(self.root / "login.conf")

    def _recall(self) -> None:
        self.host, self.shape = config.remembered((self.root / "cluster.json").read_text())
