from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given

from tests.graphs import graphs, hypergraph, random_graph, tokens_config
from tokengt import (
    EncoderConfig,
    FeatureSpec,
    Graph,
    GraphBatch,
    LaplacianIds,
    NoIds,
    TokenGT,
    TokenGTConfig,
    TokensConfig,
)
from tokengt.models.features import multi_hot
from tokengt.models.tokengt.identifiers import Identifiers, identifiers_of_kind, identify
from tokengt.models.tokengt.token_batch import TokenBatch, TokenKind
from tokengt.models.tokengt.tokens import Tokenizer
from tokengt.structure.laplacian import laplacian_fact
from tokengt.structure.patterns import bell_number, growth_strings
from tokengt.structure.tuples import equality_patterns, merge_directions, with_merged_edges

DIM, ID = 7, 4


def tokenize(
    graph: Graph | list[Graph], config: TokensConfig, *, pool: bool = False, kind: str = "orf"
) -> tuple[Tokenizer, TokenBatch, torch.Tensor]:
    batch = GraphBatch.collate([graph] if isinstance(graph, Graph) else graph)
    tokenizer = Tokenizer(DIM, config, identifiers_of_kind(kind, ID))  # type: ignore[arg-type]
    for parameter in tokenizer.parameters():
        torch.nn.init.normal_(parameter)
    ids = torch.randn(batch.num_nodes, ID)
    return tokenizer, tokenizer(batch, Identifiers(ids) if kind != "none" else None), ids


def test_the_central_sentence() -> None:
    """Every token is [X, P_u, P_v, E] w_in with w_in the stacked blocks, and [graph] comes first."""
    graph = random_graph(3, 4)
    tokenizer, tokens, p = tokenize(graph, tokens_config())
    onehot = [torch.nn.functional.one_hot(c, n).float() for c, n in zip(graph.node_features.T, (4, 3), strict=True)]
    node_x = torch.cat(onehot, 1)
    e = torch.eye(2)
    node_in = torch.cat([node_x, torch.zeros(3, 3), p, p, e[0].expand(3, 2)], 1)
    u, v = graph.edge_index
    edge_in = torch.cat([torch.zeros(4, 7), graph.edge_features, p[u], p[v], e[1].expand(4, 2)], 1)
    w_in = torch.cat(
        [
            tokenizer.node_encoder.table.weight,
            tokenizer.edge_encoder.linear.weight.T,
            tokenizer.id_proj.weight.T,
            tokenizer.type_embedding.weight,
        ]
    )
    expected = torch.cat([tokenizer.special_tokens, torch.cat([node_in, edge_in]) @ w_in])
    assert torch.allclose(tokens.values, expected, atol=1e-5)
    assert tokens.kinds.tolist() == [-1, 0, 0, 0, 1, 1, 1, 1]
    assert tokens.endpoints[1:4].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert torch.equal(tokens.endpoints[4:], graph.edge_index.T)


def test_packing_order_and_rows() -> None:
    first, second = random_graph(2, 1, 1), random_graph(3, 2, 2)
    _, tokens, _ = tokenize([first, second], tokens_config(null_token=True))
    assert tokens.segments.host.tolist() == [0, 5, 12]
    assert tokens.graph_rows is not None
    assert tokens.graph_rows.tolist() == [0, 5]
    assert tokens.node_rows.tolist() == [2, 3, 7, 8, 9]
    assert tokens.edge_rows.tolist() == [4, 10, 11]


def test_a_self_loop_is_an_edge() -> None:
    graph = Graph(edge_index=torch.tensor([[0], [0]]), num_nodes=1)
    _, tokens, _ = tokenize(graph, TokensConfig())
    assert tokens.kinds.tolist() == [TokenKind.SPECIAL, TokenKind.NODE, TokenKind.EDGE]


