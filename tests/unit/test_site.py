from __future__ import annotations

from pathlib import Path

import pytest

from launch.jobs.site import SITES, SiteError, find_site, known_sites, read_site


def site_file(tmp_path: Path, text: str, name: str = "here") -> Path:
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    return path


def test_sites_that_come_with_the_project_can_be_read() -> None:
    assert known_sites()
    for path in known_sites().values():
        assert read_site(path).name == path.stem


def test_a_site_is_known_by_host_name_name_or_file(tmp_path: Path) -> None:
    path = site_file(tmp_path, 'hostname_pattern = "login[0-9]+"\npartition = "gpu"\nmpi = "pmi2"')
    assert find_site(None, hostname="login12", folder=tmp_path) == read_site(path)
    assert find_site(None, hostname="laptop", folder=tmp_path) is None
    assert find_site("here", folder=tmp_path) == find_site(str(path), folder=SITES) == read_site(path)
    assert read_site(path).partition == "gpu"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partitoin = 'x'", "unknown key partitoin; valid keys: name, hostname_pattern, partition"),
        ("launcher = 'orterun'", "launcher 'orterun' is not one of srun, mpirun"),
        (
            "launcher = 'srun'\nmpi = 'openmpi'",
            "mpi 'openmpi' is of launcher = .mpirun.; srun speaks pmix, pmi2 or another",
        ),
        ("container = 'docker'", "not one of apptainer, singularity, podman-hpc, shifter, pyxis, ce"),
        ("container = 'pyxis'", r"needs an \[images\] table"),
        ("gpus_per_node = 'eight'", "gpus_per_node is 'eight', not a whole number"),
        ("cpus_per_node = 0", "must be at least 1"),
        ("gpus_per_node = true", "not a whole number"),
        ("modules = 'CUDA'", "modules must be a list, not"),
        ("env = 'A=1'", "env must be a table"),
        ("env = {A = true}", "env.A is True, not a text"),
        ("env = 3", r"env must be a table \(a line \[env\], then KEY = VALUE\), not 3"),
        ("hostname_pattern = '['", r"hostname_pattern '\[' is no regular expression"),
        ("hostname = 'x'", r"unknown key hostname; .*Did you mean hostname_pattern\?"),
        ("gpus_per_node = -1", r"here.toml: gpus_per_node is -1; it must be at least 0"),
        ("env = {'A B' = '1'}", "env: 'A B' is no name of an environment variable"),
        ("preflight = 'load'", "preflight must be a table"),
        ("[preflight]\nlaod = 'fatal'", r"\[preflight\]: unknown check 'laod'; known: mpi_size"),
        ("network = 'fast'", "network must be a table"),
        ("[network]\nlatency = 3", r"\[network\]: unknown 'latency'; known: bandwidth_gbit: Gbit/s of a node"),
        ("[network]\nlatency_us = 'low'", "latency_us is 'low', not a number"),
        ("[network]\nbandwidth_gbit = 0", "bandwidth_gbit is 0; it must be above 0"),
        ("expect_transport = '--ib'", "'--ib' is no name of a network; say ib"),
        ("expect_transport = 1", "expect_transport is 1, not a text"),
        ("exclusive = 1", "exclusive is 1, not true or false"),
        ("[env]\nHF_TOKEN = 'x'", "env HF_TOKEN looks like a secret"),
        ("container_args = ['--env', 'HF_TOKEN=x']", "container_args looks like a secret"),
        ("container = 'pyxis'\nimages = {torch = 'docker://me:hush@host/x'}", "image torch looks like a secret"),
        ("a = [", "not TOML"),
    ],
)
def test_an_invalid_site_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = site_file(tmp_path, text)
    with pytest.raises(SiteError, match=message) as error:
        read_site(path)
    assert str(path) in str(error.value)


def test_missing_sites_are_named(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"unknown site 'there'; known sites: here"):
        site_file(tmp_path, "")
        find_site("there", folder=tmp_path)
    with pytest.raises(SiteError, match="No such file"):
        find_site(str(tmp_path / "no.toml"))


def test_images_and_interpreters_per_framework(tmp_path: Path) -> None:
    text = 'container = "apptainer"\n[images]\ntorch = "t.sif"\n[interpreter]\ndefault = "/opt/python"'
    site = read_site(site_file(tmp_path, text))
    assert site.image("torch") == "t.sif"
    assert site.python("torch", "/here") == "/opt/python"
    with pytest.raises(SiteError, match="no container image for paddle"):
        site.image("paddle")
