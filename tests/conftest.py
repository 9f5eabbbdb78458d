import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("tokengt", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("tokengt")
# The tests' tensors are so small that several threads would spend their time waiting for each other.
torch.set_num_threads(1)


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
