"""Processes of a development cluster: their namespaces and ports, finding them, ending them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc.system.tool import run_tool
from tools.devcluster.config import (
    CONTROLLER,
    LOOPBACK,
    STORAGE,
    TMP,
    DevClusterError,
    Host,
    client_env,
    shared_folders,
)

MARK = "DEVCLUSTER_DAEMON"
"""The environment variable with the name of a daemon, inherited by what a slurmd starts before a job's own environment
is set."""

_DAEMONS = frozenset({"slurmctld", "slurmd", "slurmdbd", "mariadbd", "slurmstepd"})
_HELPERS = frozenset({"slurmscriptd", "slurmstepd"})
_CLIENTS = frozenset({"srun", "salloc", "sbatch"})


@dataclass(frozen=True, kw_only=True)
class DaemonHost:
    """The namespaces of a daemon: a host name, a file as /etc/hosts, a clock `clock_s` ahead unless None, and with
    `storage` node-local storage.

    That storage is a /dev/shm, a /tmp and an empty folder at each path of `private`, invisible to other processes and
    gone with the last process in it. The machine's `shared` folders are mounted into that /tmp.
    """

    name: str
    hosts: Path
    clock_s: int | None = None
    storage: bool = False
    private: tuple[Path, ...] = ()
    shared: tuple[str, ...] = ()


def namespaces_refused(*, clocks: bool = False, storage: bool = False) -> str:
    """Empty if a node can have its own host name, with `clocks` its own clock and with `storage` its own storage;
    else the error of unshare or mount."""
    host = DaemonHost(name="node1", hosts=Path("/etc/hosts"), clock_s=1000 if clocks else None, storage=storage)
    answer = run_tool(_enter(host, ["true"]))
    return "" if answer.ok else answer.output or answer.describe()


def this_host(root: Path) -> Host:
    """The machine now, for a cluster in the folder `root` that is started from the current folder."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        address = ""
    # Jobs need these folders wherever they are: the current one, this checkout, the Python environment.
    checkout = Path(__file__).resolve().parents[2]
    needed = [Path.cwd(), checkout, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()]
    return Host(
        name=name, address=address, hosts=Path("/etc/hosts").read_text(), uid=os.getuid(), user=_user_name(),
        memory_mb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        own_names=not namespaces_refused(), own_storage=not namespaces_refused(storage=True), pmix=_loads("libpmix.so"),
        loopback_only=_loopback_only(), can_lack_cgroups=_slurm_version() >= (24, 5),
        shared=shared_folders([root, *needed]),
    )  # fmt: skip


def _slurm_version() -> tuple[int, ...]:
    """The year and month of the Slurm that is installed here."""
    answer = run_tool(["env", f"PATH={client_env(os.environ, Path(), {})['PATH']}", CONTROLLER, "-V"])
    version = re.search(r"(\d+)\.(\d+)", answer.output)
    return tuple(map(int, version.groups())) if answer.ok and version else ()


def _loopback_only() -> bool:
    """Whether getaddrinfo refuses IPv4 addresses to those who want only what is configured, as Slurm does."""
    try:
        socket.getaddrinfo(LOOPBACK, None, socket.AF_INET, flags=socket.AI_ADDRCONFIG)
    except socket.gaierror:
        return True
    return False


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user without an entry: only slurmdbd needs the name
        return str(os.getuid())


