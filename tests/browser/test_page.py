"""The page in a real Chromium: it draws, answers, copies, saves, prints, loads nothing; axe finds no serious fault."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from tests.browser.conftest import LIMIT_MS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

FURTHER = ("NaN", "failed", "empty")
INPUTS = ("sweep", "hostile", "history", "together", *(pytest.param(name, marks=pytest.mark.all) for name in FURTHER))
WIDE, NARROW = {"width": 1400, "height": 900}, {"width": 390, "height": 800}
COUNT_MARKS = "charts => charts.map(chart => [chart.id, chart.querySelectorAll('svg.plot .mark').length])"
Open = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a page, and at the end asserts that nothing went wrong in it and that it requested nothing but itself."""
    contexts, faults, requests = [], [], []

    def opened(path: Path, scheme: str = "light", size: dict[str, int] = WIDE) -> Page:
        context = browser.new_context(viewport=size, color_scheme=scheme, accept_downloads=True)
        context.set_default_timeout(LIMIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults
    assert not [url for url in requests if not url.startswith(("file:", "data:", "blob:"))]
    assert len([url for url in requests if url.startswith("file:")]) == len(contexts)


def until(page: Page, condition: str) -> None:
    """Waits until the JavaScript expression `condition` holds in the page, looked at once per frame.

    `Page.wait_for_function` evaluates its text anew in every frame, which the page's Content-Security-Policy allows in
    the first alone.
    """
    reached = page.evaluate(
        f"""limit => new Promise(resolve => {{
          const end = performance.now() + limit;
          const look = () => ({condition}) ? resolve(true)
            : performance.now() > end ? resolve(false) : requestAnimationFrame(look);
          look();
        }})""",
        LIMIT_MS,
    )
    assert reached, f"not within {LIMIT_MS} ms: {condition}"


def show_all(page: Page) -> None:
    page.evaluate("rankwisePage.showAll()")


@pytest.mark.parametrize("name", INPUTS)
def test_every_chart_has_marks(open_page: Open, pages: dict[str, Path], name: str):
    page = open_page(pages[name])
    show_all(page)
    marks = page.eval_on_selector_all("figure.chart", COUNT_MARKS)
    assert not [chart for chart, count in marks if not count]
    assert bool(marks) == (name not in ("failed", "empty"))


def test_charts_are_there_and_the_switch_works_without_a_script(browser: Browser, pages: dict[str, Path]):
    page = browser.new_page(java_script_enabled=False)
    page.set_default_timeout(LIMIT_MS)
    page.goto(pages["sweep"].as_uri())
    shown = page.locator(".choice > .chart:visible")
    assert shown.count() == 1 and shown.get_attribute("id") == "chart-speed"
    page.locator(".choice > label:text-is('Efficiency')").click()
    assert shown.count() == 1 and shown.get_attribute("id") == "chart-efficiency"
    assert shown.locator(".mark").first.bounding_box() is not None
    page.close()


def test_marks_have_their_figures_for_the_pointer(open_page: Open, pages: dict[str, Path]):
    page = open_page(pages["sweep"])
    for chart, expected in (
        ("chart-efficiency", r"torch-ddp resnet50, 1n1g: 100 % of ideal \(.+ to .+, range of runs\)"),
        ("chart-terms", r"1n1g: data \S+ ms \[.+\] \(range of runs\)"),
        ("chart-delays-0", r"rank 0: \S+ ms on average, at most \S+ ms in step \d+"),
        ("chart-steps-0", r"run 1: \d+, \S+ ms"),
    ):
        title = page.locator(f"#{chart} .mark title").first.text_content()
        assert re.fullmatch(expected, title or ""), title


def test_a_measurement_has_its_date_and_folder_and_a_change_its_size(open_page: Open, pages: dict[str, Path]):
    chart = open_page(pages["history"]).locator("#chart-0")
    titles = chart.locator(".mark title").all_text_contents()
    assert (
        any("n00, 2026-01-01" in title for title in titles) and "-5.03 %" in chart.locator("text").all_text_contents()
    )


def test_every_table_is_copied_as_csv(open_page: Open, pages: dict[str, Path]):
    page = open_page(pages["sweep"])
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    show_all(page)
    # The words go after three seconds, which a busy machine lets pass before they are looked for.
    page.evaluate(
        """() => {
          window.shown = [];
          const status = document.getElementById("status");
          new MutationObserver(() => window.shown.push(status.textContent)).observe(status, {childList: true});
        }"""
    )
    buttons = page.locator("button[data-csv]")
    assert buttons.count() > 5
    for at in range(buttons.count()):
        button = buttons.nth(at)
        page.evaluate("() => { window.shown = []; return navigator.clipboard.writeText(''); }")
        button.click()
        until(page, "window.shown.some(text => text !== '')")
        assert page.evaluate("window.shown.filter(text => text !== '')") == ["Copied as CSV"]
        rows = list(csv.reader(io.StringIO(page.evaluate("navigator.clipboard.readText()"))))
        table = page.locator(f"#{button.get_attribute('data-csv')} tr")
        cells = [row.locator("td, th").count() for row in table.all()]
        assert [len(row) for row in rows] == cells
        assert rows[-1] == [text.strip() for text in table.last.locator("td").all_text_contents()]


def test_cells_that_a_spreadsheet_would_compute_are_quoted(open_page: Open, pages: dict[str, Path]):
    page = open_page(pages["sweep"])
    page.evaluate(
        """() => {
          const cells = document.querySelectorAll("#points tbody tr:first-child td");
          const texts = ["=HYPERLINK(1)", "@SUM(1)", "+21.67", "-x", 'a "b", c', "-", "-2+3", "-19.97 %"];
          texts.forEach((text, at) => { cells[at].textContent = text; });
        }"""
    )
    rows = list(csv.reader(io.StringIO(page.evaluate("rankwisePage.csv('points')"))))
    assert rows[1][:8] == ["'=HYPERLINK(1)", "'@SUM(1)", "+21.67", "'-x", 'a "b", c', "-", "'-2+3", "-19.97 %"]


def test_every_chart_is_saved_as_svg_and_png(open_page: Open, pages: dict[str, Path], tmp_path: Path):
    page = open_page(pages["sweep"], scheme="dark")
    show_all(page)
    for choice in ("Speed", "Speedup", "Efficiency"):
        page.locator(f".choice > label:text-is('{choice}')").click()
        saved(page, f"chart-{choice.lower()}", tmp_path)
    for chart in page.eval_on_selector_all("figure.chart:not(.choice *)", "charts => charts.map(chart => chart.id)"):
        saved(page, chart, tmp_path)


def saved(page: Page, chart: str, folder: Path) -> None:
    """Saves a chart in both forms, and asserts that they are files of their own."""
    for form in ("svg", "png"):
        button = page.locator(f"button[data-chart='{chart}'][data-image='{form}']")
        button.scroll_into_view_if_needed()
        with page.expect_download() as waiting:
            button.click()
        path = folder / f"{chart}.{form}"
        waiting.value.save_as(path)
        assert waiting.value.suggested_filename == path.name
        if form == "png":
            assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and path.stat().st_size > 5000
        else:
            drawn = ElementTree.fromstring(path.read_text())
            assert drawn.tag.endswith("svg") and len(list(drawn.iter())) > 20 and drawn.get("width") == "900"
            assert "var(--" not in path.read_text() and "#ffffff" in path.read_text()


def background(page: Page) -> int:
    """The lightness of the page's ground, 0 to 255."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")[:3]) // 3


INK = "getComputedStyle(document.querySelector('svg.plot text')).fill"


def ink(page: Page) -> str:
    return page.evaluate(INK)


def test_it_is_dark_or_light_as_the_system_is_and_as_the_switch_says(open_page: Open, pages: dict[str, Path]):
    dark, light = open_page(pages["sweep"], scheme="dark"), open_page(pages["sweep"])
    assert background(dark) < 50 and background(light) > 200 and ink(dark) != ink(light)
    before = ink(dark)
    dark.locator("#theme").click()
    until(dark, f"{INK} === {json.dumps(ink(light))}")
    assert background(dark) > 200 and ink(light) != before
    light.locator("#theme").click()
    assert background(light) < 50


def test_on_paper_is_what_is_open_drawn_and_light(open_page: Open, pages: dict[str, Path]):
    page = open_page(pages["sweep"], scheme="dark")
    page.evaluate("document.getElementById('point-0').open = true")
    folded = page.locator("details.panel:not([open])").count()
    page.emulate_media(media="print")
    assert page.locator("details.panel:not([open])").count() == folded > 0 and background(page) == 255
    assert not any(panel.is_visible() for panel in page.locator("details.panel:not([open])").all())
    charts = page.locator("figure.chart:not(details:not([open]) *)")
    assert charts.count() > 5 and all(chart.is_visible() for chart in charts.all())
    page.emulate_media(media="screen")
    assert background(page) < 50


def test_nothing_is_wider_than_paper(open_page: Open, pages: dict[str, Path]):
    page = open_page(pages["sweep"], size={"width": 680, "height": 1000})
    show_all(page)
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 680
    boxes = [chart.bounding_box() for chart in page.locator("svg.plot").all()]
    assert len(boxes) > 5 and all(box and box["x"] + box["width"] <= 680 for box in boxes)


def test_three_points_are_read_without_much_scrolling(open_page: Open, pages: dict[str, Path]):
    page = open_page(pages["three points"], size={"width": 1280, "height": 900})
    assert page.locator(".statement").count() == 3 and page.evaluate("document.documentElement.scrollHeight") <= 2600
    printed = page.pdf(format="A4")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 4


def test_it_is_printed(open_page: Open, pages: dict[str, Path]):
    printed = open_page(pages["sweep"]).pdf(format="A4")
    assert printed.startswith(b"%PDF") and len(printed) > 50_000
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 4


@pytest.mark.parametrize("name", INPUTS)
def test_nothing_is_wider_than_a_telephone(open_page: Open, pages: dict[str, Path], name: str):
    page = open_page(pages[name], size=NARROW)
    show_all(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_a_cut_table_shows_where_it_goes_on(open_page: Open, pages: dict[str, Path]):
    """At the edges that hide something, and beside its caption; nothing of that where all of it is seen."""
    page = open_page(pages["sweep"], size=NARROW)
    table, wide = page.locator("#points"), open_page(pages["sweep"]).locator("#points")
    edges = "edges => [...getComputedStyle(edges).backgroundSize.matchAll(/[^ ,]+/g)].map(String)"
    until(page, "document.querySelector('#points').dataset.hidden === 'right'")
    assert table.locator(".cue").text_content() == "scrolls ↔"
    assert table.locator(".edges").evaluate(edges) == ["0px", "100%", "20px", "100%", "100%", "0px", "100%", "0px"]
    table.locator(".scroll").evaluate("scroll => { scroll.scrollLeft = 30; }")
    until(page, "document.querySelector('#points').dataset.hidden === 'left right'")
    table.locator(".scroll").evaluate("scroll => { scroll.scrollLeft = 9999; }")
    until(page, "document.querySelector('#points').dataset.hidden === 'left'")
    until(wide.page, "document.querySelector('#points').dataset.hidden === ''")
    assert wide.locator(".cue").text_content() == ""


def test_a_long_table_shows_that_it_goes_on_below(open_page: Open, pages: dict[str, Path]):
    page = open_page(pages["sweep"])
    page.evaluate(
        """() => {
          const table = document.querySelector("#points tbody");
          for (let row = 0; row < 60; row++) table.append(table.rows[0].cloneNode(true));
          document.querySelector("#points .scroll").classList.add("tall");
        }"""
    )
    until(page, "document.querySelector('#points').dataset.hidden === 'down'")
    assert page.locator("#points .cue").text_content() == "scrolls ↕"


@pytest.mark.parametrize("width", [1400, pytest.param(900, marks=pytest.mark.all), 810])
def test_the_cards_stand_beside_one_another_and_are_equally_high(open_page: Open, pages: dict[str, Path], width: int):
    page = open_page(pages["sweep"], size={"width": width, "height": 900})
    boxes = [card.bounding_box() for card in page.locator(".statement").all()]
    assert len({(box["y"], box["height"]) for box in boxes if box}) == 1 and len(boxes) == 3


def test_warnings_make_no_card_higher_than_its_neighbours(open_page: Open, pages: dict[str, Path]):
    page = open_page(pages["many warnings"])
    page.add_style_tag(content="#verdict { align-items: start; }")
    scaling, loss, trust = (card.bounding_box() for card in page.locator(".statement").all())
    assert scaling and loss and trust and page.locator("#warnings li").count() > 3
    assert trust["height"] <= max(scaling["height"], loss["height"]) + 60  # two lines and the space between them


def test_the_keyboard_reaches_and_opens_everything(open_page: Open, pages: dict[str, Path]):
    page = open_page(pages["sweep"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.wait_for_url("**#verdict")
    page.locator("#chart-speed-shown").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".choice > .chart:visible").get_attribute("id") == "chart-speedup"
    summary = page.locator("details.panel:not([open]) > summary").first
    panel = summary.locator("..").get_attribute("id")
    summary.focus()
    page.keyboard.press("Enter")
    page.locator(f"#{panel}[open]").wait_for()
    assert page.evaluate(
        "[...document.querySelectorAll('button, a, summary, .scroll')].every(each => each.tabIndex >= 0)"
    )


def test_a_link_into_a_folded_panel_opens_it(open_page: Open, pages: dict[str, Path]):
    page = open_page(pages["sweep"])
    page.evaluate("location.hash = 'chart-steps-1'")
    page.locator("#point-1[open]").wait_for()


AXE = product(("sweep", "hostile", "empty", "history", "together"), ("light", "dark"), (WIDE, NARROW))
AXE_USUAL = (("sweep", "light", WIDE), ("together", "dark", NARROW))


@pytest.mark.parametrize(
    ("name", "scheme", "size"), [pytest.param(*of, marks=() if of in AXE_USUAL else pytest.mark.all) for of in AXE]
)
def test_axe_finds_no_serious_fault(
    open_page: Open, pages: dict[str, Path], name: str, scheme: str, size: dict[str, int]
):
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(pages[name], scheme=scheme, size=size)
    show_all(page)
    violations = Axe().run(page).response["violations"]
    serious = [each for each in violations if each["impact"] in ("serious", "critical")]
    assert not [(each["id"], each["nodes"][0]["html"][:200]) for each in serious]


def test_hostile_texts_run_nothing_and_are_read_as_text(open_page: Open, pages: dict[str, Path]):
    page = open_page(pages["hostile"])
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
    show_all(page)
    assert "<script>alert(1)</script>" in page.inner_text("body")
    assert page.locator("img, svg a, svg script, svg b").count() == 0


def test_the_policy_refuses_what_a_mistake_would_let_in(browser: Browser, pages: dict[str, Path], tmp_path: Path):
    text = pages["sweep"].read_text()
    attack = "<script>window.ran = 1</script><img src='https://example.invalid/x.png' onerror='window.ran = 2'>"
    path = tmp_path / "attacked.html"
    path.write_text(text.replace("<main>", f"<main>{attack}", 1))
    page = browser.new_page()
    page.set_default_timeout(LIMIT_MS)
    requests: list[str] = []
    refused: list[str] = []
    page.on("requestfinished", lambda request: requests.append(request.url))

    def both_are_refused(message: ConsoleMessage) -> bool:
        refused.append(message.text)
        return sum("Content Security Policy" in line for line in refused) >= 2

    with page.expect_console_message(both_are_refused):
        page.goto(path.as_uri())
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.ran === undefined && typeof rankwisePage === 'object'")
    assert not [url for url in requests if "example" in url]
    page.close()