def test_no_type_ids_no_features_no_identifiers() -> None:
    graph = Graph(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    _, tokens, _ = tokenize(graph, TokensConfig(type_ids=False, graph_token=False), kind="none")
    assert torch.equal(tokens.values, torch.zeros(3, DIM))


def test_one_token_an_undirected_edge() -> None:
    graph = Graph(
        edge_index=torch.tensor([[0, 1, 1, 2, 2], [1, 2, 0, 1, 2]]),
        edge_features=torch.tensor([[1.0], [2.0], [1.0], [2.0], [3.0]]),
        num_nodes=3,
    )
    config = TokensConfig(edge_features=FeatureSpec(width=1), layout="undirected", graph_token=False)
    tokenizer, tokens, p = tokenize(graph, config)
    rho = p @ tokenizer.id_pool.weight.T
    w, e = tokenizer.edge_encoder.linear.weight.T, tokenizer.type_embedding.weight
    expected = torch.cat(
        [
            2 * rho + e[0],
            rho[[0]] + rho[[1]] + 1.0 * w + e[1],
            rho[[1]] + rho[[2]] + 2.0 * w + e[1],
            2 * rho[[2]] + 3.0 * w + e[1],
        ]
    )
    assert torch.allclose(tokens.values, expected, atol=1e-5)
    assert tokens.edge_rows.tolist() == [3, 4, 3, 4, 5]


def test_repeated_edges_pair_off() -> None:
    graph = Graph(
        edge_index=torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]]),
        edge_features=torch.tensor([[1.0], [2.0], [2.0], [1.0]]),
        num_nodes=2,
    )
    merged = merge_directions(GraphBatch.collate([graph]))
    assert merged.of_edge.tolist() == [0, 1, 1, 0]
    same = Graph(edge_index=graph.edge_index, num_nodes=2)
    assert merge_directions(GraphBatch.collate([same])).of_edge.tolist() == [0, 1, 0, 1]


def test_a_surplus_repeat_stands_alone() -> None:
    index = torch.tensor([[0, 0, 1], [1, 1, 0]])
    for features in (None, torch.ones(3, 1)):
        merged = merge_directions(GraphBatch.collate([Graph(edge_index=index, edge_features=features, num_nodes=2)]))
        assert merged.of_edge.tolist() == [0, 1, 0]


def test_a_bad_category_is_named_by_its_listed_row() -> None:
    graph = Graph(
        edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
        edge_features=torch.tensor([[0], [0], [7], [7]]),
        num_nodes=3,
    )
    config = TokensConfig(edge_features=FeatureSpec(categories=(3,)), layout="undirected")
    with pytest.raises(ValueError, match="graph 0: edge_features row 2, column 0 is category 7"):
        tokenize(graph, config)


def test_an_edge_listed_once_stands_alone() -> None:
    graph = Graph(edge_index=torch.tensor([[2, 0], [0, 1]]), edge_features=torch.randn(2, 1), num_nodes=3)
    merged = merge_directions(GraphBatch.collate([graph]))
    assert merged.first.tolist() == [0, 1]


def test_disagreeing_directions_are_named() -> None:
    good = Graph(edge_index=torch.tensor([[0], [1]]), edge_features=torch.ones(1, 1), num_nodes=2)
    bad = Graph(
        edge_index=torch.tensor([[0, 1, 2], [1, 2, 1]]), edge_features=torch.tensor([[0.0], [1.0], [2.0]]), num_nodes=3
    )
    with pytest.raises(ValueError, match=r"graph 1: edge_features row 1 of edge \(1, 2\) has no equal on its reverse"):
        merge_directions(GraphBatch.collate([good, bad]))


@given(graphs())
def test_merging_a_symmetrised_graph_halves_it(graph: Graph) -> None:
    index = torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1)
    features = torch.cat([graph.edge_features, graph.edge_features])
    merged = merge_directions(
        GraphBatch.collate([Graph(edge_index=index, edge_features=features, num_nodes=graph.num_nodes)])
    )
    loops = int((graph.edge_index[0] == graph.edge_index[1]).sum())
    assert len(merged.first) == graph.num_edges + loops
    assert torch.equal(
        merged.first[merged.of_edge][: graph.num_edges].sort().values.unique(),
        merged.first.sort().values[merged.first.sort().values < graph.num_edges],
    )


