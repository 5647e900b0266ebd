"""The page in headless Chromium: it renders, sorts, filters, opens a large graph, and runs no text as code."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optfuse.report.html.page import save_page
from optfuse.report.html.solved import solved_page
from optfuse.solver.solve import solve
from tests.report.html.browser import CHROMIUM, DRIVER, Page, chromium
from tests.report.html.pages import HOSTILE, LARGE, contrast, example_page
from tests.solver.overlap.test_overlap import OPTIONS, TWO_GRADIENTS, instance_of

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser that shows the page."""
    pytest.importorskip("selenium", reason="needs selenium")
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(example_page(), encoding="utf-8")
    driver = chromium()
    driver.get(path.as_uri())
    yield driver
    driver.quit()


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    """The overview, unfiltered; afterwards the browser must have had nothing to complain of."""
    found = Page(browser)
    found.open("")
    yield found
    assert browser.get_log("browser") == []
    assert found.script("return performance.getEntriesByType('resource').length") == 0
    assert found.script("return window.harmed ?? null") is None


def test_the_overview_has_figures_plots_and_a_row_for_each_graph(page: Page) -> None:
    assert "5 / 6graphs solved" in page.texts(".overview .tile")
    assert len(page.all(".overview > .plots svg.plot")) == 6
    heights = page.script(
        "return [...document.querySelectorAll('.overview > .plots .plot')].map((p) => p.clientHeight)"
    )
    assert min(heights) > 100
    assert len(page.texts("table.graphs tbody tr")) == 6
    assert len(page.all(".overview > .plots figure:first-child circle.point")) == 5
    assert page.texts("table.failures td:nth-child(4)") == ["crash"]
    assert page.texts("table.failures td:nth-child(5)") == [HOSTILE]


def test_measurements_and_sweeps_are_shown_where_there_are_any(page: Page) -> None:
    assert page.texts("section h2")[1:3] == ["Measured", "Time within a cap on memory"]
    assert len(page.all("section > .plots svg.plot")) == 3
    assert page.texts("table.bench tbody td:last-child") == ["optfuse", ""]
    assert "generated: 3, rank correlation 0.900, median error 20%" in page.texts(".legend .key")


def test_columns_sort_both_ways_with_what_is_missing_last(page: Page) -> None:
    head = "table.graphs th[data-key=ops] button"
    for _ in range(2):
        page.all(head)[0].click()
        shown = [int(text.replace(",", "")) for text in page.texts("table.graphs td:nth-child(2)") if text]
        way = page.script("return document.querySelector('th[data-key=ops]').ariaSort")
        assert shown == sorted(shown, reverse=way == "descending")
        assert page.texts("table.graphs td:nth-child(2)")[-1] == ""
    assert way == "ascending"


def test_the_filter_holds_for_table_figures_and_plots(page: Page) -> None:
    page.all("#filter")[0].send_keys("model")
    assert len(page.all("table.graphs tbody tr")) == 3
    assert "3 / 3graphs solved" in page.texts(".tile")
    assert len(page.all(".overview > .plots figure:first-child circle.point")) == 3
    page.all("#kind option[value=backward]")[0].click()
    assert page.texts("table.graphs tbody td:first-child") == ["model2.backward"]
    page.all("#filter")[0].send_keys("none such")
    assert page.all("table.graphs tbody tr") == []
    assert "No graph passes the filter." in page.texts(".empty")


def test_a_graph_of_a_thousand_ops_opens(page: Page) -> None:
    start = time.monotonic()
    page.open("large.backward")
    # A person waits two seconds at most: benchmarks measure that. This machine may be busy.
    assert time.monotonic() - start < 10
    assert f"{LARGE:,}ops" in page.texts(".headline .tile")
    assert all(page.all(f".pane.side-{side} .kernel.changed.selected") for side in (0, 1))
    assert int(page.script("return document.querySelectorAll('.picture *').length")) < 6000
    assert page.texts(".differences .current b")[0].startswith("saves ")
    for button in page.all("button[title='all of it']"):
        button.click()
    assert len(page.all(".pane.side-0 .kernel")) == LARGE


