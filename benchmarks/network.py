"""Hosts made of one machine: names, networks and clocks of their own, behind a switch that delays and loses.

Needs root, Linux with network and time namespaces, /dev/net/tun, gcc, and the Open MPI 4 of a distribution.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

HOSTS = 4
APART_S = 1000
"""Host i's clock is ahead of the machine's by i times this."""
ROOT = Path(__file__).resolve().parents[1]
_NAMESPACES = ("--net", "--uts", "--mount", "--time")


class NetworkError(Exception):
    """The hosts cannot be had, or what ran on them failed; the text is the system's message."""


@dataclass(frozen=True, kw_only=True)
class Paths:
    """How long frames take from one host to another: µs, ± µs, how many are lost, and how many Mbit/s a host sends.

    `of_host`: this holds for the paths from and to that host alone, and all others are as they are without a fault.
    """

    name: str
    delay_us: float = 0
    back_us: float | None = None  # from host 0 to the others; None: the same
    jitter_us: float = 0
    loss_percent: float = 0
    rate_mbit: float | None = None
    of_host: int | None = None

    @property
    def rules(self) -> list[str]:
        """The arguments of the switch."""
        rest = f"{self.jitter_us:g}:{self.loss_percent:g}"
        if self.of_host is not None:
            return [f"{ends}:{self.delay_us:g}:{rest}" for ends in (f"{self.of_host}:*", f"*:{self.of_host}")]
        back_us = self.delay_us if self.back_us is None else self.back_us
        return [f"*:*:{self.delay_us:g}:{rest}", f"0:*:{back_us:g}:{rest}"]