def test_bell_numbers_and_patterns() -> None:
    assert [bell_number(k) for k in range(7)] == [1, 1, 2, 5, 15, 52, 203]
    assert growth_strings(3) == ((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 1, 2))
    for order in (1, 2, 3, 4):
        assert len(growth_strings(order)) == bell_number(order)
    tuples = torch.tensor([[5, 5, 5], [5, 5, 2], [5, 2, 5], [2, 5, 5], [1, 2, 3]]).T
    assert equality_patterns(tuples).tolist() == [0, 1, 2, 3, 4]
    for order in (2, 4, 9):
        strings = torch.tensor(growth_strings(order))
        assert torch.equal(equality_patterns(strings.T), torch.arange(bell_number(order)))


def test_order_three_tokens() -> None:
    tuples = torch.tensor([[0, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 2]])
    graph = Graph(edge_index=tuples, num_nodes=3)
    tokenizer, tokens, p = tokenize(graph, TokensConfig(order=3, graph_token=False))
    assert tokenizer.type_embedding.weight.shape[0] == 5
    assert tokens.kinds.tolist() == [0, 0, 0, 1, 2, 3, 4]
    expected = torch.cat([p[tuples[0]], p[tuples[1]], p[tuples[2]]], 1) @ tokenizer.id_proj.weight.T
    assert torch.allclose(tokens.values[3:] - tokenizer.type_embedding.weight[1:], expected, atol=1e-5)
    node = p.repeat(1, 3) @ tokenizer.id_proj.weight.T + tokenizer.type_embedding.weight[0]
    assert torch.allclose(tokens.values[:3], node, atol=1e-5)


def test_sets_are_order_one() -> None:
    """[X_i, P_i, E]: a node's identifier once, one type, and no edges, however many rows their empty list has."""
    x = torch.randn(3, 2)
    config = TokensConfig(node_features=FeatureSpec(width=2), order=1, graph_token=False)
    for rows in (2, 3):
        graph = Graph(x, torch.empty(rows, 0, dtype=torch.int64))
        tokenizer, tokens, p = tokenize([graph, graph], config)
        assert tokenizer.type_embedding.weight.shape == (1, DIM)
        assert tokenizer.id_proj.weight.shape == (DIM, ID)
        one = x @ tokenizer.node_encoder.linear.weight.T + tokenizer.type_embedding.weight
        expected = torch.cat([one, one]) + p @ tokenizer.id_proj.weight.T
        assert torch.allclose(tokens.values, expected, atol=1e-5)
        assert tokens.endpoints.tolist() == [[i] for i in range(6)]
        assert tokens.kinds.tolist() == [TokenKind.NODE] * 6
        assert tokenizer.incident_rows(GraphBatch.collate([graph, graph]), tokens)[0].numel() == 0


def test_sets_with_hyperedges() -> None:
    """The pooled token takes the second and last type."""
    graph = Graph.from_hyperedges([[0, 2]], num_nodes=3)
    tokenizer, tokens, p = tokenize(graph, TokensConfig(order=1, hyperedges=True, graph_token=False))
    assert tokens.kinds.tolist() == [0, 0, 0, 1]
    rho = (p[0] + p[2]) @ tokenizer.id_pool.weight.T
    assert torch.allclose(tokens.values[3], rho + tokenizer.type_embedding.weight[1], atol=1e-5)


def test_sets_have_no_edges() -> None:
    with pytest.raises(ValueError, match=r"the batch has 1 edges; this model reads sets of nodes"):
        tokenize(Graph(edge_index=torch.tensor([[0], [1]]), num_nodes=2), TokensConfig(order=1))
    for order, layout in ((0, "directed"), (1, "undirected"), (3, "undirected")):
        with pytest.raises(ValueError, match=f"order {order} with layout '{layout}'"):
            TokensConfig(order=order, layout=layout)  # type: ignore[arg-type]


