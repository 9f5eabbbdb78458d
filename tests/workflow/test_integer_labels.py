"""Integer labels of graphs are classes, and a sentence says so and how to have numbers."""

import json
import math
from pathlib import Path

import networkx as nx
import pytest
import torch

from tests.workflow.small import QUIET, train_small
from tokengt.data._labelled import as_classes, as_numbers
from tokengt.data.graph_sources import read_networkx_folder, read_pyg, read_pyg_list
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.data.store import Store
from tokengt.workflow.evaluating import evaluate
from tokengt.workflow.inputs import open_data

pyg = pytest.importorskip("torch_geometric.data")
LOUD = type(QUIET)(workers=1)
EDGES = torch.tensor([[0, 1], [1, 0]])


def graphs(labels: list[object]) -> list[object]:
    """One path of two nodes per label, its feature the label itself."""
    return [pyg.Data(x=torch.full((2, 1), float(n)), edge_index=EDGES, y=y) for n, y in enumerate(labels)]


def opened(data: object, tmp_path: Path, **wishes: object) -> Store:
    return open_data(data, Recipe(**wishes), tmp_path / "store", workers=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["list", "file", "collated"])
@pytest.mark.parametrize("values", [(0, 1, 2), (0, 2, 5), (-1, 0, 3)])
def test_integers_are_classes_in_every_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, values: tuple[int, ...]
) -> None:
    """Gaps and negative numbers are classes like others: each by its name, none for a number that does not occur."""
    labels = [values[place % 3] for place in range(12)]
    data: object = graphs([torch.tensor([label]) for label in labels])
    if how == "file":
        torch.save(data, tmp_path / "a.pt")
    elif how == "collated":
        pyg.InMemoryDataset.save(data, tmp_path / "a.pt")
    store = opened(data if how == "list" else tmp_path / "a.pt", tmp_path)
    assert store.manifest.targets[0].classes == tuple(map(str, values))
    assert store.targets[:, 0].tolist() == [values.index(label) for label in labels]
    said = capsys.readouterr().err
    named = ", ".join(map(str, values))
    assert f"y: integers are learned as 3 classes ({named}); to learn numbers, choose the task regression" in said
    assert 'task="regression" in Python, --task regression in the command' in said
    assert ("if -1 stands for a missing label" in said) == (-1 in values)


def test_the_task_decides_where_it_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = graphs([torch.tensor([2 * (place % 3)]) for place in range(12)])
    numbers = opened(data, tmp_path, task="regression")
    assert numbers.manifest.targets[0].classes is None
    assert numbers.targets[:4, 0].tolist() == [0.0, 2.0, 4.0, 0.0]
    floats = graphs([torch.tensor([2.0 * (place % 3)]) for place in range(12)])
    assert opened(floats, tmp_path).manifest.targets[0].classes is None
    assert opened(floats, tmp_path, task="multiclass").manifest.targets[0].classes == ("0", "2", "4")
    mixed = graphs([torch.tensor([1]), torch.tensor([2.0]), torch.tensor([3])])
    assert opened(mixed, tmp_path).manifest.targets[0].classes is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_zero_and_one_are_a_binary_task(tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: torch.dtype) -> None:
    data = graphs([torch.tensor([place % 2], dtype=dtype) for place in range(12)])
    store = opened(data, tmp_path)
    assert store.manifest.targets[0].classes is None
    assert "y: the integers 0 and 1 are learned as a binary task; to learn numbers" in capsys.readouterr().err
    trained = train_small(data, tmp_path / "run", settings={"training.epochs": 1})
    assert trained.task.kind == "binary"


def test_many_different_integers_are_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """51 different integers of 60 labels are counts; 50 may be classes, and 60 of 600 labels are."""
    counts = [torch.tensor([min(place, 50)]) for place in range(60)]
    assert opened(graphs(counts), tmp_path).manifest.targets[0].classes is None
    said = capsys.readouterr().err
    assert "y: 51 different integers among 60 labels are learned as numbers; if they name classes, choose the" in said
    assert len(opened(graphs(counts[:50]), tmp_path).manifest.targets[0].classes or ()) == 50
    nodes = pyg.Data(x=torch.ones(600, 1), edge_index=EDGES, y=torch.arange(600) % 60)
    assert len(opened([nodes], tmp_path).manifest.targets[0].classes or ()) == 60
    nodes.y = torch.arange(600) % 61
    assert opened([nodes], tmp_path).manifest.targets[0].classes is None


def test_several_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bits = graphs([torch.tensor([[place % 2, 1]]) for place in range(6)])
    assert opened(bits, tmp_path).manifest.target_names == ("y_0", "y_1")
    assert "y_0, y_1, ...: the integers 0 and 1 are learned as a binary task" in capsys.readouterr().err
    counts = graphs([torch.tensor([[place, 1]]) for place in range(6)])
    assert opened(counts, tmp_path).targets[3].tolist() == [3.0, 1.0]
    assert "several columns of integers are learned as numbers" in capsys.readouterr().err
    unclear = graphs([torch.tensor([[place % 2, -1]]) for place in range(6)])
    with pytest.raises(ValueError, match=r"y_0, y_1, ... hold -1 beside 0 and 1: .* make them floats with NaN there"):
        opened(unclear, tmp_path)
    assert opened(unclear, tmp_path, task="regression").targets[0].tolist() == [0.0, -1.0]
    with pytest.raises(ValueError, match="the task multiclass takes one target, found 2"):
        opened(counts, tmp_path, task="multiclass")