def test_a_kernel_tells_its_ops_and_the_other_side_shows_them(page: Page) -> None:
    page.open("model1.forward")
    page.all(".pane.side-1 .kernel.selected .op")[0].click()
    name = page.texts(".pane.side-1 .op.here")[0]
    assert name in page.texts(".side-panel .ops b.here")
    assert page.texts(".pane.side-0 .op.here") == [name]
    assert page.texts(".side-panel h3")[0].startswith("chosen k")
    page.script(
        "document.querySelector('.pane.side-1 .arrow .hit').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    assert "Why they are two kernels" in page.texts(".side-panel h4")
    assert page.texts(".side-panel p.reason")[0]


def test_another_solver_s_schedule_may_stand_beside(page: Page) -> None:
    assert "other \u00b5s" in page.texts("table.graphs th")
    page.open("model1.forward")
    page.all("#beside option[value=other]")[0].click()
    assert page.texts(".half h2")[0].startswith("other: ")
    assert page.texts("nav h2") == ["Differences (0)"]
    assert "tiewith other" in page.texts(".headline .tile")
    page.all("#beside option[value=greedy]")[0].click()
    assert page.all(".pane.side-0 .kernel.changed")


def test_an_op_is_found_by_name(page: Page) -> None:
    page.open("large.backward")
    page.all("#find")[0].send_keys("op777\n")
    assert page.texts(".side-panel .ops b.here") == ["op777"]
    assert page.texts(".pane.side-1 .op.here")[0].startswith("op777")


def test_names_sources_and_triton_are_text(page: Page) -> None:
    page.open(HOSTILE)
    assert page.texts("h1") == [HOSTILE]
    page.all(".pane.side-1 .kernel.selected .op")[0].click()
    assert page.texts(".side-panel .ops b")[0] == HOSTILE + "0"
    assert page.texts(".side-panel .ops code")[0] == HOSTILE
    assert HOSTILE in page.texts(".side-panel pre")[0]
    assert page.all("img") == []


def test_the_way_back_and_a_graph_that_is_not_there(page: Page) -> None:
    page.open("model0.inference")
    assert page.script("return document.getElementById('choose').value") == "model0.inference"
    page.script("location.hash = '#graph/no%20such'")
    page.until(lambda: page.texts("main") == ["There is no graph no such here."])
    page.all("#top a.name")[0].click()
    page.until(lambda: bool(page.all("table.graphs")))


def test_a_page_of_one_graph_opens_it(browser: Any, tmp_path: Path) -> None:
    save_page(solved_page("one", [(*contrast(0, 30, "model0.inference"), "", "")]), tmp_path / "one.html")
    before = browser.current_url
    browser.get((tmp_path / "one.html").as_uri())
    page = Page(browser)
    page.until(lambda: page.script("return document.body.dataset.view") == "graph/model0.inference")
    assert page.all(".pane.side-1 .kernel")
    browser.get(before)


def test_lanes_are_drawn_zoomed_and_lead_to_their_kernels(browser: Any, tmp_path: Path) -> None:
    instance = instance_of(TWO_GRADIENTS)
    save_page(solved_page("lanes", [(instance, solve(instance, OPTIONS), "", "")]), tmp_path / "lanes.html")
    before = browser.current_url
    browser.get((tmp_path / "lanes.html").as_uri())
    page = Page(browser)
    page.until(lambda: page.script("return document.body.dataset.view") == "graph/streams")
    assert page.texts(".lanes .tile b") == ["22.00 \u2192 17.00 \u00b5s", "12.00 \u2192 7.00 \u00b5s", "17.00 \u00b5s"]
    assert page.texts(".lanes-title")[1] == "chosen: 17.00 \u00b5s, 7.00 \u00b5s exposed"
    assert [len(page.all(f".lanes .span.{kind}.side-0")) for kind in ("library", "transfer", "exposed")] == [3, 2, 2]
    width = "return document.querySelector('.lanes-frame').scrollWidth"
    narrow = page.script(width)
    page.all(".zoom-lanes button")[0].click()
    assert page.script(width) > 1.5 * narrow
    page.all(".zoom-lanes button")[2].click()
    assert page.script(width) == narrow
    page.all(".lanes .span.transfer.side-1")[0].click()
    assert page.texts(".side-panel h3") == ["chosen k1"]
    assert browser.get_log("browser") == []
    browser.get(before)
