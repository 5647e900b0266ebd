"""Headless Chromium, driven by selenium, and short words for what is done in it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")


def chromium() -> Any:
    """A browser; the caller quits it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    assert CHROMIUM is not None, "chromium is installed"
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "window-size=1600,1000"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


class Page:
    """Short words for what the tests do."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def script(self, text: str, *arguments: Any) -> Any:
        return self.driver.execute_script(text, *arguments)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return self.script(
            "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)", selector
        )

    def until(self, happened: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not happened():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.02)

    def open(self, graph: str) -> None:
        """A graph, or the overview drawn afresh."""
        self.script("location.hash = '#nothing'")
        self.until(lambda: self.script("return document.body.dataset.view") == "overview")
        if graph:
            self.show(graph)

    def show(self, graph: str) -> None:
        """A graph."""
        self.script("location.hash = `#graph/${encodeURIComponent(arguments[0])}`", graph)
        self.until(lambda: self.script("return document.body.dataset.view") == f"graph/{graph}")

    def settle(self) -> None:
        """Wait for two frames: what was drawn is then on the screen."""
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
