"""Check a report in a real browser and take screenshots.

The screenshots are 1400 and 390 pixels wide, in light and dark mode.

    trainer report runs/one runs/two --output report.html
    python scripts/report_pictures.py report.html docs/pictures/report

The check fails if the page requests anything from the network, a script fails, the page is wider than its window, or a
figure cannot be zoomed with the keyboard. It needs `pip install playwright pillow` and an installed Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

RANGE = """() => {
  const id = document.querySelector("figure [data-root-id]").dataset.rootId;
  const plot = Bokeh.documents.flatMap((d) => [...d._all_models.values()]).find((m) => m.id === id);
  return [plot.x_range.start, plot.x_range.end];
}"""


def main() -> int:
    """Write the pictures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="file written by `trainer report`")
    parser.add_argument("prefix", help="of the pictures' names: PREFIX-1400-light.png, ...")
    parser.add_argument("--height", type=int, default=1000, help="of a picture; default: 1000")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="program; default: found on the path")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        take_screenshots(browser, options.page, options.prefix, options.height)
        browser.close()
    return 0


def take_screenshots(browser: Any, page: Path, prefix: str, height: int = 1000) -> None:
    """Write PREFIX-WIDTH-SCHEME.png for two widths, each in light and dark mode."""
    from PIL import Image

    for width in (1400, 390):
        for scheme in ("light", "dark"):
            view = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            check_page(view, page.resolve().as_uri(), width)
            path = f"{prefix}-{width}-{scheme}.png"
            view.screenshot(path=path)
            Image.open(path).quantize(256).save(path, optimize=True)  # reduces the file to a third of its size
            view.close()


def check_page(view: Any, address: str, width: int) -> None:
    """Open the page and check scripts, requests, width and zoom."""
    problems: list[str] = []
    view.on("pageerror", lambda error: problems.append(str(error)))
    view.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    view.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:")) else problems.append(request.url)
    )
    view.goto(address)
    view.wait_for_selector("html[data-ready]", timeout=60_000)
    view.wait_for_timeout(1500)
    assert not problems, problems
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    view.locator("figure[tabindex]").first.focus()
    before = view.evaluate(RANGE)
    view.keyboard.press("+")
    after = view.evaluate(RANGE)
    assert before[0] < after[0] < after[1] < before[1], "+ does not zoom in"
    view.keyboard.press("0")
    view.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    view.wait_for_timeout(300)


if __name__ == "__main__":
    sys.exit(main())
