"""Intervals, calibrated probabilities and distances from training to the file that a person opens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workflow.small import QUIET, molecules, read_csv, train_small, write_csv
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.inference import Predictor, load
from tokengt.training.results import read_summary
from tokengt.workflow.explaining import explain
from tokengt.workflow.fitting import TrainOptions
from tokengt.workflow.predicting import predict_file
from tokengt.workflow.reporting import Report

# Half of the rows validate: intervals need some.
HALF = TrainOptions(quiet=True, workers=1, fractions=(0.4, 0.4, 0.2))
ROWS = 160


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A number, a yes or no, and one of three classes, each with a blank now and then."""
    smiles, values = molecules(ROWS)
    rows = (
        (text, "" if place % 9 == 4 else value, int(value > -3), "abc"[place % 3])
        for place, (text, value) in enumerate(zip(smiles, values, strict=True))
    )
    return write_csv(tmp_path_factory.mktemp("trust") / "data.csv", ("smiles", "y", "soluble", "kind"), rows)


@pytest.fixture(scope="module")
def run(table: Path) -> Predictor:
    return train_small(table, table.parent / "run", "y", options=HALF)


@pytest.fixture(scope="module")
def new(table: Path) -> Path:
    rows = [("CCO",), ("C1CC",), ("c1ccccc1CCCC",), ("[Pt]",)]
    return write_csv(table.parent / "new.csv", ("smiles",), rows)


def test_the_file_has_intervals_and_neighbours(run: Predictor, new: Path, tmp_path: Path) -> None:
    predict_file(run, new, tmp_path / "out.csv", interval=0.9, quiet=True)
    rows = read_csv(tmp_path / "out.csv")
    beside = ["low_y", "high_y", "similarity", "distance", "unlike_training"]
    assert list(rows[0]) == ["smiles", "predicted_y", *beside, "reason"]
    bad = rows.pop(1)
    assert all(bad[name] == "" for name in ("predicted_y", *beside))
    assert bad["reason"]
    for row in rows:
        assert float(row["low_y"]) < float(row["predicted_y"]) < float(row["high_y"])
        assert 0 <= float(row["similarity"]) <= 1
    # Butylbenzene is like much of ESOL, platinum like nothing.
    assert [row["unlike_training"] for row in rows[1:]] == ["no", "yes"]
    # Python says the same.
    told = run.predict(["CCO", "c1ccccc1CCCC", "[Pt]"], interval=0.9)
    assert told.low is not None
    assert told.similarity is not None
    assert [f"{value:.12g}" for value in told.similarity] == [row["similarity"] for row in rows]
    assert np.allclose(told.low[:, 0], [float(row["low_y"]) for row in rows])
    assert told.unlike is not None
    assert ["yes" if each else "no" for each in told.unlike] == [row["unlike_training"] for row in rows]
    plain = run.predict(["CCO"])
    assert plain.low is None
    assert plain.unlike is None


def test_bounds_of_a_positive_skewed_target_are_positive(table: Path, tmp_path: Path) -> None:
    """The interval of a half-life began far below zero: its errors were counted in hours, and most are small."""
    rows = [(row["smiles"], np.exp(2 * float(row["y"]))) for row in read_csv(table) if row["y"]]
    skewed = write_csv(tmp_path / "skewed.csv", ("smiles", "y"), rows)
    run = train_small(skewed, tmp_path / "run", "y", options=HALF)
    assert run.task.logged == ("y",)
    told = run.predict([text for text, _ in rows], interval=0.9)
    assert told.low is not None
    assert told.high is not None
    assert (told.low > 0).all()
    np.testing.assert_allclose(told.mean / told.low, told.high / told.mean)
    labels = np.array([[value] for _, value in rows])
    assert ((told.low <= labels) & (labels <= told.high)).mean() > 0.8


def test_an_explanation_has_the_same_bounds(run: Predictor) -> None:
    """Platinum is like nothing in ESOL; the report says it where a person reads the number."""
    told = run.predict(["[Pt]"], interval=0.9)
    found = explain(run, "[Pt]", methods=(), usual=0)
    assert found.interval is not None
    assert told.low is not None
    assert told.high is not None
    np.testing.assert_array_equal(found.interval.low, told.low[0])
    np.testing.assert_array_equal(found.interval.high, told.high[0])
    assert (found.interval.level, found.unlike) == (0.9, True)
    assert explain(run, "c1ccccc1CCCC", methods=(), usual=0).unlike is False
    said = str(Report(Path("report.html"), 100_000, found))
    assert f"90% interval {told.low[0, 0]:.4g} to {told.high[0, 0]:.4g}, unlike anything trained on (0.1 MB)" in said


def test_neighbours_alone_and_a_higher_level(run: Predictor, new: Path, tmp_path: Path) -> None:
    predict_file(run, new, tmp_path / "near.csv", neighbours=True, quiet=True)
    assert list(read_csv(tmp_path / "near.csv")[0])[2:] == ["similarity", "distance", "unlike_training", "reason"]
    narrow, wide = (run.predict(["CCO"], interval=level) for level in (0.5, 0.9))
    assert narrow.low is not None
    assert wide.low is not None
    assert wide.low[0, 0] < narrow.low[0, 0]
    with pytest.raises(ValueError, match=r"an interval of 0.99 needs 99 labels of 'y' in the validation part"):
        predict_file(run, new, tmp_path / "not.csv", interval=0.99, quiet=True)
    assert not (tmp_path / "not.csv").exists()


