"""Predicting files: every row comes back, with a prediction or the reason why there is none."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.workflow.small import TINY, molecule_csv, molecules, read_csv, train_small, write_csv
from tokengt.inference import Predictor, load
from tokengt.workflow import rows as all_rows
from tokengt.workflow.evaluating import evaluate
from tokengt.workflow.fitting import TrainOptions
from tokengt.workflow.predicting import Predicted, embed_file, predict_file

FORMAT_2 = Path(__file__).parents[1] / "fixtures" / "format_2"
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
    monkeypatch.setattr(all_rows, "CHUNK_ROWS", 1)
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
        assert ["cannot be read" in reason for reason in arrays["reasons"]] == [True]


def test_vectors_as_the_ending_says(predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers in each kind of file, beside the columns of the input; in several pieces."""
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [("a", TEXTS[0]), ("b", "C1"), ("c", TEXTS[1])]
    source = write_csv(tmp_path / "new.csv", ("vector_0", "smiles"), rows)
    monkeypatch.setattr(all_rows, "CHUNK_ROWS", 2)
    for ending in ("npz", "csv", "parquet"):
        assert embed_file(predictor, source, tmp_path / f"v.{ending}", quiet=True) == Predicted(3, 1)
    with np.load(tmp_path / "v.npz", allow_pickle=False) as arrays:
        expected = arrays["vectors"]
    names = ["vector_0_", *(f"vector_{place}" for place in range(1, TINY["model.dim"]))]
    text, table = read_csv(tmp_path / "v.csv"), parquet.read_table(tmp_path / "v.parquet")
    assert list(text[0]) == table.column_names == ["vector_0", "smiles", *names, "reason"]
    assert [(row["vector_0"], row["smiles"]) for row in text] == rows
    assert [bool(row["reason"]) for row in text] == [False, True, False]
    assert [text[1][name] for name in names] == [""] * len(names)
    for place in (0, 2):
        assert [np.float32(text[place][name]) for name in names] == expected[place].tolist()
        assert [table[name][place].as_py() for name in names] == expected[place].tolist()
    assert table["smiles"].to_pylist() == [text for _, text in rows]
    assert [table[name][1].as_py() for name in names] == [None] * len(names)
    assert ["cannot be read" in (reason or "") for reason in table["reason"].to_pylist()] == [False, True, False]


def test_files_to_write_are_looked_at_before_any_work(tmp_path: Path) -> None:
    """No run is needed to say it: the folder named here does not exist."""
    source = write_csv(tmp_path / "new.csv", ("smiles",), [["CCO"]])
    for name in ("v.txt", "v", "v.csv.gz", "v.json"):
        with pytest.raises(ValueError, match=rf"{name} has an ending.*expected one of \.npz, \.csv, \.parquet"):
            embed_file(tmp_path / "none", source, tmp_path / name, quiet=True)
    (tmp_path / "mine.csv").write_text("mine")
    for verb in (predict_file, embed_file):
        with pytest.raises(ValueError, match=r"mine\.csv exists; choose another name, or have it replaced \(--force"):
            verb(tmp_path / "none", source, tmp_path / "mine.csv", quiet=True)
        with pytest.raises(ValueError, match=r"none does not exist; expected a run"):
            verb(tmp_path / "none", source, tmp_path / "mine.csv", overwrite=True, quiet=True)
    assert (tmp_path / "mine.csv").read_text() == "mine"


def test_an_ensemble_gives_the_spread_of_its_models_and_draws_of_each(tmp_path: Path) -> None:
    """One draw: the deviation of the models. Several: the mean over all draws of all models, and their deviation."""
    run = load(FORMAT_2 / "ensemble", "cpu")
    given = [100.0 + place for place in range(6)]
    source = write_csv(tmp_path / "new.csv", ("smiles", "T"), zip(TEXTS[:6], given, strict=True))
    for draws in (1, 3):
        passes = []
        for member in run.members:
            graphs, _, _ = run.read_texts(TEXTS[:6])
            scaled = member.descriptors.scaled(torch.tensor(given)[:, None])
            passes += list(member.passes(graphs.with_graph_features(scaled), draws, "identifiers").values)
        assert len(passes) == 2 * draws
        _, rows = predict(run, source, draws=draws)
        assert list(rows[0]) == ["smiles", "T", "predicted_logS", "std_logS", "reason"]
        together = torch.stack(passes)[..., 0]
        assert numbers(rows, "predicted_logS") == pytest.approx(together.mean(0).tolist(), abs=1e-5)
        assert numbers(rows, "std_logS") == pytest.approx(together.std(0).tolist(), abs=1e-5)


