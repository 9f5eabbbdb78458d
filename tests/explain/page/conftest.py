"""Pages opened in a real browser, where one is installed, and the pages of a small run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.small import QUIET, TINY, molecule_csv
from tokengt.workflow.fitting import train
from tokengt.workflow.reporting import explain_file
from tokengt.workflow.summarising import summary_file

SMILES = "CC(=O)Nc1ccc(O)cc1"


@dataclass(frozen=True, eq=False)
class Opened:
    """A page in a browser, and what it did besides being shown."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

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
    contexts = []

    def opened(file: Path, width: int = 1200, scheme: str = "light") -> Opened:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        context.set_default_timeout(10_000)
        found = Opened(context.new_page())
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.goto(file.as_uri())
        found.settle()
        return found

    yield opened
    for context in contexts:
        context.close()


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
