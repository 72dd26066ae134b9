"""The shape of a development Slurm, its configuration files, its clients' environment. Starts and writes nothing."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hpc.system.text import plural

CONTROLLER = "slurmctld"
"""The controller's name among the daemons, and its host name where it has one of its own."""

ACCOUNTING, DATABASE = "slurmdbd", "mariadbd"
"""The names among the daemons of what keeps the accounts, where the cluster has them."""

STORAGE = "/dev/shm"
"""Node-local memory: every node has its own where this machine allows mounting, gone when the node is."""

TMP = Path("/tmp")
"""Node-local as well: a node sees its own, and in it only those folders of this machine's that the cluster shares."""

LOOPBACK = "127.0.0.1"

CLOCK_DISTANCE_S = 1000
"""With clocks, node k reads CLOCK_MONOTONIC and CLOCK_BOOTTIME this many seconds times k ahead of the machine."""

MAX_ROOT_BYTES = 60
"""A socket's path holds 107 bytes; the longest that Slurm makes, ROOT/spool/node64/stepd.slurm.pmix.JOB.STEP, has
47 after the root, with a job id of eight digits and a step of seven."""

_PREEMPT_MODES = ("REQUEUE", "CANCEL", "OFF")
_SIZES = frozenset({"nodes", "cpus", "gpus", "clocks"})
_ROOT = re.compile(r"/[\w./+@:-]*")
_FOREIGN = re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|PMI|PMIX|OMPI|PRTE)_.*")
FIXED_CONF = """\
AuthType=auth/none
CredType=cred/none
# A requeued job waits for its old credential to expire: this and a second, in place of two minutes.
AuthInfo=cred_expire=5
SlurmctldSyslogDebug=quiet
SlurmdSyslogDebug=quiet
MailProg=/bin/true
# More CPUs than the machine has: what is written here counts, and tasks are bound to nothing.
SlurmdParameters=config_overrides
TaskPlugin=task/none
ProctrackType=proctrack/linuxproc
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,default_queue_depth=1000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
ReturnToService=2
MaxArraySize=10000
EioTimeout=2
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
"""
"""The settings of slurm.conf that are the same for every cluster."""


class DevClusterError(RuntimeError):
    """The development cluster cannot do what was requested; the text names the request, the finding, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The number of nodes, what each claims to have, and the rules of the cluster, by Slurm's names.

    `preempt_mode` is what becomes of a job of the partition `main` when one of `high` wants its nodes, `grace_s` the
    time that it gets first. `min_job_age_s` is how long the controller remembers a job that has ended, `max_job_count`
    how many jobs it holds, `slurmd_timeout_s` after what silence a node is down, `message_timeout_s` how long a client
    waits for the controller, `kill_wait_s` what a job has from SIGTERM to SIGKILL. `accounting` brings slurmdbd and its
    database, so that `sacct` answers.
    """

    nodes: int = 4
    cpus: int = 8
    gpus: int = 8
    clocks: bool = False
    preempt_mode: str = "REQUEUE"
    grace_s: int = 20
    job_requeue: bool = True
    min_job_age_s: int = 86400
    max_job_count: int = 10_000
    slurmd_timeout_s: int = 10
    message_timeout_s: int = 30
    kill_wait_s: int = 5
    accounting: bool = False

    def __post_init__(self) -> None:
        if self.preempt_mode not in _PREEMPT_MODES:
            known = ", ".join(_PREEMPT_MODES)
            raise DevClusterError(f"preempt_mode is {self.preempt_mode!r}; a development cluster takes {known}")
        for name, count, least, largest in (
            ("nodes", self.nodes, 1, 64), ("cpus", self.cpus, 1, 1024), ("gpus", self.gpus, 0, 64)
        ):  # fmt: skip
            if not least <= count <= largest:
                raise DevClusterError(f"{name} is {count}; a development cluster takes {least} to {largest}")

    @property
    def node_names(self) -> list[str]:
        return [f"node{k}" for k in range(1, self.nodes + 1)]

    def __str__(self) -> str:
        clocks = ", each with a clock of its own" if self.clocks else ""
        size = f"{plural(self.nodes, 'node')} of {plural(self.cpus, 'CPU')} and {plural(self.gpus, 'GPU')}{clocks}"
        rules = [f.name for f in fields(self) if f.name not in _SIZES and getattr(self, f.name) != f.default]
        return ", ".join([size, *(f"{name} {getattr(self, name)}" for name in rules)])


