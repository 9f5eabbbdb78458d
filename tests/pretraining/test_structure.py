"""What graphs say of their own nodes: the labels by hand, and a run that fine-tuning begins with."""

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli.command import here, refused, succeeded
from tests.workflow.small import QUIET, TINY, read_csv
from tokengt import Graph, GraphBatch
from tokengt.data.joined import SplitFiles
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.data.store import Store
from tokengt.inference import load
from tokengt.interop.descriptors import feature_names
from tokengt.interop.molecules import MoleculePolicy
from tokengt.models.contract import Model
from tokengt.presets import PRESETS
from tokengt.pretraining.store import MANIFEST
from tokengt.pretraining.structure import node_labels, refuse_answers, structure_store
from tokengt.structure import rings
from tokengt.training.resolve import policy_of
from tokengt.training.spec import read_run
from tokengt.workflow.fitting import finetune
from tokengt.workflow.inputs import open_data
from tokengt.workflow.pretraining import prepare_pretraining, pretrain

SETTINGS: dict[str, Any] = {**TINY, "model.dim": 16, "model.encoder.mlp_dim": 16, "training.batch_size": 8}
_WALKS = [f"walks of {steps} steps" for steps in range(2, 13)]


def joined(nodes: int, pairs: list[tuple[int, int]]) -> Graph:
    index = torch.tensor(pairs).T
    return Graph(torch.zeros(nodes, 1, dtype=torch.int64), torch.cat([index, index.flip(0)], 1))


def cycle(size: int) -> Graph:
    return joined(size, [(node, (node + 1) % size) for node in range(size)])


# A triangle of the nodes 0, 1 and 2, with 3 hanging on 2.
TRIANGLE = joined(4, [(0, 1), (1, 2), (0, 2), (2, 3)])


def store_of(graphs: list[Graph], split: list[int] | None = None) -> Store:
    """Graphs with their number of nodes as a label, and their parts."""
    batch = GraphBatch.collate(graphs)
    codes = None if split is None else torch.tensor(split, dtype=torch.int8)
    sizes = batch.nodes.host_lengths[:, None].double()
    return Store.from_memory(batch, sizes, target_names=["size"], split=codes)


def graphs(count: int) -> list[Graph]:
    """Cycles of 3 to 8 nodes and triangles with tails, in turns."""
    return [TRIANGLE if place % 3 == 2 else cycle(3 + place % 6) for place in range(count)]


def test_labels_by_hand() -> None:
    """A walker on node 0 is back after two steps by 1 or by 2, and after three once around the triangle either way."""
    values, names = node_labels(GraphBatch.collate([TRIANGLE, cycle(6)]))
    assert names == ("rings of 3", "rings of 6", *_WALKS)
    label = {name: values[:, place].tolist() for place, name in enumerate(names)}
    assert label["rings of 3"] == [1, 1, 1, 0, *[0] * 6]
    assert label["rings of 6"] == [0, 0, 0, 0, *[1] * 6]
    twice = [Fraction(5, 12), Fraction(5, 12), Fraction(2, 3), Fraction(1, 3), *[Fraction(1, 2)] * 6]
    assert label["walks of 2 steps"] == pytest.approx([float(value) for value in twice])
    assert label["walks of 3 steps"] == pytest.approx([1 / 6, 1 / 6, 1 / 6, 0, *[0] * 6])
    # Of the 16 walks of four steps around a hexagon 6 return; of the 64 of six, 20 and once around either way.
    assert label["walks of 4 steps"][4:] == pytest.approx([6 / 16] * 6)
    assert label["walks of 6 steps"][4:] == pytest.approx([22 / 64] * 6)


def test_longer_rings_are_counted_together_with_their_nodes() -> None:
    values, names = node_labels(GraphBatch.collate([cycle(9), TRIANGLE]))
    assert names[:3] == ("rings of 3", "longer rings", "nodes in longer rings")
    assert values[0, :3].tolist() == [0, 1, 9]


def test_columns_that_are_the_same_for_all_nodes_are_left_out() -> None:
    """On two squares all nodes are alike; with a triangle whose walks return after three steps, odd walks tell."""
    with pytest.raises(ValueError, match="the nodes are all alike in rings and random walks; expected graphs whose"):
        structure_store(store_of([cycle(4), cycle(4)]))
    _, names = node_labels(GraphBatch.collate([cycle(4), cycle(3)]))
    # Both return with probability 1/2 after two steps.
    assert names == ("rings of 3", "rings of 4", *_WALKS[1:])


