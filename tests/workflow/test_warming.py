"""What is loaded beside featurisation never stands in a run's way."""

import sys

import pytest
import torch

from tokengt.workflow import warming
from tokengt.workflow.warming import warm_up


def test_what_cannot_be_loaded_is_left_to_whoever_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def broken(name: str) -> None:
        asked.append(name)
        raise RuntimeError("built for another NumPy")

    monkeypatch.setattr(warming, "import_module", broken)
    monkeypatch.setattr(warming, "softmax_works", broken)
    warm_up(torch.device("cpu"), forest=False)
    assert asked == ["torch._dynamo", "matplotlib.figure"]
    asked.clear()
    warm_up(torch.device("cuda"), forest=True)
    assert [str(name) for name in asked] == ["torch._dynamo", "matplotlib.figure", "sklearn.ensemble", "cuda"]


def test_packages_are_there_afterwards() -> None:
    warm_up(torch.device("cpu"), forest=True)
    assert {"torch._dynamo", "matplotlib.figure", "sklearn.ensemble"} <= set(sys.modules)
