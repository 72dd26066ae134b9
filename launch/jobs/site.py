"""Site: the facts of one cluster, from a TOML file, chosen by host name or by its name."""

from __future__ import annotations

import dataclasses
import re
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from hpc.model.findings import CheckError, read_levels
from hpc.model.options import PromiseError, did_you_mean, read_promises
from hpc.model.spec import EXPORTED, SpecError, secret_arguments
from hpc.model.typed import TypeMismatchError, read_fields
from hpc.system.regular_file import parse_toml, read_text
from hpc.system.sanitize import is_secret, without_secrets
from launch.jobs.slurm_options import FLAG, IN_SBATCH, KEYS, WITHOUT_EFFECT, adopted, instead_of_variable, read_options

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
_MODULE = re.compile(r"[A-Za-z0-9][\w./+:@=~-]*")
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


class SiteError(SpecError):
    """No site has this name, or its file is missing or has an invalid value; the text lists what is valid."""


Words = tuple[str, ...]
Texts = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Site:
    """One cluster, in Slurm's words; sbatch_templates/sites/example.toml says what each key means.

    `interpreter` and `images` name a Python and a container image per framework (`torch`, `tensorflow`, …; `default`
    serves those not named). `time_limit_min` is the longest a job may take, `max_node_minutes` that times its nodes;
    longer plans are split. `squeue_interval_s` is the longest time between two queries of a sweep that follows jobs.
    `sbatch` and `srun` are options by their long names. `mpi` is empty where srun is told none.

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
    launcher_command: Words = ()
    mpi: str | None = None
    cpu_bind: str = ""
    gpu_bind: str = ""
    distribution: str = ""
    rank_prefix: Words = ()
    module_purge: str = ""
    module_use: Words = ()
    modules: Words = ()
    setup: Words = ()
    container: str = ""
    container_args: Words = ()
    container_mounts: Words = ()
    container_env: Words = ()
    images: Texts = field(default_factory=dict)
    interpreter: Texts = field(default_factory=dict)
    env: Texts = field(default_factory=dict)
    sbatch: Texts = field(default_factory=dict)
    srun: Texts = field(default_factory=dict)
    time_limit_min: int | None = None
    max_nodes: int | None = None
    max_node_minutes: int | None = None
    max_running: int | None = None
    submit_command: str = "sbatch"
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
        try:
            for table in ("sbatch", "srun"):
                set_field(table, read_options(table, getattr(self, table)))
            read_levels(self.check_words)
            read_promises(self.promises)
        except CheckError as error:
            raise SiteError(f"site {self.name}: [preflight]: {error}") from None
        except PromiseError as error:
            raise SiteError(f"site {self.name}: [network]: {error}") from None
        except SpecError as error:
            raise SiteError(f"site {self.name}: {error}") from None
        if wrong := next(self._wrong(), ""):
            raise SiteError(f"site {self.name}: {wrong}")

    def _wrong(self) -> Iterator[str]:
        """What is invalid, contradicts itself or would not reach where it should."""
        for name, words in _WORDS.items():
            if (value := getattr(self, name)) not in words:
                shown = [word for word in words if word]
                yield f"{name} {value!r} is not one of {', '.join(shown)}{did_you_mean(value, shown)}"
        for name, least in _LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                yield f"{name} is {value}; it must be at least {least}"
        yield from self._wrong_launcher()
        yield from self._wrong_lines()
        yield from self._wrong_env()
        yield from self._wrong_container()

    def _wrong_launcher(self) -> Iterator[str]:
        speaks = LAUNCHERS[self.launcher]
        if self.launcher == "mpirun" and self.mpi not in speaks:
            yield f"mpi {self.mpi!r} is not one of {', '.join(speaks)}, those of mpirun"
        if self.launcher == "srun" and self.mpi in LAUNCHERS["mpirun"]:
            yield f'mpi {self.mpi!r} is of launcher = "mpirun"; srun speaks {", ".join(speaks)} or another word of its list'
        if self.mpi and not re.fullmatch(r"\w+", self.mpi):
            yield f"mpi {self.mpi!r} is no word of `srun --mpi=list`"
        of_srun = ("cpu_bind", "gpu_bind", "distribution", "srun")
        if unused := [name for name in of_srun if getattr(self, name) and self.launcher != "srun"]:
            yield f"{', '.join(unused)}: of srun, and the launcher is another one"
        named = [name for word in self.launcher_command for name in re.findall(r"{(.*?)}", word)]
        if odd := [name for name in named if name not in SIZES]:
            yield f"launcher_command: {{{odd[0]}}} is not one of {', '.join(SIZES)}"
        if self.launcher_command and not {"ranks", "ranks_per_node"}.intersection(named):
            yield "launcher_command names neither {ranks} nor {ranks_per_node}: it would start as many as the job has"
        if self.gpu_type and self.gpu_request == "none":
            yield 'gpu_type: gpu_request is "none", which requests no GPU'

    def _wrong_lines(self) -> Iterator[str]:
        for name in ("setup", "launcher_command", "rank_prefix", "module_use"):
            if odd := [line for line in getattr(self, name) if re.search(r"[\0\n\r]", line)]:
                yield f"{name}: {odd[0]!r} is not one line"
        for module in self.modules:
            if not _MODULE.fullmatch(module):
                yield f"modules: {module!r} is no module: module_purge, module_use, or a line in setup does more"
        if not re.fullmatch(r"[\w./+-]+", self.submit_command):
            yield f"submit_command {self.submit_command!r} is no command: sbatch, or one that takes its options"
        if self.expect_transport and not re.fullmatch(r"[A-Za-z0-9][\w ./+-]*", self.expect_transport):
            yield (
                f"expect_transport {self.expect_transport!r} is no name of a network; say ib, ib/gdrdma, socket, or a "
                "part of what NCCL calls it after `via NET/`"
            )

    def _wrong_env(self) -> Iterator[str]:
        for name, value in self.env.items():
            if not ENV_NAME.fullmatch(name):
                yield f"env: {name!r} {NO_ENV_NAME}"
            if key := instead_of_variable(name):
                yield f"env: {name} is for the launcher, no variable of the program: use {key}"
            if "$" in value or "`" in value:
                line = f'export {name}="{value}"'
                yield f"env: {name} = {value!r} would reach the runs as it stands here: use setup = [{line!r}]"

    def _wrong_container(self) -> Iterator[str]:
        if self.container and not self.images:
            yield f"container = {self.container!r} needs an [images] table"
        taken = {
            "--container-mounts": "container_mounts",
            "--mount": "container_mounts",
            "--container-env": "container_env",
        }
        for word in self.container_args:
            if key := taken.get(word.partition("=")[0]):
                yield f"container_args: {word} is set by the toolkit: use {key}"
            if word in ("--cleanenv", "-e", "--containall", "-C"):
                yield (
                    f"container_args: {word} keeps the launcher's variables (PMIX_RANK, SLURM_PROCID) from the ranks: "
                    "each would believe to be alone"
                )
        secrets = [f"env {name}" for name, value in self.env.items() if is_secret(name, value)]
        secrets += [f"image {name}" for name, image in self.images.items() if without_secrets(image) != image]
        secrets += ["container_args"] if secret_arguments(self.container_args) else []
        if secrets:
            yield (
                f"{', '.join(secrets)} looks like a secret, and what is set for runs is written into scripts, plans "
                f"and traces: {EXPORTED}"
            )

    def at(self, nodes: int | None = None) -> Site:
        """The site as it is for jobs and runs of so many nodes; without a number, for what is decided once."""
        if nodes not in self._at:
            of_size = [table for sizes, table in self.by_nodes.items() if nodes is not None and _has(sizes, nodes)]
            partition = _merged(self, of_size).get("partition", self.partition)
            values = _merged(self, [self.by_partition.get(partition, {}), *of_size])
            self._at[nodes] = dataclasses.replace(self, **values, by_nodes={}, by_partition={})
        return self._at[nodes]

    @cached_property
    def _at(self) -> dict[int | None, Site]:
        return {}

    @cached_property
    def job_options(self) -> dict[str, str]:
        """What of it, besides the environment, can change a speed, as texts: part of a point."""
        options = {
            f"{table}.{name}": value
            for table in ("sbatch", "srun")
            for name, value in getattr(self, table).items()
            if name not in WITHOUT_EFFECT
        }
        for name in ("constraint", "gpu_type", "cpu_bind", "gpu_bind"):
            options[name] = getattr(self, name)
        options["distribution"] = "" if self.distribution == BLOCKS else self.distribution
        options["gpu_request"] = self.gpu_request if self.gpu_request == "gpus-per-task" else ""
        options |= {"rank_prefix": shlex.join(self.rank_prefix), "setup": "; ".join(self.setup)}
        return {name: value for name, value in options.items() if value}

    @cached_property
    def varying(self) -> Words:
        """The names of variables (`env.NAME`) and job options that depend on the number of nodes."""
        ends = [end for sizes in self.by_nodes for end in _ends(sizes) if end is not None]
        counts = {count for end in ends for count in (end - 1, end, end + 1) if count > 0}
        sites = [self.at(count) for count in sorted(counts)]
        settings = [{**{f"env.{name}": v for name, v in each.env.items()}, **each.job_options} for each in sites]
        names = sorted({name for each in settings for name in each})
        return tuple(name for name in names if len({each.get(name) for each in settings}) > 1)

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

    def with_shell(self, environ: Mapping[str, str]) -> tuple[Site, list[str]]:
        """The site with what a shell says to Slurm, and a line for each. Raises SpecError where the site says it
        otherwise, or the toolkit sets it."""

        def stated(table: str, option: str) -> str:
            is_key = option in (IN_SBATCH if table == "sbatch" else KEYS)
            tables: Texts = getattr(self.at(), table)
            return str(getattr(self.at(), option.replace("-", "_")) if is_key else tables.get(option, ""))

        values, lines = adopted(stated, environ)
        return self.with_values(values), lines

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
        tables = {
            kind: {
                name: _read_table(f"[{kind}.{name}]: ", table, refused) for name, table in values.get(kind, {}).items()
            }
            for kind, refused in _REFUSED.items()
            if isinstance(values.get(kind, {}), dict)
        }
        site = Site(**_read_table("", {"name": path.stem, **values, **tables}))
        for kind in _REFUSED:
            for name, table in getattr(site, kind).items():
                _check_table(site, f"[{kind}.{name}]: ", table)
    except re.error as error:
        reason = f"hostname_pattern {pattern!r} is no regular expression: {error}"
    except SiteError as error:
        reason = str(error).removeprefix(f"site {values.get('name', path.stem)}: ")
    else:
        return site
    raise SiteError(f"site file {path}: {reason}")


def _read_table(where: str, values: object, refused: Words = ()) -> dict[str, Any]:
    """The values of a site file, or of one of its tables, which lacks what is `refused`. Raises SiteError, whose text
    begins with `where`."""
    try:
        if not isinstance(values, Mapping):
            raise TypeMismatchError(f"it is {values!r}, not a table")
        if taken := [name for name in refused if name in values]:
            raise TypeMismatchError(f"{taken[0]} is decided once for all jobs: it belongs above all tables")
        # Numbers in tables of texts are texts, and so are flags of Slurm.
        texts = {
            name: {key: _text(name, each) for key, each in value.items()}
            if isinstance(value, Mapping) and name not in _REFUSED else value
            for name, value in values.items()
        }  # fmt: skip
        read = read_fields(Site, {"name": "", **texts})
    except TypeMismatchError as error:
        raise SiteError(f"{where}{error}") from None
    return read if "name" in values else {name: value for name, value in read.items() if name != "name"}


def _text(table: str, value: object) -> object:
    if value is True and table in ("sbatch", "srun"):
        return FLAG
    return str(value) if type(value) in (int, float) else value


def _check_table(site: Site, where: str, table: Mapping[str, Any]) -> None:
    """Raises SiteError where the table's values are none that the site could have."""
    try:
        if where.startswith("[by_nodes."):
            _ends(where.removeprefix("[by_nodes.").removesuffix("]: "))
        dataclasses.replace(site, **_merged(site, [table]), by_nodes={}, by_partition={})
    except SiteError as error:
        raise SiteError(f"{where}{str(error).removeprefix(f'site {site.name}: ')}") from None


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
    for path in sites.values():
        site = read_site(path)
        if site.hostname_pattern and re.fullmatch(site.hostname_pattern, hostname):
            return site
    return None
