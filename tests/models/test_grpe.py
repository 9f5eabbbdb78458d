"""GRPE: its equations on one graph, and the interaction of a node with an edge by hand."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.graphs import CATEGORIES, EDGE_WIDTH, graphs, odd_graphs
from tests.models import plain
from tokengt import FeatureSpec, Graph, GraphBatch
from tokengt.models.grpe import Grpe, GrpeConfig, interactions, values
from tokengt.models.pairs import Pairs


def model_of(**options: Any) -> Grpe:
    torch.manual_seed(0)
    features = {
        "node_features": FeatureSpec(categories=CATEGORIES),
        "edge_features": FeatureSpec(width=EDGE_WIDTH),
    }
    size = {"dim": 6, "num_layers": 2, "num_heads": 2, "max_distance": 2}
    model = plain.shaken(GrpeConfig(**features | size | options).build())
    assert isinstance(model, Grpe)
    return model


def relation_of(model: Grpe, graph: Graph, hops: list[list[int]], i: int, j: int) -> tuple[list[Tensor], list[Tensor]]:
    """P and E of two tokens, each for query, key and value; the virtual node is token 0."""
    most = model.config.max_distance
    if i == 0 or j == 0:
        kind = most + 2
    else:
        hop = hops[i - 1][j - 1]
        kind = most + 1 if hop < 0 else min(hop, most)
    edges = plain.edges_between(graph, i - 1, j - 1) if i and j else []
    nothing = torch.zeros(model.config.dim, dtype=torch.float64)
    embedded = [
        sum((plain.features_of(encoder, graph.edge_features, edge) for edge in edges), nothing)
        for encoder in model.edges
    ]
    return [table.weight[kind] for table in model.hops], embedded


def by_equations(model: Grpe, graph: Graph) -> Tensor:
    """The output for one graph, pair by pair and head by head."""
    hops, heads = plain.distances(graph), model.config.num_heads
    h: list[Any] = [model.virtual_node[0]]
    h += [plain.features_of(model.node_encoder.features, graph.node_features, i) for i in range(graph.num_nodes)]
    tokens = range(len(h))
    relations = [[relation_of(model, graph, hops, i, j) for j in tokens] for i in tokens]
    for block in model.blocks:
        q, k, v = zip(*(plain.linear(block.qkv, plain.norm(block.attention_norm, x)).chunk(3) for x in h), strict=True)
        for i in tokens:
            heard = []
            for head in range(heads):
                qi, scores, said = plain.of_head(q[i], head, heads), [], []
                for j in tokens:
                    kj, vj = plain.of_head(k[j], head, heads), plain.of_head(v[j], head, heads)
                    (pq, pk, pv), (eq, ek, ev) = (
                        [plain.of_head(x, head, heads) for x in part] for part in relations[i][j]
                    )
                    scores.append((qi @ kj + qi @ pq + kj @ pk + qi @ eq + kj @ ek) / len(qi) ** 0.5)
                    said.append(vj + pv + ev)
                heard.append(sum(w * x for w, x in zip(plain.softmax(scores), said, strict=True)))
            h[i] = h[i] + plain.linear(block.out, torch.cat(heard))
            inner = plain.gelu(plain.linear(block.mlp[0], plain.norm(block.mlp_norm, h[i])))
            h[i] = h[i] + plain.linear(block.mlp[2], inner)
    return plain.linear(model.head, plain.norm(model.norm, h[0]))


@settings(max_examples=10, deadline=None)
@given(st.lists(graphs(max_nodes=5, max_edges=8), min_size=1, max_size=3))
def test_it_is_its_equations_on_any_graphs(members: list[Graph]) -> None:
    model = model_of()
    with torch.no_grad():
        together = model(GraphBatch.collate(members))
        alone = torch.stack([by_equations(model, graph) for graph in members])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)


def test_it_is_its_equations_on_odd_graphs() -> None:
    """One node, no edges, self-loops, repeated edges, two components, far nodes and nodes without a path."""
    model = model_of(max_distance=1)
    members = odd_graphs()[:6]
    with torch.no_grad():
        alone = torch.stack([by_equations(model, graph) for graph in members])
        torch.testing.assert_close(model(GraphBatch.collate(members)), alone, rtol=0, atol=1e-9)


def test_nodes_interact_with_the_edge_between_them_by_hand() -> None:
    """One edge 0 -> 1 with the feature 2. Queries are 1, 10, 100 and keys 3, 5, 7 (virtual node, node 0, node 1)."""
    graph = Graph(torch.zeros(2, 1), torch.tensor([[0], [1]]), torch.tensor([[2.0]], dtype=torch.float64))
    config = GrpeConfig(
        dim=1, num_heads=1, max_distance=2, node_features=FeatureSpec(width=1), edge_features=FeatureSpec(width=1)
    )
    model = config.build().double()
    with torch.no_grad():
        # P of 0, 1, 2 steps, of no path and of the virtual node, for queries; those for keys and values follow.
        for table, rows in zip(
            model.hops, ([0.1, 0.2, 0.3, 0.4, 0.5], [0.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]), strict=True
        ):
            table.weight.copy_(torch.tensor(rows)[:, None])
        for encoder, weight in zip(model.edges, (1.0, 0.5, 7.0), strict=True):
            encoder.linear.weight.fill_(weight)  # E^q = 2, E^k = 1, E^v = 14.
    batch = GraphBatch.collate([graph])
    pairs = Pairs(batch, virtual=1)
    relations = model.relations(batch, pairs)
    query, key = (torch.tensor(x, dtype=torch.float64).view(3, 1, 1) for x in ([1.0, 10.0, 100.0], [3.0, 5.0, 7.0]))
    # From 0 to 1: q . P^q of one step, q . E^q and the other node's k . E^k; back from 1 to 0 there is no path.
    expected = [[0.5, 0.5, 0.5], [5.0, 1.0, 10 * 0.2 + 10 * 2 + 7 * 1], [50.0, 100 * 0.4, 100 * 0.1]]
    found = interactions(query, key, relations, pairs).view(3, 3)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    weights = torch.tensor([0.0, 0.0, 1.0, 0.25, 0.25, 0.5, 0.0, 1.0, 0.0], dtype=torch.float64)[:, None]
    heard = values(weights, relations, pairs).flatten()
    torch.testing.assert_close(
        heard, torch.tensor([5.0, 0.25 * 5 + 0.25 * 1 + 0.5 * (2 + 14), 4.0], dtype=torch.float64)
    )
