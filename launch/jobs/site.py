"""Site: the facts of one cluster, from a TOML file, chosen by host name or by its name."""

from __future__ import annotations

import dataclasses
import re
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from hpc.model.findings import CheckError, read_levels
from hpc.model.options import PromiseError, did_you_mean, read_promises
from hpc.model.spec import EXPORTED, SpecError, secret_arguments
from hpc.model.typed import TypeMismatchError, read_fields
from hpc.system.regular_file import parse_toml, read_text
from hpc.system.sanitize import is_secret, without_secrets
from launch.jobs.slurm_options import (
    FLAG,
    GPU_KEYS,
    IN_SBATCH,
    KEYS,
    WITHOUT_EFFECT,
    instead_of_variable,
    names_gpus,
    of_shell,
    read_options,
)

SITES = Path(__file__).resolve().parents[2] / "sbatch_templates" / "sites"
LAUNCHERS = {"srun": ("pmix", "pmi2"), "mpirun": ("openmpi", "mpich")}
"""By launcher: the usual values of `mpi`, the first of which is its default; mpirun has no others."""
CONTAINERS = ("apptainer", "singularity", "podman-hpc", "shifter", "pyxis", "ce")
GPU_REQUESTS = ("gpus-per-node", "gres", "gpus-per-task", "none")
PURGES = {"purge": "module purge", "force": "module --force purge", "reset": "module reset"}
BLOCKS = "block:block"
"""The default of srun's `distribution`: with `block` alone, Slurm deals the ranks of a node to its sockets in turn."""
SIZES = ("nodes", "ranks", "ranks_per_node", "cpus_per_rank")
"""The sizes of a run that a `launcher_command` may name, as {ranks}."""
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NO_ENV_NAME = "is no name of an environment variable (letters, digits, _)"
_ONCE = ("name", "hostname_pattern", "submit_command", "squeue_interval_s", "max_running", "max_nodes", "by_nodes",
         "by_partition")  # fmt: skip
_REFUSED = {
    "by_nodes": (*_ONCE, "gpus_per_node", "cpus_per_node", "container", "images"),
    "by_partition": ("name", "hostname_pattern", "submit_command", "by_nodes", "by_partition"),
}
"""By kind of table: the keys that it may not have, since they are decided before it is looked at."""
_WORDS: Mapping[str, Sequence[str]] = {
    "launcher": (*LAUNCHERS,), "gpu_request": GPU_REQUESTS, "module_purge": ("", *PURGES),
    "container": ("", *CONTAINERS),
}  # fmt: skip
_LEAST = {
    "gpus_per_node": 0, "cpus_per_node": 1, "time_limit_min": 1, "max_nodes": 1, "max_node_minutes": 1,
    "max_running": 1, "squeue_interval_s": 3,
}  # fmt: skip
_LINE = (r"[^\0\n\r]*", "is not one line")
_PATTERNS = {
    "mpi": (r"\w*", "is no word of `srun --mpi=list`"),
    "modules": (r"[A-Za-z0-9][\w./+:@=~-]*", "is no module: module_purge, module_use, or a line in setup does more"),
    **dict.fromkeys(("setup", "launcher_command", "rank_prefix", "module_use"), _LINE),
    "submit_command": (r"[\w./+-]*", "is no command: sbatch, or one that takes its options"),
    "expect_transport": (r"([A-Za-z0-9][\w ./+-]*)?", "is no name of a network; say ib, ib/gdrdma, socket, or a part "
                         "of what NCCL calls it after `via NET/`"),
    "env": (ENV_NAME.pattern, NO_ENV_NAME),
}  # fmt: skip
"""By key: the form of its value, of each of its list, or of the names of its table; and what another one is not."""


class SiteError(SpecError):
    """No site has this name, or its file is missing or has an invalid value; the text lists what is valid."""