def test_one_pooled_token_a_hyperedge() -> None:
    graph = hypergraph()
    config = TokensConfig(node_features=FeatureSpec(width=2), hyperedge_features=FeatureSpec(width=3), hyperedges=True)
    tokenizer, tokens, p = tokenize(graph, config)
    rho = p @ tokenizer.id_pool.weight.T
    sets = [[0, 1], [1, 2, 3], [4], [0, 2, 3, 4, 5]]
    features = graph.hyperedge_features @ tokenizer.hyperedge_encoder.linear.weight.T
    expected = torch.stack([rho[s].sum(0) for s in sets]) + features + tokenizer.type_embedding.weight[2]
    assert torch.allclose(tokens.values[tokens.hyperedge_rows], expected, atol=1e-5)


def test_rows_of_the_sparse_equivariant_basis() -> None:
    """X_ii receives every X_ij, j != i: the rows of tokens that start at i; self-loops are left out."""
    graph = Graph(edge_index=torch.tensor([[0, 0, 1, 2], [1, 2, 0, 2]]), num_nodes=3)
    tokenizer, tokens, _ = tokenize(graph, TokensConfig())
    batch = GraphBatch.collate([graph])
    sources, targets = tokenizer.incident_rows(batch, tokens)
    assert list(zip(sources.tolist(), targets.tolist(), strict=True)) == [(4, 1), (5, 1), (6, 2)]
    pooled, tokens, _ = tokenize(graph, TokensConfig(layout="undirected"))
    sources, targets = pooled.incident_rows(batch, tokens)
    assert sorted(zip(sources.tolist(), targets.tolist(), strict=True)) == [(4, 1), (4, 2), (5, 1), (5, 3)]
    hyper, tokens, _ = tokenize(Graph.from_hyperedges([[0, 2]], num_nodes=3), TokensConfig(hyperedges=True))
    sources, targets = hyper.incident_rows(GraphBatch.collate([Graph.from_hyperedges([[0, 2]], num_nodes=3)]), tokens)
    assert list(zip(sources.tolist(), targets.tolist(), strict=True)) == [(4, 1), (4, 3)]


def test_edges_read_their_nodes_in_the_larger_basis() -> None:
    """Beside the links above, X_ij receives X_ii and X_jj; a self-loop its one node, a hyperedge all of its nodes."""
    graph = Graph(edge_index=torch.tensor([[0, 0, 1, 2], [1, 2, 0, 2]]), num_nodes=3)
    tokenizer, tokens, _ = tokenize(graph, TokensConfig())
    batch = GraphBatch.collate([graph])
    assert _links(tokenizer.linked_rows(batch, tokens, "nodes")) == _links(tokenizer.incident_rows(batch, tokens))
    back = {(1, 4), (2, 4), (1, 5), (3, 5), (2, 6), (1, 6), (3, 7)}
    assert _links(tokenizer.linked_rows(batch, tokens, "both")) == sorted({(4, 1), (5, 1), (6, 2)} | back)
    pooled, tokens, _ = tokenize(graph, TokensConfig(layout="undirected"))
    both = {(4, 1), (4, 2), (5, 1), (5, 3)}
    wanted = both | {(node, edge) for edge, node in both} | {(3, 6)}
    assert _links(pooled.linked_rows(batch, tokens, "both")) == sorted(wanted)
    hypergraph = Graph.from_hyperedges([[0, 2]], num_nodes=3)
    hyper, tokens, _ = tokenize(hypergraph, TokensConfig(hyperedges=True))
    links = hyper.linked_rows(GraphBatch.collate([hypergraph]), tokens, "both")
    assert _links(links) == [(1, 4), (3, 4), (4, 1), (4, 3)]


def _links(rows: tuple[torch.Tensor, torch.Tensor]) -> list[tuple[int, int]]:
    return sorted(zip(*(part.tolist() for part in rows), strict=True))


def test_for_batch_reads_the_data() -> None:
    config = TokensConfig.for_batch(GraphBatch.collate([hypergraph()]))
    assert (config.node_features.width, config.hyperedge_features.width, config.hyperedges) == (2, 3, True)
    config = TokensConfig.for_batch(GraphBatch.collate([Graph(torch.tensor([[3, 0], [1, 4]]))]))
    assert config.node_features.categories == (4, 5)


