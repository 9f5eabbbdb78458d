"""Training from whatever a person has, and going on from a trained model."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.workflow.small import QUIET, TINY, molecule_csv, molecules, read_csv, train_small, write_csv
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.data.store import Store
from tokengt.inference import load
from tokengt.interop.molecules import MoleculePolicy
from tokengt.workflow.fitting import TrainOptions, finetune
from tokengt.workflow.predicting import predict_file

FILES = ("metrics.jsonl", "predictions.csv", "model.safetensors", "split.csv", "run.json", "summary.json", "README.md")


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_folder_holds_what_was_promised(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    train_small(source, tmp_path / "run", ("y", "z"))
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {*FILES, "config.json", "curves.png", "parity.png", "checkpoints"} <= names
    # A short run is written down once, at its end: checkpoints come by the clock.
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["last.safetensors"]
    parts = [row["part"] for row in read_csv(tmp_path / "run" / "split.csv")]
    assert {part: parts.count(part) for part in set(parts)} == {"train": 32, "valid": 4, "test": 4}
    assert len(records(tmp_path / "run")) == 2


def test_the_same_command_writes_the_same_bytes(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    for name in ("a", "b"):
        train_small(source, tmp_path / name, ("y", "z"), seed=3)
        torch.rand(5)
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    other = train_small(source, tmp_path / "c", ("y", "z"), seed=4)
    assert other.spec.seed == 4
    assert (tmp_path / "c" / "split.csv").read_bytes() != (tmp_path / "a" / "split.csv").read_bytes()


def test_a_file_a_store_and_a_frame_train_the_same_model(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    source = molecule_csv(tmp_path / "data.csv")
    store = prepare(source, tmp_path / "prepared", Recipe(targets=("y", "z")), workers=1, progress=False)
    frame = pandas.read_csv(source)
    sources = {"file": source, "folder": tmp_path / "prepared", "store": store, "frame": frame}
    for name, data in sources.items():
        train_small(data, tmp_path / name, ("y", "z"))
        for file in ("metrics.jsonl", "model.safetensors"):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / "file" / file).read_bytes(), (name, file)
    again = train_small(frame, tmp_path / "frame", ("y", "z"), resume=True)
    assert again.task.names == ("y", "z")


def test_a_frame_whose_run_was_stopped_early_goes_on(tmp_path: Path) -> None:
    """Killed before the run was written down, its folder holds the data and the store only."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(molecule_csv(tmp_path / "data.csv"))
    train_small(frame, tmp_path / "run", ("y", "z"))
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    for path in (tmp_path / "run").iterdir():
        if path.name not in ("store", "data.csv"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    train_small(frame, tmp_path / "run", ("y", "z"), resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights


def test_what_a_kill_leaves_of_the_first_file_is_no_obstacle(tmp_path: Path) -> None:
    """Files appear by a rename; killed before it, their temporary names stay."""
    source = molecule_csv(tmp_path / "data.csv")
    run = tmp_path / "run"
    run.mkdir()
    (run / ".run.json.abc123").write_bytes(b"{")
    assert train_small(source, run, ("y", "z"), resume=True).task.names == ("y", "z")
    assert (run / "model.safetensors").is_file()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    for resume in (False, True):
        with pytest.raises(ValueError, match="holds other files"):
            train_small(source, tmp_path / "mine", "y", resume=resume)
    with pytest.raises(ValueError, match="is a file; expected a folder"):
        train_small(source, tmp_path / "mine" / "thesis.tex", "y")


@pytest.mark.slow
def test_an_ensemble_stopped_between_its_models_goes_on(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv", 20)
    options = TrainOptions(quiet=True, workers=1, ensemble=2)
    train_small(source, tmp_path / "whole", ("y", "z"), options=options)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "members" / "model-1")
    (tmp_path / "cut" / "predictions.csv").unlink()
    train_small(source, tmp_path / "cut", ("y", "z"), options=options, resume=True)
    for name in ("predictions.csv", "members/model-1/model.safetensors", "members/model-1/metrics.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_labels_of_one_class_in_the_validation_part_are_no_end(tmp_path: Path) -> None:
    smiles, _ = molecules(24)
    parts = ["train"] * 16 + ["valid"] * 4 + ["test"] * 4
    labels = [place % 2 for place in range(16)] + [1] * 4 + [0, 1, 0, 1]
    rows = list(zip(smiles, labels, parts, strict=True))
    source = write_csv(tmp_path / "data.csv", ("smiles", "active", "part"), rows)
    predictor = train_small(source, tmp_path / "run", "active", split="column:part")
    assert predictor.task.kind == "binary"
    assert records(tmp_path / "run")[0]["valid"]["roc_auc"] is None


@pytest.mark.parametrize("part", ["valid", "test"])
def test_a_part_without_labels_is_no_end(tmp_path: Path, part: str) -> None:
    smiles, values = molecules(24)
    parts = ["train"] * 16 + ["valid"] * 4 + ["test"] * 4
    rows = [(text, "" if own == part else value, own) for text, value, own in zip(smiles, values, parts, strict=True)]
    source = write_csv(tmp_path / "data.csv", ("smiles", "y", "part"), rows)
    train_small(source, tmp_path / "run", "y", split="column:part")
    assert (tmp_path / "run" / "summary.json").is_file()


def test_without_valid_and_test_parts_the_last_model_is_kept(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv", 20)
    options = TrainOptions(quiet=True, workers=1, fractions=(1.0, 0.0, 0.0))
    predictor = train_small(source, tmp_path / "run", ("y", "z"), options=options)
    assert np.isfinite(predictor.predict("CCO").mean).all()
    assert read_csv(tmp_path / "run" / "predictions.csv") == []


def test_scaffolds_stay_together(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    train_small(source, tmp_path / "run", ("y", "z"), split="scaffold")
    from tokengt.interop.molecules import scaffolds

    parts_by_scaffold: dict[str, set[str]] = {}
    parts = [row["part"] for row in read_csv(tmp_path / "run" / "split.csv")]
    for name, part in zip(scaffolds(molecules(40)[0]), parts, strict=True):
        parts_by_scaffold.setdefault(name, set()).add(part)
    assert all(len(each) == 1 for each in parts_by_scaffold.values())


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"target": "solubility"}, "no column 'solubility'.*the columns are smiles, y, z"),
        ({"target": "y", "smiles": "mol"}, "no column 'mol'"),
        ({"target": ()}, "data.csv: there is no target to learn.*'all'.*; the columns are smiles, y, z"),
        (
            {"target": "y", "split": "half"},
            "split is 'half'; expected auto, random, scaffold, scaffold-sorted, per-class, given, or column:NAME",
        ),
        ({"target": "y", "split": "column:half"}, "no column 'half'"),
        ({"target": "y", "preset": "huge"}, "preset 'huge' is unknown; expected one of auto, small"),
        (
            {"target": "y", "settings": {"training.epoch": 3}},
            r"training.epoch is unknown \(did you mean epochs\?\); expected one of epochs",
        ),
        (
            {"target": "y", "settings": {"training.epochs": "many"}},
            "epochs is 'many'; expected a whole number",
        ),
        (
            {"target": "y", "settings": {"dim": 3}},
            r"setting 'dim' is unknown \(did you mean model.dim\?\); expected model.FIELD=VALUE",
        ),
        ({"target": "y", "settings": {"model.encoder": 3}}, "model.encoder has several settings"),
        ({"target": "y", "task": "binary"}, "target 'y' is|target 'y' holds|expected 0 or 1"),
    ],
)
def test_a_wish_that_cannot_be_is_one_sentence(tmp_path: Path, wish: dict[str, Any], sentence: str) -> None:
    source = molecule_csv(tmp_path / "data.csv", 20)
    with pytest.raises(ValueError, match=sentence) as caught:
        train_small(source, tmp_path / "run", **wish)
    assert "\n" not in str(caught.value)


def test_finetuning_begins_with_the_old_weights(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    train_small(source, tmp_path / "old", ("y", "z"))
    smiles, values = molecules(20)
    rows = [(text, int(value > -3)) for text, value in zip(smiles, values, strict=True)]
    other = write_csv(tmp_path / "other.csv", ("drug", "soluble"), rows)
    settings = {"training.epochs": 2}
    old = load(tmp_path / "old").members[0].model.state_dict()
    for freeze in (True, False):
        out = tmp_path / f"new-{freeze}"
        new = finetune(
            tmp_path / "old",
            other,
            out,
            freeze=freeze,
            smiles="drug",
            target="soluble",
            settings=settings,
            device="cpu",
            options=QUIET,
        )
        assert new.task.kind == "binary"
        assert new.spec.training.learning_rate == (1e-2 if freeze else 1e-3)
        state = new.members[0].model.state_dict()
        same = {name: torch.equal(state[name], old[name]) for name in old if not name.startswith("head.")}
        assert all(same.values()) == freeze
        shares = new.predict(["CCO", "CCCCCCCC"]).mean
        assert ((shares > 0) & (shares < 1)).all()
    before = (tmp_path / "new-True" / "model.safetensors").read_bytes()
    finetune(
        tmp_path / "old",
        other,
        tmp_path / "new-True",
        freeze=True,
        smiles="drug",
        target="soluble",
        settings=settings,
        device="cpu",
        resume=True,
        options=QUIET,
    )
    assert (tmp_path / "new-True" / "model.safetensors").read_bytes() == before


def test_finetuning_reads_molecules_as_the_run_did(tmp_path: Path) -> None:
    """Salts, stereo and hydrogens of the run to begin with, whatever the caller's options say."""
    policy = MoleculePolicy(salts="largest", stereo="drop", hydrogens="explicit")
    rows = [(f"{text}.[Na+]", value) for text, value in zip(*molecules(12), strict=True)]
    source = write_csv(tmp_path / "data.csv", ("smiles", "y"), rows)
    few = {"settings": {"training.epochs": 1}}
    train_small(source, tmp_path / "old", "y", options=replace(QUIET, policy=policy), **few)
    new = finetune(tmp_path / "old", source, tmp_path / "new", target="y", device="cpu", options=QUIET, **few)
    assert new.spec.molecules == policy
    old, read = (Store.open(tmp_path / run / "store") for run in ("old", "new"))
    assert torch.equal(old.graphs.node_features, read.graphs.node_features)


def datas(count: int, seed: int = 0) -> list[Any]:
    """Rings of 4 to 9 nodes with float features; y is about their mean."""
    data_module = pytest.importorskip("torch_geometric.data")
    generator = torch.Generator().manual_seed(seed)
    rings = []
    for place in range(count):
        size = 4 + place % 6
        ring = torch.arange(size)
        index = torch.stack([torch.cat([ring, ring.roll(-1)]), torch.cat([ring.roll(-1), ring])])
        x = torch.randn(size, 3, generator=generator)
        rings.append(data_module.Data(x=x, edge_index=index, y=x.mean().view(1, 1)))
    return rings


def test_pyg_graphs_in_memory_and_in_a_file_train_the_same_model(tmp_path: Path) -> None:
    graphs = datas(24)
    torch.save(graphs, tmp_path / "data.pt")
    for name, data in (("list", graphs), ("file", tmp_path / "data.pt")):
        predictor = train_small(data, tmp_path / name)
        predictions = predictor.predict(graphs).mean
        assert predictions.shape == (24, 1)
        alone = np.concatenate([predictor.predict(graph).mean for graph in graphs])
        assert np.abs(predictions - alone).max() <= 1e-5
    for file in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "list" / file).read_bytes() == (tmp_path / "file" / file).read_bytes()
    bare = [graph.clone() for graph in graphs]
    for graph in bare:
        del graph.y
    torch.save(bare, tmp_path / "new.pt")
    done = predict_file(load(tmp_path / "file"), tmp_path / "new.pt", tmp_path / "out.csv", quiet=True)
    assert (done.rows, done.bad) == (24, 0)
    written = [float(row["predicted_y"]) for row in read_csv(tmp_path / "out.csv")]
    assert written == pytest.approx(predictions[:, 0], abs=1e-5)


@pytest.mark.parametrize("level", ["node", "edge"])
def test_rows_of_one_graph_are_split_by_its_masks(tmp_path: Path, level: str) -> None:
    data_module = pytest.importorskip("torch_geometric.data")
    generator = torch.Generator().manual_seed(1)
    ring = torch.arange(30)
    index = torch.cat([torch.stack([ring, ring.roll(-1)]), torch.stack([ring.roll(-1), ring])], 1)
    rows = 30 if level == "node" else 60
    parts = torch.arange(rows) % 5
    graph = data_module.Data(
        x=torch.randn(30, 2, generator=generator),
        edge_index=index,
        y=torch.arange(rows) % 3,
        train_mask=parts < 3,
        val_mask=parts == 3,
        test_mask=parts == 4,
    )
    options = TrainOptions(quiet=True, workers=1, level=level)  # type: ignore[arg-type]
    torch.save(graph, tmp_path / "graph.pt")
    for name, data in (("list", [graph]), ("file", tmp_path / "graph.pt")):
        predictor = train_small(data, tmp_path / name, task="multiclass", split="given", options=options)
        assert predictor.spec.level == level
        kept = read_csv(tmp_path / name / "predictions.csv")
        assert [int(row[level]) for row in kept] == torch.nonzero(parts == 4).flatten().tolist()
        assert [int(row["y"]) for row in kept] == (torch.arange(rows) % 3)[parts == 4].tolist()
        split = [row["part"] for row in read_csv(tmp_path / name / "split.csv")]
        assert [split.count(part) for part in ("train", "valid", "test")] == [rows * 3 // 5, rows // 5, rows // 5]
        assert predictor.predict(graph).mean.shape == (rows, 3)
        predict_file(predictor, tmp_path / "graph.pt", tmp_path / f"{name}.csv", quiet=True)
        predicted = read_csv(tmp_path / f"{name}.csv")
        assert [int(row[level]) for row in predicted] == list(range(rows))


def test_labels_of_nodes_in_many_graphs(tmp_path: Path) -> None:
    graphs = datas(20)
    for graph in graphs:
        graph.y = graph.x.sum(1)
    predictor = train_small(graphs, tmp_path / "run")
    assert predictor.spec.level == "node"
    total = sum(graph.num_nodes for graph in graphs)
    assert predictor.predict(graphs).mean.shape == (total, 1)


def networkx_folder(path: Path, count: int, *, labelled: bool = True, weight: float = 0.5) -> Path:
    networkx = pytest.importorskip("networkx")
    path.mkdir()
    for place in range(count):
        graph = networkx.cycle_graph(4 + place % 5)
        for node in graph:
            graph.nodes[node]["w"] = weight * (node + place % 3)
        if labelled:
            graph.graph["y"] = float(len(graph))
        content = networkx.node_link_data(graph, edges="edges")
        (path / f"{place:03}.json").write_text(json.dumps(content))
    return path


def test_networkx_folders_to_train_on_and_to_predict(tmp_path: Path) -> None:
    predictor = train_small(networkx_folder(tmp_path / "graphs", 20), tmp_path / "run", "y")
    labelled = predict_file(predictor, tmp_path / "graphs", tmp_path / "again.csv", quiet=True)
    assert (labelled.rows, labelled.bad) == (20, 0)
    (tmp_path / "graphs" / "010a.json").write_text("{not json")
    worse = predict_file(predictor, tmp_path / "graphs", tmp_path / "worse.csv", quiet=True)
    assert (worse.rows, worse.bad) == (21, 1)
    rows = read_csv(tmp_path / "worse.csv")
    assert [row["graph"] for row in rows] == [str(number) for number in range(1, 22)]
    assert "010a.json" in rows[11]["reason"]
    assert [row["predicted_y"] for row in rows if not row["reason"]] == [
        row["predicted_y"] for row in read_csv(tmp_path / "again.csv")
    ]


def test_networkx_graphs_without_labels_are_predicted(tmp_path: Path) -> None:
    predictor = train_small(networkx_folder(tmp_path / "graphs", 20), tmp_path / "run", "y")
    new = networkx_folder(tmp_path / "new", 5, labelled=False)
    done = predict_file(predictor, new, tmp_path / "out.csv", quiet=True)
    assert (done.rows, done.bad) == (5, 0)


def test_networkx_numbers_that_happen_to_be_whole_are_still_numbers(tmp_path: Path) -> None:
    """The run was trained on 0.5, 1.0, ...; a new file may hold 1, 2, 3 only."""
    predictor = train_small(networkx_folder(tmp_path / "graphs", 20), tmp_path / "run", "y")
    new = networkx_folder(tmp_path / "new", 5, weight=1)
    done = predict_file(predictor, new, tmp_path / "out.csv", quiet=True)
    assert (done.rows, done.bad) == (5, 0)


def test_settings_from_python_are_those_of_the_command(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv", 20)
    settings = {"training.ema": 0.5, "training.schedule": "linear", "model.identifiers.sign_flip": False}
    spec = train_small(source, tmp_path / "run", "y", settings=settings).spec
    assert (spec.training.ema, spec.training.schedule, spec.model.identifiers.sign_flip) == (0.5, "linear", False)
    assert spec.model.dim == TINY["model.dim"]


def test_graphs_with_features_of_their_own_are_predicted_as_they_were_tested(tmp_path: Path) -> None:
    """What is known of a graph as a whole is scaled in training, so it must be in prediction."""
    from torch_geometric.data import Data

    generator = torch.Generator().manual_seed(0)
    datas = []
    for place in range(30):
        numbers = 100 + 50 * torch.rand(1, 2, generator=generator)
        edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        y = numbers.sum()[None] / 100 + place % 2
        datas.append(Data(x=torch.rand(3, 2, generator=generator), edge_index=edges, graph_features=numbers, y=y))
    predictor = train_small(datas, tmp_path / "run")
    tested = {int(row["line"]) - 1: float(row["predicted_y"]) for row in read_csv(tmp_path / "run" / "predictions.csv")}
    assert len(tested) == 3
    for place, value in tested.items():
        assert predictor.predict([datas[place]]).mean[0, 0] == pytest.approx(value, rel=1e-5)
    moved = Data(x=datas[0].x, edge_index=datas[0].edge_index, graph_features=datas[0].graph_features + 100)
    assert abs(predictor.predict([moved])[0, 0] - predictor.predict([datas[0]])[0, 0]) > 1e-3
