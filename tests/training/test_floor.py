"""The linear model on fingerprints: what it counts, what it finds, and that it is the same every time."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.stores import graph_store, molecule_store, ring
from tests.workflow.small import QUIET, molecules, train_small, write_csv
from tokengt import GraphBatch, from_smiles
from tokengt.data.datasets import esol
from tokengt.data.splits import Split, random_split
from tokengt.data.store import Store
from tokengt.training import floor
from tokengt.training.floor import fingerprints, linear_floor
from tokengt.training.metrics import metrics
from tokengt.training.results import Findings
from tokengt.training.run import _together
from tokengt.training.tasks import Task


def batch(*texts: str) -> GraphBatch:
    return GraphBatch.collate([from_smiles(text) for text in texts])


def test_neighbourhoods_are_counted_by_hand() -> None:
    """Ethane: two equal atoms, each seen with its neighbour once and twice. Propane's middle atom is another one."""
    ethane, propane, alone = fingerprints(batch("CC", "CCC", "C"))
    assert sorted(ethane[ethane > 0].tolist()) == [2, 2, 2]
    # Radius 0: two CH3 and a CH2. Radius 1: two ends and a middle; radius 2 the same.
    assert sorted(propane[propane > 0].tolist()) == [1, 1, 1, 2, 2, 2]
    assert alone.sum() == 3
    shared = (ethane > 0) & (propane > 0)
    assert shared.sum() == 1, "the atom CH3 itself; its neighbours differ already"


def test_bonds_and_far_atoms_matter_and_the_order_of_atoms_does_not() -> None:
    prints = fingerprints(batch("OCCN", "NCCO", "OC=CN", "OCCCN"))
    assert torch.equal(prints[0], prints[1])
    assert len({tuple(row.tolist()) for row in prints}) == 3
    assert torch.equal(fingerprints(batch("NCCO"))[0], prints[0]), "the others of the batch change nothing"
    smaller = fingerprints(batch("OCCN"), width=16, radius=1)
    assert (smaller.shape, int(smaller.sum())) == ((1, 16), 8)


def test_a_linear_law_of_counts_is_found() -> None:
    """The label is the number of oxygen atoms: the mean misses it, the linear model does not."""
    texts = molecules(150)[0]
    labels = [[float(text.count("O") + text.count("o"))] for text in texts]
    store = replace(molecule_store(texts=texts), targets=torch.tensor(labels, dtype=torch.float64))
    split = random_split(150, 0)
    task = Task.fit("regression", store.targets[split.train], ("y",))
    found = linear_floor(store, split, task)
    assert found is not None
    assert found.fitted is None
    assert metrics(task, found.predictions, store.targets[split.test])["r2"] > 0.8
    again = linear_floor(store, split, task)
    assert again is not None
    assert torch.equal(again.predictions, found.predictions)


def test_bounds_weights_and_auxiliary_numbers_of_training_do_not_concern_it() -> None:
    """It took labels for weights, learned nothing beside bounds, and with bounds of two targets broke the training."""
    store = molecule_store(60)
    store = replace(store, targets=torch.cat([store.targets, -store.targets], 1))
    split = random_split(60, 0, (0.6, 0.2, 0.2))
    task = Task.fit("regression", store.targets[split.train], ("a", "b"))
    plain = linear_floor(store, split, task)
    assert plain is not None
    for more in ({"bounded": True}, {"weighted": True}, {"auxiliary": 3, "auxiliary_weight": 0.3}):
        found = linear_floor(store, split, replace(task, **more))
        assert found is not None
        assert torch.equal(found.predictions, plain.predictions), more


def test_each_target_is_fitted_to_the_labels_it_has() -> None:
    """Two targets with gaps, and each of them alone."""
    store = molecule_store(60)
    y = store.targets
    both = torch.cat([(y > -2).double(), (y > -3).double()], 1)
    both[::3, 1] = torch.nan
    split = random_split(60, 0, (0.6, 0.2, 0.2))
    values = []
    for columns in ([0, 1], [0], [1]):
        names = tuple("ab"[column] for column in columns)
        table = replace(store, targets=both[:, columns])
        found = linear_floor(table, split, Task("binary", names))
        assert found is not None
        values.append(found.predictions)
    assert ((values[0] > 0) & (values[0] < 1)).all()
    assert torch.allclose(values[0], torch.cat(values[1:], 1), atol=0.04)


