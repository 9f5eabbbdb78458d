"""What a step on links reads and asks: never the edge of a pair that is asked about, and other negatives each epoch."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.graphs import random_graph
from tokengt import Graph, GraphBatch
from tokengt.links import edges_as_links, is_directed, joined
from tokengt.training.links import LinkSteps, LinkTraining, learned_labels, link_steps
from tokengt.training.tasks import Task


def _graphs(sizes: list[int], seed: int = 0, directed: bool = False) -> GraphBatch:
    graphs = [random_graph(size, 2 * size, seed + place) for place, size in enumerate(sizes)]
    if not directed:
        both = [torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1) for graph in graphs]
        graphs = [Graph(num_nodes=g.num_nodes, edge_index=index) for g, index in zip(graphs, both, strict=True)]
    packed = GraphBatch.collate(graphs)
    return edges_as_links(packed, is_directed(packed))


def _steps(graphs: GraphBatch, config: LinkTraining | None = None, seed: int = 0) -> LinkSteps:
    """All links are of the training part, and none is listed as a negative."""
    total = graphs.links.total
    return link_steps(graphs, torch.ones(total, 1), torch.arange(total), None, config or LinkTraining(), seed)


def _pairs(index: Tensor) -> set[tuple[int, int]]:
    return {(min(pair), max(pair)) for pair in index.T.tolist()}


@given(st.integers(0, 1000), st.integers(2, 6), st.booleans())
@settings(max_examples=20, deadline=None)
def test_no_step_reads_the_edge_of_a_pair_that_it_asks_about(seed: int, folds: int, directed: bool) -> None:
    graphs = _graphs([9, 6, 12], seed, directed)
    steps = _steps(graphs, LinkTraining(folds=folds), seed)
    places = torch.arange(len(graphs))
    asked_in_all: list[tuple[int, int]] = []
    for epoch in range(steps.folds):
        asked = steps.asked(places, epoch)
        links = asked.graphs.link_index
        assert not bool(joined(asked.graphs, links).any()), "in neither direction"
        positive = asked.targets[:, 0] == 1
        asked_in_all += map(tuple, links[:, positive].T.tolist())
        # Every edge that is not asked about is read, and negatives are joined nowhere.
        assert _pairs(asked.graphs.edge_index) == _pairs(graphs.edge_index) - _pairs(links[:, positive])
        assert not bool(joined(graphs, links[:, ~positive]).any())
        assert int(steps.labels(epoch).sum()) == len(asked.targets)
    assert sorted(asked_in_all) == sorted(map(tuple, graphs.link_index.T.tolist())), "every link once in all folds"


def test_negatives_are_new_in_every_epoch_and_the_same_for_the_same_seed() -> None:
    graphs = _graphs([30])

    def negatives(seed: int, epoch: int) -> set[tuple[int, int]]:
        asked = _steps(graphs, LinkTraining(folds=2, negatives=2.0), seed).asked(torch.tensor([0]), epoch)
        return _pairs(asked.graphs.link_index[:, asked.targets[:, 0] == 0])

    drawn = [negatives(3, epoch) for epoch in range(0, 8, 2)]
    assert all(one != other for one, other in pairwise(drawn)), "in the same fold too"
    assert negatives(3, 4) == drawn[2]
    assert negatives(4, 4) != drawn[2]
    asked = _steps(graphs, LinkTraining(folds=2, negatives=2.0)).asked(torch.tensor([0]), 0)
    assert int((asked.targets == 0).sum()) == 2 * int((asked.targets == 1).sum())


def test_a_graph_is_asked_the_same_alone_and_among_others() -> None:
    steps = _steps(_graphs([9, 6, 12]))
    together, alone = steps.asked(torch.tensor([2, 0]), 7), steps.asked(torch.tensor([0]), 7)
    own = together.graphs.select([1])
    assert own.link_index.tolist() == alone.graphs.link_index.tolist()
    assert own.edge_index.tolist() == alone.graphs.edge_index.tolist()
    assert together.targets[together.graphs.links.ids == 1].tolist() == alone.targets.tolist()


def test_listed_negatives_are_kept_and_drawn_ones_are_not_learned_from() -> None:
    graphs = _graphs([20])
    ends = graphs.link_index[:, :6]
    asked = graphs.with_own_links([ends])
    listed = link_steps(asked, torch.tensor([[1.0], [1], [1], [1], [0], [0]]), torch.arange(6), None, LinkTraining(), 0)
    assert not listed.draws
    # Rows 4 and 5 were drawn to test with: training draws its own.
    drawn = torch.tensor([-1, -1, -1, -1, 0, 1])
    targets = torch.tensor([[1.0], [1], [1], [1], [0], [0]])
    steps = link_steps(asked, targets, torch.arange(6), drawn, LinkTraining(folds=2), 0)
    assert steps.draws
    assert _pairs(steps.graphs.link_index) == _pairs(ends[:, :4])


def test_balanced_labels_are_those_that_an_epoch_asks_about() -> None:
    """With three drawn negatives for each link a link counts three times as much as one of them; listed ones decide."""
    graphs = _graphs([40])
    links, config = torch.ones(graphs.links.total, 1), LinkTraining(negatives=3.0)
    task = Task("binary", ("link",), links=True)
    assert task.balanced(learned_labels(links, config)) == pytest.approx((4 / 6, 4 / 2))
    balanced = replace(task, class_weights=task.balanced(learned_labels(links, config)))
    asked = _steps(graphs, config).asked(torch.tensor([0]), 0).targets
    undecided = torch.zeros(len(asked), 1)
    of_links, of_others = (
        float(balanced.loss_sum(undecided[asked == each, None], asked[asked == each, None])) for each in (1, 0)
    )
    assert of_links == pytest.approx(of_others)
    listed = torch.tensor([[1.0], [0.0], [0.0], [torch.nan]])
    assert learned_labels(listed, config) is listed


def test_pairs_that_are_no_edges_are_all_asked_in_every_epoch() -> None:
    """As PyG's disjoint_train_ratio has it: what is asked about was taken out of the edges already."""
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graphs = GraphBatch.collate([Graph(num_nodes=5, edge_index=edges)]).with_own_links([torch.tensor([[0, 3], [2, 4]])])
    steps = _steps(graphs)
    assert steps.folds == 1
    for epoch in range(3):
        asked = steps.asked(torch.tensor([0]), epoch)
        assert int((asked.targets == 1).sum()) == 2
        assert asked.graphs.num_edges == 4


def test_what_leaves_nothing_to_read_is_refused() -> None:
    one = edges_as_links(GraphBatch.collate([Graph(num_nodes=4, edge_index=torch.tensor([[0, 1], [1, 0]]))]), False)
    with pytest.raises(ValueError, match="would leave none to read; expected more links"):
        _steps(one)


@pytest.mark.parametrize(
    ("wrong", "said"), [({"folds": 1}, "expected 2 to 1,000"), ({"negatives": 0.0}, "expected above 0")]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LinkTraining(**wrong)
