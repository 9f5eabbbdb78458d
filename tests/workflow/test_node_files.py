"""A graph of one's own from two tables to predictions: one row per node, on its own graph and on another."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import tokengt
from tokengt import NodeFiles, TrainOptions
from tokengt.cli import main
from tokengt.presets import NODES, NODES_EXACT
from tokengt.training import origin
from tokengt.training.origin import chosen_preset
from tokengt.training.request import TrainRequest
from tokengt.training.spec import read_run
from tokengt.workflow.describing import info
from tokengt.workflow.explaining import explain
from tokengt.workflow.predicting import predict_file

QUICK = {
    "model.dim": 16,
    "model.encoder.mlp_dim": 16,
    "model.encoder.num_layers": 1,
    "model.identifiers.dim": 8,
    "training.epochs": 6,
    "training.learning_rate": 0.01,
}
QUIET = TrainOptions(quiet=True)


def tables(folder: Path, name: str, seed: int, nodes: int = 90, blank: int = 10) -> NodeFiles:
    """Three groups that a column tells most of the time; edges inside them; the first few without a label."""
    random = np.random.default_rng(seed)
    group = np.arange(nodes) % 3
    told = np.where(random.random(nodes) < 0.8, group, random.integers(0, 3, nodes))
    ends = random.integers(0, nodes, (2, 6 * nodes))
    ends = ends[:, group[ends[0]] == group[ends[1]]]
    with (folder / f"{name}-nodes.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["who", "told", "size", "group"])
        for node in range(nodes):
            label = "" if node < blank else "abc"[group[node]]
            rows.writerow([f"n{node}", f"t{told[node]}", round(float(random.normal()), 3), label])
    with (folder / f"{name}-edges.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["one", "other", "weight"])
        rows.writerows([f"n{a}", f"n{b}", 1 + place % 3] for place, (a, b) in enumerate(ends.T.tolist()))
    return NodeFiles(folder / f"{name}-nodes.csv", folder / f"{name}-edges.csv")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NodeFiles]:
    home = tmp_path_factory.mktemp("own")
    files = tables(home, "first", 1)
    tokengt.train(files, home / "run", target="group", settings=QUICK, device="cpu", options=QUIET)
    return home, files


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_node_has_a_row_with_its_columns_and_a_prediction(trained: tuple[Path, NodeFiles]) -> None:
    home, files = trained
    done = predict_file(home / "run", files, home / "out.csv", device="cpu", quiet=True)
    assert (done.rows, done.bad) == (90, 0)
    rows = read(home / "out.csv")
    assert [row["who"] for row in rows] == [f"n{node}" for node in range(90)]
    assert {row["predicted_group"] for row in rows[:10]} <= {"a", "b", "c"}, "those without a label too"
    shares = [sum(float(row[f"probability_{name}"]) for name in "abc") for row in rows]
    assert shares == pytest.approx([1.0] * 90, abs=1e-6)
    spec = read_run(home / "run")
    assert spec.tables is not None
    assert [feature.name for feature in spec.tables.nodes] == ["told", "size"]
    assert spec.model.tokens.edge_features.width == 1, "the weight is read"


def test_a_graph_that_was_never_seen_is_predicted_and_compared(trained: tuple[Path, NodeFiles], tmp_path: Path) -> None:
    """By a model whose identifiers say nothing of the graph that it was trained on."""
    _, files = trained
    home, other = tmp_path, tables(tmp_path, "other", 2, nodes=60)
    settings = {**QUICK, "model.encoder.num_layers": 2, "training.epochs": 30}
    wishes = {"target": "group", "preset": "nodes-inductive", "settings": settings}
    tokengt.train(files, home / "run", device="cpu", options=QUIET, **wishes)
    done = predict_file(home / "run", other, tmp_path / "out.csv", device="cpu", quiet=True)
    assert (done.rows, done.bad) == (60, 0)
    found = tokengt.evaluate(home / "run", other, device="cpu", quiet=True)
    assert (found.rows, found.strange) == (50, 0)
    assert found.metrics["accuracy"] > 0.7
    table, _ = other.paths
    table.write_text(table.read_text().replace(",a\n", ",z\n", 1))
    found = tokengt.evaluate(home / "run", other, device="cpu", quiet=True)
    assert (found.rows, found.strange) == (49, 1), "a label that was never seen is left out, and counted"


def test_the_command_takes_two_tables(
    trained: tuple[Path, NodeFiles], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, files = trained
    given = ["--nodes", str(files.nodes), "--edges", str(files.edges)]
    assert main(["predict", str(home / "run"), *given, "--out", str(tmp_path / "out.csv"), "--device", "cpu"]) == 0
    assert len(read(tmp_path / "out.csv")) == 90
    assert main(["evaluate", str(home / "run"), *given, "--device", "cpu"]) == 0
    capsys.readouterr()
    labels = [*given, "--target", "group", "--out", str(tmp_path / "x")]
    for wrong, sentence in (
        (["train", *given[:2], "--target", "group", "--out", "x"], "expected both --nodes and --edges"),
        (["train", "--target", "group", "--out", "x"], "there is no data; give a file"),
        (["train", "data.csv", *given, "--out", "x"], "data.csv and tables of nodes and edges are given"),
        (["train", *given, "--out", "x"], "there is no target to learn"),
        (["train", *labels, "--weights", "size"], "a column of weights means nothing there"),
        (["train", *labels, "--censored", "learn"], "learning from bounds such as >3.69 means nothing there"),
        (["train", *labels, "--valid", str(files.nodes)], "expected a column that names the part of each row"),
        (["explain", str(home / "run"), str(files.nodes), "--row", "1"], "give the folder store of the run"),
        (
            ["predict", str(home / "run"), str(files.nodes), "--out", "y.csv"],
            "trained on a table of nodes and one of edges; give both",
        ),
    ):
        assert main(wrong) == 2
        assert sentence in capsys.readouterr().err


def test_the_files_of_a_run_speak_of_the_tables(trained: tuple[Path, NodeFiles]) -> None:
    """The nodes of the test part by their ids, with their own labels; and how this run is used again."""
    home, files = trained
    labels = {row["who"]: row["group"] for row in read(Path(files.nodes))}
    rows = read(home / "run" / "predictions.csv")
    assert list(rows[0])[:3] == ["who", "group", "predicted_group"]
    assert len(rows) == 8
    assert all(labels[row["who"]] == row["group"] for row in rows)
    card = (home / "run" / "README.md").read_text()
    assert "tokengt predict RUN --nodes NODES.csv --edges EDGES.csv --out out.csv" in card
    assert 'predict_file(RUN, NodeFiles("NODES.csv", "EDGES.csv"), "out.csv")' in card
    assert "`first-nodes.csv and first-edges.csv`, 1 graph, none rejected" in card
    told = info(home / "run" / "store")
    assert told[0].startswith(f"{home / 'run' / 'store'}: a store of 1 graph, 90 nodes, ")
    assert told[1].endswith("(1 graph, 0 rejected)")


def test_graphs_whose_columns_were_not_scaled_are_refused(trained: tuple[Path, NodeFiles], tmp_path: Path) -> None:
    """Attributes of JSON are taken as they are, and the run knows its columns scaled: answers would be wrong."""
    home, _ = trained
    graph = {"nodes": [{"id": 0, "told": 1, "size": 2.0}], "edges": []}
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "a.json").write_text(json.dumps(graph))
    said = "trained on a table of nodes and one of edges; expected such tables"
    with pytest.raises(ValueError, match=said):
        predict_file(home / "run", tmp_path / "graphs", tmp_path / "out.csv", device="cpu", quiet=True)
    run = tokengt.load(home / "run", "cpu")
    with pytest.raises(ValueError, match=said):
        explain(run, graph)
    needs = pytest.importorskip("tokengt.serve.service").needs_of(run.spec, 100)
    assert "which a web page cannot give it" in needs.nothing_fits
    # Its own store holds them scaled, and can be explained.
    assert explain(home / "run", home / "run" / "store", item=3, methods=(), usual=0).row == 3


def test_a_run_goes_on_where_it_was(trained: tuple[Path, NodeFiles]) -> None:
    home, files = trained
    again = tokengt.train(files, home / "run", target="group", settings=QUICK, device="cpu", resume=True, options=QUIET)
    assert again.spec == read_run(home / "run")


def test_the_model_for_nodes_is_chosen_by_itself_and_by_size(
    trained: tuple[Path, NodeFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = trained
    store = tokengt.data.store.Store.open(home / "run" / "store")
    request = TrainRequest()
    assert chosen_preset(store, request) == NODES_EXACT
    monkeypatch.setattr(origin, "MOST_EXACT", 50)
    assert chosen_preset(store, request) == NODES
    spec = read_run(home / "run")
    assert spec.model.encoder.attention.kind == "softmax"
    assert not spec.model.identifiers.sign_flip, "a model could not recognise nodes under changing signs"


def test_pyg_data_with_masks_trains_by_its_masks_and_integers_are_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch_geometric")
    from torch_geometric.data import Data

    torch.manual_seed(0)
    label = torch.arange(40) % 4
    index = torch.randint(0, 40, (2, 100))
    part = torch.arange(40) % 5
    data = Data(
        x=torch.nn.functional.one_hot(label, 4).float(),
        edge_index=index,
        y=label,
        train_mask=part < 3,
        val_mask=part == 3,
        test_mask=part == 4,
    )
    run = tokengt.train(data, tmp_path / "run", settings=QUICK, device="cpu")
    assert run.task.classes == ("0", "1", "2", "3")
    said = capsys.readouterr().err
    assert "y: integers are learned as 4 classes" in said
    assert "split: 24 train, 8 valid, 8 test" in said
    assert "the preset nodes-exact" in said