@dataclass(frozen=True, kw_only=True)
class Host:
    """The machine: its name, what that is in /etc/hosts, who starts; whether nodes can have names and storage of their
    own, and whether the library behind `srun --mpi=pmix` is there.

    Storage of its own is a node's /dev/shm, /tmp and spool folder. `shared` are the folders below /tmp that all nodes
    see all the same: see `shared_folders`. A machine with `loopback_only` has no IPv4 address but 127.0.0.1. A Slurm
    that `can_lack_cgroups` (24.05 and later) ends where no cgroups are mounted, unless its configuration says so.
    """

    name: str
    address: str
    hosts: str
    uid: int
    user: str
    memory_mb: int
    own_names: bool
    own_storage: bool
    pmix: bool
    loopback_only: bool = False
    can_lack_cgroups: bool = False
    shared: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """The features that this machine does not allow, as text."""
        notes = []
        if not self.own_names:
            notes.append(
                "unshare is refused here: all nodes share one host name, and Open MPI uses TCP between all ranks"
            )
        if not self.own_storage:
            notes.append(
                f"mounting is refused here: all nodes share one {STORAGE}, one {TMP} and one spool folder, which "
                "outlive them: what needs a shared folder on a real cluster may work here without"
            )
        if not self.pmix:
            notes.append("no libpmix.so is installed: srun --mpi=pmix will not work before apt-get install libpmix-dev")
        if self.address != LOOPBACK:
            notes.append(
                f"{self.name} is {self.address or 'unknown'} in /etc/hosts, not {LOOPBACK}: an srun or salloc started "
                "outside a job listens on all interfaces while it runs (daemons and jobs do not)"
            )
        return notes

    @property
    def private_folders(self) -> str:
        """The folders that nodes do not share, as text; empty if they share all."""
        if not self.own_storage:
            return ""
        seen = f"only {', '.join(self.shared)} is seen on all nodes" if self.shared else "no folder of it is shared"
        return f"every node has its own {STORAGE} and {TMP}; of this machine's {TMP} {seen}: run sweeps outside it"

    def check(self) -> None:
        """Raises DevClusterError where the daemons would listen on more than the loopback interface."""
        if not self.own_names and self.address != LOOPBACK:
            raise DevClusterError(
                f"unshare is refused here, so that the daemons would listen on what {self.name} is in /etc/hosts, "
                f"{self.address or 'unknown'}: put '{LOOPBACK} {self.name}' first in /etc/hosts, or start as root"
            )


def check_root(root: Path) -> None:
    """Raises DevClusterError where Slurm could not work below this folder."""
    if not _ROOT.fullmatch(str(root)):
        raise DevClusterError(
            f"root {str(root)!r} holds a character that Slurm's configuration cannot; letters, digits and ./+@:-_ are "
            "safe: name another folder with --root"
        )
    length = len(str(root).encode())
    if length > MAX_ROOT_BYTES:
        raise DevClusterError(
            f"root {root} is {length} bytes long; the paths of sockets below it leave room for {MAX_ROOT_BYTES}: "
            "name a shorter folder with --root"
        )


def shared_folders(folders: Iterable[Path]) -> tuple[str, ...]:
    """Those of the folders below /tmp, without those in another one of them.

    A node with a /tmp of its own would not see them. /tmp itself is not among them: it cannot be private and shared.
    """
    below = sorted({folder for folder in folders if TMP in folder.parents})
    return tuple(str(folder) for folder in below if not set(folder.parents) & set(below))


