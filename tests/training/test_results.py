"""What a finished run leaves for people, as the run made it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.stores import graph_store, ring
from tests.workflow.small import QUIET, train_small
from tokengt import TokenGT
from tokengt.workflow.fitting import TrainOptions

pyg = pytest.importorskip("torch_geometric.data")
ONE_EPOCH = {"training.epochs": 1}


def rings(count: int) -> list[object]:
    """Rings of several sizes, each with a number of its own; one of them has no label."""
    found = []
    for place in range(count):
        graph = ring(3 + place % 4)
        label = float("nan") if place == 1 else 0.1 * place
        found.append(pyg.Data(x=graph.node_features, edge_index=graph.edge_index, y=torch.tensor([label])))
    return found


def test_the_card_of_folds(tmp_path: Path) -> None:
    """Ten rings in three folds: what is said of the parts is true of all of them, and the spread is that of summary."""
    train_small(rings(10), tmp_path / "run", options=TrainOptions(folds=3, quiet=True, workers=1), settings=ONE_EPOCH)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "3 to 4 train, 3 to 4 valid, 3 to 4 test in each fold" in card
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    scores = torch.tensor(summary["members"], dtype=torch.float64)
    assert f"| {scores.mean():.4g} ± {scores.std():.2g} |" in card
    member = (tmp_path / "run" / "members" / "fold-0" / "README.md").read_text()
    assert "in each fold" not in member
    assert (tmp_path / "run" / "members" / "fold-0" / "parity.png").is_file()
    sums = {line for text in (card, member) for line in text.splitlines() if "SHA-256" in line}
    assert len(sums) == 1


def test_an_ensemble_has_one_split(tmp_path: Path) -> None:
    train_small(
        rings(10), tmp_path / "run", options=TrainOptions(ensemble=2, quiet=True, workers=1), settings=ONE_EPOCH
    )
    card = (tmp_path / "run" / "README.md").read_text()
    assert "8 train, 1 valid, 1 test\n" in card
    assert "over the 2 models, each on the test part." in card
    drawn = sorted(file.relative_to(tmp_path / "run").as_posix() for file in (tmp_path / "run").rglob("*.png"))
    assert drawn == ["curves.png", "parity.png"], "its models are drawn together"
    with pytest.raises(ValueError, match=r"run of 2 models: name one, such as \S*members/model-0"):
        TokenGT.from_pretrained(tmp_path / "run")


def test_one_graph_is_one_step(tmp_path: Path) -> None:
    graph = ring(30)
    data = pyg.Data(x=graph.node_features, edge_index=graph.edge_index, y=torch.rand(30))
    train_small(data, tmp_path / "run", settings=ONE_EPOCH, options=QUIET)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "| batch | the whole graph at every step |" in card
    assert "batch\\_size" not in card
    train_small(rings(10), tmp_path / "many", settings={**ONE_EPOCH, "training.batch_tokens": 99})
    assert "| batch\\_tokens | 99 |" in (tmp_path / "many" / "README.md").read_text()


def test_data_in_memory_has_a_checksum(tmp_path: Path) -> None:
    """The same graphs and labels have the same, others another; it is in the card of a run."""
    store, again, other = (
        graph_store([ring(3), ring(4)]),
        graph_store([ring(3), ring(4)]),
        graph_store([ring(4), ring(3)]),
    )
    assert store.data_checksum() == again.data_checksum() != other.data_checksum()
    assert store.data_checksum() != replace(store, targets=store.targets + 1).data_checksum()
    train_small(rings(10), tmp_path / "run", settings=ONE_EPOCH)
    card = (tmp_path / "run" / "README.md").read_text()
    line = next(line for line in card.splitlines() if "SHA-256" in line)
    assert len(line.split("`")[1]) == 64
    assert "Graphs in memory: 10" in card
