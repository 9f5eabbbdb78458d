"""Take the picture of the web page: ``tokengt serve pretrained:gap`` with three molecules, in Chromium."""

import re
import subprocess
import sys
from pathlib import Path

from browser import launched, make_small
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parents[1] / "images"
MOLECULES = "CC(=O)Oc1ccccc1C(=O)O aspirin\nCN1C=NC2=C1C(=O)N(C(=O)N2C)C caffeine\nC1CCCC a ring that is never closed\n"


def main() -> None:
    command = [sys.executable, "-m", "tokengt.cli", "serve", "pretrained:gap", "--port", "0", "--draws", "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None
            browser = launched(playwright)
            page = browser.new_page(viewport={"width": 1100, "height": 860}, color_scheme="light")
            page.goto(address[0])
            page.fill("#smiles", MOLECULES)
            page.click("#panel-type button.main")
            page.wait_for_selector("#results:not([hidden])")
            page.wait_for_load_state("networkidle")
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=IMAGES / "serve.png", full_page=True)
            make_small(IMAGES / "serve.png")
            browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
