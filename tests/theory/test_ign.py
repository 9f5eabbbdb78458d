"""Equivariant layers and k-IGNs against a brute-force n^(k+l) implementation, by hand, and in training."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from itertools import product
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.graphs import graphs, odd_graphs
from tokengt import Graph, GraphBatch
from tokengt.interop.networkx import from_networkx
from tokengt.ragged import Segments
from tokengt.testing import permute_graph
from tokengt.theory.basis import token_patterns, weight_bases
from tokengt.theory.ign import EquivariantLinear, IGNConfig, InvariantGraphNetwork
from tokengt.theory.partitions import bell_number, count_keys, is_empty, patterns
from tokengt.theory.tuples import Tuples, densify, lay_out

ORDERS = list(product(range(4), range(4)))
SIZES = Segments.from_lengths(torch.tensor([3, 1, 4, 2]))


def random_layer(in_order: int, out_order: int, in_dim: int = 2, out_dim: int = 3) -> EquivariantLinear:
    layer = EquivariantLinear(in_order, out_order, in_dim, out_dim).double()
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    return layer


def brute_force(layer: EquivariantLinear, x: Tensor, source: Tuples, target: Tuples) -> Tensor:
    """Eq. (2) with one weight for every pair of tuples of one graph, looked up by their pattern."""
    whose = target.segments.ids[:, None] == source.segments.ids
    weights = layer.weight[token_patterns(target.index, source.index)] * whose[..., None, None]
    return torch.einsum("qkde,kd->qe", weights, x) + layer.bias[target.classes]


def numbers(tuples: Tuples, dim: int = 2) -> Tensor:
    return torch.randn(tuples.num_tuples, dim, dtype=torch.float64)


@st.composite
def token_lists(draw: st.DrawFn, nodes: Segments, order: int) -> Tuples:
    """Any tuples of some graphs, in any order, some twice; a graph may have none."""
    if order == 0:
        return Tuples.dense(nodes, 0)
    dense = Tuples.dense(nodes, order)
    starts, lengths = dense.segments.starts.tolist(), dense.segments.lengths.tolist()
    counts = [draw(st.integers(0, 8)) for _ in range(nodes.count)]
    rows = [
        start + draw(st.integers(0, length - 1))
        for count, start, length in zip(counts, starts, lengths, strict=True)
        for _ in range(count)
    ]
    index = dense.index[:, torch.tensor(rows, dtype=torch.int64)]
    return Tuples(index, Segments.from_lengths(torch.tensor(counts)), nodes)


@pytest.mark.parametrize(("k", "out"), ORDERS)
def test_dense_layers_agree_with_brute_force(k: int, out: int) -> None:
    """Graphs of different sizes in one batch; in small ones some patterns are empty."""
    source, target = Tuples.dense(SIZES, k), Tuples.dense(SIZES, out)
    layer, x = random_layer(k, out), numbers(source)
    torch.testing.assert_close(layer(x, source, target), brute_force(layer, x, source, target), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("k", "out"), ORDERS)
def test_dense_layers_are_the_sum_over_basis_tensors(k: int, out: int) -> None:
    """Eq. (2) as written: sum_mu B^mu X w_mu, with the n^(k+l) tensors in memory."""
    nodes = Segments.uniform(1, 4)
    source, target = Tuples.dense(nodes, k), Tuples.dense(nodes, out)
    layer, x = random_layer(k, out), numbers(source)
    summed = torch.einsum("pqk,kd,pde->qe", weight_bases(4, out, k).double(), x, layer.weight)
    wanted = summed + layer.bias[target.classes]
    torch.testing.assert_close(layer(x, source, target), wanted, rtol=0, atol=1e-12)


@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(0, 3), st.integers(0, 3))
def test_token_lists_agree_with_the_restricted_basis(data: st.DataObject, sizes: list[int], k: int, out: int) -> None:
    nodes = Segments.from_lengths(torch.tensor(sizes))
    source, target = data.draw(token_lists(nodes, k)), data.draw(token_lists(nodes, out))
    layer, x = random_layer(k, out), numbers(source)
    torch.testing.assert_close(layer(x, source, target), brute_force(layer, x, source, target), rtol=0, atol=1e-12)


@given(st.lists(graphs(), min_size=1, max_size=3))
def test_sparse_graphs_agree_with_the_restricted_basis(drawn: list[Graph]) -> None:
    tokens = Tuples.of_batch(GraphBatch.collate(drawn))
    layer, x = random_layer(2, 2), numbers(tokens)
    torch.testing.assert_close(layer(x, tokens, tokens), brute_force(layer, x, tokens, tokens), rtol=0, atol=1e-12)


def test_odd_graphs_pack_without_touching_each_other() -> None:
    """One node, no edges, self-loops, repeated edges, two components: each alone as in the batch."""
    drawn = odd_graphs()
    tokens = Tuples.of_batch(GraphBatch.collate(drawn))
    ign, x = InvariantGraphNetwork(IGNConfig(dims=(2, 4, 4))).double(), numbers(tokens)
    together = ign(x, tokens)
    for place, graph in enumerate(drawn):
        own = x[tokens.segments.host[place] : tokens.segments.host[place + 1]]
        alone = ign(own, Tuples.of_batch(GraphBatch.collate([graph])))
        torch.testing.assert_close(together[place : place + 1], alone, rtol=1e-12, atol=1e-12)


def test_first_order_layer_by_hand() -> None:
    """L_{1->1}(X) = I X w_1 + (11^T - I) X w_2 + 1 b^T (Eq. 4)."""
    tuples = Tuples.dense(Segments.uniform(1, 3), 1)
    layer = EquivariantLinear(1, 1, 1, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[[10.0]], [[1.0]]]))
        layer.bias.fill_(0.5)
    out = layer(torch.tensor([[1.0], [2.0], [4.0]]), tuples, tuples)
    assert out.flatten().tolist() == [16.5, 25.5, 43.5]


def test_second_order_weights_by_hand() -> None:
    """Transposition, row sums off the diagonal, and the trace, each as one pattern; a bias on the diagonal only."""
    tuples = Tuples.dense(Segments.uniform(1, 3), 2)
    matrix = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])

    def only(pattern: tuple[int, ...], target: Tuples) -> Tensor:
        layer = EquivariantLinear(2, target.order, 1, 1)
        with torch.no_grad():
            layer.weight.zero_()
            layer.weight[patterns(2 + target.order).index(pattern)] = 1
            layer.bias[0] = 0.25
        return layer(matrix.view(9, 1), tuples, target)

    assert only((0, 1, 1, 0), tuples).view(3, 3).tolist() == [[0.25, 4, 7], [2, 0.25, 8], [3, 6, 0.25]]
    assert only((0, 0, 0, 1), tuples).view(3, 3).tolist() == [[5.25, 0, 0], [0, 10.25, 0], [0, 0, 15.25]]
    assert only((0, 0), tuples.graphs).item() == 15.25
    assert only((0, 1), tuples.graphs).item() == 30.25


@pytest.mark.parametrize(("k", "out"), ORDERS)
def test_exact_equivariance(k: int, out: int) -> None:
    """L(pi X) = pi L(X): the same numbers at renumbered tuples."""
    source, target = Tuples.dense(SIZES, k), Tuples.dense(SIZES, out)
    renumber = torch.cat([start + torch.randperm(size) for start, size in zip([0, 3, 4, 8], [3, 1, 4, 2], strict=True)])
    moved = [Tuples(renumber[tuples.index], tuples.segments, SIZES) for tuples in (source, target)]
    layer, x = random_layer(k, out), numbers(source)
    torch.testing.assert_close(layer(x, *moved), layer(x, source, target), rtol=0, atol=1e-12)
    # As tensors: X relabelled in place, then read in lexicographic order again.
    permuted = layer(densify(x, moved[0], source), source, target)
    torch.testing.assert_close(permuted, densify(layer(x, source, target), moved[1], target), rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_networks_are_invariant(order: int) -> None:
    nodes = Segments.uniform(1, 5)
    tuples = Tuples.dense(nodes, order)
    ign = InvariantGraphNetwork(IGNConfig(order, dims=(2, 3, 3), expected_nodes=5, activation="gelu")).double()
    x = numbers(tuples)
    moved = densify(x, Tuples(torch.randperm(5)[tuples.index], tuples.segments, nodes), tuples)
    assert not torch.equal(x, moved)
    torch.testing.assert_close(ign(moved, tuples), ign(x, tuples), rtol=0, atol=1e-12)


@given(graphs())
def test_networks_on_tokens_are_invariant(graph: Graph) -> None:
    """Nodes renumbered and edges listed in another order."""
    permuted = permute_graph(graph, torch.randperm(graph.num_nodes), torch.randperm(graph.num_edges))
    batch, moved = (GraphBatch.collate([each]) for each in (graph, permuted))
    ign = InvariantGraphNetwork(IGNConfig(dims=(3, 4, 4))).double()
    outs = [ign(_features(each), Tuples.of_batch(each)) for each in (batch, moved)]
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-12, atol=1e-12)


def _features(batch: GraphBatch) -> Tensor:
    assert batch.node_features is not None
    assert batch.edge_features is not None
    nodes = torch.nn.functional.pad(batch.node_features.double(), (0, 1))
    return lay_out(batch, nodes, batch.edge_features.double())


@pytest.mark.parametrize(
    ("k", "out", "nodes"), [(1, 1, 1), (2, 1, 3), (1, 2, 2), (2, 2, 4), (2, 2, 3), (3, 3, 4), (0, 3, 2)]
)
def test_the_layer_spans_as_many_maps_as_there_are_patterns(k: int, out: int, nodes: int) -> None:
    """Rank of weights -> linear map, read off the layer: one graph for every unit X, one channel for every pattern."""
    copies = nodes**k
    segments = Segments.uniform(copies, nodes)
    layer = EquivariantLinear(k, out, 1, bell_number(k + out)).double()
    with torch.no_grad():
        layer.weight.copy_(torch.eye(bell_number(k + out))[:, None])
        maps = layer(
            torch.eye(copies, dtype=torch.float64).view(-1, 1), Tuples.dense(segments, k), Tuples.dense(segments, out)
        )
    rank = int(torch.linalg.matrix_rank(maps.view(-1, bell_number(k + out))))
    assert rank == sum(not is_empty(pattern, nodes) for pattern in patterns(k + out))
    assert rank == bell_number(k + out) or nodes < k + out


@pytest.mark.parametrize(("k", "out"), [(2, 2), (3, 3), (3, 1), (1, 2)])
def test_gradients_agree_with_brute_force(k: int, out: int) -> None:
    source, target = Tuples.dense(SIZES, k), Tuples.dense(SIZES, out)
    layer, x = random_layer(k, out), numbers(source).requires_grad_()
    weights = torch.randn(target.num_tuples, 3, dtype=torch.float64)
    wanted_inputs = (x, layer.weight, layer.bias)
    gradients = torch.autograd.grad((layer(x, source, target) * weights).sum(), wanted_inputs)
    wanted = torch.autograd.grad((brute_force(layer, x, source, target) * weights).sum(), wanted_inputs)
    for mine, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)


def test_a_repeated_tuple_counts_twice_and_a_self_loop_is_diagonal() -> None:
    """Three tokens (0, 0), (0, 1), (0, 1): off-diagonal keys sum to both copies, each copy is answered."""
    nodes = Segments.uniform(1, 2)
    tokens = Tuples(torch.tensor([[0, 0, 0], [0, 1, 1]]), Segments.uniform(1, 3), nodes)
    x = torch.tensor([[1.0], [10.0], [100.0]])
    layer = EquivariantLinear(2, 2, 1, 1)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[patterns(4).index((0, 1, 0, 1))] = 1
    assert layer(x, tokens, tokens).flatten().tolist() == [0, 110, 110]
    loops = Tuples.of_batch(GraphBatch.collate([Graph(edge_index=torch.tensor([[1, 0], [1, 1]]), num_nodes=2)]))
    assert loops.index.tolist() == [[0, 1, 1, 0], [0, 1, 1, 1]]
    assert loops.classes.tolist() == [0, 0, 0, 1]


def test_tuples_are_listed_lexicographically_graph_by_graph() -> None:
    nodes = Segments.from_lengths(torch.tensor([2, 0, 1]))
    assert Tuples.dense(nodes, 2).index.T.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 2]]
    assert Tuples.dense(nodes, 3).segments.host_lengths.tolist() == [8, 0, 1]
    assert Tuples.dense(nodes, 0).index.shape == (0, 3)
    layer, tuples = random_layer(2, 0), Tuples.dense(nodes, 2)
    torch.testing.assert_close(layer(numbers(tuples), tuples, tuples.graphs)[1], layer.bias[0], rtol=0, atol=0)


def test_sparse_values_become_a_dense_tensor() -> None:
    """X_ii are node values, X_uv the sum over the edges listed at (u, v)."""
    first = Graph(edge_index=torch.tensor([[0, 0, 1], [1, 1, 1]]), num_nodes=2)
    batch = GraphBatch.collate([first, Graph(num_nodes=1)])
    values = lay_out(batch, torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[10.0], [20.0], [40.0]]))
    assert values.flatten().tolist() == [1, 2, 10, 20, 40, 3]
    dense = Tuples.dense(batch.nodes, 2)
    assert densify(values, Tuples.of_batch(batch), dense).flatten().tolist() == [1, 30, 0, 42, 3]


def test_expected_nodes_make_the_first_sums_means() -> None:
    """The same draw, w_mu divided by the keys that a query of mu has among six nodes."""
    torch.manual_seed(1)
    plain = EquivariantLinear(2, 2, 3, 3)
    torch.manual_seed(1)
    scaled = EquivariantLinear(2, 2, 3, 3, expected_nodes=6)
    keys = torch.tensor([count_keys(pattern, 2, 6) for pattern in patterns(4)])
    assert keys.max() == 20
    torch.testing.assert_close(scaled.weight * keys[:, None, None], plain.weight)
    assert not scaled.bias.any()


def test_memory_grows_with_the_tuples_not_with_their_pairs() -> None:
    """What a layer keeps for its gradient on 3,000 tokens is a few rows per token; pairs would be 9,000,000."""
    graph = from_networkx(nx.gnm_random_graph(1000, 1000, seed=0))
    tokens = Tuples.of_batch(GraphBatch.collate([graph]))
    layer, kept = EquivariantLinear(2, 2, 4, 4), [0]

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layer(torch.randn(tokens.num_tuples, 4), tokens, tokens)
    assert tokens.num_tuples == 3000
    assert max(kept) <= 4 * 4 * tokens.num_tuples


def test_indices_are_worked_out_once_and_freed_with_the_tuples() -> None:
    source, target = Tuples.dense(SIZES, 2), Tuples.dense(SIZES, 1)
    assert source.links(target) is source.links(target)
    assert source.links(source) is not source.links(target)
    gone = [weakref.ref(source.links(target)[0]), weakref.ref(target)]
    del target
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda tuples: pickle.loads(pickle.dumps(tuples))])
def test_tuples_are_copied_and_pickled_without_what_they_remember(again: Callable[[Tuples], Tuples]) -> None:
    tuples = Tuples.dense(SIZES, 2)
    layer, x = random_layer(2, 2), numbers(tuples)
    wanted = layer(x, tuples, tuples)
    other = again(tuples)
    assert len(tuples._links) == 1
    assert len(other._links) == 0
    assert torch.equal(other.index, tuples.index)
    assert torch.equal(layer(x, other, other), wanted)


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_autocast_makes_products_in_its_type_and_sums_in_the_weights(given: torch.dtype) -> None:
    """Products round to 8 bits, 0.4 percent each; the result stays float32 and gradients arrive."""
    tuples = Tuples.dense(SIZES, 2)
    layer = random_layer(2, 2).float()
    x = numbers(tuples).to(given).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x, tuples, tuples)
    wanted = layer(x.float(), tuples, tuples)
    assert out.dtype == torch.float32
    assert not torch.equal(out, wanted)
    assert bool((out - wanted).abs().max() < 0.03 * wanted.abs().max())
    out.sum().backward()
    assert x.grad is not None
    assert bool(x.grad.any())
    ign = InvariantGraphNetwork(IGNConfig(dims=(2, 4, 4)))
    with torch.autocast("cpu", torch.bfloat16):
        assert bool(ign(x, tuples).isfinite().all())


@pytest.mark.parametrize("autocast", [False, True])
def test_x_and_weights_of_different_types_are_refused(autocast: bool) -> None:
    tuples = Tuples.dense(SIZES, 2)
    x = numbers(tuples)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        with pytest.raises(ValueError, match=r"^x is torch.float64 and the layer's weights are torch.float32; expect"):
            random_layer(2, 2).float()(x, tuples, tuples)
        with pytest.raises(ValueError, match=r"^x is torch.float32 and the layer's weights are torch.float64; expect"):
            random_layer(2, 2)(x.float(), tuples, tuples)
    with pytest.raises(ValueError, match=r"^x is torch.bfloat16"):
        random_layer(2, 2).float()(x.bfloat16(), tuples, tuples)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_2_ign_learns_to_count_paths(sparse: bool) -> None:
    """Sum over nodes of d (d - 1) / 2 on random graphs of 5 to 12 nodes: two layers can, and training finds it."""
    drawn = [nx.gnp_random_graph(5 + seed % 8, 0.4, seed=seed) for seed in range(48)]
    batch = GraphBatch.collate([from_networkx(graph) for graph in drawn])
    paths = torch.tensor([[sum(d * (d - 1) / 2 for _, d in graph.degree())] for graph in drawn])
    wanted = (paths - paths.mean()) / paths.std()
    x = lay_out(
        batch,
        torch.tensor([[1.0, 0.0]]).expand(batch.num_nodes, -1),
        torch.tensor([[0.0, 1.0]]).expand(batch.num_edges, -1),
    )
    tuples = Tuples.of_batch(batch)
    if not sparse:
        dense = Tuples.dense(batch.nodes, 2)
        x, tuples = densify(x, tuples, dense), dense
    ign = InvariantGraphNetwork(IGNConfig(dims=(2, 8, 8), invariant_dim=8, mlp_dims=(8,), expected_nodes=8))
    optimizer = torch.optim.Adam(ign.parameters(), lr=3e-3)
    losses = []
    for _ in range(80):
        loss = (ign(x, tuples) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 0.5
    assert losses[-1] < 0.05


def test_a_2_ign_trains_on_molecules() -> None:
    """Six passes over 320 molecules of ESOL: the error on 80 others falls below a constant's."""
    pytest.importorskip("rdkit")
    from tokengt.data.datasets import esol
    from tokengt.interop.smiles import from_smiles

    smiles, labels = esol()
    chosen = torch.randperm(len(smiles))[:400]
    batch = GraphBatch.collate([from_smiles(smiles[place]) for place in chosen.tolist()])
    labels = labels[chosen].float()
    mean, std = labels[:320].mean(), labels[:320].std()
    kinds, atoms = torch.unique(batch.node_features[:, 0], return_inverse=True)
    orders, bonds = torch.unique(batch.edge_features[:, 0], return_inverse=True)
    width = len(kinds) + len(orders)
    ign = InvariantGraphNetwork(IGNConfig(dims=(width, 16, 16), expected_nodes=13))
    optimizer = torch.optim.Adam(ign.parameters(), lr=2e-3)

    def predict(places: Tensor) -> Tensor:
        part, (node_rows, _), (edge_rows, _) = batch.select(places), batch.nodes.take(places), batch.edges.take(places)
        one_hot = torch.eye(width)
        x = lay_out(part, one_hot[atoms[node_rows]], one_hot[len(kinds) + bonds[edge_rows]])
        return ign(x, Tuples.of_batch(part)) * std + mean

    for _ in range(6):
        for places in torch.randperm(320).split(32):
            loss = ((predict(places) - labels[places]) / std).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    test = torch.arange(320, 400)
    error, constant = (predict(test) - labels[test]).square().mean(), (mean - labels[test]).square().mean()
    assert error < 0.7 * constant


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_agrees() -> None:
    tokens, pairs = Tuples.of_batch(GraphBatch.collate(odd_graphs())), Tuples.dense(SIZES, 2)
    layer = random_layer(2, 2)
    for tuples in (tokens, pairs):
        x = numbers(tuples)
        on_gpu = layer.cuda()(x.cuda(), tuples.to("cuda"), tuples.to("cuda")).cpu()
        torch.testing.assert_close(on_gpu, layer.cpu()(x, tuples, tuples), rtol=0, atol=1e-12)