Texts = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Site:
    """One cluster, in Slurm's words; sbatch_templates/sites/example.toml says what each key means.

    `interpreter` and `images` name a Python and a container image per framework (`torch`, `tensorflow`, …; `default`
    serves those not named). `time_limit_min` is the longest a job may take, `max_node_minutes` that times its nodes;
    longer plans are split. `squeue_interval_s` is the longest time between two queries of a sweep that follows jobs.
    `sbatch` and `srun` are options by their long names. `mpi` is empty where srun gets none.

    `expect_transport` is the expected network of NCCL between nodes (`ib`, `ib/gdrdma`, `socket`, a part of another
    network's name); `network` is what is promised of it (`bandwidth_gbit`, `latency_us`); `preflight` gives checks
    other levels than their own: `fatal`, `alarm` or `off`.

    `by_nodes` and `by_partition` have other values of these keys for some numbers of nodes (`1`, `2-8`, `65-`) and for
    a partition; `at` is the site with them.
    """

    name: str
    hostname_pattern: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    nodelist: str = ""
    exclude: str = ""
    gpus_per_node: int | None = None
    gpu_request: str = "gpus-per-node"
    gpu_type: str = ""
    cpus_per_node: int | None = None
    launcher: str = "srun"
    launcher_command: tuple[str, ...] = ()
    mpi: str | None = None
    cpu_bind: str = ""
    gpu_bind: str = ""
    distribution: str = ""
    rank_prefix: tuple[str, ...] = ()
    module_purge: str = ""
    module_use: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    container: str = ""
    container_args: tuple[str, ...] = ()
    container_mounts: tuple[str, ...] = ()
    container_env: tuple[str, ...] = ()
    images: Texts = field(default_factory=dict)
    interpreter: Texts = field(default_factory=dict)
    env: Texts = field(default_factory=dict)
    sbatch: Texts = field(default_factory=dict)
    srun: Texts = field(default_factory=dict)
    time_limit_min: int | None = None
    max_nodes: int | None = None
    max_node_minutes: int | None = None
    max_running: int | None = None
    submit_command: str = ""
    squeue_interval_s: int = 60
    exclusive: bool = True
    expect_transport: str = ""
    network: Texts = field(default_factory=dict)
    preflight: Texts = field(default_factory=dict)
    by_nodes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    by_partition: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_field = partial(object.__setattr__, self)
        if self.launcher_command:
            set_field("launcher", "mpirun")
        if self.mpi is None:
            set_field("mpi", LAUNCHERS.get(self.launcher, ("",))[0])
        here = where = f"site {self.name}: "
        try:
            for table in ("sbatch", "srun"):
                set_field(table, read_options(table, getattr(self, table)))
            if wrong := next((text for text in chain(self._invalid(), self._misleading()) if text), ""):
                raise SiteError(wrong)
            where = f"{here}[preflight]: "
            read_levels(self.check_words)
            where = f"{here}[network]: "
            read_promises(self.promises)
            for kind in _REFUSED:
                for name, values in getattr(self, kind).items():
                    where = f"{here}[{kind}.{name}]: "
                    _ends(name if kind == "by_nodes" else "1")
                    dataclasses.replace(self, **_merged(self, [values]), by_nodes={}, by_partition={})
        except (SpecError, CheckError, PromiseError) as error:
            raise SiteError(f"{where}{str(error).removeprefix(here)}") from None

    def _invalid(self) -> Iterator[str]:
        """Values that are none, or that contradict those of other keys."""
        for name, words in _WORDS.items():
            value, shown = getattr(self, name), [each for each in words if each]
            near = did_you_mean(value, shown)
            yield "" if value in words else f"{name} {value!r} is not one of {', '.join(shown)}{near}"
        for name, least in _LEAST.items():
            value = getattr(self, name)
            yield f"{name} is {value}; it must be at least {least}" if value is not None and value < least else ""
        for name, (pattern, what) in _PATTERNS.items():
            value = getattr(self, name)
            for each in [value] if isinstance(value, str) else value:
                yield "" if re.fullmatch(pattern, each) else f"{name}: {each!r} {what}"
        speaks, others = LAUNCHERS[self.launcher], [mpi for each in LAUNCHERS.values() for mpi in each]
        if self.mpi not in speaks and (self.mpi in others or self.launcher == "mpirun"):
            yield f"mpi {self.mpi!r} is not one of {', '.join(speaks)}, those of {self.launcher}"
        unused = [name for name in ("cpu_bind", "gpu_bind", "distribution", "srun") if getattr(self, name)]
        if unused and self.launcher != "srun":
            yield f"{', '.join(unused)}: of srun, and the launcher is another one"
        named = [name for token in self.launcher_command for name in re.findall(r"{(.*?)}", token)]
        odd = [name for name in named if name not in SIZES]
        yield f"launcher_command: {{{odd[0]}}} is not one of {', '.join(SIZES)}" if odd else ""
        if self.launcher_command and not {"ranks", "ranks_per_node"}.intersection(named):
            yield "launcher_command names neither {ranks} nor {ranks_per_node}: it would start as many as the job has"
        yield "gpu_type: gpu_request requests no GPU" if self.gpu_type and self.gpu_request == "none" else ""
        yield f"container = {self.container!r} needs an [images] table" if self.container and not self.images else ""

    def _misleading(self) -> Iterator[str]:
        """Values that would not reach where they are meant to, or reach others."""
        for name, value in self.env.items():
            if key := instead_of_variable(name):
                yield f"env: {name} is for the launcher, no variable of the program: use {key}"
            if "$" in value or "`" in value:
                line = f'export {name}="{value}"'
                yield f"env: {name} = {value!r} would reach the runs as it stands here: use setup = [{line!r}]"
        for token in self.container_args:
            if (option := token.partition("=")[0]) in ("--container-mounts", "--container-env"):
                yield f"container_args: {token} is set by the toolkit: use {option[2:].replace('-', '_')}"
            if token in ("--cleanenv", "-e", "--containall", "-C"):
                yield f"container_args: {token} keeps the launcher's variables from the ranks: each would be alone"
        secrets = [f"env {name}" for name, value in self.env.items() if is_secret(name, value)]
        secrets += [f"image {name}" for name, image in self.images.items() if without_secrets(image) != image]
        secrets += ["container_args"] if secret_arguments(self.container_args) else []
        secrets += [f"setup: {line}" for line in map(without_secrets, self.setup) if line not in self.setup]
        if secrets:
            yield (
                f"{', '.join(secrets)} looks like a secret, and what is set for runs is written into scripts, plans "
                f"and traces: {EXPORTED}"
            )

    def at(self, nodes: int | None = None) -> Site:
        """The site as it is for jobs and runs of so many nodes; without a number, for what is decided once."""
        fitted: dict[int | None, Site] = vars(self).setdefault("_fitted", {})
        if nodes not in fitted:
            of_size = [table for sizes, table in self.by_nodes.items() if nodes is not None and _has(sizes, nodes)]
            partition = _merged(self, of_size).get("partition", self.partition)
            values = _merged(self, [self.by_partition.get(partition, {}), *of_size])
            fitted[nodes] = dataclasses.replace(self, **values, by_nodes={}, by_partition={})
        return fitted[nodes]

    @cached_property
    def job_options(self) -> dict[str, str]:
        """What of it, besides the environment, can change a speed, as texts: part of a point."""
        options = {
            f"{table}.{name}": value
            for table in ("sbatch", "srun")
            for name, value in getattr(self, table).items()
            if name not in WITHOUT_EFFECT
        }
        options |= {name: getattr(self, name) for name in ("constraint", "gpu_type", "cpu_bind", "gpu_bind")}
        options["distribution"] = "" if self.distribution == BLOCKS else self.distribution
        options["gpu_request"] = self.gpu_request if self.gpu_request == "gpus-per-task" else ""
        options |= {"rank_prefix": shlex.join(self.rank_prefix), "setup": "; ".join(self.setup)}
        return {name: value for name, value in options.items() if value}

    def header_options(self, gpus: Texts) -> dict[str, str]:
        """The options of a job beside its sizes, with those that request GPUs. Raises SiteError where both do."""
        if gpus and names_gpus(given := self.sbatch.get("gres", "")):
            raise SiteError(
                f"gres = {given!r} requests GPUs, and so do the runs: use {GPU_KEYS} "
                "(it is of [sbatch], --sbatch, or SBATCH_GRES in this shell)"
            )
        both = [table["gres"] for table in (gpus, self.sbatch) if "gres" in table]
        return {**self.sbatch, **gpus, **({"gres": ",".join(both)} if both else {})}

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """The names of variables (`env.NAME`) and job options that depend on the number of nodes."""
        ends = [end for sizes in self.by_nodes for end in _ends(sizes) if end is not None]
        counts = {count for end in ends for count in (end - 1, end, end + 1) if count > 0}
        sites = [self.at(count) for count in sorted(counts)]
        settings = [{**{f"env.{name}": v for name, v in each.env.items()}, **each.job_options} for each in sites]
        names = sorted({name for each in settings for name in each})
        return tuple(name for name in names if len({each.get(name) for each in settings}) > 1)

    @property
    def varying_jobs(self) -> tuple[str, ...]:
        """Those of them that are of a whole job."""
        return tuple(name for name in self.varying if name.startswith(("sbatch.", "constraint", "gpu_", "setup")))

    def limit_min(self, nodes: int) -> int | None:
        """The longest that a job of so many nodes may take, None for any time."""
        site = self.at(nodes)
        share = None if site.max_node_minutes is None else site.max_node_minutes // nodes
        return min((limit for limit in (site.time_limit_min, share) if limit is not None), default=None)

    def with_values(self, chosen: Mapping[str, Any]) -> Site:
        """The site with these values in place of its own, whatever the number of nodes and the partition."""

        def over(table: Mapping[str, Any]) -> dict[str, Any]:
            return {name: _joined(value, chosen[name]) if name in chosen else value for name, value in table.items()}

        by_nodes = {name: over(table) for name, table in self.by_nodes.items()}
        by_partition = {name: over(table) for name, table in self.by_partition.items()}
        return dataclasses.replace(self, **_merged(self, [chosen]), by_nodes=by_nodes, by_partition=by_partition)

    def with_shell(self, environ: Mapping[str, str]) -> Site:
        """The site with what a shell says to Slurm. Raises SpecError where the site says it otherwise, or the toolkit
        sets it."""
        values: dict[str, Any] = {"sbatch": {}, "srun": {}}
        sites = [self.at(), *(self.at(_ends(sizes)[0]) for sizes in self.by_nodes)]
        for name, table, option, value in of_shell(environ):
            key = option.replace("-", "_")
            is_key = option in (IN_SBATCH if table == "sbatch" else KEYS)
            stated = [getattr(site, key) if is_key else getattr(site, table).get(option, "") for site in sites]
            try:
                if others := [text for text in stated if text not in ("", value)]:
                    raise SpecError(f"the sweep requests --{option}={others[0]}")
                if is_key:
                    values[key] = value
                else:
                    values[table] |= read_options(table, {option: value})
            except SpecError as error:
                raise SpecError(f"{name}={value} in this shell would change jobs: unset it ({error})") from None
        return self.with_values(values)

    @property
    def check_words(self) -> list[str]:
        """The levels that it changes, as `NAME=LEVEL`."""
        return [f"{name}={level}" for name, level in sorted(self.preflight.items())]

    @property
    def promises(self) -> list[str]:
        """The promises of its network, as `NAME=NUMBER`."""
        return [f"{name}={value}" for name, value in sorted(self.network.items())]

    def image(self, framework: str) -> str:
        """The container image for a framework, empty if the site uses none."""
        if not self.container:
            return ""
        image = self.images.get(framework) or self.images.get("default")
        if not image:
            raise SiteError(f"site {self.name}: no container image for {framework}; add it to [images]")
        return image

    def python(self, framework: str, here: str) -> str:
        """The interpreter for a framework: the site's, else the one that planned."""
        return self.interpreter.get(framework) or self.interpreter.get("default") or here