def test_graphs_too_dense_for_rings_learn_walks_and_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_of(graphs(6))
    assert structure_store(store, shown=True).manifest.target_names[0] == "rings of 3"
    assert "densely" not in capsys.readouterr().err
    monkeypatch.setattr(rings, "MOST_PATHS", 10)
    found = structure_store(store, shown=True)
    assert found.manifest.target_names == tuple(_WALKS)
    said = capsys.readouterr().err
    assert said.splitlines()[-1] == (
        "the graphs are too densely joined to count their rings; random walks alone are learned"
    )
    assert not structure_store(store).targets.isnan().any()
    assert capsys.readouterr().err == ""


def test_nodes_follow_the_parts_of_their_graphs(tmp_path: Path) -> None:
    """What is trained on and what chooses the epoch are the graphs of those parts, with all their nodes."""
    split = [0, 0, 1, 0, 2, 1, 0, 0, 2, 0, 1, 0]
    store = store_of(graphs(12), split)
    labels = structure_store(store)
    assert labels.manifest.level == "node"
    assert len(labels.targets) == store.graphs.num_nodes
    assert [name for name in labels.manifest.target_names if "size" in name] == []
    pretrain(store, tmp_path / "run", targets="structure", settings=SETTINGS, device="cpu", quiet=True)
    names, sizes = ("train", "valid", "test"), store.graphs.nodes.host_lengths.tolist()
    expected = [names[code] for code, size in zip(split, sizes, strict=True) for _ in range(size)]
    assert [row["part"] for row in read_csv(tmp_path / "run" / "split.csv")] == expected
    tested = [(int(row["line"]), int(row["node"])) for row in read_csv(tmp_path / "run" / "predictions.csv")]
    assert tested == [(place + 1, node) for place in (4, 8) for node in range(sizes[place])]


def test_a_validation_part_that_the_data_lacks_is_made_of_whole_graphs(tmp_path: Path) -> None:
    """Of twenty graphs to train on two validate, by the seed; a random part of the nodes would tear graphs apart."""
    store = store_of(graphs(24), [0] * 20 + [2] * 4)
    drawn = []
    for seed in (0, 1):
        codes = structure_store(store, seed=seed).split
        assert codes is not None
        each = [set(own.tolist()) for own in torch.split(codes, store.graphs.nodes.host_lengths.tolist())]
        assert all(len(own) == 1 for own in each)
        drawn.append([own.pop() for own in each])
        assert [drawn[-1].count(code) for code in (0, 1, 2)] == [18, 2, 4]
    assert drawn[0] != drawn[1]
    pretrain(store, tmp_path / "run", targets="structure", settings=SETTINGS, seed=1, device="cpu", quiet=True)
    valid = [row["part"] for row in read_csv(tmp_path / "run" / "split.csv")].count("valid")
    sizes = store.graphs.nodes.host_lengths.tolist()
    assert valid == sum(size for size, code in zip(sizes, drawn[1], strict=True) if code == 1)
    assert valid != sum(size for size, code in zip(sizes, drawn[0], strict=True) if code == 1)


