"""Pages of the site that are no files of docs/, and links that leave docs/. Hooks of MkDocs.

README, CHANGELOG, CONTRIBUTING and SECURITY are pages; a file that a document links to becomes a file of the site.
"""

from __future__ import annotations

import os.path
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from mkdocs.structure.files import File  # noqa: E402

from hpc.system.version import __version__  # noqa: E402
from tools.docs_site.gallery import EXAMPLES, Shown, shown  # noqa: E402

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

LINK = re.compile(r"(\[[^\]]*\]\()(?!https?://|#)([^)\s]+)(\))")
TOP = {
    "README.md": "index.md",
    **{f"{name}.md": f"{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")},
}
"""Pages of the checkout's top level, by their names in the site."""
CSS = """
iframe.page { width: 100%; height: 44rem; border: 1px solid var(--md-default-fg-color--lightest); }
.md-typeset table:not([class]) th { min-width: 4rem; }
.md-typeset h1, .md-typeset h2 { color: var(--md-default-fg-color); font-weight: 600; letter-spacing: 0; }
.md-typeset table:not([class]) code { word-break: normal; }
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The version stands in the header and the footer; sections that list files are filled."""
    config.site_name = f"Rankwise {__version__}"
    config.copyright = f"Rankwise {__version__}, Apache-2.0"
    assert config.nav is not None
    sections = {name: pages for each in config.nav for name, pages in each.items()}
    sections["Gallery"] += [f"gallery/{each.name}.md" for each in EXAMPLES]
    (decisions,) = (each["Decisions"] for each in sections["Know and change it"] if "Decisions" in each)
    decisions += [f"adr/{path.name}" for path in _decisions()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and files that are not in docs/."""
    for name, page in TOP.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    decisions = "\n".join(f"* [{_title(path)}]({path.name})" for path in _decisions())
    files.append(File.generated(config, "adr/index.md", content=f"# Decisions\n\n{decisions}\n"))
    files.append(File.generated(config, "site.css", content=CSS))
    with TemporaryDirectory() as folder:
        gallery = [*shown(EXAMPLES, Path(folder))]
    files.append(File.generated(config, "gallery/index.md", content=_index(gallery)))
    for each in gallery:
        files.append(File.generated(config, f"gallery/{each.name}.md", content=each.markdown))
        for name, content in each.files.items():
            files.append(File.generated(config, f"gallery/{name}", content=content))
    documents = [*(ROOT / name for name in TOP), *(ROOT / "docs").rglob("*.md")]
    linked = {_target(path, link) for path in documents for _, link, _ in LINK.findall(path.read_text())}
    for name in sorted(name for name in linked if _page(name) == f"source/{name}" and (ROOT / name).is_file()):
        files.append(File.generated(config, f"source/{name}", content=(ROOT / name).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links to where their targets are in the site."""
    sources = {page: name for name, page in TOP.items()}
    uri = page.file.src_uri
    if uri.startswith("gallery/") or uri == "adr/index.md":
        return markdown
    source = ROOT / sources.get(uri, f"docs/{uri}")

    def linked(match: re.Match[str]) -> str:
        target = os.path.relpath(_page(_target(source, match[2])), Path(uri).parent)
        fragment = urlsplit(match[2]).fragment
        return f"{match[1]}{target}{'#' * bool(fragment)}{fragment}{match[3]}"

    return LINK.sub(linked, markdown)


def _target(source: Path, link: str) -> str:
    """What a link of this document leads to, from the checkout's top level."""
    return os.path.relpath(os.path.normpath(source.parent / urlsplit(link).path), ROOT)


def _page(name: str) -> str:
    """The name in the site of a file of the checkout."""
    if name == "docs/adr":
        return "adr/index.md"
    return TOP.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else f"source/{name}")


def _decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "adr").glob("*.md"))


def _title(path: Path) -> str:
    return path.read_text().partition("\n")[0].removeprefix("# ")


def _index(gallery: list[Shown]) -> str:
    lines = [f"* [{each.title}]({each.name}.md): {each.says}" for each in gallery]
    return (
        "# Gallery\n\nSix examples, each with what the commands print and with its page. They are made anew whenever "
        "these documents are built: of traces that a simulation writes, and of a published table.\n\n"
        + "\n".join(lines)
        + "\n"
    )
