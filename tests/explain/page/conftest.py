"""Pages opened in a real browser, where one is installed, and the pages of a small run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import browser
from tests.workflow.small import QUIET, TINY, molecule_csv
from tokengt.workflow.fitting import train
from tokengt.workflow.reporting import explain_file
from tokengt.workflow.summarising import summary_file

SMILES = "CC(=O)Nc1ccc(O)cc1"


class Opened(browser.Opened):
    """A page of ours."""

    def ask(self, script: str) -> Any:
        """What a script of the test finds out in the page."""
        return self.page.evaluate(script)

    def settle(self) -> None:
        """Wait until everything that was picked is drawn."""
        self.ask("window.tokengt.pick({})")


Open = Callable[..., Opened]


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Open]:
    """Opens a file from disk, at a width and in a colour scheme."""
    with browser.opening(chromium, Opened, seconds=10) as opening:

        def opened(file: Path, width: int = 1200, scheme: str = "light") -> Opened:
            found = opening(file.as_uri(), width, scheme)
            found.settle()
            return found

        yield opened


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two targets, ``run``, the table that it was trained on, and the pages of both verbs."""
    folder = tmp_path_factory.mktemp("pages")
    settings = {**TINY, "model.encoder.num_layers": 2}
    data = molecule_csv(folder / "data.csv")
    train(data, folder / "run", target=("y", "z"), settings=settings, options=QUIET, device="cpu")
    explain_file(folder / "run", SMILES, folder / "one.html", device="cpu")
    summary_file(folder / "run", data, folder / "all.html", device="cpu", quiet=True)
    return folder