def read_site(path: Path) -> Site:
    """The site in a TOML file. Raises SiteError naming the file, the key and the valid keys."""
    try:
        values = parse_toml(read_text(path))
    except OSError as error:
        raise SiteError(f"site file {path}: {error.strerror}") from None
    except ValueError as error:
        raise SiteError(f"site file {path}: not TOML ({error})") from None
    try:
        re.compile(pattern := str(values.get("hostname_pattern", "")))
        return Site(**_read_table({"name": path.stem, **values}))
    except re.error as error:
        reason = f"hostname_pattern {pattern!r} is no regular expression: {error}"
    except (SiteError, TypeMismatchError) as error:
        reason = str(error).removeprefix(f"site {values.get('name', path.stem)}: ")
    raise SiteError(f"site file {path}: {reason}")


def _read_table(values: object, refused: tuple[str, ...] = ()) -> dict[str, Any]:
    """The values of a site file, or of one of its tables of other values. Raises TypeMismatchError."""
    if not isinstance(values, Mapping):
        raise TypeMismatchError(f"it is {values!r}, not a table")
    if taken := [name for name in refused if name in values]:
        raise TypeMismatchError(f"{taken[0]} is decided once for all jobs: it belongs above all tables")
    read = read_fields(Site, {"name": "", **{name: _as_texts(name, value) for name, value in values.items()}})
    return {name: read[name] for name in values}