BAD = {
    "category": (
        [random_graph(2, 1), Graph(torch.tensor([[0, 0], [0, 3]]), edge_features=torch.zeros(0, 3))],
        r"graph 1: node_features row 1, column 1 is category 3; this model expects 0 to 2",
    ),
    "negative": ([Graph(torch.tensor([[-1, 0]]))], r"graph 0: node_features row 0, column 0 is category -1"),
    "kind": ([Graph(torch.zeros(2, 2))], r"node_features is 2 floats \(float32\); this model expects 2 categories"),
    "width": ([Graph(torch.zeros(2, 5, dtype=torch.int64))], r"node_features is 5 categories"),
    "missing": ([Graph(num_nodes=2)], r"node_features is none; this model expects 2 categories"),
    "edge width": (
        [Graph(torch.zeros(2, 2, dtype=torch.int64), torch.tensor([[0], [1]]), torch.zeros(1, 2))],
        r"edge_features is 2 floats \(float32\); this model expects 3 floats",
    ),
    "hyperedges": ([Graph.from_hyperedges([[0, 1]], torch.zeros(2, 2, dtype=torch.int64))], r"1 hyperedges"),
    "order": (
        [Graph(torch.zeros(2, 2, dtype=torch.int64), torch.zeros(3, 1, dtype=torch.int64))],
        r"edge_index has 3 rows; this model expects 2",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_data_that_does_not_fit_the_model(case: str) -> None:
    members, sentence = BAD[case]
    with pytest.raises(ValueError, match=sentence):
        tokenize(members, tokens_config())


def test_a_bad_category_elsewhere_in_the_data_set_stops_nobody_else() -> None:
    bad = Graph(torch.tensor([[9, 0]]), edge_features=torch.zeros(0, 3))
    dataset = GraphBatch.collate([random_graph(2, 1), bad])
    tokenizer = Tokenizer(DIM, tokens_config(), NoIds())
    with pytest.raises(ValueError, match="graph 1: node_features row 0"):
        tokenizer(dataset, None)
    assert len(tokenizer(dataset.select([0]), None).values) == 4


def test_places_and_features_are_not_taken_for_each_other() -> None:
    """Edge (0, 1) of category 1 and edge (0, 2) of category 0: the numbers are the same, the edges are not."""
    index = torch.tensor([[0, 0, 2, 1], [1, 2, 0, 0]])
    graph = Graph(edge_index=index, edge_features=torch.tensor([[1], [0], [0], [1]]), num_nodes=3)
    assert merge_directions(GraphBatch.collate([graph])).of_edge.tolist() == [0, 1, 1, 0]
    repeated = Graph(edge_index=torch.tensor([[0, 0, 0, 1], [0, 0, 1, 0]]), num_nodes=2)
    assert merge_directions(GraphBatch.collate([repeated])).of_edge.tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("layout", ["directed", "undirected"])
def test_no_step_asks_the_device(layout: Literal["directed", "undirected"]) -> None:
    """On the meta device there is nothing to ask: a batch is cut, identified and laid out from what the host knows."""
    graphs = [random_graph(nodes, 2 * nodes, nodes, undirected=True) for nodes in (1, 5, 9)]
    packed = with_merged_edges(GraphBatch.collate(graphs).narrowed())
    packed = packed.with_fact(laplacian_fact(4, "lowest"), torch.randn(packed.nodes.total, 4))
    batch = packed.to("meta").select([2, 0, 2])
    config = replace(TokensConfig.for_batch(GraphBatch.collate(graphs)), layout=layout)
    identifiers = LaplacianIds(4, dropout=0.1)
    ids = identify(batch, identifiers, training=True)
    assert ids is not None
    tokens = Tokenizer(8, config, identifiers).to("meta")(batch, ids)
    edges = sum(graphs[place].num_edges for place in (2, 0, 2))
    assert tokens.values.shape == (3 + 19 + (edges if layout == "directed" else edges // 2), 8)
    assert tokens.values.device.type == "meta"


def test_a_matrix_of_zeros_and_ones_is_a_sum_of_embeddings() -> None:
    table = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([[0, 4], [2, 6], [0, 5]])
    product = multi_hot(index, table) @ table
    expected = torch.nn.functional.embedding_bag(index, table, mode="sum")
    assert torch.allclose(product, expected)
    weights = torch.randn_like(product)
    (ours,), (theirs,) = (torch.autograd.grad((out * weights).sum(), table) for out in (product, expected))
    assert torch.allclose(ours, theirs)
    assert multi_hot(index[:0], table).shape == (0, 7)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (TokensConfig(pool_mlp=True), "orf"),
        (TokensConfig(pool_mlp=True, layout="undirected"), "none"),
        (TokensConfig(pool_mlp=True, hyperedges=True), "orf_first_order"),
    ],
)
def test_an_mlp_that_would_pool_nothing_is_refused(config: TokensConfig, kind: str) -> None:
    with pytest.raises(ValueError, match="no token here pools them"):
        Tokenizer(DIM, config, identifiers_of_kind(kind, ID))  # type: ignore[arg-type]


def test_float_features_are_dropped_in_training_only_and_only_when_asked() -> None:
    """Without feature dropout a model draws nothing, so that its other random choices stay what they were."""
    batch = GraphBatch.collate([Graph(torch.ones(40, 3), torch.tensor([[0], [1]]), torch.ones(1, 2))])

    def tokenizer(rate: float) -> Tokenizer:
        torch.manual_seed(0)
        config = replace(TokensConfig.for_batch(batch), type_ids=False, feature_dropout=rate)
        return Tokenizer(8, config, NoIds())

    plain, dropping = tokenizer(0.0), tokenizer(0.5)
    before = torch.get_rng_state()
    undropped = plain(batch, None).nodes
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(dropping.eval()(batch, None).nodes, undropped)
    dropped = dropping.train()(batch, None).nodes
    assert len(torch.unique(undropped, dim=0)) == 1
    # Each of three features is kept and doubled or not: eight different rows at most, and several here.
    assert 2 <= len(torch.unique(dropped, dim=0)) <= 8
    with pytest.raises(ValueError, match="feature_dropout is 1"):
        TokensConfig(feature_dropout=1.0)


def test_links_that_a_prediction_made_first_serve_a_training_step() -> None:
    """They are kept with the batch, and what inference mode makes can have no gradient."""
    graph = Graph(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3, node_features=torch.eye(3))
    batch = GraphBatch.collate([graph])
    encoder = EncoderConfig(num_layers=2, num_heads=2, sparse_basis_residual=True)
    config = TokenGTConfig(dim=8, tokens=TokensConfig.for_batch(batch), identifiers=NoIds(), encoder=encoder)
    model, other = TokenGT(config), TokenGT(replace(config, sparse_basis="both"))
    with torch.inference_mode():
        first = model(batch)
    again = model(batch)
    again.sum().backward()
    torch.testing.assert_close(again.detach(), first.clone())
    other.load_state_dict(model.state_dict())
    assert not torch.equal(other(batch), again), "the links of another basis are others"


def test_links_are_found_anew_where_other_edges_are_two_directions_of_one() -> None:
    """Of three edges there and three back, features decide which are pairs: three tokens, or four."""
    ends = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    told = [torch.tensor(features)[:, None] for features in ([1.0, 1, 2, 1, 2, 2], [1.0, 1, 2, 1, 1, 2])]
    batch, other = (
        GraphBatch.collate([Graph(edge_index=ends, num_nodes=2, node_features=torch.eye(2), edge_features=each)])
        for each in told
    )
    encoder = EncoderConfig(num_layers=2, num_heads=2, sparse_basis_residual=True)
    tokens = replace(TokensConfig.for_batch(batch), layout="undirected")
    model = TokenGT(TokenGTConfig(dim=8, tokens=tokens, identifiers=NoIds(), encoder=encoder)).eval()
    first, wanted = model(batch), model(other)
    changed = replace(batch, edge_features=told[1])
    torch.testing.assert_close(model(changed), wanted)
    torch.testing.assert_close(model(batch), first)
