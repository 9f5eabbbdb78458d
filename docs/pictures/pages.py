"""The pictures of docs/guide/explain.md: the pages themselves, photographed in a browser.

``make pictures`` runs it and writes docs/images/explain-*.png. It needs Playwright, Chromium (Debian's package) and the
run that ``make demo`` trains.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokengt.data.datasets import bundled
from tokengt.workflow.reporting import explain_file
from tokengt.workflow.summarising import summary_file

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
DEMO = ROOT / "runs" / "esol"
CAFFEINE = "CN1C=NC2=C1C(=O)N(C(=O)N2C)C"


@dataclass(frozen=True)
class Shot:
    """A part of a page: the first of these sections to the last, after a script has picked something."""

    page: str
    first: str
    last: str
    width: int = 1180
    scheme: str = "light"
    script: str = ""


SHOTS = {
    "explain-attention": Shot(
        "one", "#attention", "#attention", script="tokengt.pick({ layer: 2, head: 2, token: 5 })"
    ),
    "explain-attribution": Shot("one", "#attribution", "#attribution"),
    "explain-heads": Shot("demo", "#distance", "#patterns", scheme="dark"),
    "explain-summary": Shot("all", "#predictions", "#wrong"),
    "explain-substructures": Shot("all", "#substructures", "#substructures"),
}


def main() -> None:
    # Imported here, so that whoever reads the list of pictures needs no browser.
    from browser import launched, make_small
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as session:
        folder = Path(name)
        explain_file("pretrained:gap", CAFFEINE, folder / "one.html", device="cpu")
        explain_file(DEMO, "CC(=O)Nc1ccc(O)cc1", folder / "demo.html", device="cpu")
        summary_file(DEMO, bundled("esol.csv.xz"), folder / "all.html", draws=8, device="cpu")
        browser = launched(session)
        for image, shot in SHOTS.items():
            take(browser, folder, shot, IMAGES / f"{image}.png")
            make_small(IMAGES / f"{image}.png")
            print(IMAGES / f"{image}.png")
        browser.close()


def take(browser: Any, folder: Path, shot: Shot, file: Path) -> None:
    page = browser.new_page(viewport={"width": shot.width, "height": 900}, color_scheme=shot.scheme)
    page.goto((folder / f"{shot.page}.html").as_uri())
    page.evaluate(shot.script or "tokengt.pick({})")
    first, last = (page.locator(part).bounding_box() for part in (shot.first, shot.last))
    margin = 8
    area = {
        "x": first["x"] - margin,
        "y": first["y"] - margin,
        "width": first["width"] + 2 * margin,
        "height": last["y"] + last["height"] - first["y"] + 2 * margin,
    }
    page.screenshot(path=file, clip=area, full_page=True)
    page.close()


if __name__ == "__main__":
    main()
