"""Every setting of a TokenGT does what its description says: each is changed by itself, and its effect worked out.

Those of its encoder have their tests in tests/test_encoder_settings.py and tests/attention/test_settings.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests import test_encoder_settings
from tests.attention import test_settings as attention_settings
from tests.effects import Effects, assert_dropped, set_all, with_inner
from tests.graphs import odd_graphs, random_graph, small_model, tokens_config
from tests.models import (
    test_baseline_settings,
    test_head_descriptors,
    test_proof_heads,
    test_rival_settings,
    test_structure,
)
from tokengt import (
    EncoderConfig,
    FeatureSpec,
    Graph,
    GraphBatch,
    HeadConfig,
    IdentifierConfig,
    LaplacianIds,
    NoIds,
    OrfIds,
    ProofHeads,
    StructureConfig,
    TokenGT,
    TokenGTConfig,
    TokensConfig,
)
from tokengt.config import kinds_of
from tokengt.models.kinds import KINDS
from tokengt.models.tokengt.guard import Domain
from tokengt.models.tokengt.heads import HeadDescriptors, TokenDescriptors
from tokengt.models.tokengt.identifiers import Identifiers, identify
from tokengt.models.tokengt.token_batch import TokenBatch
from tokengt.models.tokengt.tokens import Tokenizer

KINDS_OF_IDS = kinds_of(IdentifierConfig)
effects = Effects(TokenGTConfig, Domain, TokensConfig, FeatureSpec, HeadConfig, *KINDS_OF_IDS.values())


def test_every_setting_here_has_a_test_of_its_effect() -> None:
    assert effects.missing == []


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"own"}))  # A user's own module has no settings of ours.
def test_every_config_of_every_model_is_walked_over(kind: str) -> None:
    ours = (test_encoder_settings, attention_settings, test_structure, test_proof_heads, test_head_descriptors)
    files = (effects, *(other.effects for other in (*ours, test_baseline_settings, test_rival_settings)))
    assert set(with_inner(KINDS[kind])) <= {config for file in files for config in file.asserted}


@effects.of(TokenGTConfig, "dim")
def test_dim_is_the_width_of_a_token() -> None:
    batch = GraphBatch.collate(odd_graphs())
    for dim in (12, 24):
        model = small_model(dim=dim)
        assert model.encode(batch).values.shape == (batch.num_graphs + batch.num_nodes + batch.num_edges, dim)
        assert model.embed(batch).shape == (batch.num_graphs, dim)
        assert model.embedding_width == dim


@effects.of(TokenGTConfig, "proof_heads")
def test_proof_heads_are_where_weights_begin_and_nothing_else() -> None:
    """What the weights are is worked out in test_proof_heads.py; with those of another model it is that model."""
    plain, begun = (TokenGT(TokenGTConfig(proof_heads=each)).eval() for each in (ProofHeads(), ProofHeads(2)))
    graph = Graph(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
    assert not torch.equal(plain(graph), begun(graph))
    begun.load_state_dict(plain.state_dict())
    assert torch.equal(plain(graph), begun(graph))


@effects.of(TokenGTConfig, "structure")
def test_structure_adds_to_the_tokens_and_to_nothing_else() -> None:
    """What it adds is worked out in test_structure.py."""
    plain, richer = (small_model(structure=each) for each in (None, StructureConfig(degree=True)))
    batch = GraphBatch.collate(odd_graphs())
    assert set(richer.state_dict()) - set(plain.state_dict()) == {"tokenizer.structure.degrees.weight"}
    set_all(richer.tokenizer.structure, 0.0)
    plain.load_state_dict(richer.state_dict(), strict=False)
    assert torch.equal(richer(batch), plain(batch))


@effects.of(TokenGTConfig, "descriptors")
def test_descriptors_are_read_by_the_graph_token_or_by_the_head() -> None:
    """What the head makes of them is worked out in test_head_descriptors.py."""
    tokens = tokens_config(graph_features=FeatureSpec(width=2))
    base, graph = random_graph(5, 6), {}
    for value in (0.0, 2.0):
        parts = (base.node_features, base.edge_index, base.edge_features)
        graph[value] = Graph(*parts, graph_features=torch.tensor([[value, 1.0]]))
    for place, seen in ((TokenDescriptors(), True), (HeadDescriptors(), False)):
        model = TokenGT(TokenGTConfig(dim=32, tokens=tokens, descriptors=place)).eval()
        few, many = (model.encode(graph[value]).graph for value in (0.0, 2.0))
        assert torch.equal(few, many) is not seen
        assert not torch.equal(model(graph[0.0]), model(graph[2.0]))


@effects.of(TokenGTConfig, "sparse_basis")
def test_edges_read_their_nodes_in_the_larger_sparse_basis() -> None:
    """Which tokens read which is worked out in test_tokens.py; without blocks' own work, what they read shows."""
    graph = Graph(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    for basis, reads in (("nodes", False), ("both", True)):
        encoder = EncoderConfig(1, 2, norm=False, final_norm=False, sparse_basis_residual=True)
        model = TokenGT(TokenGTConfig(dim=4, encoder=encoder, sparse_basis=basis, identifiers=LaplacianIds(2)))
        model.eval()
        set_all(model.encoder, 0.0)
        start = model._tokens(GraphBatch.collate([graph]), None, None, 0)[0]
        first, second = start.nodes
        edge = start.edges[0]
        torch.testing.assert_close(model.encode(graph).nodes, torch.stack([first + edge, second]))
        torch.testing.assert_close(model.encode(graph).edges[0], edge + first + second if reads else edge)


@effects.of(TokenGTConfig, "tokens", "identifiers", "encoder", "head")
def test_a_model_is_head_of_encoder_of_tokens_of_identifiers() -> None:
    """Every part is the one that its own config describes; what the fields of these do is asserted below."""
    model = small_model(ids=OrfIds(6), head=HeadConfig(level="node", out_dim=2), encoder=EncoderConfig(3, 2))
    batch = GraphBatch.collate(odd_graphs())
    ids = identify(batch, OrfIds(6))
    assert ids is not None
    tokens = model.tokenizer(batch, ids.to(model.tokenizer.blank))
    encoded = model.encoder(tokens.values, tokens.segments)
    torch.testing.assert_close(model(batch), model.head.project(encoded[tokens.node_rows]))
    assert (model.tokenizer.config, model.encoder.config, model.head.config) == (
        model.config.tokens,
        model.config.encoder,
        model.config.head,
    )


def tokenizer_of(config: TokensConfig, dim: int = 4, ids: IdentifierConfig | None = None) -> Tokenizer:
    tokenizer = Tokenizer(dim, config, ids or NoIds())
    for parameter in tokenizer.parameters():
        nn.init.normal_(parameter)
    return tokenizer


def tokens_of(tokenizer: Tokenizer, *graphs: Graph, ids: Tensor | None = None) -> TokenBatch:
    tokens: TokenBatch = tokenizer(GraphBatch.collate(list(graphs)), None if ids is None else Identifiers(ids))
    return tokens


def everything() -> Graph:
    """A graph that has features of all kinds: 3 nodes, 2 edges, 2 hyperedges."""
    return Graph(
        torch.randn(3, 2),
        torch.tensor([[0, 1], [1, 2]]),
        torch.randn(2, 3),
        hyperedge_nodes=torch.tensor([0, 1, 2, 0]),
        hyperedge_offsets=torch.tensor([0, 3, 4]),
        hyperedge_features=torch.randn(2, 5),
        graph_features=torch.randn(1, 6),
    )


BARE = TokensConfig(hyperedges=True, type_ids=False, graph_token=True)


@effects.of(TokensConfig, "node_features", "edge_features", "hyperedge_features", "graph_features")
@effects.of(FeatureSpec, "width")
@pytest.mark.parametrize(
    ("name", "rows"),
    [("node_features", [1, 2, 3]), ("edge_features", [4, 5]), ("hyperedge_features", [6, 7]), ("graph_features", [0])],
)
def test_float_features_are_mapped_into_the_tokens_of_their_kind_and_no_others(name: str, rows: list[int]) -> None:
    graph = everything()
    values: Tensor = getattr(graph, name)
    specs = {
        each: FeatureSpec(width=getattr(graph, each).shape[1])
        for each in ("node_features", "edge_features", "hyperedge_features", "graph_features")
    }
    tokenizer = tokenizer_of(replace(BARE, **specs))
    encoder = getattr(tokenizer, name.replace("features", "encoder"))
    assert encoder.linear.weight.shape == (4, values.shape[1])
    before = tokens_of(tokenizer, graph).values
    with torch.no_grad():
        encoder.linear.weight.add_(1.0)
    change = tokens_of(tokenizer, graph).values - before
    expected = torch.zeros(8, 4)
    expected[rows] = values.sum(1, keepdim=True)
    torch.testing.assert_close(change, expected, atol=1e-5, rtol=1e-5)
    narrow = replace(tokenizer.config, **{name: FeatureSpec(width=values.shape[1] + 1)})
    with pytest.raises(ValueError, match=f"{name} is .* expects {values.shape[1] + 1} floats"):
        tokens_of(tokenizer_of(narrow), graph)


@effects.of(FeatureSpec, "categories")
def test_categories_are_the_sizes_of_the_columns_vocabularies() -> None:
    """Columns of 2 and 3 categories: (1, 2) is row 1 plus row 2 + 2 of one table of five rows."""
    config = replace(BARE, node_features=FeatureSpec(categories=(2, 3)), graph_token=False, hyperedges=False)
    tokenizer = tokenizer_of(config)
    table = tokenizer.node_encoder.table
    assert table is not None
    assert table.weight.shape == (5, 4)
    tokens = tokens_of(tokenizer, Graph(torch.tensor([[1, 2], [0, 0]])))
    torch.testing.assert_close(
        tokens.values, torch.stack([table.weight[1] + table.weight[4], table.weight[[0, 2]].sum(0)])
    )
    for bad in ([2, 0], [0, 3]):
        with pytest.raises(ValueError, match=f"is category {max(bad)}; this model expects 0 to {max(bad) - 1}"):
            tokens_of(tokenizer, Graph(torch.tensor([bad])))


@effects.of(TokensConfig, "order")
def test_order_is_the_length_of_tuples() -> None:
    """k identifiers side by side, and as many types as equality patterns: 1, 2, 5."""
    ids = torch.randn(3, 2)
    tuples = torch.tensor([[0, 1], [1, 2], [2, 1]])
    for order, types in ((1, 1), (2, 2), (3, 5)):
        config = TokensConfig(order=order, type_ids=False, graph_token=False)
        assert config.num_types == types
        tokenizer = tokenizer_of(config, ids=OrfIds(2))
        assert tokenizer.id_proj is not None
        graph = Graph(num_nodes=3) if order == 1 else Graph(num_nodes=3, edge_index=tuples[:order])
        tokens = tokens_of(tokenizer, graph, ids=ids)
        listed = [[node] * order for node in range(3)] + ([] if order == 1 else tuples[:order].T.tolist())
        concatenated = torch.stack([ids[nodes].flatten() for nodes in listed])
        torch.testing.assert_close(tokens.values, concatenated @ tokenizer.id_proj.weight.T)


@effects.of(TokensConfig, "layout")
def test_layout_is_one_token_per_listed_edge_or_per_pair_of_directions() -> None:
    graph = Graph(num_nodes=3, edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    ids = torch.randn(3, 2)
    plain = TokensConfig(type_ids=False, graph_token=False)
    directed = tokenizer_of(plain, ids=OrfIds(2))
    assert directed.id_proj is not None
    both = torch.cat([ids[[0, 1, 1, 2]], ids[[1, 0, 2, 1]]], 1)
    torch.testing.assert_close(tokens_of(directed, graph, ids=ids).values[3:], both @ directed.id_proj.weight.T)
    merged = tokenizer_of(replace(plain, layout="undirected"), ids=OrfIds(2))
    assert isinstance(merged.id_pool, nn.Linear)
    pooled = (ids[[0, 1]] + ids[[1, 2]]) @ merged.id_pool.weight.T
    tokens = tokens_of(merged, graph, ids=ids)
    torch.testing.assert_close(tokens.values[3:], pooled)
    torch.testing.assert_close(tokens.values[:3], 2 * ids @ merged.id_pool.weight.T)
    assert tokens.edge_rows.tolist() == [3, 3, 4, 4]


@effects.of(TokensConfig, "hyperedges")
def test_hyperedges_are_one_pooled_token_each_where_they_are_allowed() -> None:
    graph, ids = everything(), torch.randn(3, 2)
    graph = Graph(num_nodes=3, hyperedge_nodes=graph.hyperedge_nodes, hyperedge_offsets=graph.hyperedge_offsets)
    config = TokensConfig(type_ids=False, graph_token=False, hyperedges=True)
    tokenizer = tokenizer_of(config, ids=OrfIds(2))
    assert isinstance(tokenizer.id_pool, nn.Linear)
    sums = torch.stack([ids.sum(0), ids[0]])
    torch.testing.assert_close(tokens_of(tokenizer, graph, ids=ids).values[3:], sums @ tokenizer.id_pool.weight.T)
    with pytest.raises(ValueError, match="2 hyperedges; this model was built without"):
        tokens_of(tokenizer_of(replace(config, hyperedges=False), ids=OrfIds(2)), graph, ids=ids)


@effects.of(TokensConfig, "graph_token", "null_token")
@pytest.mark.parametrize("graph_token", [False, True])
@pytest.mark.parametrize("null_token", [False, True])
def test_special_tokens_come_first_in_every_graph(graph_token: bool, null_token: bool) -> None:
    config = tokens_config(graph_token=graph_token, null_token=null_token)
    tokenizer = tokenizer_of(config)
    tokens = tokens_of(tokenizer, random_graph(2, 1), random_graph(3, 0))
    special = graph_token + null_token
    assert tokens.segments.host.tolist() == [0, special + 3, 2 * special + 6]
    assert (tokens.kinds == -1).sum() == 2 * special
    if special:
        assert tokenizer.special_tokens is not None
        for first in (0, special + 3):
            assert torch.equal(tokens.values[first : first + special], tokenizer.special_tokens)
    assert (tokens.graph_rows is None) == (not graph_token)
    if graph_token:
        assert torch.equal(tokens.graph, tokens.values[[0, special + 3]])
    else:
        with pytest.raises(ValueError, match=r"there is no \[graph\] token"):
            _ = tokens.graph


@effects.of(TokensConfig, "type_ids")
def test_type_identifiers_tell_nodes_edges_and_hyperedges_apart() -> None:
    graph = everything()
    config = replace(TokensConfig.for_batch(graph), type_ids=True)
    typed = tokenizer_of(config)
    assert typed.type_embedding is not None
    plain = tokenizer_of(replace(config, type_ids=False))
    plain.load_state_dict({name: value for name, value in typed.state_dict().items() if "type" not in name})
    added = tokens_of(typed, graph).values - tokens_of(plain, graph).values
    rows = typed.type_embedding.weight[[0, 0, 0, 1, 1, 2, 2]]
    torch.testing.assert_close(added, torch.cat([torch.zeros(1, 4), rows]), atol=1e-5, rtol=1e-5)


@effects.of(TokensConfig, "pool_mlp")
def test_pooled_identifiers_go_through_an_mlp_where_that_is_asked() -> None:
    graph, ids = random_graph(4, 3, undirected=True), torch.randn(4, 2)
    config = tokens_config(layout="undirected", type_ids=False, graph_token=False, pool_mlp=True)
    tokenizer = tokenizer_of(config, ids=OrfIds(2))
    assert isinstance(tokenizer.id_pool, nn.Sequential)
    first, _, last = tokenizer.id_pool
    rho = F.gelu(ids @ first.weight.T + first.bias) @ last.weight.T + last.bias
    with_ids = tokens_of(tokenizer, graph, ids=ids)
    without = tokens_of(tokenizer, graph)
    ends = with_ids.endpoints
    expected = rho[ends[:, 0]] + rho[ends[:, 1]]
    torch.testing.assert_close(with_ids.values - without.values, expected, atol=1e-5, rtol=1e-5)


@effects.of(TokensConfig, "feature_dropout")
def test_feature_dropout_is_the_share_of_single_float_features_that_training_drops() -> None:
    """With the identity for w_in, tokens are the features themselves; descriptors of a graph are never dropped."""
    ones = torch.ones(900, 4)
    graph = Graph(
        ones,
        torch.stack([torch.arange(900), torch.arange(900)]),
        2 * ones,
        hyperedge_nodes=torch.arange(900),
        hyperedge_offsets=torch.arange(901),
        hyperedge_features=3 * ones,
        graph_features=4 * ones[:1],
    )
    for rate in (0.2, 0.5):
        config = replace(TokensConfig.for_batch(graph), type_ids=False, feature_dropout=rate)
        tokenizer = tokenizer_of(config)
        for name in ("node", "edge", "hyperedge", "graph"):
            nn.init.eye_(getattr(tokenizer, f"{name}_encoder").linear.weight)
        set_all(nn.ParameterList([tokenizer.special_tokens]), 0.0)
        tokens = tokens_of(tokenizer.train(), graph)
        assert_dropped(tokens.nodes, ones, rate)
        assert_dropped(tokens.edges, 2 * ones, rate)
        assert_dropped(tokens.values[tokens.hyperedge_rows], 3 * ones, rate)
        assert torch.equal(tokens.graph, 4 * ones[:1])
        assert torch.equal(tokens_of(tokenizer.eval(), graph).nodes, ones)


def ids_of(config: IdentifierConfig, batch: GraphBatch, **options: Any) -> Tensor:
    ids = identify(batch, config, **options)
    assert ids is not None
    return ids.nodes


def paths(count: int, length: int = 8) -> GraphBatch:
    """Path graphs, whose normalised Laplacians have no eigenvalue twice, their edges listed in any order."""
    ahead = torch.stack([torch.arange(length - 1), torch.arange(1, length)])
    index = torch.cat([ahead, ahead.flip(0)], 1)
    return GraphBatch.collate(
        [Graph(num_nodes=length, edge_index=index[:, torch.randperm(index.shape[1])]) for _ in range(count)]
    )


def several_draws(config: IdentifierConfig, batch: GraphBatch, count: int) -> Tensor:
    """[count, nodes, dim]: the draws at evaluation from number 1 on."""
    return torch.stack([ids_of(config, batch, draw=draw) for draw in range(1, count + 1)])


@effects.of([cls for cls in KINDS_OF_IDS.values() if cls is not NoIds], "dim")
@pytest.mark.parametrize("kind", sorted(set(KINDS_OF_IDS) - {"none"}))
def test_dim_is_the_width_of_identifiers(kind: str) -> None:
    batch = GraphBatch.collate([random_graph(5, 4)])
    for dim in (3, 12):
        config = KINDS_OF_IDS[kind](dim=dim)
        ids = ids_of(config, batch)
        assert ids.shape == (5, dim)
        if kind != "laplacian":
            assert torch.allclose(ids.norm(dim=1), torch.ones(5, dtype=ids.dtype))
        assert small_model(ids=config)(batch).shape == (1, 2)


@effects.of(LaplacianIds, "dim", "which")
@pytest.mark.parametrize(("which", "chosen"), [("lowest", [0, 1, 2, 3]), ("both_ends", [0, 1, 6, 7])])
def test_which_end_of_the_spectrum_the_eigenvectors_come_from(which: Any, chosen: list[int]) -> None:
    """The Rayleigh quotients of the columns are eigenvalues of I - D^-1/2 A D^-1/2, worked out densely."""
    batch = paths(1)
    adjacency = torch.zeros(8, 8, dtype=torch.float64)
    adjacency[batch.edge_index[0], batch.edge_index[1]] = 1
    scale = adjacency.sum(1).rsqrt()
    laplacian = torch.eye(8, dtype=torch.float64) - scale[:, None] * adjacency * scale
    values = torch.linalg.eigvalsh(laplacian)
    vectors = ids_of(LaplacianIds(4, which=which), batch).double()
    quotients = (vectors * (laplacian @ vectors)).sum(0)
    torch.testing.assert_close(quotients.sort().values, values[chosen], atol=1e-6, rtol=0)


@effects.of(LaplacianIds, "sign_flip")
def test_sign_flip_draws_signs_in_training_and_evaluation_draws_them_always() -> None:
    """One sign for a whole eigenvector of a graph. Draw 0 has none, whatever the setting."""
    batch = paths(60)
    plain = ids_of(LaplacianIds(4), batch)
    for flips in (False, True):
        config = LaplacianIds(4, sign_flip=flips)
        assert torch.equal(ids_of(config, batch), plain)
        trained = ids_of(config, batch, training=True)
        drawn = ids_of(config, batch, draw=1)
        assert torch.equal(trained.abs(), plain.abs())
        assert torch.equal(drawn.abs(), plain.abs())
        signs = {"trained": (trained * plain).view(60, 8, 4).sum(1), "drawn": (drawn * plain).view(60, 8, 4).sum(1)}
        # Eigenvectors have length 1, so that these are 1 or -1.
        for each in signs.values():
            torch.testing.assert_close(each.abs(), torch.ones_like(each))
        if not flips:
            assert torch.equal(trained, plain)
        else:
            assert 80 < int((signs["trained"] < 0).sum()) < 160
    # The paths are one graph, keyed alike: other draws have other signs.
    several = several_draws(LaplacianIds(4, sign_flip=False), paths(1), 24)
    negative = (several * plain[:8]).sum(1) < 0
    assert 24 < int(negative.sum()) < 72
    assert torch.equal(several[:2], several_draws(LaplacianIds(4), paths(1), 2))


@effects.of(LaplacianIds, "dropout")
def test_eigenvectors_are_dropped_in_training_and_never_in_a_draw_at_evaluation() -> None:
    batch = paths(600)
    plain = ids_of(LaplacianIds(4), batch)
    for rate in (0.2, 0.6):
        config = LaplacianIds(4, sign_flip=False, dropout=rate)
        trained = ids_of(config, batch, training=True)
        # The share of an eigenvector that is left: the product with itself.
        left = (trained * plain).view(600, 8, 4).sum(1)
        assert_dropped(left, torch.ones_like(left), rate)
        torch.testing.assert_close(trained, (plain.view(600, 8, 4) * left[:, None]).view(-1, 4))
        for options in ({}, {"draw": 3}, {"generator": torch.Generator().manual_seed(0)}):
            assert torch.equal(ids_of(config, batch, **options).abs(), plain.abs())


@effects.of(LaplacianIds, "unit")
def test_rows_or_columns_of_eigenvectors_have_length_one() -> None:
    """4 of the 8 eigenvectors of a path: rows of squared length 1/2 in the mean, or 1; in training as at evaluation."""
    batch = paths(3)
    for training in (False, True):
        columns, rows = (ids_of(LaplacianIds(4, unit=unit), batch, training=training) for unit in ("columns", "rows"))
        assert torch.allclose(columns.view(3, 8, 4).square().sum(1), torch.ones(3, 4, dtype=columns.dtype))
        assert torch.allclose(rows.square().sum(1).mean(), torch.ones((), dtype=rows.dtype))
        assert torch.allclose(rows.abs(), columns.abs() * 2**0.5)


def encoded(model: TokenGT, graph: Graph) -> TokenBatch:
    return model.encode(graph)


@effects.of(HeadConfig, "level", "out_dim")
def test_a_head_gives_one_row_per_graph_node_edge_or_pair() -> None:
    graph = random_graph(5, 7)
    for out_dim in (1, 3):
        for level, count in (("graph", 1), ("node", 5), ("edge", 7)):
            model = small_model(head=HeadConfig(level=level, out_dim=out_dim))  # type: ignore[arg-type]
            tokens = encoded(model, graph)
            read = {"graph": tokens.graph, "node": tokens.nodes, "edge": tokens.edges}[level]
            assert model(graph).shape == (count, out_dim)
            torch.testing.assert_close(model(graph), model.head.project(read), atol=1e-5, rtol=1e-5)
        pairs = torch.tensor([[0, 1], [4, 2]])
        link = small_model(head=HeadConfig(level="link", out_dim=out_dim))
        assert link(graph, pairs=pairs).shape == (2, out_dim)


@effects.of(HeadConfig, "readout")
def test_a_graph_is_read_from_its_token_or_from_the_sum_or_mean_of_all_others() -> None:
    graph = random_graph(5, 7)
    for readout, read in (
        ("token", lambda t: t.values[:1]),
        ("sum", lambda t: t.values[1:].sum(0, keepdim=True)),
        ("mean", lambda t: t.values[1:].mean(0, keepdim=True)),
    ):
        model = small_model(head=HeadConfig(readout=readout))  # type: ignore[arg-type]
        torch.testing.assert_close(model(graph), model.head.project(read(encoded(model, graph))), atol=1e-4, rtol=1e-4)


@effects.of(HeadConfig, "mlp", "hidden", "activation")
@pytest.mark.parametrize(
    ("config", "shapes", "layers"),
    [
        (HeadConfig(), [(1, 24)], []),
        (HeadConfig(mlp=True), [(24, 24), (1, 24)], [lambda x: F.layer_norm(F.gelu(x), (24,))]),
        (HeadConfig(hidden=(5, 3)), [(5, 24), (3, 5), (1, 3)], [F.gelu, F.gelu]),
        (HeadConfig(hidden=(5,), activation="relu"), [(5, 24), (1, 5)], [F.relu]),
    ],
)
def test_a_head_is_one_linear_map_the_authors_mlp_or_one_of_given_widths(
    config: HeadConfig, shapes: list[tuple[int, int]], layers: list[Callable[[Tensor], Tensor]]
) -> None:
    model, graph = small_model(head=config), random_graph(5, 7)
    for module in model.head.modules():
        if isinstance(module, nn.LayerNorm):
            module.reset_parameters()
    linear = [module for module in model.head.modules() if isinstance(module, nn.Linear)]
    assert [tuple(module.weight.shape) for module in linear] == shapes
    x = encoded(model, graph).graph
    for module, after in zip(linear, [*layers, lambda x: x], strict=True):
        x = after(module(x))
    torch.testing.assert_close(model(graph), x, atol=1e-5, rtol=1e-5)


@effects.of(HeadConfig, "symmetric")
def test_a_symmetric_link_head_reads_sum_and_product_and_another_both_ends() -> None:
    graph, pairs = random_graph(5, 7), torch.tensor([[0, 4], [4, 0]])
    for symmetric in (True, False):
        model = small_model(head=HeadConfig(level="link", symmetric=symmetric))
        first, second = encoded(model, graph).nodes[pairs[0]], encoded(model, graph).nodes[pairs[1]]
        parts = [first + second, first * second] if symmetric else [first, second, first * second]
        scores = model(graph, pairs=pairs)
        torch.testing.assert_close(scores, model.head.project(torch.cat(parts, 1)), atol=1e-4, rtol=1e-4)
        assert torch.allclose(scores[0], scores[1], atol=1e-5) == symmetric


@effects.of(TokenGTConfig, "domain")
@effects.of(Domain, "num_nodes", "input_bound", "sharpness")
def test_a_domain_refuses_what_written_weights_were_not_made_for() -> None:
    def pair(size: float = 1.0, nodes: int = 2) -> Graph:
        index = torch.tensor([[i, j] for i in range(nodes) for j in range(nodes) if i != j]).T
        return Graph(torch.full((nodes, 1), size), index, torch.ones(index.shape[1], 1))

    config = TokenGTConfig(
        dim=8,
        tokens=TokensConfig(node_features=FeatureSpec(width=1), edge_features=FeatureSpec(width=1)),
        identifiers=OrfIds(3),
        encoder=EncoderConfig(1, 2),
    )
    plain, guarded = config.build().eval(), replace(config, domain=Domain(2, 1.0, 7.5)).build().eval()
    for graph in (pair(1.5), pair(nodes=3)):
        assert torch.isfinite(plain(graph)).all()
    assert guarded(pair()).shape == (1, 1)
    with pytest.raises(ValueError, match=r"input of size 1\.5 is above the input_bound of 1 "):
        guarded(pair(1.5))
    with pytest.raises(ValueError, match="tensors of 2 nodes"):
        guarded(pair(nodes=3))
    with pytest.raises(ValueError, match=r"which the sharpness of 7\.5 multiplies"):
        guarded(pair(), node_ids=torch.ones(2, 3))
    wider = replace(config, domain=Domain(3, 2.0, 7.5)).build().eval()
    assert wider(pair(1.5, nodes=3)).shape == (1, 1)
