"""Explaining a run: whatever a person has is read as predict reads it, and numbers are those of the prediction."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from tests.workflow.small import QUIET, TINY, molecule_csv, molecules, train_small, write_csv
from tests.workflow.test_fitting import networkx_folder
from tokengt.explain import Explanation, attention_distance, attribution, equivariance_profile
from tokengt.inference import load
from tokengt.interop.molecules import read_molecule
from tokengt.workflow.explaining import explain, ready, usual_attention
from tokengt.workflow.fitting import TrainOptions
from tokengt.workflow.run_data import RunData

ACID = "CC(=O)[O-].[Na+]"
GRADIENTS = "integrated_gradients"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain")
    train_small(molecule_csv(folder / "data.csv"), folder / "run", ("y", "z"))
    return folder


def summed(found: Explanation) -> None:
    """Integrated gradients sum to the prediction that is shown, minus the baseline's."""
    gradients = found.attributions[GRADIENTS]
    assert gradients.complete
    assert gradients.prediction == pytest.approx(found.prediction[found.output], abs=1e-4)
    assert gradients.total == pytest.approx(gradients.change, abs=gradients.tolerance)


def test_a_smiles_in_the_units_of_its_target(home: Path) -> None:
    """A salt: predictions are those of predict, scores are in natural units, names are atoms and bonds."""
    found, run = explain(home / "run", ACID, target="z"), load(home / "run")
    np.testing.assert_allclose(found.prediction, run.predict(ACID).mean[0], rtol=1e-5)
    assert (found.outputs, found.output, found.unit) == (("y", "z"), 1, "natural units")
    assert found.tokens.names[:6] == ("[graph]", "Na0", "C1", "O2", "O3", "C4")
    assert found.tokens.names[6:] == ("C1-C4", "O2=C4", "O3-C4")
    summed(found)
    member = run.members[0]
    own = attribution(member.model, ready(member, found.graph_batch, torch.device("cpu")), output=1)
    np.testing.assert_allclose(found.attributions[GRADIENTS].scores, own.scores * run.task.scale[1], atol=1e-4)
    assert found.attributions["occlusion"].tokens.names == found.tokens.names
    assert found.molecule is not None
    molecule = read_molecule(found.molecule.text, found.molecule.policy, found.molecule.kind)
    assert [atom.GetSymbol() for atom in molecule.GetAtoms()] == ["Na", "C", "O", "O", "C"]
    assert not found.missing
    assert found.members == 1
    assert found.spread is None


def test_attention_is_compared_with_the_validation_part(home: Path) -> None:
    found = explain(home / "run", ACID, methods=())
    data = RunData.open(home / "run")
    valid = data.store.graphs.select(data.places("valid"))
    model = load(home / "run").members[0].model
    assert found.usual is not None
    assert (found.usual.graphs, found.usual.part) == (4, "validation part")
    np.testing.assert_allclose(found.usual.distance, attention_distance(model, valid), rtol=1e-4)
    np.testing.assert_allclose(found.usual.profile.shares, equivariance_profile(model, valid).shares, atol=1e-4)
    assert usual_attention(home / "run", part="train", graphs=3).graphs == 3
    given = explain(home / "run", ACID, methods=(), usual=found.usual)
    assert given.usual is found.usual
    loaded = explain(load(home / "run"), ACID, methods=())
    assert loaded.usual is None
    assert "does not know its data" in loaded.missing["usual"]


def test_a_row_of_a_table_or_of_a_store(home: Path) -> None:
    """Rows are counted from 1 without the header; row 2 of the file is the second graph of its store."""
    wanted = explain(home / "run", molecules(2)[0][1], methods=(), usual=0)
    for source in (home / "data.csv", home / "run" / "store"):
        found = explain(home / "run", source, row=2, methods=(), usual=0)
        np.testing.assert_allclose(found.prediction, wanted.prediction, rtol=1e-6)
        assert found.tokens.names == wanted.tokens.names
    assert explain(home / "run", str(home / "data.csv"), row=2, methods=(), usual=0).source.startswith("row 2 of ")