def test_a_training_molecule_is_like_itself(run: Predictor, table: Path) -> None:
    trained = [row["part"] for row in read_csv(table.parent / "run" / "split.csv")]
    place = trained.index("train")
    told = run.predict([read_csv(table)[place]["smiles"]], neighbours=True)
    assert told.similarity is not None
    assert told.similarity[0] == 1
    assert told.unlike is not None
    assert not told.unlike[0]


def test_a_loaded_run_and_a_store_say_the_same(run: Predictor, table: Path, tmp_path: Path) -> None:
    prepare(table, tmp_path / "store", Recipe(targets=("y",)), workers=1, progress=False)
    predict_file(table.parent / "run", tmp_path / "store", tmp_path / "a.csv", interval=0.8, quiet=True, device="cpu")
    predict_file(run, table, tmp_path / "b.csv", interval=0.8, quiet=True)
    names = ("predicted_y", "low_y", "high_y", "similarity", "distance", "unlike_training")
    ours, theirs = read_csv(tmp_path / "a.csv"), read_csv(tmp_path / "b.csv")
    for row, other in zip(ours, theirs, strict=True):
        assert [row[name] for name in names] == [other[name] for name in names]


def test_the_card_the_summary_and_the_picture_tell_it(run: Predictor, table: Path) -> None:
    folder = table.parent / "run"
    summary = read_summary(folder)
    assert summary.intervals is not None
    assert summary.intervals["level"] == 0.9
    assert 0.5 < (summary.intervals["coverage"] or 0) <= 1
    card = (folder / "README.md").read_text()
    assert f"{summary.intervals['coverage']:.1%}" in card
    assert (folder / "calibration.png").stat().st_size > 10_000


@pytest.mark.parametrize("target", ["soluble", "kind"])
def test_probabilities_are_calibrated_and_those_of_the_test_part_too(target: str, table: Path, tmp_path: Path) -> None:
    task: Any = "multiclass" if target == "kind" else None
    trained = train_small(table, tmp_path / "run", target, task=task, options=HALF)
    assert trained.calibration.chances is not None
    raw = Predictor(trained.spec, trained.members, trained.device)
    smiles = [row["smiles"] for row in read_csv(table)]
    ours, plain = trained.predict(smiles).mean, raw.predict(smiles).mean
    assert not np.allclose(ours, plain)
    assert np.array_equal(np.argsort(ours[:, 0]), np.argsort(plain[:, 0])) or target == "kind"
    # What the run wrote of its test part is what it predicts.
    name = "predicted_soluble" if target == "soluble" else "probability_a"
    for row in read_csv(tmp_path / "run" / "predictions.csv"):
        place = int(row["line"]) - 2
        assert float(row[name]) == pytest.approx(ours[place, 0], abs=1e-5)
    assert "Probabilities are calibrated" in (tmp_path / "run" / "README.md").read_text()
    with pytest.raises(ValueError, match="an interval is for numbers"):
        trained.predict(["C"], interval=0.9)
    assert trained.predict(["C"], neighbours=True).similarity is not None


@pytest.mark.slow
def test_several_models_and_folds_have_one_calibration(table: Path, tmp_path: Path) -> None:
    options = TrainOptions(quiet=True, workers=1, folds=3, ensemble=2)
    settings = {"training.epochs": 1, "training.loss": "gaussian"}
    trained = train_small(table, tmp_path / "run", "y", options=options, settings=settings)
    assert trained.calibration.reads_spread
    told = trained.predict(["CCO", "CCCCCC"], interval=0.9)
    assert told.std is not None  # a model with a variance of its own has a spread in a single pass
    assert told.low is not None
    assert trained.calibration.conformal is not None
    # Every labelled row validates in one of the three folds.
    labelled = sum(row["y"] != "" for row in read_csv(table))
    assert len(trained.calibration.conformal.scores[0]) == labelled
    # All rows are known: each was trained on in some fold.
    assert trained.calibration.known is not None
    assert len(trained.calibration.known.labels) == ROWS


def test_a_run_without_enough_validation_labels_predicts_without_intervals(table: Path, tmp_path: Path) -> None:
    few = write_csv(tmp_path / "few.csv", ("smiles", "y"), [(row["smiles"], row["y"]) for row in read_csv(table)[:30]])
    trained = train_small(few, tmp_path / "run", "y", options=QUIET)
    with pytest.raises(ValueError, match="this run has no intervals"):
        trained.predict(["C"], interval=0.9)
    assert "Nothing is known: the validation part has too few labels" in (tmp_path / "run" / "README.md").read_text()


def test_a_run_whose_calibration_is_gone_or_changed_is_refused(table: Path, tmp_path: Path) -> None:
    train_small(table, tmp_path / "run", "soluble", options=HALF, settings={"training.epochs": 1})
    before = load(tmp_path / "run", "cpu").predict(["CCO"]).mean
    told = (tmp_path / "run" / "calibration.json").read_bytes()
    (tmp_path / "run" / "calibration.json").unlink()
    with pytest.raises(ValueError, match=r"calibration.json is missing"):
        load(tmp_path / "run", "cpu")
    (tmp_path / "run" / "calibration.json").write_bytes(told)
    # A run that is gone over once more keeps its numbers.
    again = train_small(table, tmp_path / "run", "soluble", options=HALF, settings={"training.epochs": 1}, resume=True)
    assert np.array_equal(again.predict(["CCO"]).mean, before)
    assert (tmp_path / "run" / "calibration.json").read_bytes() == told
    # One of an earlier version says nothing of a calibration, and has none.
    data = json.loads((tmp_path / "run" / "run.json").read_text())
    assert data["calibration"]