def test_classes_have_probabilities() -> None:
    store = molecule_store(40)
    labels = torch.tensor([[float("N" in text) + float("O" in text)] for text in molecules(40)[0]], dtype=torch.float64)
    split = random_split(40, 0)
    found = linear_floor(replace(store, targets=labels), split, Task("multiclass", ("y",), ("0", "1", "2")))
    assert found is not None
    assert torch.allclose(found.predictions.sum(1), torch.ones(len(split.test), dtype=torch.float64))


def test_what_it_cannot_read_has_none() -> None:
    task = Task("regression", ("y",))
    rings = graph_store([ring(4 + place) for place in range(10)])
    assert linear_floor(rings, random_split(10, 0), task) is None, "nodes of floats"
    store = molecule_store(12)
    nothing = torch.zeros(0, dtype=torch.int64)
    assert linear_floor(store, Split(torch.arange(12), nothing, nothing), task) is None, "nothing to test"
    without_valid = linear_floor(store, Split(torch.arange(8), nothing, torch.arange(8, 12)), task)
    assert without_valid is not None
    assert torch.isfinite(without_valid.predictions).all()


def test_of_very_many_rows_some_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "MOST_ROWS", 20)
    store, split = molecule_store(60), random_split(60, 0)
    task = Task.fit("regression", store.targets[split.train], ("y",))
    found = linear_floor(store, split, task, seed=3)
    assert found is not None
    assert found.fitted == 20


@pytest.mark.slow
def test_the_linear_model_of_esol() -> None:
    """Measured: RMSE 0.80 (the mean of the labels: 2.23), in a tenth of a second."""
    texts, values = esol()
    graphs = GraphBatch.collate([from_smiles(text) for text in texts])
    store = Store.from_memory(graphs, values.double(), target_names=("y",), texts=texts)
    split = random_split(len(texts), 0)
    task = Task.fit("regression", store.targets[split.train], ("y",))
    found = linear_floor(store, split, task)
    assert found is not None
    assert metrics(task, found.predictions, store.targets[split.test])["rmse"] < 0.85


def test_a_run_reports_the_linear_model_and_says_when_it_wins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two epochs of a tiny model learn nothing; the linear model knows the number of atoms."""
    source = write_csv(tmp_path / "data.csv", ("smiles", "y"), [(text, len(text)) for text in molecules(40)[0]])
    train_small(source, tmp_path / "run", "y", options=replace(QUIET, quiet=False))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["linear"]["rmse"] < summary["test"]["rmse"]
    assert set(summary["linear"]) == set(summary["floor"]) == set(summary["test"])
    assert "a linear model on fingerprints is better on the test part: rmse" in capsys.readouterr().err
    card = (tmp_path / "run" / "README.md").read_text()
    assert "| metric | test | linear | floor |" in card


def test_folds_are_tested_together() -> None:
    """Every row as the mean of the linear models that did not learn from it."""
    nan = float("nan")
    tables = [torch.tensor([[1.0], [2.0], [nan]]), torch.tensor([[nan], [4.0], [6.0]])]
    rows = [torch.tensor([0, 1]), torch.tensor([1, 2])]
    found = [
        Findings(row, table, table, torch.zeros(3, dtype=torch.int8), (3,), table)
        for row, table in zip(rows, tables, strict=True)
    ]
    together = _together(found, {})
    assert together.linear is not None
    assert together.linear.flatten().tolist() == [1, 3, 6]
    assert _together([found[0], replace(found[1], linear=None)], {}).linear is None


def test_a_class_without_a_training_row_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(text, "ab"[place % 2], "train" if place < 16 else "test") for place, text in enumerate(molecules(20)[0])]
    rows[-1] = (rows[-1][0], "rare", "test")
    source = write_csv(tmp_path / "data.csv", ("smiles", "y", "part"), rows)
    loud = replace(QUIET, quiet=False)
    train_small(source, tmp_path / "run", "y", task="multiclass", split="column:part", options=loud)
    assert "classes without a training row, which the model cannot learn: rare" in capsys.readouterr().err
    assert (
        "- Classes without a training row, which the model cannot learn: rare."
        in (tmp_path / "run" / "README.md").read_text()
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["floor"]["cross_entropy"] < 10