@pytest.mark.parametrize("parts", [2, 3])
def test_a_file_for_each_part_is_kept_apart(parts: int, tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    texts = [f"{'C' * size}{end}" for size in range(1, 15) for end in ("O", "C1CC1", "c1ccccc1")]
    given = {"train": texts[::2], "valid": texts[1::4], "test": texts[3::4]}
    files = {}
    for name, own in given.items():
        files[name] = tmp_path / f"{name}.csv"
        files[name].write_text("smiles\n" + "".join(f"{text}\n" for text in own))
    data = SplitFiles(files["train"], files["valid"] if parts == 3 else None, files["test"])
    pretrain(data, tmp_path / "run", targets="structure", settings=TINY, device="cpu", quiet=True, workers=1)
    atoms = {name: sum(sum(map(text.upper().count, "CO")) for text in own) for name, own in given.items()}
    found = Counter(row["part"] for row in read_csv(tmp_path / "run" / "split.csv"))
    assert found["test"] == atoms["test"]
    if parts == 3:
        assert found == atoms
    else:  # Nothing is learned from twice, and the validation part comes out of that of train.
        assert found["valid"] > 0
        assert found["train"] + found["valid"] == atoms["train"]


def test_parts_of_edges_are_no_parts_of_nodes() -> None:
    batch = GraphBatch.collate(graphs(4))
    of_edges = Store.from_memory(
        batch,
        torch.zeros(batch.num_edges, 1),
        target_names=["y"],
        level="edge",
        split=torch.zeros(batch.num_edges, dtype=torch.int8),
    )
    assert structure_store(of_edges).split is None
    of_nodes = Store.from_memory(
        batch,
        torch.zeros(batch.num_nodes, 1),
        target_names=["y"],
        level="node",
        split=torch.arange(batch.num_nodes).to(torch.int8) % 3,
    )
    assert torch.equal(structure_store(of_nodes).split, of_nodes.split)  # type: ignore[arg-type]


def test_links_would_be_told(tmp_path: Path) -> None:
    links = open_data(store_of(graphs(4)), Recipe(level="link"), tmp_path)
    with pytest.raises(ValueError, match="the data asks which nodes are joined, and rings and random walks would tell"):
        structure_store(links)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("structure") / "run"
    summary = pretrain(store_of(graphs(30)), out, targets=["structure"], settings=SETTINGS, device="cpu", quiet=True)
    assert summary["learned"][:2] == ["rings of 3", "rings of 4"]
    assert summary["epochs"] == 2
    assert summary["test"]["rmse"] > 0
    return out


def test_it_is_an_ordinary_run_by_the_recipe(trained: Path) -> None:
    spec = read_run(trained)
    assert (spec.level, spec.task.kind, spec.task.metric, spec.task.loss) == ("node", "regression", "rmse", "huber")
    # The batch is what the test asks for; the rest is the recipe of this target.
    training = spec.training
    assert (training.batch_size, training.learning_rate, training.ema) == (8, 2e-3, 0.999)
    assert (training.warmup, training.weight_decay) == (0.03, 1e-5)
    assert load(trained).predict([TRIANGLE]).mean.shape == (4, len(spec.task.names))


def test_fine_tuning_begins_with_its_weights_and_a_head_for_graphs(trained: Path, tmp_path: Path) -> None:
    """Nothing is learned at a rate of 0: then all weights but the head's are those of the first run."""
    wishes = {"model.head.readout": "sum", "training.epochs": 1, "training.learning_rate": 0, "training.warmup": 0}
    tuned = finetune(trained, store_of(graphs(30)), tmp_path / "run", settings=wishes, device="cpu", options=QUIET)
    assert tuned.predict([TRIANGLE]).mean.shape == (1, 1)
    before, after = (_model(folder).state_dict() for folder in (trained, tmp_path / "run"))
    kept = [name for name in before if not name.startswith("head.")]
    assert any(name.startswith("encoder.") for name in kept)
    assert all(torch.equal(before[name], after[name]) for name in kept)
    torch.manual_seed(0)
    fresh = _model(trained).config.build().state_dict()
    assert not all(torch.equal(before[name], fresh[name]) for name in kept)


def _model(run: Path) -> Model:
    return load(run).members[0].model


def test_the_same_call_goes_on_and_another_is_refused(trained: Path) -> None:
    weights = (trained / "model.safetensors").read_bytes()
    wishes: dict[str, Any] = {"targets": "structure", "device": "cpu", "quiet": True}
    again = pretrain(store_of(graphs(30)), trained, settings=SETTINGS, **wishes)
    assert again["epochs"] == 2
    assert (trained / "model.safetensors").read_bytes() == weights
    with pytest.raises(ValueError, match=r"was begun with other settings: training\.ema is 0\.5, not 0\.999"):
        pretrain(store_of(graphs(30)), trained, settings={**SETTINGS, "training.ema": 0.5}, **wishes)


def test_molecules_without_a_label(tmp_path: Path) -> None:
    """A list of SMILES is enough, and numbers about molecules, which count rings, are not given to the model."""
    pytest.importorskip("rdkit")
    texts = [f"{'C' * size}{end}" for size in range(1, 11) for end in ("O", "C1CC1", "c1ccccc1")]
    (tmp_path / "library.smi").write_text("\n".join(texts) + "\n")
    named = [text for name, value in SETTINGS.items() for text in ("--set", f"{name}={value}")]
    wish = ["--targets", "structure", "--workers", "1", "--device", "cpu", *named]
    done = succeeded(here("pretrain", tmp_path / "library.smi", "--out", tmp_path / "run", *wish))
    assert f"{tmp_path / 'run'}: learned rings of 3, rings of 6, walks of 2 steps" in done.stdout
    assert f"next: tokengt finetune {tmp_path / 'run'} DATA" in done.stdout
    # Weights of the package are given no numbers about molecules either, as they are where they are fine-tuned.
    own: dict[str, Any] = {"preset": "small-pretrained", "settings": {"training.epochs": 1}, "workers": 1}
    pretrain(tmp_path / "library.smi", tmp_path / "own", targets="structure", device="cpu", quiet=True, **own)
    assert Store.open(tmp_path / "own" / "store").manifest.descriptors == ()
    policy = MoleculePolicy(features=("rdkit2d",))
    with_numbers = prepare(tmp_path / "library.smi", tmp_path / "store", Recipe(policy=policy), workers=1)
    assert with_numbers.graphs.graph_features is not None
    bare = structure_store(with_numbers)
    assert bare.graphs.graph_features is None
    assert policy_of(bare) == MoleculePolicy()
    assert not set(bare.manifest.descriptors) & set(feature_names(("rdkit2d",)))
    assert load(tmp_path / "run").predict(["CCC1CC1"]).mean.shape[0] == 5


def test_pyg_graphs_without_a_label(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    bare = [data.Data(x=torch.zeros(graph.num_nodes, 1), edge_index=graph.edge_index) for graph in graphs(20)]
    torch.save(bare, tmp_path / "graphs.pt")
    wishes: dict[str, Any] = {"targets": "structure", "settings": SETTINGS, "device": "cpu", "quiet": True}
    for name, given in (("file", tmp_path / "graphs.pt"), ("list", bare)):
        pretrain(given, tmp_path / name, **wishes)
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("file", "list"))
    assert one == other


def test_graphs_of_networkx_without_a_label(tmp_path: Path) -> None:
    networkx = pytest.importorskip("networkx")
    folder = tmp_path / "graphs"
    folder.mkdir()
    for place in range(12):
        content = networkx.node_link_data(networkx.lollipop_graph(3 + place % 2, 2), edges="edges")
        (folder / f"{place:02}.json").write_text(json.dumps(content))
    summary = pretrain(folder, tmp_path / "run", targets="structure", settings=SETTINGS, device="cpu", quiet=True)
    assert summary["learned"][0] == "rings of 3"
    assert np.isfinite(summary["test"]["rmse"])


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"targets": ["structure", "masked"]}, "the target structure is learned alone; got structure, masked"),
        ({"targets": ["masked", "structure"]}, "the target structure is learned alone; got masked, structure"),
        ({"targets": ["structur"]}, r"the target 'structur' is unknown \(did you mean structure\?\)"),
        ({"exclude": "esol.csv"}, r"exclude \(--exclude\) means nothing for the target structure"),
        ({"described": 0}, r"described \(--describe\) means nothing"),
        ({"max_atoms": 100}, r"max_atoms \(--max-atoms\) means nothing"),
        ({"weights": {"bits": 2.0}}, r"weights \(--weight\) means nothing"),
        ({"molecules": ["a.csv", "b.csv"]}, "is learned from one data set; got a.csv, b.csv"),
        ({"molecules": "none.csv"}, "none.csv does not exist"),
        ({"preset": "smal"}, r"preset 'smal' is unknown \(did you mean small\?\)"),
        ({"preset": "auto"}, "preset 'auto' is unknown"),
        ({"preset": "tokengt-walks-small"}, "set model.structure.walks and model.structure.rings to 0"),
        (
            {"preset": "tokengt-walks-small", "settings": {"model.structure.walks": "0"}},
            "the model is given by model.structure.rings what it is to learn; set model.structure.rings to 0",
        ),
        ({"preset": "gps"}, "a GPS is given random walks or rings, which it is to learn"),
        ({"settings": {"model.structure.walks": 4}}, "set model.structure.walks to 0"),
        ({"settings": {"training.epoch": 4}}, "training.epoch"),
    ],
)
def test_one_sentence_for_what_cannot_be(tmp_path: Path, wishes: dict[str, Any], sentence: str) -> None:
    given = {"molecules": store_of(graphs(6)), "targets": ["structure"], "quiet": True, **wishes}
    with pytest.raises(ValueError, match=sentence):
        pretrain(out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_told_nothing_is_taken() -> None:
    refuse_answers(PRESETS["tokengt-walks-small"](), {"structure.walks": "0", "structure.rings": "0"})
    refuse_answers(PRESETS["gin"](), {})


def test_there_is_no_store_to_prepare_for_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a store of pre-training data has nothing for the target structure"):
        prepare_pretraining("a.csv", tmp_path / "store", targets="structure")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / MANIFEST).write_text("{}")
    with pytest.raises(ValueError, match="made is a store of pre-training data, which the target structure is not"):
        pretrain(tmp_path / "made", tmp_path / "run", targets="structure", quiet=True)


def test_the_command_refuses_options_of_molecules(tmp_path: Path) -> None:
    plain = ("pretrain", "zinc12k", "--targets", "structure", "--out", tmp_path / "run")
    for more, told in (
        (["--exclude", "admet"], "--exclude"),
        (["--describe", "5"], "--describe"),
        (["--max-atoms", "50"], "--max-atoms"),
        (["--weight", "masked=1"], "--weight"),
        (["--minutes", "5"], "--prepare-only"),
        (["--prepare-only"], "has nothing for the target structure"),
    ):
        assert told in refused(here(*plain, *more))
    assert not (tmp_path / "run").exists()
