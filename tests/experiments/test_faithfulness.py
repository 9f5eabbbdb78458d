"""Faithfulness: the three tasks have the atoms they say, AUC is what it is by hand, and the whole command in small."""

import json
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

from tokengt.experiments.faithfulness.measuring import (
    AMONG,
    ELEMENT,
    GRADIENTS,
    RANDOM,
    SYSTEMS,
    aucs,
    share_by_element,
)
from tokengt.experiments.faithfulness.run import FaithfulnessConfig, learned, run_faithfulness, told
from tokengt.experiments.faithfulness.tasks import (
    APART,
    CARBON,
    DOUBLE,
    NITROGEN,
    OXYGEN,
    TASKS,
    Labelled,
    TaskName,
    generate,
)


def drawn(data: Labelled) -> list[tuple[nx.Graph, set[int], int]]:
    """Every graph with elements and orders of bonds, its true atoms, and its label."""
    found, truth = [], data.truth.numpy()
    for place, (start, stop) in enumerate(pairwise(data.graphs.nodes.host.tolist())):
        graph = data.graphs[place]
        assert isinstance(graph.node_features, Tensor)
        assert isinstance(graph.edge_features, Tensor)
        own = nx.Graph()
        own.add_nodes_from((atom, {"element": kind}) for atom, kind in enumerate(graph.node_features[:, 0].tolist()))
        for (u, v), order in zip(graph.edge_index.T.tolist(), graph.edge_features[:, 0].tolist(), strict=True):
            own.add_edge(u, v, order=order)
        found.append((own, set(np.flatnonzero(truth[start:stop]).tolist()), int(data.counts[place, 0])))
    return found


def amides(graph: nx.Graph) -> list[set[int]]:
    element = graph.nodes(data="element")
    return [
        {carbon, nitrogen, oxygen}
        for carbon, nitrogen in graph.to_directed().edges
        if element[carbon] == CARBON and element[nitrogen] == NITROGEN
        for oxygen in graph[carbon]
        if element[oxygen] == OXYGEN and graph[carbon][oxygen]["order"] == DOUBLE
    ]


def pairs(graph: nx.Graph) -> list[set[int]]:
    element, steps = graph.nodes(data="element"), dict(nx.all_pairs_shortest_path_length(graph))
    return [
        {u, v} for u in graph for v in graph if (element[u], element[v]) == (NITROGEN, OXYGEN) and steps[u][v] == APART
    ]


def rings(graph: nx.Graph) -> list[set[int]]:
    return [set(ring) for ring in nx.cycle_basis(graph) if len(ring) == 5]


@pytest.mark.parametrize(("task", "motifs"), [("group", amides), ("pair", pairs), ("ring", rings)])
def test_labels_and_true_atoms_are_those_of_the_motif(task: TaskName, motifs: object) -> None:
    """Looked for again in the finished graphs: so many as the label says, and made of the true atoms."""
    for graph, truth, label in drawn(generate(task, 30, 3)):
        found = motifs(graph)  # type: ignore[operator]
        assert len(found) == label
        assert set().union(*found) == truth
        assert nx.is_connected(graph)
        assert max(degree for _, degree in graph.degree) <= 3


@pytest.mark.parametrize("task", TASKS)
def test_the_element_alone_does_not_tell(task: TaskName) -> None:
    """Every element that true atoms have, other atoms have too; and the same seed gives the same graphs."""
    data, again, other = (generate(task, 30, seed) for seed in (0, 0, 1))
    assert all(share < 1 for share in share_by_element(data))
    assert torch.equal(data.truth, again.truth)
    assert torch.equal(data.graphs.edge_index, again.graphs.edge_index)
    assert not torch.equal(data.graphs.nodes.host, other.graphs.nodes.host)


def test_auc_by_hand() -> None:
    """True: C of 3 and N of 1. Others: C of 2, C of 3, N of 0. All atoms: the C is above two of three and even with
    one, the N above one of three, so (2.5 + 1) / 6; same element: (1 + 1/2) of two carbons, and 1 of one nitrogen."""
    scores, truth = np.array([3.0, 1, 2, 3, 0]), np.array([True, True, False, False, False])
    elements = np.array([CARBON, NITROGEN, CARBON, CARBON, NITROGEN])
    assert aucs(scores, truth, elements) == pytest.approx({"all atoms": 3.5 / 6, "same element": 2.5 / 3})
    # True and other atoms of different elements: there is no pair to ask the second question of.
    assert aucs(scores[:2], np.array([True, False]), elements[:2]) == {"all atoms": 1.0}
    assert aucs(scores, ~truth & truth, elements) == {}


def test_the_whole_command_in_small(tmp_path: Path) -> None:
    """Trained for one epoch, the task is not learned, and the table says so; what is done is not done again."""
    config = FaithfulnessConfig(("ring",), (0,), graphs=40, test=6, epochs=1, dim=8, layers=1, heads=2)
    lines: list[str] = []
    rows = run_faithfulness(config, tmp_path, lines.append)
    assert [(row.system, row.metric.split(", ")[1]) for row in rows] == [(s, among) for among in AMONG for s in SYSTEMS]
    assert all(0 <= row.mean <= 1 for row in rows)
    assert next(row.mean for row in rows if row.system == ELEMENT and "same element" in row.metric) == 0.5
    (line,) = lines
    assert "(the task was not learned)" in line
    table = (tmp_path / "table.md").read_text()
    assert "| 0 of 1 |" in table
    assert (tmp_path / "faithfulness.png").stat().st_size > 1000
    before = {name: (tmp_path / name).read_bytes() for name in ("table.json", "table.md", "faithfulness.png")}
    run_faithfulness(config, tmp_path)
    assert before == {name: (tmp_path / name).read_bytes() for name in before}
    assert json.loads(before["table.json"])[0]["system"] == GRADIENTS


def test_what_was_learned_is_told_by_the_variance_that_is_explained() -> None:
    auc = {among: dict.fromkeys(SYSTEMS, 0.75) for among in AMONG}
    cell = {"task": "pair", "seed": 2, "rmse": 0.1234, "r2": 0.95, "auc": auc}
    assert learned(cell)
    assert told(cell) == "pair seed 2: RMSE 0.123; AUC of integrated gradients: all atoms 0.750, same element 0.750"
    assert not learned({**cell, "r2": 0.8})


def test_published_results_say_what_the_docs_say() -> None:
    """results/faithfulness is kept: attributions find the atoms of all three tasks with an AUC of 0.9 and more."""
    rows = json.loads((Path(__file__).parents[2] / "results/faithfulness/table.json").read_text())
    means = {(row["dataset"], row["metric"].split(", ")[1], row["system"]): row["mean"] for row in rows}
    for task in TASKS:
        for among in AMONG:
            assert means[task, among, GRADIENTS] >= 0.9
            assert means[task, among, RANDOM] == pytest.approx(0.5, abs=0.08)