def refused() -> str:
    """Empty where hosts can be made here, else why not."""
    if os.geteuid() != 0:
        return "namespaces of networks need root"
    for program in ("gcc", "mpirun", "nsenter", "tc", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI) 4" not in version:
        return f"hosts are reached by the remote agent of Open MPI 4, and mpirun here is {version.split(chr(10))[0]}"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun does not exist"
    tried = subprocess.run(
        ["unshare", *_NAMESPACES, "--monotonic", "1", "--fork", "hostname", "h0"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return tried.stderr.strip() if tried.returncode else ""


class Network:
    """Hosts h0, h1, … while it is entered; `run` starts ranks on them, one each. Raises NetworkError."""

    def __init__(self, paths: Paths, hosts: int = HOSTS) -> None:
        self._paths, self._hosts = paths, hosts
        self._started: list[subprocess.Popen[str]] = []
        self._folder = Path()
        self._networks: set[str] = set()

    def __enter__(self) -> Network:
        self._folder = Path(tempfile.mkdtemp(prefix="rw-hosts-", dir="/tmp"))
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def command(self, host: int, *argv: object) -> list[str]:
        """The command line that runs this one on a host."""
        return [str(self._folder / "agent"), f"h{host}", shlex.join(map(str, argv))]

    def run(self, *argv: str | Path, timeout_s: float = 300, ranks: int | None = None) -> str:
        """What one rank on each of the first `ranks` hosts (None: all) of this Python program printed."""
        ranks = self._hosts if ranks is None else ranks
        tcp = {
            "plm_rsh_agent": self._folder / "agent", "plm_rsh_no_tree_spawn": 1, "pml": "ob1", "btl": "tcp,self",
            "btl_tcp_if_include": "tap0", "oob_tcp_if_include": "tap0", "mpi_yield_when_idle": 1,
        }  # fmt: skip
        settings = [argument for name, value in tcp.items() for argument in ("--mca", name, str(value))]
        hosts = ["--host", ",".join(f"h{host}:1" for host in range(ranks)), "-np", str(ranks), "--map-by", "node"]
        command = self.command(
            0, "mpirun", "--allow-run-as-root", *settings, *hosts, "--bind-to", "none", "-x", "PYTHONPATH",
            sys.executable, *argv,
        )  # fmt: skip
        command_line = shlex.join(map(str, argv))
        try:
            done = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, cwd=ROOT,
                capture_output=True, text=True, timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NetworkError(f"{command_line} was not done within {timeout_s:g} s") from None
        if done.returncode:
            raise NetworkError(f"{command_line} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def _start(self) -> None:
        hosts = self._folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"10.77.0.{10 + i} h{i}\n" for i in range(self._hosts)))
        pids = [self._start_host(host, hosts) for host in range(self._hosts)]
        self._networks = {_network_of(pid) for pid in pids}
        switch = self._folder / "switch"
        built = subprocess.run(
            ["gcc", "-O2", "-o", switch, ROOT / "benchmarks" / "switch.c"], capture_output=True, text=True, check=False
        )
        if built.returncode:
            raise NetworkError(built.stderr)
        self._start_one([str(switch), *pids, "--", *self._paths.rules])
        self._limit_rates(pids)
        agent = self._folder / "agent"
        cases = "\n".join(f"h{host}) pid={pid};;" for host, pid in enumerate(pids))
        # Open MPI calls it as it would call ssh: HOST WORD..., the words to be joined and read by a shell there.
        enter = 'nsenter --target "$pid" --net --uts --mount --time --wd="$PWD"'
        agent.write_text(
            f'#!/bin/sh\nhost=$1; shift\ncase $host in\n{cases}\n*) echo "no host $host" >&2; exit 1;;\nesac\n'
            f'exec {enter} sh -c "$*"\n'
        )
        agent.chmod(0o755)

    def _limit_rates(self, pids: Sequence[str]) -> None:
        """By the kernel's own traffic control: a token bucket on what a host sends (tc-tbf(8))."""
        if self._paths.rate_mbit is None:
            return
        limit = ["rate", f"{self._paths.rate_mbit:g}mbit", "burst", "16kb", "latency", "200ms"]
        for host, pid in enumerate(pids):
            if self._paths.of_host in (None, host):
                enter = ["nsenter", "--target", pid, "--net"]
                argv = [*enter, "tc", "qdisc", "add", "dev", "tap0", "root", "tbf", *limit]
                done = subprocess.run(argv, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise NetworkError(f"{' '.join(argv)}: {done.stderr.strip()}")

    def _start_host(self, host: int, hosts: Path) -> str:
        """Starts the process that keeps this host's namespaces alive; returns its id."""
        ahead_s = str(host * APART_S)
        become = 'hostname "$1" && mount --bind "$2" /etc/hosts && echo $$ && exec cat'
        unshare = ["unshare", *_NAMESPACES, "--monotonic", ahead_s, "--boottime", ahead_s, "--fork", "--kill-child"]
        return self._start_one([*unshare, "sh", "-c", become, "sh", f"h{host}", str(hosts)])

    def _start_one(self, argv: list[str]) -> str:
        """Starts what lives until its input is closed; returns its first line."""
        started = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._started.append(started)
        assert started.stdout is not None
        assert started.stderr is not None
        line = started.stdout.readline().strip()
        if not line:
            raise NetworkError(f"{argv[0]} did not start: {started.stderr.read().strip()}")
        return line

    def _stop(self) -> None:
        """Ends all that runs on the hosts, whoever started it, and then the hosts."""
        killed: set[int] = set()
        while pids := self._processes() - killed:  # what is killed may have started another one just before
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= pids
        for started in reversed(self._started):
            started.communicate()
        self._started.clear()
        shutil.rmtree(self._folder)

    def _processes(self) -> set[int]:
        """All that runs on the hosts but what keeps them alive."""
        if not self._networks:
            return set()
        keepers = {started.pid for started in self._started}
        pids = [path.name for path in Path("/proc").glob("[0-9]*")]
        return {int(pid) for pid in pids if int(pid) not in keepers and _network_of(pid) in self._networks}


def _network_of(pid: str) -> str:
    """Names the network namespace of a process; empty where it has ended or is not ours to look into."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""
