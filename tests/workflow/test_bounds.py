"""Labels that are bounds, and rows that count more than others, from the cell of a file to the trained model."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.workflow.small import molecules, read_csv, train_small, write_csv
from tokengt.data import cells
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.data.store import Store
from tokengt.workflow.fitting import TrainOptions

LEARN = TrainOptions(quiet=True, workers=1, censored="learn", weights="trust")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("3.5", (3.5, None, None)),
        (">3.69", (None, 3.69, None)),
        (" >= 4 ", (None, 4.0, None)),
        ("≥1e2", (None, 100.0, None)),
        ("<-2", (None, None, -2.0)),
        ("≤ \u22120.5", (None, None, -0.5)),
        ("", (None, None, None)),
    ],
)
def test_cells_by_hand(text: str, label: tuple[float | None, ...]) -> None:
    found = cells.number_or_bound(text)
    assert tuple(None if math.isnan(value) else value for value in found) == label


@pytest.mark.parametrize("text", [">", "3>", ">inf", ">1e999", "many"])
def test_cells_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(cells.BadCell):
        cells.number_or_bound(text)


@pytest.mark.parametrize(("text", "weight"), [("2", 2.0), ("", 1.0), ("0", 0.0)])
def test_weights_by_hand(text: str, weight: float) -> None:
    assert cells.weight(text) == weight
    with pytest.raises(cells.BadCell, match="expected a weight of 0 or more"):
        cells.weight("-1")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Every fifth solubility is only known to be above -1 (two rows: below), and some rows count three times."""
    smiles, values = molecules(60)
    rows = []
    for place, (text, value) in enumerate(zip(smiles, values, strict=True)):
        label = (">-1" if place % 10 else "<-9") if place % 5 == 0 else value
        rows.append((text, label, "" if place % 7 else 3, place))
    return write_csv(tmp_path / "data.csv", ("smiles", "y", "trust", "z"), rows)


def test_a_store_keeps_bounds_and_weights(table: Path, tmp_path: Path) -> None:
    recipe = Recipe(targets=("z", "y"), weights="trust", censored="learn")
    store = prepare(table, tmp_path / "store", recipe, workers=1, progress=False, shard_rows=16)
    assert len(store) == 60
    assert store.manifest.rejected == 0
    assert [target.censored for target in store.manifest.targets] == [0, 12]
    assert store.bounds is not None
    assert store.weights is not None
    # The lower bounds of z and y, then the upper ones.
    assert (~torch.isnan(store.bounds)).sum(0).tolist() == [0, 6, 0, 6]
    assert store.bounds[5].tolist()[1] == -1.0
    assert store.bounds[10].tolist()[3] == -9.0
    assert torch.isnan(store.targets[::5, 1]).all()
    assert store.weights[:8].tolist() == [3.0] + [1.0] * 6 + [3.0]
    again = Store.open(tmp_path / "store")
    assert torch.equal(again.weights, store.weights)
    assert again.data_checksum() == store.data_checksum()
    # Another wish is another store; the same is the same.
    assert len(prepare(table, tmp_path / "store", recipe, workers=1, progress=False)) == 60
    with pytest.raises(
        ValueError, match="weights was trust and is now not given; censored was learn and is now reject"
    ):
        prepare(table, tmp_path / "store", Recipe(targets=("z", "y")), workers=1, progress=False)


def test_without_the_wish_rows_of_bounds_are_rejected_as_before(table: Path, tmp_path: Path) -> None:
    store = prepare(table, tmp_path / "store", Recipe(targets=("y",)), workers=1, progress=False)
    assert (len(store), store.manifest.rejected, store.manifest.targets[0].censored) == (48, 12, 12)
    assert store.bounds is None
    assert set(json.loads((tmp_path / "store" / "manifest.json").read_text())["columns"]) == {
        "smiles",
        "targets",
        "split",
    }


def test_training_learns_from_bounds_and_tells_so(table: Path, tmp_path: Path) -> None:
    run = train_small(table, tmp_path / "run", "y", options=LEARN)
    assert run.spec.task.bounded
    assert run.spec.task.weighted
    card = (tmp_path / "run" / "README.md").read_text()
    assert "12 rows, which were learned from as bounds; metrics, intervals and pictures leave them out" in card
    # Bounds have a row among the predictions of the test part, and no label there.
    shown = read_csv(tmp_path / "run" / "predictions.csv")
    assert all(row["predicted_y"] for row in shown)
    again = train_small(table, tmp_path / "run", "y", options=LEARN, resume=True)
    assert np.array_equal(again.predict(["CCO"]).mean, run.predict(["CCO"]).mean)
    plain = train_small(
        write_csv(tmp_path / "plain.csv", ("smiles", "y"), [(row["smiles"], row["y"]) for row in read_csv(table)]),
        tmp_path / "plain",
        "y",
    )
    assert "which were left out" in (tmp_path / "plain" / "README.md").read_text()
    assert not np.array_equal(plain.predict(["CCO"]).mean, run.predict(["CCO"]).mean)


def test_bounds_above_all_labels_raise_predictions(tmp_path: Path) -> None:
    """Half of the labels are 0, the others >10: a model that learns from bounds is drawn up to them."""
    smiles, _ = molecules(48)
    rows = [(text, ">10" if place % 2 else 0, "") for place, text in enumerate(smiles)]
    # One exact label more than one value, or nothing could be scaled.
    rows[0] = (smiles[0], 1, "")
    data = write_csv(tmp_path / "data.csv", ("smiles", "y", "trust"), rows)
    settings = {"training.epochs": 12, "training.learning_rate": 0.03, "training.batch_size": 8}
    run = train_small(data, tmp_path / "run", "y", options=LEARN, settings=settings, split="random")
    told = run.predict(smiles).mean[:, 0]
    assert told.mean() > 1  # above every label that is a number


def test_a_weight_of_zero_is_a_row_that_is_not_there(tmp_path: Path) -> None:
    """Rows that count nothing have other labels, and the model does not learn them."""
    smiles, _ = molecules(40)
    rows = [(text, 100 if place % 2 else place / 40, 0 if place % 2 else 1) for place, text in enumerate(smiles)]
    data = write_csv(tmp_path / "data.csv", ("smiles", "y", "trust"), rows)
    settings = {"training.epochs": 12, "training.learning_rate": 0.03, "training.batch_size": 8}
    run = train_small(data, tmp_path / "run", "y", options=LEARN, settings=settings)
    assert np.median(run.predict(smiles).mean) < 40
