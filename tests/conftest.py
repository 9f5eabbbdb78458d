import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

settings.register_profile("tokengt", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("tokengt")
# The tests' tensors are so small that several threads would spend their time waiting for each other.
torch.set_num_threads(1)
# Chromium looks for updates and the like by itself, which is no request of a page.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The developers' folder of oracles and data; users have none, and their tests skip what needs it."""
    data = os.environ.get("TOKENGT_DATA")
    folder = Path(data).parent if data else Path(__file__).parents[2] / "shared"
    if not (folder / "oracle").is_dir():
        pytest.skip("no shared folder beside the checkout")
    return folder


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A real browser; skips by name where there is none to test in. Playwright allows one session per process."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as session:
        browser = session.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield browser
        browser.close()
