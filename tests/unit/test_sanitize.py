"""Texts of others: secrets are removed, control characters escaped."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.spec import SpecError, check_arguments, check_settings, secret_arguments
from hpc.system.sanitize import (
    REDACTED,
    arguments_without_secrets,
    deny_world_writing,
    is_secret,
    plain,
    without_secrets,
)
from tests.secret_forms import HARMLESS_FORMS, SECRET_FORMS

SECRET = (
    "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "WANDB_API_KEY", "DB_PASS", "PGPASSWORD", "SSHPASS", "SSH_AUTH_SOCK",
    "GITHUB_PAT", "SENTRY_DSN", "Authorization", "apiKey", "MYSQL_PWD", "REDISCLI_AUTH", "SLURM_JWT", "hf_token",
    "OMPI_secret", "CUDA_CREDENTIALS", "x-api-key",
)  # fmt: skip
HARMLESS = (
    "NCCL_IB_PKEY", "UCX_IB_PKEY", "TOKENIZERS_PARALLELISM", "PWD", "OLDPWD", "KERAS_BACKEND", "NCCL_DEBUG", "PATH",
    "OMP_WAIT_POLICY", "AUTHOR", "key", "COMPASS", "PATTERN",
)  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret(name)
    assert is_secret(name, "hush")


@pytest.mark.parametrize("name", HARMLESS)
def test_names_that_hold_such_a_word_by_chance_are_none(name: str) -> None:
    assert not is_secret(name)


def test_a_switch_is_no_secret_and_a_secret_is_known_by_its_look() -> None:
    assert not is_secret("USE_AUTH", "on") and is_secret("USE_AUTH", "hunter2")
    assert is_secret("TRACKING_URI", "https://me:hush@host/x")
    assert is_secret("ANYTHING", "ghp_" + "a1" * 18)
    assert not is_secret("TRACKING_URI", "https://host:8080/x")


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("export MY_TOKEN=hush", "export MY_TOKEN=(left out)"),
        ("API_KEY='hush hush' python x.py", "API_KEY=(left out) python x.py"),
        ('export WANDB_API_KEY="hu\\"sh" A=1', "export WANDB_API_KEY=(left out) A=1"),
        ("TOKEN='hush that nobody closes", "TOKEN=(left out)"),
        ("env 'MY_TOKEN=hush hush' A=1", "env 'MY_TOKEN=(left out) A=1"),
        ("--env A_TOKEN=hush --steps 3", "--env A_TOKEN=(left out) --steps 3"),
        ("login --password hush --user me", "login --password (left out) --user me"),
        ("{'api_key': 'hush hush', 'steps': 3}", "{'api_key': (left out), 'steps': 3}"),
        ("curl -H 'Authorization: Bearer hush hush'", "curl -H 'Authorization: (left out)"),
        ("ValueError: bad HF_TOKEN=hush\nmore", "ValueError: bad HF_TOKEN=(left out)\nmore"),
        ("git clone https://me:hush@host/x", "git clone https://(left out)@host/x"),
        ("export NCCL_DEBUG=INFO", "export NCCL_DEBUG=INFO"),
        ("srun --ntasks=4 python -m hpc.rank", "srun --ntasks=4 python -m hpc.rank"),
        ("sorted(names, key=len)", "sorted(names, key=len)"),
        ("KeyError: 'model.weight'", "KeyError: 'model.weight'"),
        ("CredentialError: the file is not there", "CredentialError: the file is not there"),
    ],
)
def test_values_are_left_out_of_texts(text: str, cleaned: str) -> None:
    assert without_secrets(text) == cleaned


@pytest.mark.parametrize("form", SECRET_FORMS)
def test_a_secret_among_arguments_is_left_out_in_every_form(form: tuple[str, ...]) -> None:
    shown = arguments_without_secrets(["--steps", "3", *form, "--lr", "0.1"])
    assert "hush" not in " ".join(shown) and REDACTED in " ".join(shown)
    assert (shown[:2], shown[-2:]) == (["--steps", "3"], ["--lr", "0.1"])
    assert arguments_without_secrets(shown) == shown
    assert secret_arguments(form) and "hush" not in " ".join(secret_arguments(form))
    with pytest.raises(SpecError, match="export where you start the sweep") as refused:
        check_arguments(form)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("form", SECRET_FORMS)
@pytest.mark.parametrize("written", [" ".join, shlex.join, repr, lambda form: f"run: \\\n  {shlex.join(form)} --lr 1"])
def test_a_secret_in_a_text_is_left_out_in_every_form(form: tuple[str, ...], written: Callable[..., str]) -> None:
    shown = without_secrets(written(list(form)))
    assert "hush" not in shown and REDACTED in shown
    assert without_secrets(shown) == shown


@pytest.mark.parametrize("form", HARMLESS_FORMS)
def test_what_a_model_reads_is_no_secret(form: str) -> None:
    assert without_secrets(form) == form
    assert arguments_without_secrets(shlex.split(form)) == shlex.split(form)
    check_arguments(shlex.split(form))


def test_several_keys_of_one_option_are_left_out() -> None:
    assert arguments_without_secrets(["--api-keys", "a", "b", "--lr", "1"]) == [
        "--api-keys", REDACTED, REDACTED, "--lr", "1"
    ]  # fmt: skip


def test_a_setting_of_runs_is_judged_by_name_and_value() -> None:
    check_settings("option", {"max_tokens": ["4096"], "key_dim": ["64"]})
    with pytest.raises(SpecError, match="option: hub_token looks like a secret"):
        check_settings("option", {"hub_token": ["hush"]})


def test_a_long_text_takes_a_time_that_grows_with_its_length_alone() -> None:
    """No value is looked at twice, whatever opens and never closes: this ends, where squares of it would not."""
    for text in ("a='", "pad_token='", "token: b c\n", "--token \\\n"):
        without_secrets(text * 50_000)


def test_a_job_script_without_secrets_is_unchanged() -> None:
    script = (Path(__file__).resolve().parents[1] / "golden" / "2n.sh").read_text()
    assert without_secrets(script) == script


@given(st.text())
def test_no_value_survives_however_a_shell_must_quote_it(value: str) -> None:
    secret = f"hush{value}hush"
    for line in (f"A=1 {shlex.join([f'MY_TOKEN={secret}'])} B=2", f"MY_TOKEN={shlex.quote(secret)} B=2"):
        assert "hush" not in without_secrets(line)


@given(st.text())
def test_nothing_else_is_changed_twice(text: str) -> None:
    once = without_secrets(text)
    assert REDACTED in once or once == text


def test_control_characters_are_shown_as_escapes() -> None:
    hostile = "a\x1b]0;owned\x07\x1b[2Jb\rc\nd\u202ee\u200bf\x85g\u2028h"
    assert plain(hostile) == "a\\x1b]0;owned\\x07\\x1b[2Jb\\rc\\nd\\u202ee\\u200bf\\x85g\\u2028h"
    assert plain("größer als 3 · 4 µs [bold]") == "größer als 3 · 4 µs [bold]"


def test_others_may_not_write_whatever_the_umask_was(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        deny_world_writing()
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "file", tmp_path / "folder")]
        assert modes == [0o664, 0o775]  # a group may still share a sweep
        os.umask(0o077)
        deny_world_writing()
        assert os.umask(0o077) == 0o077  # never wider than it was
    finally:
        os.umask(before)
