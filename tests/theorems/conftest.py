from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    """Constructions are evaluated, not trained."""
    with torch.no_grad():
        yield
