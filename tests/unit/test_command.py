"""`rankwise`: its help, the commands behind its words, and what foreign packages of our names do to it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.command import HELP, SHELLS, _parser_of
from hpc.system.command_line import COMMANDS, SUBCOMMANDS
from hpc.system.version import ShowVersion
from tests.sweeps import ROOT
from tests.unit.commands import process, when_imported
from tests.unit.traces import make_run, make_trace, put

INTERNAL = {"hpc.preflight", "hpc.recovery"}
"""What job scripts and ranks run; a person hardly ever."""
START = "import sys; sys.argv[0] = '/bin/rankwise'; from hpc.command import main; sys.exit(main())"


def rankwise(
    *arguments: str, cwd: Path, env: dict[str, str] | None = None, after: str = ""
) -> subprocess.CompletedProcess[str]:
    """The console script, as pip writes it, in this folder."""
    start = START if not after else f"import atexit; atexit.register(lambda: exec({after!r})); {START}"
    return process([sys.executable, "-c", start, *arguments], cwd, env)


def test_the_help_fits_a_screen_and_has_every_command(tmp_path: Path) -> None:
    shown = rankwise("--help", cwd=tmp_path)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, HELP, "")
    lines = HELP.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[3:6]] == ["sweep", "summarize", "report"]
    words = {subcommand for line in lines for subcommand in re.findall(r"[a-z-]+", line)}
    assert set(SUBCOMMANDS) <= words
    without = rankwise(cwd=tmp_path)
    assert (without.returncode, without.stdout, without.stderr) == (2, "", HELP)


def test_every_command_that_people_run_has_a_word() -> None:
    assert set(SUBCOMMANDS.values()) == set(COMMANDS) - INTERNAL


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_each_command_shows_the_version(subcommand: str) -> None:
    """Which `rankwise --version` shows, too: the option is the same everywhere."""
    (action,) = (each for each in _parser_of(SUBCOMMANDS[subcommand])._actions if "--version" in each.option_strings)
    assert isinstance(action, ShowVersion)


@pytest.mark.parametrize("arguments", [("observe",), ("observe", "script.py", "--steps", "3"), ("collectives",)])
def test_what_an_error_suggests_is_the_command_as_it_was_typed(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    done = rankwise(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(rf"rankwise {arguments[0]}(?: -- |\))", done.stderr) and "hpc." not in done.stderr, done.stderr


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_each_help_names_the_command_as_it_was_typed(subcommand: str, tmp_path: Path) -> None:
    """In the usage, the examples and the options; that of `python -m` stays, by test_command_lines_output.py."""
    shown = rankwise(subcommand, "--help", cwd=tmp_path, env={"COLUMNS": "100"})
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.split()[:3] == ["usage:", "rankwise", subcommand]
    text = " ".join(shown.stdout.split())
    assert not re.findall("python -m (?:hpc|parse|launch)[.a-z_]*", text.replace("rankwise hpc.recovery ", ""))


def test_columns_of_examples_stay_where_they_are(tmp_path: Path) -> None:
    def columns(text: str) -> set[int]:
        return {match.end() for line in text.splitlines() if (match := re.match(r" +(python|rankwise) .*?  +", line))}

    typed = rankwise("sweep", "--help", cwd=tmp_path).stdout
    given = process([sys.executable, "-m", "hpc.sweep", "--help"], tmp_path).stdout
    assert columns(typed) == columns(given) and len(columns(given)) == 1


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (("help", "sweep"), "usage: rankwise sweep --nodes"),
        (("help", "compare"), "usage: rankwise compare"),
        (("sweep", "status", "--help"), "usage: rankwise sweep status"),
        (("sweep", "recover", "--help"), "usage: rankwise sweep recover"),
        (("summarize", "--airank", "--help"), "usage: rankwise summarize --airank"),
        (("help", "completion"), "usage: rankwise completion"),
        (("help",), "usage: rankwise COMMAND"),
    ],
)
def test_help_of_a_command_is_that_commands(arguments: tuple[str, ...], usage: str, tmp_path: Path) -> None:
    done = rankwise(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert " ".join(done.stdout.split()).startswith(usage)


def test_help_of_what_is_no_command_is_refused(tmp_path: Path) -> None:
    done = rankwise("help", "sweeep", cwd=tmp_path)
    assert done.returncode == 2 and "'sweeep' is no command of it; did you mean rankwise sweep?" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("sumarize",), "rankwise: 'sumarize' is no command of it; did you mean rankwise summarize? (rankwise --help)"),
        (("--nodes", "1"), "rankwise: '--nodes' is no command of it (rankwise --help)"),
        (("status",), "rankwise: status is no command any more: rankwise sweep status"),
        (("airank",), "rankwise: airank is no command any more: rankwise summarize --airank"),
        (("sweep", "status"), "rankwise sweep: no sweep was planned in {folder}/traces: name its folder with --out"),
        (("sweep", "retry", "omm"), "rankwise sweep: 'omm' is no outcome of a retry: invalid, oom, rank_fail.*"),
        (("compare", "a", "b", "--tresh"), "rankwise compare: error: .*--tresh.*"),
    ],
)  # fmt: skip
def test_wrong_usage_is_2_and_says_what_was_typed(arguments: tuple[str, ...], line: str, tmp_path: Path) -> None:
    done = rankwise(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last == line.format(folder=tmp_path) or re.fullmatch(line, last), last


def test_only_the_named_command_is_imported(traces: Path, tmp_path: Path) -> None:
    put(traces, make_trace(make_run()))
    after = "import sys; print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    done = rankwise("summarize", str(traces), cwd=tmp_path, after=after)
    shown, _, loaded = done.stdout.partition("LOADED")
    assert done.returncode == 0 and "1n1g" in shown, done.stderr
    assert "parse" in loaded.split() and not {"torch", "mpi4py", "launch", "submitit"} & set(loaded.split())
    of_help = rankwise("--help", cwd=tmp_path, after=after).stdout.partition("LOADED")[2].split()
    assert not {"torch", "mpi4py", "launch", "parse", "numpy", "rich", "argparse"} & set(of_help)


def test_ctrl_c_during_imports_is_one_line(tmp_path: Path) -> None:
    env = when_imported(tmp_path / "site", "numpy", "os.kill(os.getpid(), signal.SIGINT)")
    done = rankwise("summarize", ".", cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rankwise summarize: interrupted\n")


# --- completion ---


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_of_a_shell_has_every_command_and_its_options(shell: str, tmp_path: Path) -> None:
    done = rankwise("completion", shell, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    words = set(re.findall(r"[\w-]+", done.stdout))
    assert {*SUBCOMMANDS, "completion"} <= words
    for option in ("hang-steps", "ranks-per-node", "ledger", "update-reference", "kineto", "junit"):
        assert {option, f"--{option}"} & words, option
    if program := shutil.which(shell):
        script = tmp_path / "completion"
        script.write_text(done.stdout)
        checked = process([program, "-n", str(script)], tmp_path)
        assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("rankwise sum", "summarize"), ("rankwise compare --format j", "json junit"),
        *(
            pytest.param(*further, marks=pytest.mark.all)
            for further in (
                ("rankwise sweep --no", "--nodes --no-baseline --no-sync"),
                ("rankwise sweep accept --make", "--make-reference"), ("rankwise sweep --cluster lo", "local"),
                ("rankwise devcluster st", "start stop status"), ("rankwise completion f", "fish"),
            )
        ),
    ],
)  # fmt: skip
def test_bash_completes(typed: str, completed: str, tmp_path: Path) -> None:
    (tmp_path / "completion").write_text(rankwise("completion", "bash", cwd=tmp_path).stdout)
    words = typed.split()
    ask = (
        f'. ./completion; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _shtab_rankwise; echo "${{COMPREPLY[@]}}"'
    )
    done = process(["bash", "-c", ask], tmp_path)
    assert sorted(done.stdout.split()) == sorted(completed.split()), done.stderr


@pytest.mark.parametrize("arguments", [(), ("csh",), ("bash", "zsh")])
def test_another_shell_is_usage(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = rankwise("completion", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "") and "completion bash | zsh | fish" in done.stderr


def test_without_shtab_the_fix_is_named(tmp_path: Path) -> None:
    missing = "raise ModuleNotFoundError('no shtab', name='shtab')"
    done = rankwise("completion", "bash", cwd=tmp_path, env=when_imported(tmp_path / "site", "shtab", missing))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "rankwise completion: shtab, which writes it, is not installed: pip install shtab\n"


FOREIGN = "raise SystemExit('foreign package {name} was run')\n"


@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize("kind", ["module", "package"])
@pytest.mark.parametrize(
    "arguments", [("summarize", "--help"), ("list",), ("devcluster", "--help"), ("doctor", "--help")]
)
def test_foreign_packages_of_our_names_are_not_taken(
    arguments: tuple[str, ...], kind: str, where: str, tmp_path: Path
) -> None:
    """PyPI's `parse` was one file and is a folder now; `tools` is in many wheels."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for name in ("parse", "launch", "tools"):
        path = foreign / (f"{name}.py" if kind == "module" else f"{name}/__init__.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(FOREIGN.format(name=name))
    paths = [str(foreign), str(ROOT)] if where == "before" else [str(ROOT), str(foreign)]
    env = {"PYTHONPATH": ":".join(paths)}
    done = rankwise(*arguments, cwd=tmp_path, env=env)
    assert done.returncode == 0 and "foreign" not in done.stderr, done.stderr
    module = SUBCOMMANDS[arguments[0]]
    if module == "hpc.sweep":  # which imports the others after it has begun
        given = process([sys.executable, "-m", module, *arguments[1:]], tmp_path, env)
        assert given.returncode == 0 and "foreign" not in given.stderr, given.stderr
