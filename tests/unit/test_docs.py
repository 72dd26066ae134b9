"""Everything named in the documents exists: links, anchors, files, modules, their members, command options."""

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

from hpc.backends import TRAINERS
from hpc.model.findings import CHECKS
from hpc.model.outcome import FINAL_OUTCOMES, Outcome
from hpc.system.command_line import SUBCOMMANDS
from launch.jobs.options import RunLimits
from parse.logs.formats import FORMATS
from tests.leaves import leaves
from tools.devcluster.__main__ import counts

ROOT = Path(__file__).parents[2]
HISTORY = {"CHANGELOG.md"}  # may name what no longer exists
AT_THE_TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
DOCUMENTS = [*(ROOT / name for name in AT_THE_TOP), *TEMPLATES, *sorted((ROOT / "docs").rglob("*.md"))]
OURS = ("hpc", "launch", "parse", "benchmarks")
FOLDERS = (*OURS, "sbatch_templates", "tests", "tools", "docs", "examples")
LINK = re.compile(r"\[[^\]]*\]\((?!https?://)([^)\s]+)\)")
PATH = re.compile(
    rf"(?<=`)(?:{'|'.join(FOLDERS)})/[\w./-]*(?=`)|(?<![\w./<>-])(?:{'|'.join(FOLDERS)})/[\w/-]+\.(?:py|md|toml|cmake)"
)
NAME = re.compile(rf"(?<![\w./-])(?:{'|'.join(OURS[:3])})\.[a-z_]\w*(?:\.\w+)*")
COMMAND = re.compile(
    rf"(?:python3? -m ((?:{'|'.join(OURS)})[\w.]*)|(?:(?<=`)|^ *|[$-] |\|\| )rankwise ([a-z][\w.-]*))([^`|;)\n]*)",
    re.MULTILINE,
)
TARGET = re.compile(r"(?<=`)make ([a-z-]+(?: [a-z-]+)*)(?=[` ])|^make ([a-z-]+(?: [a-z-]+)*)(?=  +#|$)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
MAX_PAGES, MAX_WORDS = 22, 40_000
MOST_LINES = {"docs/results.md": 299, "CONTRIBUTING.md": 120}
OPTIONS_OF_OTHERS = {
    "--environment", "--gpus-per-task", "--hf-token", "--host", "--key", "--key-dim", "--max-token", "--module",
    "--mpi", "--nv", "--openmpi-pmi", "--overlap", "--pad-token-id", "--password", "--requeue", "--rocm",
    "--token-file",
}  # fmt: skip
OF_RANKWISE = ("completion", "help")
"""Commands that are no module."""
ACTIONS = {
    "hpc.sweep": ("status", "cancel", "retry", "accept", "recover"),
    "hpc.recovery": ("collect", "clean", "recover"),
    "launch.devcluster": ("start", "stop", "status", "env"),
    "parse.summarize": ("--airank",),
}
PROGRAMS = ("hpc.rank", "hpc.collectives", "hpc.observe", "hpc.data", "hpc.preflight", "launch.step",
            "launch.catalog", "parse.compare", "parse.export", "parse.forecast", "parse.history",
            "parse.collective_trace", "parse.timeline", "parse.report", "parse.watch",
            "launch.doctor", *ACTIONS)  # fmt: skip


def named(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def of(*, history: bool) -> list[Path]:
    return [document for document in DOCUMENTS if history or named(document) not in HISTORY]


def anchor(heading: str) -> str:
    """The anchor that GitHub gives the heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(document: Path) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)}


def broken_link(document: Path, link: str) -> str:
    """Problem of the link; empty if its target exists."""
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


def exists(name: str) -> bool:
    """Whether a dotted name is a module or is defined in one."""
    words = name.split(".")
    for count in range(len(words), 0, -1):
        path = ROOT.joinpath(*words[:count])
        file = next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
        if file is not None or path.is_dir():
            rest = words[count:]
            text = "" if file is None else file.read_text()
            return all(re.search(rf"^\s*(?:def|class) {part}\b|^\s*{part}\b.*=", text, re.MULTILINE) for part in rest)
    return False


def commands(document: Path) -> Iterator[tuple[str, str]]:
    """Module and arguments of each Rankwise command, without those of a script; continuation lines are joined."""
    for match in COMMAND.finditer(re.sub(r"\\\n\s*", " ", document.read_text())):
        module = match[1] or SUBCOMMANDS.get(match[2], match[2])
        if module not in OF_RANKWISE:
            yield module.rstrip("."), re.split(r"(?:^|\s)-- ", match[3].partition(" #")[0])[0]


@cache
def help_of(module: str, action: str = "") -> str:
    printed = io.StringIO()
    file = module_file(module)
    assert file is not None, module
    main = import_module(".".join(file.relative_to(ROOT).with_suffix("").parts)).main
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit):
        main(
            [
                *filter(None, [action]),
                "--help-all" if module == "hpc.sweep" and action != "recover" else "--help",
            ]
        )
    return printed.getvalue()


def options_of(module: str, action: str = "") -> set[str]:
    """Options in the longest help of a Rankwise command, and of one of its actions."""
    return set(OPTION.findall(help_of(module) + (help_of(module, action) if action else "")))


def cases(pattern: re.Pattern[str], *, history: bool) -> list[object]:
    return [
        pytest.param(document, text, id=f"{named(document)}: {text}")
        for document in of(history=history)
        for text in dict.fromkeys("".join(groups).rstrip(".") for groups in pattern.findall(document.read_text()))
    ]


@pytest.mark.parametrize(("document", "link"), cases(LINK, history=True))
def test_link_targets_exist(document, link):
    assert not broken_link(document, link)


@pytest.mark.parametrize(("document", "path"), cases(PATH, history=False))
def test_paths_exist(document, path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize(("document", "name"), cases(NAME, history=False))
def test_dotted_names_exist(document, name):
    assert exists(name)


@pytest.mark.parametrize(("document", "targets"), cases(TARGET, history=False))
def test_make_targets_exist(document, targets):
    rules = re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*targets.split()} <= {target for rule in rules for target in rule.split()}


@pytest.mark.parametrize("document", [pytest.param(each, id=named(each)) for each in of(history=False)])
def test_commands_and_their_options_exist(document):
    for module, arguments in commands(document):
        assert module_file(module), module
        if options := OPTION.findall(arguments):
            action = arguments.split()[0]
            known = options_of(module, action if action in ACTIONS.get(module, ()) else "")
            assert set(options) <= known, f"{module}: {', '.join(sorted(set(options) - known))}"


@pytest.mark.parametrize("document", [pytest.param(each, id=named(each)) for each in of(history=False)])
def test_options_in_the_text_exist(document):
    ours = {
        option
        for module in PROGRAMS
        for action in ("", *ACTIONS.get(module, ()))
        for option in options_of(module, action)
    }
    spans = re.findall(r"`(--[^`\n]*)`", document.read_text())
    assert not {option for span in spans for option in OPTION.findall(span)} - ours - OPTIONS_OF_OTHERS


@pytest.mark.parametrize(("nodes", "words"), [(1, "1"), (2, "1,2"), (3, "1,2,3"), (4, "1,2,4"), (6, "1,2,4,6")])
def test_proposed_node_counts_fit_on_the_development_cluster(nodes, words):
    assert counts(nodes) == words


def test_documents_named_in_the_code_exist():
    files = [file for folder in FOLDERS for kind in ("*.py", "*.j2", "*.toml") for file in (ROOT / folder).rglob(kind)]
    named_by = {name: file for file in files for name in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text())}
    assert len(named_by) > 3
    assert not [f"{named(file)}: {name}" for name, file in named_by.items()
                if not (ROOT / name).exists() and file != Path(__file__)]  # fmt: skip


def test_the_documents_stay_few_and_short():
    pages = [*(ROOT / "docs").glob("*.md")]
    assert len(pages) + 1 <= MAX_PAGES, "docs/adr counts as one"
    assert sum(len(document.read_text().split()) for document in (ROOT / "docs").rglob("*.md")) <= MAX_WORDS


@pytest.mark.parametrize(("document", "lines"), MOST_LINES.items())
def test_documents_that_are_read_whole_stay_short(document, lines):
    assert len((ROOT / document).read_text().splitlines()) <= lines


def test_every_document_is_linked_from_another():
    linked = {
        (document.parent / link.partition("#")[0]).resolve()
        for document in of(history=True)
        for link in LINK.findall(document.read_text())
    }
    linked |= {path for folder in linked if folder.is_dir() for path in folder.iterdir()}
    unlinked = [
        named(document)
        for document in DOCUMENTS
        if document.suffix == ".md" and document.name not in AT_THE_TOP and document not in linked
    ]
    assert not unlinked


def test_structure_md_draws_the_core_on_one_screen_and_every_package_is_in_it_or_a_leaf():
    core = (ROOT / "docs/structure.md").read_text().partition("## The core")[2].partition("\n## ")[0]
    assert len(core.splitlines()) <= 60
    drawn = set(re.findall(r"(?:hpc|launch|parse)\.[a-z_]+", core))
    of_leaves = {file for leaf in leaves() for file in leaf.files()}
    packages = [path.parent for folder in OURS[:3] for path in (ROOT / folder).glob("*/__init__.py")]
    missing = [
        name
        for package in packages
        if (name := f"{package.parent.name}.{package.name}") not in drawn
        and not {file for file in package.rglob("*.py") if file.stem != "__init__"} <= of_leaves
    ]
    assert missing == []


def test_the_glossary_is_short_and_its_classes_are_where_it_says():
    glossary = (ROOT / "docs/structure.md").read_text().partition("## Glossary")[2].partition("\n## ")[0]
    nouns = [line.split(" | ") for line in glossary.splitlines() if line.startswith("| ")][1:]
    assert 20 < len(nouns) <= 25
    for _, _, carriers in nouns:
        folders = re.findall(r"`([a-z/_]+)`", carriers)
        for name in re.findall(r"`([A-Z]\w+)`", carriers):
            files = [file for folder in folders for file in (ROOT / folder).glob("*.py")]
            assert any(re.search(rf"^class {name}\b", file.read_text(), re.MULTILINE) for file in files), name


def test_the_tested_versions_are_allowed_documented_and_installed_by_make():
    tested = re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    setup, documented = (ROOT / "pyproject.toml").read_text(), (ROOT / "docs/start.md").read_text().replace("\n", " ")
    for name, version in tested:
        (least,) = re.findall(rf'"{name}>=([\d.]+)"', setup)
        assert [*map(int, least.split("."))] <= [*map(int, version.split("."))]
        assert f"{name} {version}" in documented
    assert not re.search(r'"[\w-]+==', setup), "an extra would replace what a site has"
    assert "--constraint constraints.txt" in (ROOT / "Makefile").read_text()


def test_the_hooks_before_a_commit_are_what_lint_runs():
    recipe = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0].splitlines()[1:]
    hooks = re.findall(r"^ +entry: (?:env )?(.*)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    assert hooks == [line.strip().replace("$(VENV)", ".venv") for line in recipe]


def section(document: str, heading: str) -> str:
    """The text below this heading of a document, up to the next one of its level."""
    return (ROOT / "docs" / document).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(document: str, heading: str = "") -> list[list[str]]:
    """The cells of all tables of a document, or of one of its sections."""
    lines = (section(document, heading) if heading else (ROOT / "docs" / document).read_text()).splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]


@pytest.mark.parametrize(
    ("document", "heading", "names"), [("logs.md", "format", FORMATS), ("backends.md", "backend", TRAINERS)]
)
def test_each_entry_of_a_table_in_the_code_is_a_row_of_its_document(document, heading, names):
    first = [cells[0] for cells in rows(document)]
    table = first[first.index(heading) + 2 :]
    documented = [re.findall(r"`([\w-]+)`", cell) for cell in table[: len(names)]]
    assert sorted(name for each in documented for name in each) == sorted(names)


def test_documented_outcomes_and_which_are_final_match_the_code():
    documented = {cells[0].strip("`"): cells[-1] for cells in rows("outcomes.md") if cells[-1] in ("yes", "no")}
    assert documented == {outcome: "yes" if outcome in FINAL_OUTCOMES else "no" for outcome in Outcome}


def test_documented_checks_and_levels_match_the_code():
    documented = {
        name: cells[1].split()[0].strip(",;.") + (", always" if cells[1].endswith("always") else "")
        for cells in rows("cluster.md", "Preflight")
        for name in re.findall(r"`(\w+)`", cells[0])
    }
    assert documented == {name: check.level + (", always" if check.fixed else "") for name, check in CHECKS.items()}


def test_documented_watchdog_limits_match_the_code():
    text = (ROOT / "docs/outcomes.md").read_text()
    documented = {name: float(value) for name, value in re.findall(r"`(\w+_s|hang_steps)` \((\d+)\)", text)}
    limits = RunLimits()
    assert documented == dataclasses.asdict(limits)