def test_node_labels_train_and_evaluate_as_classes(tmp_path: Path) -> None:
    nodes = torch.arange(30)
    ring = torch.stack([nodes, nodes.roll(-1)])
    data = pyg.Data(x=torch.eye(3)[nodes % 3], edge_index=torch.cat([ring, ring.flip(0)], 1), y=2 * (nodes % 3) + 1)
    trained = train_small(data, tmp_path / "run", settings={"training.epochs": 1})
    assert (trained.task.kind, trained.task.classes, trained.spec.level) == ("multiclass", ("1", "3", "5"), "node")
    assert trained.predict(data).mean.shape == (30, 3)
    evaluation = evaluate(trained, data, quiet=True)
    assert (evaluation.rows, evaluation.strange) == (30, 0)
    odd = data.clone()
    odd.y[:2] = 7
    assert evaluate(trained, odd, quiet=True).strange == 2


def test_a_run_of_numbers_is_evaluated_on_integers(tmp_path: Path) -> None:
    data = graphs([torch.tensor([place % 4]) for place in range(20)])
    torch.save(data, tmp_path / "a.pt")
    trained = train_small(data, tmp_path / "run", task="regression", settings={"training.epochs": 1})
    from_list = evaluate(trained, data, quiet=True)
    assert evaluate(trained, tmp_path / "a.pt", quiet=True).metrics == pytest.approx(from_list.metrics)
    assert set(from_list.metrics) >= {"rmse", "mae"}
    prepare(tmp_path / "a.pt", tmp_path / "classes", Recipe(), progress=False)
    assert evaluate(trained, tmp_path / "classes", quiet=True).metrics == pytest.approx(from_list.metrics)


def test_a_store_of_classes_can_be_learned_as_numbers(tmp_path: Path) -> None:
    torch.save(graphs([torch.tensor([3 * (place % 4)]) for place in range(20)]), tmp_path / "a.pt")
    store = prepare(tmp_path / "a.pt", tmp_path / "store", Recipe(), progress=False)
    assert store.manifest.targets[0].classes == ("0", "3", "6", "9")
    numbers = open_data(tmp_path / "store", Recipe(task="regression"), tmp_path / "home")
    assert numbers.targets[:5, 0].tolist() == [0.0, 3.0, 6.0, 9.0, 0.0]
    assert open_data(tmp_path / "store", Recipe(), tmp_path / "home").manifest == store.manifest


def test_the_command_says_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(graphs([torch.tensor([place % 3]) for place in range(9)]), tmp_path / "a.pt")
    prepare(tmp_path / "a.pt", tmp_path / "store", Recipe())
    assert f"{tmp_path / 'a.pt'}: y: integers are learned as 3 classes (0, 1, 2)" in capsys.readouterr().err


@pytest.mark.parametrize(("values", "integers"), [((1, 2, None), True), ((1, 2.0, 3), False), ((True, False, 1), True)])
def test_networkx_integers(tmp_path: Path, values: tuple[object, ...], integers: bool) -> None:
    """JSON tells 1 from 1.0, and a missing label is neither."""
    for place, value in enumerate(values):
        graph = nx.path_graph(3)
        graph.graph["y"] = value
        (tmp_path / f"{place}.json").write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    assert read_networkx_folder(tmp_path, ["y"]).integers is integers


@pytest.mark.parametrize(
    ("label", "integers"),
    [
        (1, True),
        (1.0, False),
        (torch.tensor([2]), True),
        (torch.tensor([2.0]), False),
        (torch.tensor([math.nan]), False),
    ],
)
def test_what_a_source_keeps_as_integers(tmp_path: Path, label: object, integers: bool) -> None:
    data = graphs([label, label])
    torch.save(data, tmp_path / "a.pt")
    pyg.InMemoryDataset.save(data, tmp_path / "b.pt")
    for found in (read_pyg(tmp_path / "a.pt"), read_pyg(tmp_path / "b.pt"), read_pyg_list(data)):
        assert found.integers is integers


def test_classes_and_back() -> None:
    labels = torch.tensor([[5.0], [math.nan], [-2.0], [5.0]], dtype=torch.float64)
    coded, classes = as_classes(labels)
    assert (coded[:, 0].nan_to_num(9).tolist(), classes) == ([1.0, 9.0, 0.0, 1.0], ("-2", "5"))
    back = as_numbers(coded, classes)
    assert back is not None
    assert torch.equal(back.nan_to_num(9), labels.nan_to_num(9))
    assert as_numbers(coded, ("low", "high")) is None


def test_a_list_without_labels_asks_in_python() -> None:
    bare = [pyg.Data(x=torch.ones(2, 1), edge_index=EDGES)]
    with pytest.raises(
        ValueError, match=r'no graph of the list has labels; expected an attribute y.*target="'
    ) as caught:
        open_data(bare, Recipe(), Path("nowhere"))
    assert "--" not in str(caught.value)


@pytest.mark.parametrize("how", ["list", "file", "collated"])
def test_training_data_with_numbers_that_no_model_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    data: object = [
        pyg.Data(x=torch.ones(3, 1), edge_index=EDGES, y=1.5 * place, pos=torch.ones(3, 3), edge_weight=torch.ones(2))
        for place in range(4)
    ]
    if how != "list":
        (torch.save if how == "file" else pyg.InMemoryDataset.save)(data, tmp_path / "a.pt")
    opened(data if how == "list" else tmp_path / "a.pt", tmp_path)
    said = capsys.readouterr().err
    assert said.count("no model reads") == 1
    assert "pos (of nodes: x) and edge_weight (of edges: edge_attr)" in said
    assert "y" not in said.split("no model reads")[1].split(";")[0].split()
    assert open_data(data if how == "list" else tmp_path / "a.pt", Recipe(), tmp_path / "b", workers=1, quiet=True)
    assert capsys.readouterr().err == ""
