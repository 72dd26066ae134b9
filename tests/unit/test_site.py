"""The documents as a site: every page is reached, every link leads somewhere, and nothing comes from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from hpc.system.version import __version__

ROOT = Path(__file__).parents[2]
LOADS = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}
EXAMPLES = {"demo", "slow-loader", "slow-node", "groups", "published", "proposal"}

pytestmark = pytest.mark.slow


class Read(HTMLParser):
    """What a page loads, what it links to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif values.get(LOADS.get(tag, "")):
            self.loads.append(values[LOADS[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does, into a folder of its own."""
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        [*command, "--config-file", str(ROOT / "tools/docs_site/mkdocs.yml")],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def pages(site: Path) -> Iterator[tuple[str, Read]]:
    """Name and content of each page."""
    for path in sorted(site.rglob("*.html")):
        yield path.relative_to(site).as_posix(), Read(path.read_text())


def outside(url: str) -> bool:
    return bool(urlsplit(url).netloc) or urlsplit(url).scheme not in ("", "data")


def test_every_document_and_every_example_is_in_the_navigation(site: Path) -> None:
    links = {link.partition("#")[0] for link in Read((site / "index.html").read_text()).links}
    documents = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {path.as_posix() for path in documents} <= links
    assert {f"gallery/{name}.html" for name in EXAMPLES} <= links
    reached = links | {f"gallery/page-{name}.html" for name in EXAMPLES} | {"404.html", "index.html"}
    assert {name for name, _ in pages(site)} <= reached


def test_every_link_and_every_anchor_inside_of_the_site_is_there(site: Path) -> None:
    read = dict(pages(site))
    lost = []
    for name, page in read.items():
        if name.startswith("gallery/page-") or name == "404.html":
            continue
        for link in page.links + page.loads:
            if outside(link):
                continue
            path, _, anchor = unquote(urljoin(name, link)).partition("#")
            if not (site / path).exists() or (anchor and path in read and anchor not in read[path].anchors):
                lost.append(f"{name}: {link}")
    assert not lost


def test_no_page_and_no_style_loads_anything_from_another_host(site: Path) -> None:
    """The gallery's pages, too; links to read on may lead outside."""
    loaded = {url for _, page in pages(site) for url in page.loads}
    assert loaded and not {url for url in loaded if outside(url)}
    styles = [*site.rglob("*.css"), *site.rglob("*.html")]
    assert not {
        url for path in styles for url in re.findall(r"(?:url\(|@import )[\"']?(https?:[^)\"']*)", path.read_text())
    }


def test_the_version_is_in_the_header_and_the_search_knows_the_words(site: Path) -> None:
    start = (site / "index.html").read_text()
    header = start.partition("<header")[2].partition("</header>")[0]
    assert f"Rankwise {__version__}" in header and f"Rankwise {__version__}, Apache-2.0" in start
    assert "straggler" in (site / "search" / "search_index.json").read_text()


def test_an_example_has_the_command_what_it_prints_and_its_page(site: Path) -> None:
    for name in EXAMPLES:
        page = Read((site / "gallery" / f"{name}.html").read_text())
        assert f"page-{name}.html" in page.loads and f"page-{name}.html" in page.links
        assert "Content-Security-Policy" in (site / "gallery" / f"page-{name}.html").read_text()
    text = (site / "gallery" / "slow-node.html").read_text()
    assert "Node n1 (ranks" in text and "Simulated traces." in text
    assert "Rank 5 (n1)" in (site / "gallery" / "groups.html").read_text()
    proposal = (site / "gallery" / "proposal.html").read_text()
    (figure,) = [load for load in Read(proposal).loads if load.endswith(".svg")]
    assert "node hours" in proposal and (site / "gallery" / figure).read_text().startswith("<?xml")
