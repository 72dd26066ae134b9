"""A finding: the result of a preflight check, an item of the doctor's advice, an alarm, a broken rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from hpc.system.command_line import PIPE_WIDTH
from hpc.system.sanitize import plain
from hpc.system.text import filled

FigureValue: TypeAlias = "float | str | Sequence[FigureValue] | Mapping[str, FigureValue]"
FigureValues = Mapping[str, FigureValue]
_IN_FILE = " = "
"""In a fix that is a line of the site file, to be copied whole."""


class State(StrEnum):
    """Whether something is as it should be; `unknown`: it could not be determined."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """The severity of a failure. `note`: nothing need change; `alarm`: a number is in doubt or a setting should change;
    `fatal`: the run is invalid."""

    NOTE = "note"
    ALARM = "alarm"
    FATAL = "fatal"


@dataclass(frozen=True, kw_only=True)
class CheckFinding:
    """`figures` are the numbers and names that `text` is made of; `fix` is the action to take, empty if none."""

    name: str
    text: str
    state: State = State.FAILED
    severity: Severity = Severity.ALARM
    figures: FigureValues = field(default_factory=dict)
    fix: str = ""

    @property
    def fatal(self) -> bool:
        """Whether the run must not go on."""
        return self.state is State.FAILED and self.severity is Severity.FATAL

    @property
    def label(self) -> str:
        """`ok`, `unknown`, or the severity of the failure."""
        return self.severity if self.state is State.FAILED else self.state

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.name, self.text, self.fix)))

    def to_json(self) -> dict[str, Any]:
        """The finding as written to traces and reports."""
        return asdict(self)


def read_finding(values: Mapping[str, Any]) -> CheckFinding:
    """Reads what `to_json` wrote. Raises ValueError if a key is missing or a value unknown."""
    try:
        return CheckFinding(
            name=str(values["name"]),
            text=str(values["text"]),
            state=State(values["state"]),
            severity=Severity(values["severity"]),
            figures=dict(values["figures"]),
            fix=str(values["fix"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a finding ({error})") from None


def as_text(
    findings: Sequence[CheckFinding], labels: Mapping[str, str] | None = None, width: int = PIPE_WIDTH
) -> list[str]:
    """Lines in columns: label, name, text; below each the lines of its fix. `labels` replaces labels by other words."""
    rows = [((labels or {}).get(finding.label, finding.label), finding) for finding in findings]
    widths = [max(map(len, column), default=0) for column in ([label for label, _ in rows], [f.name for f in findings])]
    lines = []
    for label, finding in rows:
        head = f"{label:<{widths[0]}}  {plain(finding.name):<{widths[1]}}  "
        lines += filled(f"{head}{plain(finding.text)}", width, len(head))
        for line in finding.fix.splitlines():
            fix = f"{'':<{len(head)}}→ {plain(line)}"
            lines += [fix] if _IN_FILE in fix else filled(fix, width)
    return lines


# The preflight checks: name, level, and the fix where it fails; docs/cluster.md describes what each compares.


class CheckError(ValueError):
    """An unknown check or level was requested; the text lists the known ones."""


class Level(StrEnum):
    """A failed check ends the run as `invalid` or raises an alarm beside its speed; `off`: the check is not made."""

    FATAL = "fatal"
    ALARM = "alarm"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class Check:
    """A declared check. `fixed`: no site can change its level, because no run is valid without it. `fix_here` is the
    fix on a machine without a scheduler, where it is another."""

    level: Level
    fix: str
    fix_here: str = ""
    fixed: bool = False


CHECKS: Mapping[str, Check] = {
    "mpi_size": Check(
        level=Level.FATAL,
        fixed=True,
        fix="start the ranks by the launcher that belongs to the MPI library that mpi4py loads",
    ),
    "ranks_per_node": Check(
        level=Level.FATAL,
        fixed=True,
        fix="give the launcher --nodes and --ntasks-per-node (mpirun: --map-by ppr:N:node)",
    ),
    "gpu_per_rank": Check(
        level=Level.FATAL,
        fix="give each node as many GPUs as ranks and leave all of them visible to each, or bind one to each",
    ),
    "gpus_in_sight": Check(
        level=Level.ALARM,
        fix="request GPUs per node (--gpus-per-node), not per task (--gpus-per-task, --gpu-bind): where they are "
        "hidden from one another NCCL goes by host memory or the network instead of NVLink or xGMI",
    ),
    "same_device": Check(
        level=Level.FATAL,
        fix="request nodes of one kind (constraint in the site), or measure the kinds apart",
    ),
    "same_driver": Check(
        level=Level.ALARM,
        fix="have the nodes brought to one driver, or leave those that differ out (exclude in the site)",
    ),
    "same_nccl": Check(
        level=Level.FATAL,
        fix="run one environment, module or container on all nodes",
    ),
    "same_framework": Check(
        level=Level.FATAL,
        fix="run one environment, module or container on all nodes",
    ),
    "cores": Check(
        level=Level.ALARM,
        fix="give each rank cores of its own: --cpus-per-task and --cpu-bind=cores (mpirun: --bind-to core)",
        fix_here="start only as many ranks as have cores of their own: fewer --nodes or --ranks-per-node",
    ),
    "cores_near_gpu": Check(
        level=Level.ALARM,
        fix="bind ranks beside their GPUs: --gpu-bind=closest hides GPUs, so rather order the ranks' cores by "
        "--cpu-bind=map_ldom or mask_cpu",
    ),
    "gpu_idle": Check(
        level=Level.ALARM,
        fix="end what runs there, or take the node exclusively (exclusive = true in the site)",
        fix_here="end what runs there",
    ),
    "load": Check(
        level=Level.ALARM,
        fix="take the nodes exclusively (exclusive = true in the site), or leave the busy ones out (exclude)",
        fix_here="end these processes, or measure when they have ended",
    ),
    "host_memory": Check(
        level=Level.ALARM,
        fix="request more memory (--mem), or end what else fills the node",
        fix_here="end what else fills the memory, or take a smaller --batch-size",
    ),
    "images": Check(
        level=Level.FATAL,
        fixed=True,
        fix="give --data a path that leads to the same, whole image set on every node: on a shared file system, or as "
        "equal copies",
    ),
    "transport": Check(
        level=Level.FATAL,
        fix="see why NCCL took another: NCCL_IB_HCA, NCCL_SOCKET_IFNAME and NCCL_NET, the adapter's driver inside the "
        "container; or correct expect_transport in the site",
    ),
    "transport_in_node": Check(
        level=Level.ALARM,
        fix="leave all GPUs of a node visible to each rank, and see NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, IOMMU and ACS",
    ),
}
"""All checks, in the order in which they are made; the essential ones come before anything that relies on them."""


def read_levels(settings: Iterable[str]) -> dict[str, Level]:
    """Levels by check name, from settings as `load=fatal`.

    Raises CheckError where a check or a level is unknown, or the level of the check is fixed.
    """
    levels = {}
    for setting in settings:
        name, _, level = setting.partition("=")
        if name not in CHECKS:
            raise CheckError(f"unknown check {name!r}; known: {', '.join(CHECKS)}")
        if level not in list(Level):
            raise CheckError(f"check {name}: level {level!r} is not one of {', '.join(Level)}")
        if CHECKS[name].fixed and level != CHECKS[name].level:
            raise CheckError(f"check {name} is always {CHECKS[name].level}: without it a run is not what it says")
        levels[name] = Level(level)
    return levels


def level_of(name: str, levels: Mapping[str, Level]) -> Level:
    """The requested level of a check, else the declared one."""
    return levels.get(name, CHECKS[name].level)
