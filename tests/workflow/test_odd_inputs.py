"""Files with something wrong in them, from training to evaluation: what is wrong is named, the rest is as it was."""

import json
import os
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from tests.workflow.small import QUIET, TINY, molecules, read_csv
from tokengt.cli import main
from tokengt.data.manifest import Attributes
from tokengt.inference import Predictor
from tokengt.training.spec import read_run
from tokengt.workflow.evaluating import evaluate
from tokengt.workflow.fitting import TrainOptions, train
from tokengt.workflow.predicting import Predicted, embed_file, predict_file


def graph_files(folder: Path, count: int, **more: float) -> Path:
    """Paths of three to six nodes with their own number of nodes, and as many again, as a label."""
    folder.mkdir()
    for place in range(count):
        graph = nx.path_graph(3 + place % 4)
        graph.graph["y"] = 0.5 + place % 4
        for node in graph:
            graph.nodes[node].update(weight=node / 2, **more)
        (folder / f"{place:02d}.json").write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    return folder


def undeclared(folder: Path, name: str) -> None:
    """A link to a node that is not there, in a copy of the first file."""
    data = json.loads((folder / "00.json").read_text())
    data["edges"].append({"source": 0, "target": 99})
    (folder / name).write_text(json.dumps(data))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder = tmp_path_factory.mktemp("run")
    undeclared(graph_files(folder / "graphs", 24), "00x.json")
    return train(folder / "graphs", folder / "run", target="y", settings=TINY, options=QUIET)


def test_a_bad_graph_file_is_named_and_the_others_are_learned_with_their_features(run: Predictor) -> None:
    assert run.spec.attributes == Attributes(("weight",), (), ("node_features",))
    assert run.spec.source.rows == 25
    assert run.spec.model.float_features == ("node_features",)