def _loads(library: str) -> bool:
    """Whether the loader finds this exact name, which Slurm's plugin loads: on Debian only libpmix-dev has it."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Free ports below the kernel's range for outgoing connections."""
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(10_000, first_outgoing) if first_outgoing > 12_000 else range(20_000, 60_000)
    ports: list[int] = []
    for port in random.sample(candidates, len(candidates)):
        with socket.socket() as server, contextlib.suppress(OSError):
            server.bind((LOOPBACK, port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise DevClusterError(f"fewer than {count} ports are free on {LOOPBACK}")


def spawn(argv: Sequence[str], env: Mapping[str, str], log: Path, host: DaemonHost | None = None) -> None:
    """Starts a daemon, in the namespaces of `host` if given, as no child of this process, so that it outlives it."""
    argv = ["setsid", "--fork", *(_enter(host, argv) if host else argv)]
    with log.open("ab") as out:
        subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=True)


def daemon_processes(confs: Collection[str]) -> dict[int, str]:
    """Daemons whose SLURM_CONF is one of `confs`: process id → the name they were started under.

    A process counts from its start on, before it executes slurmctld or slurmd.
    """
    return {pid: env[MARK] for pid, env in _environments(confs) if MARK in env and _comm(pid) not in _HELPERS}


class Processes:
    """All processes of the cluster with these SLURM_CONF; keeps the namespaces that it has seen.

    With `own_names` every daemon has its own UTS namespace, and all processes in it are the cluster's: a job may have
    cleared its environment, and a daemon may end before its children. Without, all descendants of a listed process are
    the cluster's too. Each namespace is held open: its number would be reused, maybe by another cluster's.
    """

    def __init__(self, confs: Collection[str], *, own_names: bool) -> None:
        self._confs = confs
        self._own_names = own_names
        self._namespaces: dict[str, str] = {}
        self._held: list[int] = []

    def __del__(self) -> None:
        for file in self._held:
            os.close(file)

    def alive(self) -> dict[int, str]:
        """Process id → its node or the controller's name; "" for waiting clients and for unknown ones."""
        names: dict[int, str] = {}
        for pid, env in _environments(self._confs):
            name = _comm(pid)
            node = env.get("SLURMD_NODENAME") or (env.get(MARK) if name in _DAEMONS else None)
            if node and self._own_names:
                self._learn(pid, node)
            if node or MARK in env or name in _DAEMONS or name in _CLIENTS:
                names[pid] = node or env.get(MARK, "")
        return names | (self._in_namespaces() if self._own_names else _descendants(names))

    def _learn(self, pid: int, node: str) -> None:
        if _uts(pid) in self._namespaces:
            return
        try:
            self._held.append(os.open(f"/proc/{pid}/ns/uts", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # ended
            return
        self._namespaces[f"uts:[{os.fstat(self._held[-1]).st_ino}]"] = node

    def _in_namespaces(self) -> dict[int, str]:
        # The caller and the machine's first process are no part of the cluster.
        for never in (_uts("self"), _uts(1), ""):
            self._namespaces.pop(never, None)
        return {pid: self._namespaces[uts] for pid in _pids() if (uts := _uts(pid)) in self._namespaces}


def end(alive: Callable[[], Collection[int]], *, patience_s: float) -> bool:
    """Sends SIGTERM to the processes, after `patience_s` SIGKILL, until all have ended; False if there were none.

    Raises DevClusterError if a process outlives SIGKILL by ten seconds.
    """
    signalled: set[int] = set()
    begin_s = time.monotonic()
    while pids := alive():
        elapsed_s = time.monotonic() - begin_s
        if elapsed_s > patience_s + 10:
            raise DevClusterError(f"processes {', '.join(map(str, sorted(pids)))} do not end, not even by SIGKILL")
        if elapsed_s >= patience_s:
            send(pids, signal.SIGKILL)
        else:
            send(set(pids) - signalled, signal.SIGTERM)
        signalled |= set(pids)
        time.sleep(0.02)
    return bool(signalled)


def _enter(host: DaemonHost, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` in its own namespaces; a normal user needs a user namespace for that."""
    user = [] if os.getuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    ahead = str(host.clock_s)
    clock = [] if host.clock_s is None else ["-T", "--monotonic", ahead, "--boottime", ahead]
    become = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && '
    become += "".join(f"{command} && " for command in (_storage_commands(host) if host.storage else ()))
    become += 'exec "$@"'
    return ["unshare", *user, "--uts", "--mount", *clock, "sh", "-c", become, host.name, str(host.hosts), *argv]


def _storage_commands(host: DaemonHost) -> Iterator[str]:
    """The commands that mount a node's own storage in its mount namespace.

    The shared folders are held in the new /dev/shm while the new /tmp covers them.
    """
    mount_tmpfs = f"mount -t tmpfs -o mode=1777,nosuid,nodev {shlex.quote(host.name)}"
    yield f"{mount_tmpfs} {STORAGE}"
    held = {shlex.quote(folder): f"{STORAGE}/shared{k}" for k, folder in enumerate(host.shared)}
    for folder, place in held.items():
        yield f"mkdir {place} && mount --rbind {folder} {place}"
    yield f"{mount_tmpfs} {TMP}"
    for folder, place in held.items():
        # Not --move, which only root may do.
        yield f"mkdir -p {folder} && mount --rbind {place} {folder} && umount -l {place} && rmdir {place}"
    for path in map(str, host.private):
        yield f"{mount_tmpfs} {shlex.quote(path)}"


def _environments(confs: Collection[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """All other processes that were started with one of these SLURM_CONF, and their initial environment."""
    for pid in _pids():
        try:
            text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:  # ended, or another user's
            continue
        env = dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
        if env.get("SLURM_CONF") in confs:
            yield pid, env


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]  # noqa: PTH208  # names are wanted, not paths


def _descendants(names: Mapping[int, str]) -> dict[int, str]:
    """All descendants of these processes: process id → the name of that ancestor."""
    parents = {pid: _stat(pid)[1] for pid in _pids()}
    below: dict[int, str] = {}
    while new := {
        pid: name
        for pid, parent in parents.items()
        if pid not in names and pid not in below and (name := names.get(parent) or below.get(parent))
    }:
        below |= new
    return below


def _comm(pid: int) -> str:
    return _stat(pid)[0]


def _stat(pid: int) -> tuple[str, int]:
    """The name of the process and its parent's id; "" and 0 if it has ended."""
    try:
        # The second field, the name in brackets, may hold anything.
        start, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return "", 0
    return start.partition("(")[2], int(rest.split()[1])


def _uts(pid: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/uts")  # noqa: PTH115  # not a path: uts:[4026531838]
    except OSError:
        return ""


def send(pids: Collection[int], number: signal.Signals) -> None:
    # The youngest first: where the parent of stopped processes dies before them, the kernel wakes them with SIGHUP.
    for pid in sorted(pids, reverse=True):
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.kill(pid, number)