def slurm_conf(host: Host, shape: Shape, root: Path, *, ports: Sequence[int], first_job_id: int) -> str:
    """The cluster's slurm.conf; `ports` are the controller's, one per node, and slurmdbd's where there is accounting.

    CPUs are as many as requested, however few there are, and memory likewise: a job that names no limit may use each of
    its CPUs' share, which is the whole machine's memory, and one that does is held to it.
    """
    gres = f"Gres=gpu:{shape.gpus}" if shape.gpus else ""
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={name if host.own_names else host.name} NodeAddr=127.0.0.1 Port={port} "
        f"CPUs={shape.cpus} RealMemory={host.memory_mb * shape.cpus} {gres} State=UNKNOWN"
        for name, port in zip(shape.node_names, ports[1 : 1 + shape.nodes], strict=True)
    )
    return f"""\
# A development cluster on one machine, written by rankwise devcluster at each start.
ClusterName=devcluster
{FIXED_CONF}# Daemons listen on what their host name resolves to, 127.0.0.1, and on nothing else.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny{_any_family(host)}
SlurmctldHost={CONTROLLER if host.own_names else host.name}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={host.uid}
SlurmdUser={host.uid}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
TmpFS={root}/tmp/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
DefMemPerCPU={host.memory_mb}
JobRequeue={int(shape.job_requeue)}
MaxJobCount={shape.max_job_count}
FirstJobId={first_job_id}
{_accounting(shape, ports)}
# Without accounting the controller's memory is all there is of finished jobs: usually it keeps a day of them.
MinJobAge={shape.min_job_age_s}
SlurmdTimeout={shape.slurmd_timeout_s}
MessageTimeout={shape.message_timeout_s}
KillWait={shape.kill_wait_s}
{"GresTypes=gpu" if shape.gpus else ""}
{nodes}
PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE State=UP
PartitionName=main Default=YES PriorityTier=1 PreemptMode={shape.preempt_mode} GraceTime={shape.grace_s}
PartitionName=high PriorityTier=10 PreemptMode=OFF
"""


def _any_family(host: Host) -> str:
    """The setting with which Slurm resolves names where there is loopback only, and empty elsewhere.

    Slurm calls getaddrinfo with AI_ADDRCONFIG, which refuses IPv4 by name where 127.0.0.1 is the only address; where
    IPv6 is allowed too, Slurm requests any family, and gets 127.0.0.1.
    """
    return ",EnableIPv6" if host.loopback_only else ""


def _accounting(shape: Shape, ports: Sequence[int]) -> str:
    if not shape.accounting:
        return "AccountingStorageType=accounting_storage/none"
    host = f"AccountingStorageHost={LOOPBACK}\nAccountingStoragePort={ports[-1]}"
    return f"AccountingStorageType=accounting_storage/slurmdbd\n{host}"


def slurmdbd_conf(host: Host, root: Path, port: int) -> str:
    """The accounting daemon's configuration; $MYSQL_UNIX_PORT names the socket of its database."""
    return f"""\
AuthType=auth/none
DbdHost={ACCOUNTING if host.own_names else host.name}
DbdAddr={LOOPBACK}
DbdPort={port}
CommunicationParameters=NoInAddrAny{_any_family(host)}
SlurmUser={host.user}
PidFile={root}/run/slurmdbd.pid
LogFile={root}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_accounts
CommitDelay=1
"""


def hosts_file(name: str, names: Sequence[str], original: str) -> str:
    """The /etc/hosts of the host called `name`: it and all of `names` are 127.0.0.1, before the lines of `original`."""
    others = "".join(f"127.0.0.1 {other}\n" for other in names if other != name)
    return f"127.0.0.1 {name} localhost\n{others}{original}"