def _as_texts(name: str, table: object) -> object:
    """A table with its numbers as texts, and with true as the flag of Slurm that it is; others as they are."""
    if not isinstance(table, Mapping):
        return table
    tables = dict(table)
    for key, value in table.items():
        if name in _REFUSED:
            try:
                tables[key] = _read_table(value, _REFUSED[name])
            except TypeMismatchError as error:
                raise TypeMismatchError(f"[{name}.{key}]: {error}") from None
        elif type(value) in (int, float) or (value is True and name in ("sbatch", "srun")):
            tables[key] = FLAG if value is True else str(value)
    return tables


def _merged(site: Site, layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values of the keys that these layers have, later ones over earlier; tables are joined."""
    values: dict[str, Any] = {}
    for layer in layers:
        values |= {name: _joined(values.get(name, getattr(site, name)), value) for name, value in layer.items()}
    return values


def _joined(before: Any, value: Any) -> Any:
    return {**before, **value} if isinstance(before, Mapping) else value


def _ends(sizes: str) -> tuple[int, int | None]:
    """The first and the last number of nodes of `4`, `2-8` or `65-`; the last is None where there is none."""
    match = re.fullmatch(r"([1-9]\d{0,8})(-([1-9]\d{0,8})?)?", sizes)
    if match is None:
        raise SiteError(f"{sizes!r} is no number of nodes: 1, 2-8 or 65-")
    first, dash, last = match.groups()
    return int(first), int(last) if last else None if dash else int(first)


def _has(sizes: str, nodes: int) -> bool:
    first, last = _ends(sizes)
    return first <= nodes and (last is None or nodes <= last)


def known_sites(folder: Path = SITES) -> dict[str, Path]:
    """The site files of the project, by name; `examples/NAME` are those of real systems."""
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.toml"))}


def find_site(requested: str | None, hostname: str | None = None, folder: Path = SITES) -> Site | None:
    """The site requested by name or file, else the one whose `hostname_pattern` matches this host, else None."""
    sites = known_sites(folder)
    if requested is not None:
        if requested in sites:
            return read_site(sites[requested])
        if requested.endswith(".toml") or "/" in requested:
            return read_site(Path(requested))
        known = ", ".join(sites) or "none"
        near = did_you_mean(requested, sites)
        raise SiteError(f"unknown site {requested!r}; known sites: {known}; or give the path of a .toml file{near}")
    hostname = hostname or socket.gethostname()
    for site in (read_site(path) for name, path in sites.items() if "/" not in name):
        if site.hostname_pattern and re.fullmatch(site.hostname_pattern, hostname):
            return site
    return None
