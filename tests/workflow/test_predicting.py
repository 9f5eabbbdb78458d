"""Predicting files: every row comes back, with a prediction or the reason why there is none."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.workflow.small import TINY, molecule_csv, molecules, read_csv, train_small, write_csv
from tokengt.inference import Predictor
from tokengt.workflow import predicting
from tokengt.workflow.fitting import TrainOptions
from tokengt.workflow.predicting import Predicted, embed_file, predict_file

TEXTS = molecules(20)[0]


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder = tmp_path_factory.mktemp("run")
    return train_small(molecule_csv(folder / "data.csv"), folder / "run", ("y", "z"))


def predict(predictor: Predictor, source: Path, **more: object) -> tuple[Predicted, list[dict[str, str]]]:
    out = source.with_name("out.csv")
    done = predict_file(predictor, source, out, quiet=True, overwrite=True, **more)  # type: ignore[arg-type]
    return done, read_csv(out)


def numbers(rows: list[dict[str, str]], column: str = "predicted_y") -> list[float]:
    return [float(row[column]) for row in rows]


def test_every_row_comes_back_in_order_with_its_columns(predictor: Predictor, tmp_path: Path) -> None:
    texts = [TEXTS[0], "C1CC", TEXTS[1], "", "not a molecule", TEXTS[0], "C", "[Na+].[Cl-]"]
    names = ["plain", 'with "quotes", commas', "übér", "blank", "line\nbreak", "again", "atom", "salt"]
    rows = [(name, text, place) for place, (name, text) in enumerate(zip(names, texts, strict=True))]
    source = write_csv(tmp_path / "new.csv", ("name", "smiles", "number"), rows)
    done, rows_out = predict(predictor, source)
    assert done == Predicted(8, 3)
    assert list(rows_out[0]) == ["name", "smiles", "number", "predicted_y", "predicted_z", "reason"]
    assert [row["name"] for row in rows_out] == names
    assert [row["smiles"] for row in rows_out] == texts
    assert [row["number"] for row in rows_out] == [str(place) for place in range(8)]
    for place, row in enumerate(rows_out):
        bad = place in (1, 3, 4)
        assert bool(row["reason"]) == bad
        assert (row["predicted_y"] == "") == bad
        assert (row["predicted_z"] == "") == bad
    assert rows_out[0]["predicted_y"] == rows_out[5]["predicted_y"]


def test_alone_in_chunks_and_among_bad_rows_the_numbers_agree(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = predictor.predict(TEXTS).mean[:, 0]
    source = write_csv(tmp_path / "new.csv", ("smiles",), [[text] for text in TEXTS])
    _, together = predict(predictor, source)
    assert numbers(together) == pytest.approx(expected, abs=1e-5)
    mixed = write_csv(tmp_path / "mixed.csv", ("smiles",), [[part] for text in TEXTS for part in (text, "C1CC")])
    _, rows_out = predict(predictor, mixed)
    assert numbers(rows_out[::2]) == pytest.approx(expected, abs=1e-5)
    monkeypatch.setattr(predicting, "_CHUNK", 1)
    _, alone = predict(predictor, mixed)
    assert numbers(alone[::2]) == pytest.approx(expected, abs=1e-5)
    assert [row["reason"] for row in alone] == [row["reason"] for row in rows_out]


def test_the_same_file_gives_the_same_bytes(predictor: Predictor, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "new.csv", ("smiles",), [[text] for text in TEXTS])
    for name in ("a.csv", "b.csv"):
        predict_file(predictor, source, tmp_path / name, draws=3, quiet=True)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_names_that_are_taken_are_told_apart(predictor: Predictor, tmp_path: Path) -> None:
    columns = ("smiles", "predicted_y", "reason", "predicted_y_")
    source = write_csv(tmp_path / "new.csv", columns, [(TEXTS[0], "mine", "why", "too"), ("C1", "x", "", "")])
    _, rows_out = predict(predictor, source)
    assert list(rows_out[0]) == [*columns, "predicted_y__", "predicted_z", "reason_"]
    assert (rows_out[0]["predicted_y"], rows_out[0]["reason"], rows_out[0]["predicted_y_"]) == ("mine", "why", "too")
    assert rows_out[0]["predicted_y__"]
    assert rows_out[0]["reason_"] == ""
    assert rows_out[1]["reason_"]


def test_draws_add_columns_of_their_spread(predictor: Predictor, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "new.csv", ("smiles",), [[text] for text in (*TEXTS, "C1")])
    for over in ("identifiers", "dropout"):
        _, rows = predict(predictor, source, draws=3, over=over)
        assert list(rows[0]) == ["smiles", "predicted_y", "predicted_z", "std_y", "std_z", "reason"]
        assert all(float(row["std_y"]) >= 0 for row in rows[:-1])
        assert rows[-1]["std_y"] == ""
        drawn = predictor.predict(TEXTS, draws=3, over=over)  # type: ignore[arg-type]
        assert [float(row["predicted_y"]) for row in rows[:-1]] == pytest.approx(drawn.mean[:, 0].tolist(), abs=1e-6)


def test_columns_by_other_names(predictor: Predictor, tmp_path: Path) -> None:
    loud = write_csv(tmp_path / "loud.csv", ("SMILES", "x"), [(text, 1) for text in TEXTS])
    named = write_csv(tmp_path / "named.csv", ("smiles", "drug"), [("CC", text) for text in TEXTS])
    expected = predictor.predict(TEXTS).mean[:, 0]
    assert numbers(predict(predictor, loud)[1]) == pytest.approx(expected, abs=1e-5)
    assert numbers(predict(predictor, named, smiles="drug")[1]) == pytest.approx(expected, abs=1e-5)
    wrong = write_csv(tmp_path / "wrong.csv", ("drug", "x"), [("CC", 1)])
    with pytest.raises(ValueError, match=r"no column 'smiles'.*the columns are drug, x"):
        predict(predictor, wrong)


def test_windows_files_short_rows_and_no_rows(predictor: Predictor, tmp_path: Path) -> None:
    source = tmp_path / "windows.csv"
    source.write_bytes("\ufeffname;smiles\r\na;CCO\r\nb\r\nc;CCN;extra\r\n".encode())
    done, rows_out = predict(predictor, source)
    assert done == Predicted(3, 2)
    assert [row["name"] for row in rows_out] == ["a", "b", "c"]
    assert rows_out[0]["predicted_y"]
    assert "1 cell" in rows_out[1]["reason"]
    assert "3 cells" in rows_out[2]["reason"]
    empty = write_csv(tmp_path / "empty.csv", ("smiles", "y"), [])
    done, rows_out = predict(predictor, empty)
    assert done == Predicted(0, 0)
    assert rows_out == []


def test_the_input_is_never_written_over(predictor: Predictor, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "new.csv", ("smiles",), [["CCO"]])
    with pytest.raises(ValueError, match="the file to write is the input"):
        predict_file(predictor, source, tmp_path / "." / "new.csv", quiet=True)


def test_other_kinds_of_tables(predictor: Predictor, tmp_path: Path) -> None:
    expected = predictor.predict(TEXTS).mean[:, 0]
    packed = tmp_path / "new.csv.gz"
    packed.write_bytes(gzip.compress("\n".join(["smiles", *TEXTS]).encode()))
    listed = tmp_path / "new.smi"
    listed.write_text("\n".join(f"{text} name {place}" for place, text in enumerate(TEXTS)))
    parquet = tmp_path / "new.parquet"
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.DataFrame({"smiles": TEXTS, "n": range(len(TEXTS))}).to_parquet(parquet)
    for source in (packed, listed, parquet):
        _, rows_out = predict(predictor, source)
        assert numbers(rows_out) == pytest.approx(expected, abs=1e-5)
        assert [row["smiles"] for row in rows_out] == TEXTS


def sdf(path: Path, texts: list[str], **fields: list[str]) -> Path:
    from rdkit import Chem

    blocks = []
    for place, text in enumerate(texts):
        block = Chem.MolToMolBlock(Chem.MolFromSmiles(text)) if text else "\n\n\nbroken\nM  END\n"
        data = "".join(f"> <{name}>\n{values[place]}\n\n" for name, values in fields.items())
        blocks.append(f"{block}{data}$$$$\n")
    path.write_text("".join(blocks))
    return path


def test_sdf_to_train_on_and_to_predict(predictor: Predictor, tmp_path: Path) -> None:
    smiles, values = molecules(30)
    source = sdf(tmp_path / "data.sdf", smiles, y=[str(value) for value in values])
    own = train_small(source, tmp_path / "run", "y")
    texts = TEXTS[3:]  # Without coordinates a mol block cannot say that a double bond is neither cis nor trans.
    names = [f"n{place}" for place in range(len(texts) + 1)]
    new = sdf(tmp_path / "new.sdf", [*texts, ""], name=names)
    for each in (own, predictor):
        done, rows_out = predict(each, new)
        assert done == Predicted(len(names), 1)
        assert [row["name"] for row in rows_out] == names
        assert rows_out[-1]["reason"]
        assert numbers(rows_out[:-1]) == pytest.approx(each.predict(texts).mean[:, 0], abs=1e-5)


def test_an_sdf_with_a_field_of_smiles_keeps_it(predictor: Predictor, tmp_path: Path) -> None:
    new = sdf(tmp_path / "new.sdf", TEXTS[:3], smiles=["one", "two", "three"])
    predict_file(predictor, new, tmp_path / "out.csv", quiet=True)
    header = (tmp_path / "out.csv").read_text().splitlines()[0].split(",")
    assert len(set(header)) == len(header)
    assert [row["smiles"] for row in read_csv(tmp_path / "out.csv")] == ["one", "two", "three"]


def test_a_missing_descriptor_is_a_reason(tmp_path: Path) -> None:
    smiles, values = molecules(20)
    rows = [(text, value, place) for place, (text, value) in enumerate(zip(smiles, values, strict=True))]
    source = write_csv(tmp_path / "data.csv", ("smiles", "y", "T"), rows)
    options = TrainOptions(quiet=True, workers=1, descriptors=("T",))
    predictor = train_small(source, tmp_path / "run", "y", options=options)
    new = [("CCO", 3), ("CCO", ""), ("CCO", "warm"), ("C1", 4), ("CCN", "5.5")]
    done, rows_out = predict(predictor, write_csv(tmp_path / "new.csv", ("smiles", "T"), new))
    assert done == Predicted(5, 3)
    assert "descriptor 'T'" in rows_out[1]["reason"]
    assert "'warm'" in rows_out[2]["reason"]
    expected = predictor.predict(["CCO", "CCN"], descriptors=[3.0, 5.5]).mean[:, 0]
    assert numbers([rows_out[0], rows_out[4]]) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match="no column 'T', which the run's descriptor names"):
        predict(predictor, write_csv(tmp_path / "without.csv", ("smiles",), [["CCO"]]))


def test_classes_of_text(tmp_path: Path) -> None:
    smiles, values = molecules(30)
    labels = ["high, very" if value > -2 else "low" if value > -4 else "ünter" for value in values]
    labels[3] = ""
    rows = list(zip(smiles, labels, strict=True))
    source = write_csv(tmp_path / "data.csv", ("smiles", "group"), rows)
    predictor = train_small(source, tmp_path / "run", "group", task="multiclass")
    classes = ("high, very", "low", "ünter")
    assert predictor.task.classes == classes
    done, rows_out = predict(predictor, source, draws=2)
    chances = [f"probability_{name}" for name in classes]
    assert list(rows_out[0])[2:] == ["predicted_group", *chances, *(f"std_{name}" for name in classes), "reason"]
    for row in rows_out:
        shares = [float(row[name]) for name in chances]
        assert sum(shares) == pytest.approx(1, abs=1e-6)
        assert row["predicted_group"] == classes[int(np.argmax(shares))]
    kept = {row["line"]: row for row in read_csv(tmp_path / "run" / "predictions.csv")}
    assert all(rows_out[int(line) - 2]["group"] == row["group"] for line, row in kept.items())
    assert done.bad == 0


def test_the_test_part_is_predicted_as_any_file_is(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    predictor = train_small(source, tmp_path / "run", ("y", "z"))
    _, rows_out = predict(predictor, source)
    kept = read_csv(tmp_path / "run" / "predictions.csv")
    assert len(kept) == 4
    for row in kept:
        again = rows_out[int(row["line"]) - 2]
        assert (again["smiles"], again["y"]) == (row["smiles"], row["y"])
        assert float(again["predicted_y"]) == pytest.approx(float(row["predicted_y"]), abs=1e-5)


def test_vectors_of_every_row(predictor: Predictor, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "new.csv", ("smiles",), [[TEXTS[0]], ["C1"], [TEXTS[1]]])
    done = embed_file(predictor, source, tmp_path / "vectors.npz", quiet=True)
    assert done == Predicted(3, 1)
    with np.load(tmp_path / "vectors.npz", allow_pickle=False) as arrays:
        assert arrays["vectors"].shape == (3, TINY["model.dim"])
        assert arrays["valid"].tolist() == [True, False, True]
        assert arrays["lines"].tolist() == [2, 3, 4]
        assert np.isnan(arrays["vectors"][1]).all()
        assert np.isfinite(arrays["vectors"][[0, 2]]).all()