def test_what_does_not_fit_is_named() -> None:
    pairs, nodes = Tuples.dense(SIZES, 2), Tuples.dense(SIZES, 1)
    layer = random_layer(2, 1)
    with pytest.raises(ValueError, match="orders 0 to 3"):
        EquivariantLinear(2, 4, 1, 1)
    with pytest.raises(ValueError, match="orders 1 -> 1 given to a layer of orders 2 -> 1"):
        layer(numbers(nodes), nodes, nodes)
    with pytest.raises(ValueError, match=r"x has shape \[30, 3\]; expected \[30, 2\]"):
        layer(numbers(pairs, 3), pairs, nodes)
    with pytest.raises(ValueError, match="different graphs"):
        layer(numbers(pairs), pairs, Tuples.dense(Segments.uniform(2, 5), 1))
    with pytest.raises(ValueError, match="a node of another graph"):
        Tuples(torch.tensor([[0], [3]]), Segments.from_lengths(torch.tensor([1, 0, 0, 0])), SIZES)
    with pytest.raises(ValueError, match="order 0"):
        Tuples(torch.empty(0, 2, dtype=torch.int64), Segments.from_lengths(torch.tensor([2, 0, 0, 0])), SIZES)
    with pytest.raises(ValueError, match="2 tuples with segments of 1 rows"):
        Tuples(torch.zeros(2, 2, dtype=torch.int64), Segments.from_lengths(torch.tensor([1, 0, 0, 0])), SIZES)
    with pytest.raises(ValueError, match="unordered sets are no tuples"):
        Tuples.of_batch(GraphBatch.collate([Graph.from_hyperedges([[0, 1]], num_nodes=2)]))
    with pytest.raises(ValueError, match="order 2 do not lie in a tensor of order 1"):
        densify(numbers(pairs), pairs, nodes)
    with pytest.raises(ValueError, match="order is -1; expected 0 or more"):
        Tuples.dense(SIZES, -1)
    for widths in ((0, 1), (1, -2)):
        with pytest.raises(ValueError, match=f"a layer of {widths[0]} -> {widths[1]} channels; expected at least 1"):
            EquivariantLinear(2, 2, *widths)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"order": 4}, "order is 4; expected 1 to 3"),
        ({"dims": (3,)}, r"dims is \(3,\); expected d_0 and"),
        ({"dims": (1, 0, 4)}, r"^dims is \(1, 0, 4\); expected widths of at least 1"),
        ({"mlp_dims": (8, -1)}, r"^mlp_dims is \(8, -1\); expected widths of at least 1"),
        ({"invariant_dim": 0}, "invariant_dim is 0; expected at least 1"),
        ({"out_dim": 0}, "out_dim is 0; expected at least 1"),
    ],
)
def test_networks_that_cannot_be_are_refused(bad: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        IGNConfig(**bad)