def mpi_env(host: Host) -> dict[str, str]:
    """The variables with which MPI runs many ranks on few cores, over the loopback interface alone."""
    env = {
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "OMPI_MCA_oob_tcp_if_include": "lo",
        "FI_TCP_IFACE": "lo",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        # For srun by hand, as in launch.jobs.launchers: without it 1 start in 250 crashed in MPI_Init.
        "SLURM_PMIX_FENCE": "ring",
    }
    if not host.own_names:  # nodes of one host name: Open MPI takes them for one and its shared memory segments collide
        env["OMPI_MCA_btl"] = "self,tcp"
    if host.uid == 0:
        allowed = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")
        env |= {f"{name}{suffix}": "1" for name in allowed for suffix in ("", "_CONFIRM")}
    return env


def client_env(base: Mapping[str, str], conf: Path | str, mpi: Mapping[str, str]) -> dict[str, str]:
    """The environment `base` made fit for clients: nothing of another cluster or job, /usr/sbin on the path."""
    env = {name: value for name, value in base.items() if not _FOREIGN.fullmatch(name)}
    path = env.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":")
    path += [folder for folder in ("/usr/local/sbin", "/usr/sbin", "/sbin") if folder not in path]
    return {**env, "PATH": ":".join(path), "SLURM_CONF": str(conf), **mpi}


def shell_lines(base: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """The lines that, evaluated by a shell with environment `base`, give it the environment `wanted`."""
    gone = sorted(base.keys() - wanted.keys())
    changed = sorted(name for name, value in wanted.items() if base.get(name) != value)
    return [f"unset {name}" for name in gone] + [f"export {name}={shlex.quote(wanted[name])}" for name in changed]


def site_toml(shape: Shape, mpi: Mapping[str, str]) -> str:
    """The site file of the cluster, for `rankwise sweep --site FILE`."""
    env = "".join(f"{name} = {json.dumps(value)}\n" for name, value in mpi.items())
    return f"""\
# The development cluster on this machine, written by rankwise devcluster at each start.
name = "devcluster"
gpus_per_node = 0  # the GPUs that Slurm shows are links to /dev/null: a run that used them would find none
cpus_per_node = {shape.cpus}
launcher = "srun"
mpi = "pmix"
time_limit_min = 60

[env]
{env}"""


def daemon_names(shape: Shape) -> list[str]:
    """The controller, the nodes, and the daemons of the accounting if there is one."""
    return [CONTROLLER, *shape.node_names, *([ACCOUNTING, DATABASE] if shape.accounting else [])]


def files(host: Host, shape: Shape, root: Path, *, ports: Sequence[int], first_job_id: int) -> dict[str, str]:
    """All files of the cluster: path below the root → text."""
    conf = slurm_conf(host, shape, root, ports=ports, first_job_id=first_job_id)
    names = daemon_names(shape)
    # GPUs by their device files, because Slurm drops a mere count; any character device will do.
    gpus = f"NodeName={','.join(shape.node_names)} Name=gpu File={root}/dev/gpu[0-{shape.gpus - 1}]\n"
    return {
        **({"slurmdbd.conf": slurmdbd_conf(host, root, ports[-1])} if shape.accounting else {}),
        "slurm.conf": conf,
        # For clients on a host whose name is not 127.0.0.1, where nodes could not call them back.
        "login.conf": conf.replace("NoInAddrAny,", ""),
        "gres.conf": f"AutoDetect=off\n{gpus}" if shape.gpus else "",
        "cgroup.conf": "CgroupPlugin=disabled\n" if host.can_lack_cgroups else "",
        "site.toml": site_toml(shape, mpi_env(host)),
        "cluster.json": json.dumps({"shape": asdict(shape), "host": asdict(host)}, indent=1) + "\n",
        **{f"hosts/{name}": hosts_file(name, [*names, host.name], host.hosts) for name in names},
    }


def remembered(text: str) -> tuple[Host, Shape]:
    """Host and shape as `cluster.json` holds them. Raises DevClusterError where another version wrote it."""
    try:
        facts = json.loads(text)
        shared = tuple(facts["host"].pop("shared"))
        return Host(**facts["host"], shared=shared), Shape(**facts["shape"])
    except (KeyError, TypeError, ValueError) as error:
        raise DevClusterError(f"another version of devcluster started this cluster ({error}): stop it first") from None