def test_a_bad_graph_file_comes_back_with_its_reason(run: Predictor, tmp_path: Path) -> None:
    # The files hold one attribute more than the run learned from, and one file of the three none of them.
    good = graph_files(tmp_path / "good", 2, extra=1.0)
    alone = predict_file(run, good, tmp_path / "alone.csv", quiet=True)
    assert alone == Predicted(2, 0)
    mixed = graph_files(tmp_path / "mixed", 2, extra=1.0)
    undeclared(mixed, "00x.json")
    without = json.loads((mixed / "01.json").read_text())
    del without["nodes"][1]["weight"]
    (mixed / "02.json").write_text(json.dumps(without))
    assert predict_file(run, mixed, tmp_path / "mixed.csv", quiet=True) == Predicted(4, 2)
    expected, rows = read_csv(tmp_path / "alone.csv"), read_csv(tmp_path / "mixed.csv")
    assert [row["graph"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["reason"] for row in rows] == [
        "",
        "00x.json: link 2 names the node 99, which is not among its nodes",
        "",
        "02.json: node 1 has no attribute 'weight'; expected one on all of them",
    ]
    for place, row in zip((0, 2), expected, strict=True):
        assert float(rows[place]["predicted_y"]) == pytest.approx(float(row["predicted_y"]), abs=1e-5)

    embed_file(run, mixed, tmp_path / "vectors.npz", quiet=True)
    vectors = np.load(tmp_path / "vectors.npz")
    assert vectors["valid"].tolist() == [True, False, True, False]
    assert np.isnan(vectors["vectors"]).all(1).tolist() == [False, True, False, True]
    assert vectors["lines"].tolist() == [1, 2, 3, 4]

    found = evaluate(run, mixed, quiet=True)
    assert (found.rows, found.rejected) == (2, 2)
    assert found.metrics["mae"] == pytest.approx(evaluate(run, good, quiet=True).metrics["mae"])


def test_a_graph_that_the_model_cannot_take_comes_back_with_its_reason(tmp_path: Path) -> None:
    def files(name: str, count: int) -> Path:
        folder = graph_files(tmp_path / name, count)
        for file in folder.iterdir():
            data = json.loads(file.read_text())
            for node in data["nodes"]:
                node.update(weight=node["id"] % 3)
            file.write_text(json.dumps(data))
        return folder

    def change(file: Path, weight: float) -> None:
        data = json.loads(file.read_text())
        data["nodes"][0]["weight"] = weight
        file.write_text(json.dumps(data))

    predictor = train(files("graphs", 16), tmp_path / "run", target="y", settings=TINY, options=QUIET)
    assert predictor.spec.attributes == Attributes(("weight",), (), ())
    good, mixed = files("good", 4), files("mixed", 4)
    change(mixed / "01.json", 0.5)
    change(mixed / "02.json", 999)
    predict_file(predictor, good, tmp_path / "good.csv", quiet=True)
    assert predict_file(predictor, mixed, tmp_path / "mixed.csv", quiet=True) == Predicted(4, 2)
    expected, rows = read_csv(tmp_path / "good.csv"), read_csv(tmp_path / "mixed.csv")
    for place in (0, 3):
        assert float(rows[place]["predicted_y"]) == pytest.approx(float(expected[place]["predicted_y"]), abs=1e-5)
    assert [rows[place]["reason"] for place in (1, 2)] == [
        "01.json: node_features hold a number that is no category; expected whole numbers from 0",
        "02.json: node_features row 0, column 0 is category 999; this model expects 0 to 2",
    ]
    embed_file(predictor, mixed, tmp_path / "v.npz", quiet=True)
    assert np.load(tmp_path / "v.npz")["valid"].tolist() == [True, False, False, True]


def test_messages_of_graphs_speak_of_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = graph_files(tmp_path / "graphs", 3)
    undeclared(source, "00x.json")
    assert main(["prepare", str(source), "--target", "y", "--out", str(tmp_path / "store")]) == 0
    out, err = capsys.readouterr()
    assert "3 graphs, 1 graphs rejected: see" in out
    assert "attributes that are features: of nodes weight; of edges none" in err
    argv = ["prepare", str(source), "--target", "y", "--out", str(tmp_path / "strict"), "--max-rejected", "0.1"]
    assert main(argv) == 2
    sentence = capsys.readouterr().err
    assert "1 of the 4 graphs of" in sentence
    assert "(00x.json: link 2 names the node 99, which is not among its nodes)" in sentence


def test_odd_rows_of_a_table_are_named_and_the_others_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stray quote, bounds among the labels and a molecule that is too large, in one file."""
    smiles, values = molecules(24)
    source, folder = tmp_path / "a.csv", tmp_path / "run"
    lines = [f"{text},{value},{value},{place}" for place, (text, value) in enumerate(zip(smiles, values, strict=True))]
    lines[3] = f'{smiles[3]},1,1,"5 inch'
    lines[7] = f'{smiles[7]},1,1,6"'
    lines += ["CCO,>3.69,1,", "CCN,<1,2,", f"{'C' * 60},1,1,"]
    source.write_text("\n".join(["smiles,y,z,size", *lines]) + "\n")
    settings = [f"--set={name}={value}" for name, value in TINY.items()]
    argv = ["train", str(source), "--target", "y", "z", "--max-atoms", "50", "--out", str(folder), *settings]
    assert main([*argv, "--max-rejected", "0.1"]) == 2
    assert "4 of the 27 rows of" in capsys.readouterr().err
    with pytest.raises(ValueError, match="3 of the 27 rows of"):
        train(source, folder, target=("y", "z"), options=TrainOptions(quiet=True, workers=1, max_rejected=0.1))
    assert main(argv) == 0
    spec = read_run(folder)
    assert spec.molecules is not None
    assert (spec.molecules.max_atoms, spec.source.rows, len(read_csv(folder / "split.csv"))) == (50, 27, 23)
    assert "max_rejected" not in (folder / "run.json").read_text()  # what was learned does not depend on it
    card = (folder / "README.md").read_text()
    assert "`y` was a bound such as `>3.69` and no number in 2 rows" in card
    assert "predictions are biased away from them" in card
    assert "`z` was a bound" not in card

    predictor = Predictor.load(folder, "cpu")
    assert predict_file(predictor, source, tmp_path / "out.csv", quiet=True) == Predicted(27, 2)
    rows = read_csv(tmp_path / "out.csv")
    assert [row["smiles"] for row in rows] == [*smiles, "CCO", "CCN", "C" * 60]
    assert [place for place, row in enumerate(rows) if row["reason"]] == [3, 26]
    assert "takes in line 6, which is a row of its own" in rows[3]["reason"]
    assert rows[26]["reason"] == "the SMILES has 60 atoms; expected at most 50 (max_atoms)"
    embed_file(predictor, source, tmp_path / "v.npz", quiet=True)
    assert (~np.load(tmp_path / "v.npz")["valid"]).nonzero()[0].tolist() == [3, 26]


def test_a_pipe_is_no_file_to_any_verb(run: Predictor, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "x.csv")
    for verb in ("prepare", "train"):
        assert main([verb, str(tmp_path / "x.csv"), "--target", "y", "--out", str(tmp_path / verb)]) == 2
        assert "x.csv is no regular file; expected one on disk" in capsys.readouterr().err
    for call in (predict_file, embed_file, evaluate):
        outs = {} if call is evaluate else {"out": tmp_path / "out.csv"}
        with pytest.raises(ValueError, match=r"x\.csv is no regular file"):
            call(run, tmp_path / "x.csv", **outs)
