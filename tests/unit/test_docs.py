"""What the documents name is there: links and their anchors, files, modules, things in modules, options of commands."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pytest

from hpc.model.checks import CHECKS
from hpc.model.outcome import FINAL_OUTCOMES, Outcome
from launch.jobs.options import RunLimits
from tools.devcluster.__main__ import counts

ROOT = Path(__file__).parents[2]
HISTORY = {"CHANGELOG.md", "docs/log.md"}  # what they name was there once
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
OURS = ("hpc", "launch", "parse", "benchmarks")
FOLDERS = (*OURS, "sbatch_templates", "tests", "tools", "docs", "examples")
LINK = re.compile(r"\[[^\]]*\]\((?!https?://)([^)\s]+)\)")
PATH = re.compile(
    rf"(?<=`)(?:{'|'.join(FOLDERS)})/[\w./-]*(?=`)|(?<![\w./<>-])(?:{'|'.join(FOLDERS)})/[\w/-]+\.(?:py|md|toml|cmake)"
)
NAME = re.compile(rf"(?<![\w./-])(?:{'|'.join(OURS[:3])})\.[a-z_]\w*(?:\.\w+)*")
COMMAND = re.compile(rf"python3? -m ((?:{'|'.join(OURS)})[\w.]*)([^`|;)\n]*)")
TARGET = re.compile(r"(?<=`)make ([a-z]+)(?=[` ])|^make ([a-z]+)  +#", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
OPTIONS_OF_OTHERS = {"--gpus-per-task", "--host", "--mpi", "--overlap", "--requeue"}
ACTIONS = {
    "hpc.sweep": ("status", "cancel", "retry", "list"),
    "hpc.recovery": ("collect", "clean"),
    "launch.devcluster": ("start", "stop", "status", "env"),
}
PROGRAMS = ("hpc.rank", "hpc.collectives", "hpc.preflight", "launch.step", "parse.summarize",
            "hpc.recovery.recover", "parse.airank", "launch.doctor", *ACTIONS)  # fmt: skip


def named(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def of(*, history: bool) -> list[Path]:
    return [document for document in DOCUMENTS if history or named(document) not in HISTORY]


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(document: Path) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)}


def broken_link(document: Path, link: str) -> str:
    """Why the link leads nowhere; empty where it leads somewhere."""
    path, _, fragment = unquote(link).partition("#")
    target = (document.parent / path).resolve() if path else document
    if not target.exists():
        return "no such file"
    if fragment and fragment not in anchors(target):
        return f"no heading {fragment}"
    return ""


def module_file(name: str) -> Path | None:
    """The file that `python -m NAME` runs."""
    path = ROOT.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()), None)


def is_there(name: str) -> bool:
    """Whether a dotted name is a module, or something that one defines."""
    words = name.split(".")
    for count in range(len(words), 0, -1):
        path = ROOT.joinpath(*words[:count])
        file = next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
        if file is not None or path.is_dir():
            rest = words[count:]
            text = "" if file is None else file.read_text()
            return all(re.search(rf"^\s*(?:def|class) {word}\b|^\s*{word}\b.*=", text, re.MULTILINE) for word in rest)
    return False


def commands(document: Path) -> Iterator[tuple[str, str]]:
    """The module and the arguments of each command of ours; a command that goes on in the next line is one."""
    for found in COMMAND.finditer(re.sub(r"\\\n\s*", " ", document.read_text())):
        yield found[1].rstrip("."), found[2].partition(" #")[0]


@cache
def help_of(module: str, action: str = "") -> str:
    printed = io.StringIO()
    file = module_file(module)
    assert file is not None, module
    main = import_module(".".join(file.relative_to(ROOT).with_suffix("").parts)).main
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit):
        main([*filter(None, [action]), "--help-all" if module == "hpc.sweep" and action != "list" else "--help"])
    return printed.getvalue()


def options_of(module: str, action: str = "") -> set[str]:
    """Of a command of ours, by its longest help, with those of one of its actions."""
    return set(OPTION.findall(help_of(module) + (help_of(module, action) if action else "")))


def cases(pattern: re.Pattern[str], *, history: bool) -> list[object]:
    return [
        pytest.param(document, word, id=f"{named(document)}: {word}")
        for document in of(history=history)
        for word in dict.fromkeys("".join(found).rstrip(".") for found in pattern.findall(document.read_text()))
    ]


@pytest.mark.parametrize(("document", "link"), cases(LINK, history=True))
def test_a_link_leads_somewhere(document, link):
    assert not broken_link(document, link)


@pytest.mark.parametrize(("document", "path"), cases(PATH, history=False))
def test_a_path_is_there(document, path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize(("document", "name"), cases(NAME, history=False))
def test_a_name_is_there(document, name):
    assert is_there(name)


@pytest.mark.parametrize(("document", "target"), cases(TARGET, history=False))
def test_make_knows_the_target(document, target):
    assert re.search(rf"^[a-z ]*\b{target}\b[a-z ]*:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("document", [pytest.param(each, id=named(each)) for each in of(history=False)])
def test_commands_and_their_options_are_there(document):
    for module, arguments in commands(document):
        assert module_file(module), module
        if options := OPTION.findall(arguments):
            action = arguments.split()[0]
            known = options_of(module, action if action in ACTIONS.get(module, ()) else "")
            assert set(options) <= known, f"{module}: {', '.join(sorted(set(options) - known))}"


@pytest.mark.parametrize("document", [pytest.param(each, id=named(each)) for each in of(history=False)])
def test_an_option_in_the_text_is_one_of_ours_or_known_to_be_of_others(document):
    ours = {
        option
        for module in PROGRAMS
        for action in ("", *ACTIONS.get(module, ()))
        for option in options_of(module, action)
    }
    spans = re.findall(r"`(--[^`\n]*)`", document.read_text())
    assert not {option for span in spans for option in OPTION.findall(span)} - ours - OPTIONS_OF_OTHERS


@pytest.mark.parametrize("module", PROGRAMS)
def test_help_says_how_it_ends(module):
    text = " ".join(help_of(module).split())
    assert re.search(r"Exit status 0: .*; 2: usage", text), text


@pytest.mark.parametrize(("nodes", "words"), [(1, "1"), (2, "1,2"), (3, "1,2,3"), (4, "1,2,4"), (6, "1,2,4,6")])
def test_what_the_development_cluster_proposes_fits_on_it(nodes, words):
    assert counts(nodes) == words


def test_documents_that_the_code_names_are_there():
    files = [file for folder in FOLDERS for kind in ("*.py", "*.j2", "*.toml") for file in (ROOT / folder).rglob(kind)]
    named_by = {name: file for file in files for name in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text())}
    assert len(named_by) > 3
    assert not [f"{named(file)}: {name}" for name, file in named_by.items()
                if not (ROOT / name).exists() and file != Path(__file__)]  # fmt: skip


def test_every_document_is_linked_from_another():
    linked = {
        (document.parent / link.partition("#")[0]).resolve()
        for document in of(history=True)
        for link in LINK.findall(document.read_text())
    }
    linked |= {path for folder in linked if folder.is_dir() for path in folder.iterdir()}
    unlinked = [named(document) for document in DOCUMENTS if document.name not in ("README.md", "CHANGELOG.md")
                and document not in linked]  # fmt: skip
    assert not unlinked


def test_every_module_is_in_the_structure():
    words = {word.removesuffix(".py") for word in re.findall(r"`([^`\n]+)`", (ROOT / "docs/structure.md").read_text())}
    endings = tuple(word.removeprefix("…") for word in words if word.startswith("…"))
    files = [file for folder in OURS[:3] for file in (ROOT / folder).rglob("*.py") if not file.stem.startswith("__")]
    assert not [named(file) for file in files if file.stem not in words and not file.stem.endswith(endings)]


def rows(document: str) -> list[list[str]]:
    """The cells of all tables of a document."""
    lines = (ROOT / "docs" / document).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]


def test_the_outcomes_and_which_of_them_settle_a_run_are_those_of_the_code():
    told = {cells[0].strip("`"): cells[-1] for cells in rows("outcomes.md") if cells[-1] in ("yes", "no")}
    assert told == {outcome: "yes" if outcome in FINAL_OUTCOMES else "no" for outcome in Outcome}


def test_the_checks_and_their_levels_are_those_of_the_code():
    told = {
        name: re.match(r"\w+", cells[1])[0] + (", always" if cells[1].endswith("always") else "")
        for cells in rows("preflight.md")
        for name in re.findall(r"`(\w+)`", cells[0])
    }
    assert told == {name: check.level + (", always" if check.fixed else "") for name, check in CHECKS.items()}


def test_the_limits_of_the_watchdog_are_those_of_the_code():
    text = (ROOT / "docs/watchdog.md").read_text()
    told = {name: float(value) for name, value in re.findall(r"`(\w+_s|hang_steps)` \((\d+)\)", text)}
    limits = RunLimits()
    assert told == dataclasses.asdict(limits)


def test_what_is_not_there_is_found():
    readme = ROOT / "README.md"
    assert broken_link(readme, "docs/nothing.md") and broken_link(readme, "docs/outcomes.md#no-such-heading")
    assert not broken_link(readme, "docs/outcomes.md#nothing-twice")
    assert (
        not is_there("hpc.model.spec.NOTHING") and not is_there("hpc.leftovers") and is_there("hpc.model.spec.RunSpec")
    )
    assert module_file("hpc.nothing") is None and module_file("hpc.recovery") and module_file("hpc.sweep")
    assert "--nothing" not in help_of("hpc.sweep") and "--hang-steps" in help_of("hpc.sweep")
