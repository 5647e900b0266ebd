"""How long a report takes to open, in headless Chromium: python -m tests.report.html.measure PAGE.html [TIMES].

For the overview, and for each graph from the click to the second frame after it is drawn: the median, and the slowest.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from tests.report.html.browser import Page, chromium


def main() -> None:
    path, times = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    driver = chromium()
    try:
        page = Page(driver)
        loads: list[float] = []
        opened: dict[str, list[float]] = {}
        for _ in range(times):
            driver.get("about:blank")
            start = time.perf_counter()
            driver.get(path.resolve().as_uri())
            page.settle()
            loads.append(time.perf_counter() - start)
            for graph in page.script("return [...document.querySelectorAll('#choose option')].map((o) => o.value)"):
                if graph:
                    start = time.perf_counter()
                    page.show(graph)
                    page.settle()
                    opened.setdefault(graph, []).append(time.perf_counter() - start)
    finally:
        driver.quit()
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB; overview {statistics.median(loads):.2f} s")
    for graph, seconds in sorted(opened.items(), key=lambda found: -statistics.median(found[1]))[:12]:
        print(f"  {graph}: {statistics.median(seconds):.2f} s, slowest {max(seconds):.2f} s")


if __name__ == "__main__":
    main()