def test_rows_that_overflow_have_a_reason_and_are_counted(tmp_path: Path) -> None:
    run = load(FORMAT_2 / "ensemble", "cpu")
    rows = [(TEXTS[0], 100), (TEXTS[0], "1e30"), ("C1", 100), (TEXTS[1], "-3e38"), (TEXTS[1], "1e39")]
    source = write_csv(tmp_path / "new.csv", ("smiles", "T"), rows)
    done, found = predict(run, source)
    assert done == Predicted(5, 4, 2)
    assert str(done) == "5 rows, 2 of which could not be read, 2 for which the model gives no finite number"
    for row in found:
        assert bool(row["reason"]) == (row["predicted_logS"] == "") == (row["std_logS"] == "")
    assert "descriptor 'T' is 1e+30, too far from those of training" in found[1]["reason"]
    assert embed_file(run, source, tmp_path / "v.csv", quiet=True) == done
    assert [bool(row["reason"]) for row in read_csv(tmp_path / "v.csv")] == [False, True, True, True, True]
    labelled = write_csv(tmp_path / "l.csv", ("smiles", "T", "logS"), [(*row, 1.0) for row in rows])
    evaluation = evaluate(run, labelled, quiet=True)
    assert (evaluation.rows, evaluation.overflowed, evaluation.rejected) == (1, 2, 2)
    assert evaluation.metrics["mae"] == pytest.approx(abs(float(found[0]["predicted_logS"]) - 1), abs=1e-5)
    assert "2 rows for which the model gives no finite number" in str(evaluation)
    hopeless = write_csv(tmp_path / "h.csv", ("smiles", "T", "logS"), [("CCO", "1e30", 1.0)])
    with pytest.raises(ValueError, match=r"h\.csv has no row with a label for which.*descriptor 'T' is 1e\+30"):
        evaluate(run, hopeless, quiet=True)


def test_nodes_that_overflow_have_a_reason_in_every_output(tmp_path: Path) -> None:
    """Of one graph a feature is 1e30: its nodes have no prediction, those of the other graph do."""
    data = pytest.importorskip("torch_geometric.data")

    def graph(size: int, value: float = 0.5) -> object:
        ring = torch.arange(size)
        x = torch.linspace(0, 1, size)[:, None]
        x[0] = value
        return data.Data(x=x, edge_index=torch.stack([ring, ring.roll(-1)]), y=torch.arange(size) / size)

    graphs = [graph(4 + place % 3) for place in range(12)]
    run = train_small(graphs, tmp_path / "run", options=TrainOptions(quiet=True, workers=1, level="node"))
    new = [graph(3), graph(4, 1e30), graph(3)]
    found = run.predict(new)
    assert sorted(found.problems) == [3, 4, 5, 6]
    assert np.isnan(found.mean[3:7]).all()
    assert np.isfinite(found.mean[[0, 1, 2, 7, 8, 9]]).all()
    torch.save(new, tmp_path / "new.pt")
    done, rows = predict(run, tmp_path / "new.pt")
    assert done == Predicted(10, 4, 4)
    assert [(row["graph"], bool(row["reason"]), row["predicted_y"] == "") for row in rows] == [
        *[("1", False, False)] * 3,
        *[("2", True, True)] * 4,
        *[("3", False, False)] * 3,
    ]
    assert embed_file(run, tmp_path / "new.pt", tmp_path / "v.csv", quiet=True) == Predicted(3, 1, 1)
    vectors = read_csv(tmp_path / "v.csv")
    assert [row["graph"] for row in vectors] == ["1", "2", "3"]
    assert (
        [bool(row["reason"]) for row in vectors] == [row["vector_0"] == "" for row in vectors] == [False, True, False]
    )


@pytest.mark.parametrize("name", ["out.json", "out.npz", "out.TSV", "out.csv.gz"])
def test_a_name_of_another_format_is_refused(predictor: Predictor, tmp_path: Path, name: str) -> None:
    source = write_csv(tmp_path / "new.csv", ("smiles",), [["CCO"]])
    with pytest.raises(ValueError, match=r"predictions are written as CSV; choose a name that ends in \.csv"):
        predict_file(predictor, source, tmp_path / name, quiet=True)
    assert not (tmp_path / name).exists()
