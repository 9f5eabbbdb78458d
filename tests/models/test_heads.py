from typing import Any

import pytest
import torch

from tests.graphs import odd_graphs, random_graph, small_model
from tokengt import Graph, GraphBatch, HeadConfig
from tokengt.config import from_dict, to_dict
from tokengt.models.tokengt.token_batch import pool
from tokengt.ragged import Segments


def test_rows_of_every_level() -> None:
    batch = GraphBatch.collate(odd_graphs())
    rows = {"graph": batch.num_graphs, "node": batch.num_nodes, "edge": batch.num_edges}
    for level, count in rows.items():
        assert small_model(head=HeadConfig(level=level, out_dim=4))(batch).shape == (count, 4)  # type: ignore[arg-type]


def test_edge_rows_follow_edge_index() -> None:
    """Listing the edges in another order permutes the predictions and changes nothing else."""
    model, graph = small_model(head=HeadConfig(level="edge")), random_graph(7, 15)
    order = torch.randperm(15)
    moved = Graph(graph.node_features, graph.edge_index[:, order], graph.edge_features[order])
    assert torch.allclose(model(moved), model(graph)[order], atol=1e-5)


def test_sum_readout_leaves_special_tokens_out() -> None:
    model = small_model(head=HeadConfig(readout="sum"))
    batch = GraphBatch.collate(odd_graphs())
    tokens = model.encode(batch)
    parts = [part[1:].sum(0) for part in tokens.values.split(tokens.segments.host_lengths.tolist())]
    assert torch.allclose(model(batch), model.head.project(torch.stack(parts)), atol=1e-4)


def test_mean_readout_leaves_special_tokens_out() -> None:
    model = small_model(head=HeadConfig(readout="mean"))
    batch = GraphBatch.collate(odd_graphs())
    tokens = model.encode(batch)
    parts = [part[1:] for part in tokens.values.split(tokens.segments.host_lengths.tolist())]
    means = torch.stack([part.mean(0) if len(part) else torch.zeros(24) for part in parts])
    assert torch.allclose(model(batch), model.head.project(means), atol=1e-5)


def test_a_mean_of_many_tokens_is_counted_exactly_in_bfloat16() -> None:
    """300 ones have the mean 1; a count in bfloat16 would be 256 or 304."""
    segments = Segments.from_lengths(torch.tensor([301]))
    ones, special = torch.ones(301, 2, dtype=torch.bfloat16), torch.arange(301) == 0
    total = pool(ones, special, segments)
    torch.testing.assert_close(pool(ones, special, segments, mean=True).float(), total.float() / 300, atol=0, rtol=8e-3)


def test_a_plain_mlp_of_given_widths() -> None:
    """Linear, act, Linear, act, Linear on the sum of a graph's tokens: the head of Theorem 2, worked by hand."""
    batch = GraphBatch.collate(odd_graphs())
    for name, act in (("relu", torch.relu), ("gelu", torch.nn.functional.gelu)):
        head = HeadConfig(readout="sum", out_dim=2, hidden=(5, 3), activation=name)  # type: ignore[arg-type]
        model = small_model(head=head)
        first, second, last = (module for module in model.head.modules() if isinstance(module, torch.nn.Linear))
        assert [tuple(m.weight.shape) for m in (first, second, last)] == [(5, 24), (3, 5), (2, 3)]
        hidden = act(model.encode(batch).pooled @ first.weight.T + first.bias)
        expected = act(hidden @ second.weight.T + second.bias) @ last.weight.T + last.bias
        assert torch.allclose(model(batch), expected, atol=1e-4)


def test_a_config_saved_before_there_were_hidden_layers_still_loads() -> None:
    old = {"level": "graph", "out_dim": 2, "readout": "token", "mlp": False, "symmetric": True}
    assert from_dict(HeadConfig, old) == HeadConfig(out_dim=2)
    new = HeadConfig(hidden=(8, 4), activation="relu")
    assert from_dict(HeadConfig, to_dict(new)) == new


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hidden": (4, 0)}, "expected widths of at least 1"),
        ({"hidden": (4,), "mlp": True}, "set mlp or hidden, not both"),
    ],
)
def test_bad_hidden_layers(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        HeadConfig(**options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"level": "node", "readout": "sum"}, "readout 'sum' is for heads of level 'graph'; this one's is 'node'"),
        ({"level": "graph", "symmetric": False}, "symmetric=False is for heads of level 'link'; this one's is 'graph'"),
        ({"activation": "relu"}, "activation 'relu' is for a head with hidden layers; give hidden, or leave it"),
        ({"activation": "relu", "mlp": True}, "activation 'relu' is for a head with hidden layers"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        HeadConfig(**options)


def test_link_scores() -> None:
    graph = random_graph(5, 6)
    batch = GraphBatch.collate([random_graph(3, 2, 1), graph])
    pairs = torch.tensor([[3, 4, 7, 0], [4, 3, 7, 2]])
    model = small_model(head=HeadConfig(level="link", out_dim=1))
    scores = model(batch, pairs=pairs)
    assert scores.shape == (4, 1)
    assert torch.allclose(scores[0], scores[1])
    assert torch.equal(scores, model(batch, pairs=pairs.to(torch.uint8)))
    alone = model(graph, pairs=pairs[:, :3] - 3)
    assert torch.allclose(scores[:3], alone, atol=1e-5)
    directed = small_model(head=HeadConfig(level="link", out_dim=1, symmetric=False))(batch, pairs=pairs)
    assert not torch.allclose(directed[0], directed[1])


def test_link_scores_can_learn_a_pair_that_is_no_edge() -> None:
    """Overfit: score 1 for one non-edge, 0 for the others."""
    graph = random_graph(6, 5, 3)
    pairs = torch.combinations(torch.arange(6)).T
    target = torch.zeros(pairs.shape[1], 1)
    target[4] = 1
    model = small_model(head=HeadConfig(level="link"))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(graph, pairs=pairs)[:, :1], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        (torch.tensor([[0], [4]]), "pair 0 joins graph 0 and graph 1"),
        (torch.tensor([[0], [9]]), "outside 0 to 7"),
        (torch.tensor([[7], [8]]), "outside 0 to 7"),  # one past the end
        (torch.tensor([[8], [8]]), "outside 0 to 7"),
        (torch.tensor([[-1], [0]]), "outside 0 to 7"),
        (torch.tensor([[0.0], [1.0]]), "must be integers"),
        (torch.tensor([[False], [True]]), "must be integers"),
        (None, "needs pairs"),
    ],
)
def test_bad_pairs(pairs: torch.Tensor | None, sentence: str) -> None:
    batch = GraphBatch.collate([random_graph(3, 2, 1), random_graph(5, 6)])
    with pytest.raises(ValueError, match=sentence):
        small_model(head=HeadConfig(level="link"))(batch, pairs=pairs)


def test_the_first_and_the_last_node_can_be_asked_for() -> None:
    batch = GraphBatch.collate([random_graph(3, 2, 1), random_graph(5, 6)])
    scores = small_model(head=HeadConfig(level="link"))(batch, pairs=torch.tensor([[0, 7], [2, 7]]))
    assert torch.isfinite(scores).all()


def test_other_heads_take_no_pairs() -> None:
    with pytest.raises(ValueError, match="'node' takes no pairs"):
        small_model(head=HeadConfig(level="node"))(random_graph(2, 1), pairs=torch.tensor([[0], [1]]))
