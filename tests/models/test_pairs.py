"""Rows of pairs and matrices in buckets: the same numbers, and the same gradients."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.graphs import graphs
from tests.models.plain import distances
from tokengt import Graph, GraphBatch
from tokengt.models.pairs import Pairs, biased_attention
from tokengt.structure.distances import hop_distances

several = st.lists(graphs(), min_size=1, max_size=7)


@given(several, st.integers(1, 3))
def test_matrices_hold_the_pairs_of_each_graph_and_give_them_back(members: list[Graph], virtual: int) -> None:
    pairs = Pairs(GraphBatch.collate(members), virtual)
    rows = torch.randn(pairs.segments.total, 2, dtype=torch.float64, requires_grad=True)
    matrices = pairs.matrices(rows)
    seen = 0
    for matrix, bucket in zip(matrices, pairs.tokens.buckets, strict=True):
        for place, first in enumerate(bucket.rows[:, 0].tolist()):
            graph = int(pairs.tokens.ids[first])
            size = members[graph].num_nodes + virtual
            start = int(pairs.segments.host[graph])
            expected = rows[start : start + size**2].view(size, size, 2).permute(2, 0, 1)
            assert torch.equal(matrix[place, :, :size, :size], expected)
            seen += 1
    assert seen == len(members)
    back = pairs.rows(matrices)
    assert torch.equal(back, rows)
    weights = torch.randn_like(back)
    (slope,) = torch.autograd.grad((back * weights).sum(), rows)
    assert torch.equal(slope, weights)


@given(several, st.integers(1, 2))
def test_kinds_of_pairs_are_those_of_their_nodes(members: list[Graph], virtual: int) -> None:
    batch = GraphBatch.collate(members)
    pairs = Pairs(batch, virtual)
    kinds = pairs.kinds(hop_distances(batch, 20), virtual=99)
    expected = []
    for graph in members:
        size, hops = graph.num_nodes + virtual, distances(graph)
        inside = [[i >= virtual and j >= virtual for j in range(size)] for i in range(size)]
        expected += [hops[i - virtual][j - virtual] if inside[i][j] else 99 for i in range(size) for j in range(size)]
    assert kinds.tolist() == expected
    first, second = pairs.ends
    assert torch.equal(pairs.tokens.ids[first], pairs.segments.ids)
    edges = pairs.of_nodes(*batch.edge_index)
    assert torch.equal(torch.stack([first[edges], second[edges]]), pairs.node_rows[batch.edge_index])


@given(several)
def test_attention_and_its_gradients_are_those_of_each_graph_alone(members: list[Graph]) -> None:
    """Padding inside a bucket changes nothing."""
    pairs = Pairs(GraphBatch.collate(members), 1)
    qkv = torch.randn(pairs.tokens.total, 12, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(pairs.segments.total, 2, dtype=torch.float64, requires_grad=True)
    out = biased_attention(qkv, pairs.only_real(pairs.matrices(bias)), pairs, 0.0)
    alone = []
    for graph in range(len(members)):
        rows = slice(*pairs.tokens.host[graph : graph + 2].tolist())
        q, k, v = (x.view(len(x), 2, 2).transpose(0, 1) for x in qkv[rows].chunk(3, 1))
        own = bias[slice(*pairs.segments.host[graph : graph + 2].tolist())].view(q.shape[1], q.shape[1], 2)
        scores = q @ k.transpose(1, 2) / 2**0.5 + own.permute(2, 0, 1)
        alone.append((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
    expected = torch.cat(alone)
    torch.testing.assert_close(out, expected)
    weights = torch.randn_like(out)
    found = torch.autograd.grad((out * weights).sum(), (qkv, bias))
    wanted = torch.autograd.grad((expected * weights).sum(), (qkv, bias))
    torch.testing.assert_close(found, wanted)
