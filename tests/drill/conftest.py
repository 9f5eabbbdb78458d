from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drill.calls import Command
from tests.drill.workshop import Workshop


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drill")


@pytest.fixture(scope="session")
def shop(home: Path) -> Iterator[Workshop]:
    with Command() as command:
        yield Workshop(home / "shop", command)
