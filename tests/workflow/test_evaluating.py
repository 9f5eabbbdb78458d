"""Comparing predictions with the labels of a file."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.workflow.small import molecule_csv, molecules, read_csv, train_small, write_csv
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.inference import Predictor
from tokengt.interop.molecules import MoleculePolicy
from tokengt.workflow.evaluating import evaluate
from tokengt.workflow.fitting import TrainOptions


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder = tmp_path_factory.mktemp("run")
    return train_small(molecule_csv(folder / "data.csv"), folder / "run", ("y", "z"))


def test_an_evaluation_replaces_nothing_unasked(predictor: Predictor, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "test.csv", ("smiles", "y", "z"), [("CCO", "1", "2"), ("CCN", "0", "3")])
    evaluate(predictor, source, quiet=True, out=tmp_path / "out")
    with pytest.raises(ValueError, match="out holds an evaluation; choose another folder, or have it replaced"):
        evaluate(predictor, source, quiet=True, out=tmp_path / "out")
    evaluate(predictor, source, quiet=True, out=tmp_path / "out", overwrite=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="run is the folder of a run"):
        evaluate(predictor, source, quiet=True, out=tmp_path / "run", overwrite=True)


def test_numbers_by_hand(predictor: Predictor, tmp_path: Path) -> None:
    texts = ["CCO", "CCN", "C1", "c1ccccc1", "CCC"]
    labels = [("1", "2"), ("", "3"), ("1", "1"), ("0", ""), ("", "")]
    rows = [(text, *own) for text, own in zip(texts, labels, strict=True)]
    source = write_csv(tmp_path / "test.csv", ("smiles", "y", "z"), rows)
    evaluation = evaluate(predictor, source, quiet=True, out=tmp_path / "out")
    good = predictor.predict([texts[0], texts[1], texts[3]]).mean
    y = np.array([good[0, 0] - 1, good[2, 0] - 0])
    z = np.array([good[0, 1] - 2, good[1, 1] - 3])
    assert evaluation.metrics["rmse/y"] == pytest.approx(np.sqrt((y**2).mean()), rel=1e-5)
    assert evaluation.metrics["mae/z"] == pytest.approx(np.abs(z).mean(), rel=1e-5)
    assert evaluation.metrics["rmse"] == pytest.approx(
        (evaluation.metrics["rmse/y"] + evaluation.metrics["rmse/z"]) / 2
    )
    assert (evaluation.rows, evaluation.rejected, evaluation.strange) == (3, 1, 0)
    assert "over 3 rows, 1 rows rejected" in str(evaluation)
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["metrics"] == pytest.approx(evaluation.metrics)
    assert (tmp_path / "out" / "parity.png").is_file()


def test_the_test_part_evaluates_as_its_run_says(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    predictor = train_small(source, tmp_path / "run", ("y", "z"))
    rows = [(row["smiles"], row["y"], row["z"]) for row in read_csv(tmp_path / "run" / "predictions.csv")]
    evaluation = evaluate(predictor, write_csv(tmp_path / "test.csv", ("smiles", "y", "z"), rows), quiet=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())["test"]
    assert {name: value for name, value in evaluation.metrics.items() if value == value} == pytest.approx(
        {name: value for name, value in summary.items() if value is not None}, rel=1e-4
    )


def test_classes_in_another_order_and_of_another_kind(tmp_path: Path) -> None:
    smiles, values = molecules(30)
    labels = ["b" if value > -3 else "a" for value in values]
    source = write_csv(tmp_path / "data.csv", ("smiles", "kind"), zip(smiles, labels, strict=True))
    predictor = train_small(source, tmp_path / "run", "kind", task="multiclass")
    predicted = [predictor.task.classes[place] for place in predictor.predict(smiles).mean.argmax(1)]  # type: ignore[index]
    some = [("b", smiles[0], "b"), ("zebra", smiles[1], ""), ("b", smiles[2], "b"), ("", smiles[3], "")]
    test = write_csv(tmp_path / "test.csv", ("kind", "smiles", "x"), some)
    evaluation = evaluate(predictor, test, quiet=True)
    assert (evaluation.rows, evaluation.strange) == (2, 1)
    assert evaluation.metrics["accuracy"] == np.mean([predicted[place] == "b" for place in (0, 2)])
    assert "1 labels of a class the run does not know" in str(evaluation)


def test_a_frame_and_a_store_are_a_file(predictor: Predictor, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    source = molecule_csv(tmp_path / "test.csv", 12)
    expected = evaluate(predictor, source, quiet=True)
    assert evaluate(predictor, pandas.read_csv(source), quiet=True) == expected
    store = prepare(source, tmp_path / "store", Recipe(targets=("y", "z")), workers=1, progress=False)
    assert evaluate(predictor, store, quiet=True) == expected
    assert evaluate(predictor, tmp_path / "store", quiet=True) == expected
    other = pandas.read_csv(source).rename(columns={"smiles": "drug"})
    assert evaluate(predictor, other, smiles="drug", quiet=True) == expected


def test_a_store_of_other_molecules_or_descriptors_is_refused(predictor: Predictor, tmp_path: Path) -> None:
    """Its numbers would be read as what they are not."""
    source = molecule_csv(tmp_path / "test.csv", 12)
    recipe = Recipe(targets=("y", "z"), policy=MoleculePolicy(hydrogens="explicit"))
    prepare(source, tmp_path / "explicit", recipe, workers=1, progress=False)
    with pytest.raises(ValueError, match="hydrogens"):
        evaluate(predictor, tmp_path / "explicit", quiet=True)
    rows = [(text, value, place, -place) for place, (text, value) in enumerate(zip(*molecules(20), strict=True))]
    both = write_csv(tmp_path / "both.csv", ("smiles", "y", "a", "b"), rows)
    options = TrainOptions(quiet=True, workers=1, descriptors=("a", "b"))
    own = train_small(both, tmp_path / "run", "y", options=options)
    prepare(both, tmp_path / "turned", Recipe(targets=("y",), descriptors=("b", "a")), workers=1, progress=False)
    with pytest.raises(ValueError, match="descriptors"):
        evaluate(own, tmp_path / "turned", quiet=True)


def test_no_labels_is_one_sentence(predictor: Predictor, tmp_path: Path) -> None:
    blank = write_csv(tmp_path / "blank.csv", ("smiles", "y", "z"), [("CCO", "", "")])
    with pytest.raises(ValueError, match=r"blank\.csv has no label of y, z to compare with"):
        evaluate(predictor, blank, quiet=True)
    without = write_csv(tmp_path / "without.csv", ("smiles", "x"), [("CCO", 1)])
    with pytest.raises(ValueError, match=r"without\.csv has none of the run's targets y, z; its columns are smiles, x"):
        evaluate(predictor, without, quiet=True)


def test_some_of_the_targets_are_compared_and_the_others_named(predictor: Predictor, tmp_path: Path) -> None:
    """A file with z alone; the same numbers whether it comes as a file, a table or a store."""
    pandas = pytest.importorskip("pandas")
    texts, labels = ["CCO", "CCN", "c1ccccc1"], [1.0, 2.0, 4.0]
    source = write_csv(
        tmp_path / "z.csv", ("smiles", "z", "x"), [(t, v, 0) for t, v in zip(texts, labels, strict=True)]
    )
    errors = predictor.predict(texts).mean[:, 1] - labels
    found = evaluate(predictor, source, quiet=True, out=tmp_path / "out")
    assert found.missing == ("y",)
    assert found.rows == 3
    assert found.metrics["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)
    assert set(found.metrics) == {"rmse", "mae", "r2", "rmse/z", "mae/z", "r2/z"}
    assert str(found).endswith("over 3 rows, without y, which the data does not have")
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["missing"] == ["y"]
    assert evaluate(predictor, pandas.read_csv(source), quiet=True) == found
    store = prepare(source, tmp_path / "store", Recipe(targets=("z",)), workers=1, progress=False)
    assert evaluate(predictor, store, quiet=True) == evaluate(predictor, tmp_path / "store", quiet=True) == found
    prepare(source, tmp_path / "other", Recipe(targets=("x",)), workers=1, progress=False)
    with pytest.raises(ValueError, match="other has none of the run's targets y, z; its targets are x"):
        evaluate(predictor, tmp_path / "other", quiet=True)


def test_plain_numbers_in_a_store_name_the_classes_they_spell(tmp_path: Path) -> None:
    """A store prepared without --task multiclass holds 1 and 2, not the places of these classes."""
    smiles, _ = molecules(30)
    rows = [(text, 1 + place % 3) for place, text in enumerate(smiles)]
    source = write_csv(tmp_path / "data.csv", ("smiles", "y"), rows)
    predictor = train_small(source, tmp_path / "run", "y", task="multiclass")
    some = write_csv(tmp_path / "some.csv", ("smiles", "y"), [row for row in rows if row[1] < 3] + [("CCO", 7)])
    prepare(some, tmp_path / "store", Recipe(smiles="smiles", targets=("y",)), workers=1, progress=False)
    from_file, from_store = evaluate(predictor, some, quiet=True), evaluate(predictor, tmp_path / "store", quiet=True)
    assert from_store.metrics == pytest.approx(from_file.metrics)
    assert (from_store.rows, from_store.strange) == (from_file.rows, from_file.strange) == (20, 1)
