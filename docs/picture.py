"""Takes the README's pictures of a report: python docs/picture.py results/*/report.html docs/report

Writes docs/report-light.png and docs/report-dark.png. Needs chromium and the `dev` extra.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver


def take(report: Path, stem: str) -> None:
    """The top of the page at a laptop's width, once in each theme."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    with tempfile.TemporaryDirectory() as profile:
        for flag in ("--headless=new", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        browser.set_window_size(1280, 1560)
        for theme in ("light", "dark"):
            media = [{"name": "prefers-color-scheme", "value": theme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
            browser.get(report.resolve().as_uri())
            time.sleep(2)  # for the plots to settle
            browser.save_screenshot(f"{stem}-{theme}.png")
        browser.quit()


if __name__ == "__main__":
    take(Path(sys.argv[1]), sys.argv[2])