@pytest.mark.parametrize(
    ("given", "options", "sentence"),
    [
        ("C(C", {}, "'C(C': the SMILES cannot be read"),
        ("no such.csv", {"row": 1}, "no such.csv does not exist"),
        ("{home}/data.csv", {}, "is a table; say which row"),
        ("{home}/data.csv", {"row": 41}, "has fewer than 41 rows"),
        ("{home}/data.csv", {"row": 0}, "counted from 1"),
        ("{home}/data.csv", {"row": 1, "smiles": "text"}, "has no column 'text'"),
        ("{home}/run/store", {}, "holds 40 graphs; say which"),
        ("C", {"target": "x"}, "has no target 'x'; expected one of y, z"),
        ("C", {"item": 1}, "one row per graph, and the graph has 1"),
        ("C", {"descriptors": (1.0,)}, "expected 0 numbers"),
        (Data(num_nodes=2, edge_index=torch.tensor([[0], [1]])), {"row": 1}, "is no file"),
    ],
)
def test_what_cannot_be_read_says_why(home: Path, given: Any, options: dict[str, Any], sentence: str) -> None:
    given = given.replace("{home}", str(home)) if isinstance(given, str) else given
    with pytest.raises(ValueError) as raised:
        explain(home / "run", given, methods=(), **options)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_several_models_and_draws_are_averaged(home: Path, tmp_path: Path) -> None:
    options = TrainOptions(quiet=True, workers=1, ensemble=2)
    run = train_small(home / "data.csv", tmp_path / "run", "y", options=options)
    found = explain(tmp_path / "run", ACID, draws=2, usual=0)
    wanted = run.predict(ACID, draws=2)
    assert wanted.std is not None
    assert found.spread is not None
    np.testing.assert_allclose(found.prediction, wanted.mean[0], rtol=1e-5)
    np.testing.assert_allclose(found.spread, wanted.std[0], rtol=1e-4)
    assert found.members == 2
    summed(found)
    gradients = found.attributions[GRADIENTS]
    assert gradients.spread is not None
    assert gradients.spread.shape == gradients.scores.shape
    assert (gradients.spread[1:6] > 0).any()


def test_descriptors_are_scored_and_read_from_a_row(tmp_path: Path) -> None:
    smiles, values = molecules(40)
    rows = ((text, place % 7 * 10.0, value) for place, (text, value) in enumerate(zip(smiles, values, strict=True)))
    data = write_csv(tmp_path / "d.csv", ("smiles", "t", "y"), rows)
    options = TrainOptions(quiet=True, workers=1, descriptors=("t",))
    train_small(data, tmp_path / "run", "y", options=options)
    found = explain(tmp_path / "run", data, row=4, usual=0)
    given = explain(tmp_path / "run", smiles[3], descriptors=[30.0], usual=0)
    np.testing.assert_allclose(found.prediction, given.prediction)
    assert found.attributions[GRADIENTS].scores[0] != 0
    summed(found)
    with pytest.raises(ValueError, match=r"trained with descriptors; expected 1 numbers \(t\), got 0"):
        explain(tmp_path / "run", smiles[3])


def test_classes_of_nodes_of_a_graph_in_memory_or_on_disk(tmp_path: Path) -> None:
    """The class that is predicted is explained, in probabilities; the node is chosen by its number."""
    torch.manual_seed(0)
    graphs = [
        Data(x=torch.randn(6, 3), edge_index=torch.randint(0, 6, (2, 8)), y=torch.arange(6) % 3) for _ in range(20)
    ]
    run = train_small(graphs, tmp_path / "run", task="multiclass", options=QUIET)
    found = explain(tmp_path / "run", graphs[3], item=5, usual=0)
    wanted = run.predict([graphs[3]]).mean[5]
    np.testing.assert_allclose(found.prediction, wanted, rtol=1e-5)
    assert found.output == int(np.argmax(wanted))
    assert found.unit == "probability"
    assert found.level == "node"
    assert len(found.outputs) == 3
    summed(found)
    assert np.isnan(found.attributions["occlusion"].node_scores[5])
    torch.save(graphs[:4], tmp_path / "some.pt")
    again = explain(tmp_path / "run", tmp_path / "some.pt", row=4, item=5, methods=(), usual=0)
    np.testing.assert_allclose(again.prediction, found.prediction, rtol=1e-6)
    with pytest.raises(ValueError, match="holds 4 graphs; say which to explain"):
        explain(tmp_path / "run", tmp_path / "some.pt")


def test_node_link_json_as_a_file_or_as_it_is(tmp_path: Path) -> None:
    networkx = pytest.importorskip("networkx")
    folder = networkx_folder(tmp_path / "graphs", 20)
    run = train_small(folder, tmp_path / "run", "y")
    file = sorted(folder.glob("*.json"))[2]
    wanted = explain(run, folder, row=3, methods=(), usual=0)
    content = json.loads(file.read_text())
    for given in (file, str(file), content, networkx.node_link_graph(content, edges="edges")):
        found = explain(run, given, methods=(), usual=0)
        np.testing.assert_allclose(found.prediction, wanted.prediction, rtol=1e-6)
    with pytest.raises(ValueError, match="expected what networkx"):
        explain(run, {"nodes": 3})


def test_a_run_without_maps_shows_the_rest(home: Path, tmp_path: Path) -> None:
    settings = {key: value for key, value in TINY.items() if "encoder" not in key and "identifiers" not in key}
    from tokengt.workflow.fitting import train

    train(home / "data.csv", tmp_path / "run", target="y", preset="gin", settings=settings, options=QUIET)
    found = explain(tmp_path / "run", ACID)
    assert set(found.attributions) == {GRADIENTS, "occlusion"}
    assert found.maps is None
    assert found.usual is None
    assert {"maps", "distance", "profile", "rollout", "usual"} == set(found.missing)
    assert all("has no attention maps" in why for why in found.missing.values())
    summed(found)
