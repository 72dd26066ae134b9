"""Site: the facts of one cluster, from a TOML file, chosen by host name or by its name."""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc.model.findings import CheckError, read_levels
from hpc.model.options import PromiseError, did_you_mean, read_promises
from hpc.model.spec import EXPORTED, SpecError, secret_arguments
from hpc.system.regular_file import parse_toml, read_text
from hpc.system.sanitize import is_secret, without_secrets

SITES = Path(__file__).resolve().parents[2] / "sbatch_templates" / "sites"
LAUNCHERS = {"srun": ("pmix", "pmi2"), "mpirun": ("openmpi", "mpich")}
"""By launcher: the allowed values of `mpi`."""
CONTAINERS = ("", "apptainer", "pyxis")
IN_SBATCH = ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude")
"""The facts of a site that are options of sbatch, too, and so of a sweep."""
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NO_ENV_NAME = "is no name of an environment variable (letters, digits, _)"


class SiteError(SpecError):
    """No site has this name, or its file is missing or has an invalid value; the text lists what is valid."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """One cluster, in Slurm's words.

    `interpreter` and `images` name a Python and a container image per framework (`torch`, `tensorflow`, …; `default`
    serves those not named). `time_limit_min` is the longest a job may take; longer plans are split. `squeue_interval_s`
    is the longest time between two queries of a sweep that follows its jobs.

    `expect_transport` is the expected network of NCCL between nodes (`ib`, `ib/gdrdma`, `socket`, a part of another
    network's name); `network` is what is promised of it (`bandwidth_gbit`, `latency_us`); `preflight` gives checks
    other levels than their own: `fatal`, `alarm` or `off`.
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
    cpus_per_node: int | None = None
    launcher: str = "srun"
    mpi: str = ""
    modules: tuple[str, ...] = ()
    container: str = ""
    container_args: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    interpreter: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    time_limit_min: int | None = None
    squeue_interval_s: int = 60
    exclusive: bool = True
    expect_transport: str = ""
    network: Mapping[str, str] = field(default_factory=dict)
    preflight: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.launcher not in LAUNCHERS:
            raise SiteError(f"site {self.name}: launcher {self.launcher!r} is not one of {', '.join(LAUNCHERS)}")
        if not self.mpi:
            object.__setattr__(self, "mpi", LAUNCHERS[self.launcher][0])
        if self.mpi not in LAUNCHERS[self.launcher]:
            valid = ", ".join(LAUNCHERS[self.launcher])
            raise SiteError(f"site {self.name}: mpi {self.mpi!r} is not one of {valid}, those of {self.launcher}")
        if self.container not in CONTAINERS:
            raise SiteError(f"site {self.name}: container {self.container!r} is not one of apptainer, pyxis")
        if self.container and not self.images:
            raise SiteError(f"site {self.name}: container = {self.container!r} needs an [images] table")
        if self.expect_transport and not re.fullmatch(r"[A-Za-z0-9][\w ./+-]*", self.expect_transport):
            raise SiteError(
                f"site {self.name}: expect_transport {self.expect_transport!r} is no name of a network; say ib, "
                "ib/gdrdma, socket, or a part of what NCCL calls it after `via NET/`"
            )
        try:
            read_levels(self.check_words)
        except CheckError as error:
            raise SiteError(f"site {self.name}: [preflight]: {error}") from None
        try:
            read_promises(self.promises)
        except PromiseError as error:
            raise SiteError(f"site {self.name}: [network]: {error}") from None
        for name, least in {
            "gpus_per_node": 0,
            "cpus_per_node": 1,
            "time_limit_min": 1,
            "squeue_interval_s": 3,
        }.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise SiteError(f"site {self.name}: {name} is {value}; it must be at least {least}")

        if odd := [name for name in self.env if not ENV_NAME.fullmatch(name)]:
            raise SiteError(f"site {self.name}: env: {odd[0]!r} {NO_ENV_NAME}")
        secrets = [f"env {name}" for name, value in self.env.items() if is_secret(name, value)]
        secrets += [f"image {name}" for name, image in self.images.items() if without_secrets(image) != image]
        if secret_arguments(self.container_args):
            secrets.append("container_args")
        if secrets:
            raise SiteError(
                f"site {self.name}: {', '.join(secrets)} looks like a secret, and what is set for runs is written into "
                f"scripts, plans and traces: {EXPORTED}"
            )

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
    kinds = {f.name: str(f.type) for f in dataclasses.fields(Site)}
    if unknown := sorted(set(values) - set(kinds)):
        near = did_you_mean(unknown[0], kinds)
        raise SiteError(f"site file {path}: unknown key {', '.join(unknown)}; valid keys: {', '.join(kinds)}{near}")
    values.setdefault("name", path.stem)
    try:
        re.compile(pattern := str(values.get("hostname_pattern", "")))
    except re.error as error:
        raise SiteError(f"site file {path}: hostname_pattern {pattern!r} is no regular expression: {error}") from None
    try:
        return Site(**{name: _value(name, kinds[name], value) for name, value in values.items()})
    except SiteError as error:
        reason = str(error).removeprefix(f"site {values['name']}: ")
        raise SiteError(f"site file {path}: {reason}") from None


def known_sites(folder: Path = SITES) -> dict[str, Path]:
    """The site files of the project, by name."""
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


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


_KINDS: Mapping[str, tuple[type, str]] = {
    "bool": (bool, "true or false"), "int": (int, "a whole number"), "str": (str, "a text"),
}  # fmt: skip


def _value(name: str, annotation: str, value: Any) -> Any:
    """A TOML value in the type of the field; a wrong type is an error of the file."""
    if annotation.startswith("Mapping"):
        texts = isinstance(value, dict) and all(isinstance(v, str | int | float) for v in value.values())
        if texts and not any(isinstance(v, bool) for v in value.values()):  # "True" would be a guess
            return {key: str(v) for key, v in value.items()}
        if not isinstance(value, dict):
            raise SiteError(f"{name} must be a table of texts (a line [{name}], then KEY = TEXT), not {value!r}")
        odd = next(f"{key} = {v!r}" for key, v in value.items() if type(v) not in (str, int, float))
        raise SiteError(f"{name} must be a table of texts, and has {odd}")
    if annotation.startswith("tuple"):
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            return tuple(value)
        raise SiteError(f"{name} must be a list of texts, not {value!r}")
    kind, description = _KINDS[annotation.partition(" ")[0]]
    if type(value) is not kind:  # True is no 1
        raise SiteError(f"{name} is {value!r}, not {description}")
    return value
