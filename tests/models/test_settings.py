"""Every setting of every model does what its description says: each is changed by itself, and its effect worked out."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.effects import Effects
from tests.graphs import EDGE_WIDTH, hypergraph, odd_graphs, random_graph, small_model, tokens_config
from tokengt import (
    EncoderConfig,
    FavorConfig,
    FeatureSpec,
    Graph,
    GraphBatch,
    HeadConfig,
    IdentifierConfig,
    LaplacianIds,
    NoIds,
    OrfIds,
    SoftmaxConfig,
    TokenGT,
    TokenGTConfig,
    TokensConfig,
)
from tokengt.attention import FavorAttention, MultiheadAttention, SoftmaxAttention, favor_attention
from tokengt.attention.favor import default_num_features
from tokengt.block import Block, Mlp
from tokengt.config import kinds_of
from tokengt.kernels import support
from tokengt.kernels.heads import Heads
from tokengt.models.contract import Model
from tokengt.models.gin import Gin, GinConfig
from tokengt.models.kinds import KINDS
from tokengt.models.tokengt.identifiers import Identifiers, identify
from tokengt.models.tokengt.tokens import TokenBatch, Tokenizer
from tokengt.models.two_layers import CliqueGcnConfig, MlpConfig
from tokengt.ragged import Segments
from tokengt.transformer import Encoder, RowLinks

effects = Effects()
KINDS_OF_IDS = kinds_of(IdentifierConfig)
BASELINES = [MlpConfig, CliqueGcnConfig]


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"own"}))  # A user's own module has no settings of ours.
def test_every_setting_of_a_model_has_a_test_of_its_effect(kind: str) -> None:
    assert effects.missing(KINDS[kind]) == []


def assert_dropped(dropped: Tensor, plain: Tensor, rate: float) -> None:
    """Entries are zero at this rate, within five standard deviations, and the others divided by the share kept."""
    assert plain.abs().min() > 0
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], (plain / (1 - rate))[kept], rtol=1e-5, atol=1e-6)
    assert abs(1 - kept.double().mean().item() - rate) < 5 * math.sqrt(rate * (1 - rate) / dropped.numel())


def set_all(module: nn.Module, value: float) -> None:
    for parameter in module.parameters():
        nn.init.constant_(parameter, value)


def one_sequence(length: int) -> Segments:
    return Segments.from_lengths(torch.tensor([length]))


# The model as a whole.


@effects.of(TokenGTConfig, "dim")
def test_dim_is_the_width_of_a_token() -> None:
    batch = GraphBatch.collate(odd_graphs())
    for dim in (12, 24):
        model = small_model(dim=dim)
        assert model.encode(batch).values.shape == (batch.num_graphs + batch.num_nodes + batch.num_edges, dim)
        assert model.embed(batch).shape == (batch.num_graphs, dim)
        assert model.embedding_width == dim


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


# Tokens.


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


# Identifiers.


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


for _cls in KINDS_OF_IDS.values():
    if _cls is not NoIds:
        effects.of(_cls, "dim")(test_dim_is_the_width_of_identifiers)


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


# The encoder.


def encoder_of(dim: int = 6, **options: Any) -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder(dim, EncoderConfig(**{"num_layers": 2, "num_heads": 2, **options}))
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    return encoder.double().eval()


def rows(count: int = 5, dim: int = 6) -> Tensor:
    return 2 + torch.randn(count, dim, dtype=torch.float64)


@effects.of(EncoderConfig, "num_layers")
def test_num_layers_is_the_number_of_blocks_one_after_the_other() -> None:
    x, segments = rows(), one_sequence(5)
    for layers in (0, 1, 3):
        encoder = encoder_of(num_layers=layers)
        assert len(encoder.blocks) == layers
        by_hand = x
        for block in encoder.blocks:
            assert isinstance(block, Block)
            by_hand = block(by_hand, block.attention.plan(segments))
        torch.testing.assert_close(encoder(x, segments), encoder.final_norm(by_hand))


@effects.of(EncoderConfig, "num_heads", "head_dim", "value_dim")
@pytest.mark.parametrize(
    ("options", "widths"),
    [
        ({"num_heads": 2}, (2, 3, 3)),
        ({"num_heads": 3}, (3, 2, 2)),
        ({"num_heads": 2, "head_dim": 5}, (2, 5, 5)),
        ({"num_heads": 2, "value_dim": 4}, (2, 3, 4)),
        ({"num_heads": 1, "head_dim": 7, "value_dim": 2}, (1, 7, 2)),
    ],
)
def test_heads_attend_by_queries_and_keys_of_head_dim_and_add_values_of_value_dim(
    options: dict[str, int], widths: tuple[int, int, int]
) -> None:
    count, head, value = widths
    attention = encoder_of(**options).blocks[0].attention
    assert isinstance(attention, MultiheadAttention)
    x, segments = rows(), one_sequence(5)
    q, k, v = attention.qkv_proj(x).split([count * head, count * head, count * value], 1)
    outputs, maps = [], []
    for place in range(count):
        at = slice(place * head, (place + 1) * head)
        maps.append((q[:, at] @ k[:, at].T / math.sqrt(head)).softmax(1))
        outputs.append(maps[-1] @ v[:, place * value : (place + 1) * value])
    torch.testing.assert_close(attention(x, segments), attention.out_proj(torch.cat(outputs, 1)))
    torch.testing.assert_close(attention.attention_weights(x, segments)[0], torch.stack(maps))


@effects.of(EncoderConfig, "mlp_dim", "activation")
@pytest.mark.parametrize(("wanted", "width"), [(None, 24), (5, 5)])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_the_mlp_has_its_hidden_width_and_its_activation(wanted: int | None, width: int, activation: str) -> None:
    mlp = encoder_of(mlp_dim=wanted, activation=activation).blocks[0].mlp
    assert isinstance(mlp, Mlp)
    x = rows()
    hidden = mlp.up(x)
    assert hidden.shape[1] == width
    acted = hidden.clamp(min=0) if activation == "relu" else hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
    torch.testing.assert_close(mlp(x), mlp.down(acted))


@effects.of(EncoderConfig, "attention")
def test_attention_is_of_the_kind_that_is_asked_for() -> None:
    for config, kernel in (
        (SoftmaxConfig(dropout=0.3), SoftmaxAttention),
        (FavorConfig(num_features=9), FavorAttention),
    ):
        for block in encoder_of(attention=config).blocks:
            assert isinstance(block, Block)
            assert type(block.attention.kernel) is kernel
            assert block.attention.kernel.config == config


@effects.of(EncoderConfig, "mlp_dropout")
def test_mlp_dropout_drops_hidden_numbers_after_the_activation() -> None:
    """W_up = 0 and W_down = I: what comes out are the hidden numbers, relu(bias) = 3, as they were dropped."""
    for rate in (0.2, 0.5):
        mlp = Mlp(50, EncoderConfig(mlp_dim=50, activation="relu", mlp_dropout=rate))
        set_all(mlp, 0.0)
        nn.init.constant_(mlp.up.bias, 3.0)
        nn.init.eye_(mlp.down.weight)
        x = torch.zeros(100, 50)
        assert_dropped(mlp(x), x + 3, rate)
        assert torch.equal(mlp.eval()(x), x + 3)


def constant_branches(config: EncoderConfig, attention: list[float], mlp: list[float]) -> Encoder:
    """An encoder whose attention adds one constant in every layer, and whose MLP another."""
    encoder = Encoder(8, replace(config, norm=False, final_norm=False))
    set_all(encoder, 0.0)
    for block, one, other in zip(encoder.blocks, attention, mlp, strict=True):
        assert isinstance(block, Block)
        nn.init.constant_(block.attention.out_proj.bias, one)
        nn.init.constant_(block.mlp.down.bias, other)
    return encoder


@effects.of(EncoderConfig, "residual_dropout")
def test_residual_dropout_drops_what_each_branch_adds() -> None:
    """Attention adds 1 to zeros and the MLP 10, or nothing: which of them was dropped shows in the sum."""
    for rate in (0.2, 0.5):
        encoder = constant_branches(EncoderConfig(1, 2, residual_dropout=rate), [1.0], [10.0])
        x, segments = torch.zeros(600, 8), Segments.uniform(60, 10)
        sums = encoder(x, segments) * (1 - rate)
        by_mlp = (sums > 5).to(sums.dtype)
        assert_dropped(by_mlp * 10 / (1 - rate), torch.full_like(sums, 10.0), rate)
        assert_dropped((sums - 10 * by_mlp).round() / (1 - rate), torch.ones_like(sums), rate)
        assert torch.equal(encoder.eval()(x, segments), x + 11)


@effects.of(EncoderConfig, "input_dropout")
def test_input_dropout_drops_numbers_of_the_tokens_before_the_first_block() -> None:
    x, segments = 1 + torch.rand(500, 8), Segments.uniform(50, 10)
    for rate in (0.2, 0.5):
        encoder = Encoder(8, EncoderConfig(num_layers=0, final_norm=False, input_dropout=rate))
        assert_dropped(encoder(x, segments), x, rate)
        # A block that adds nothing shows that the block itself begins with the dropped tokens.
        assert_dropped(constant_branches(EncoderConfig(1, 2, input_dropout=rate), [0.0], [0.0])(x, segments), x, rate)
        assert torch.equal(encoder.eval()(x, segments), x)


@effects.of(EncoderConfig, "input_dropout")
def test_input_dropout_reaches_the_whole_model() -> None:
    """Everything else is without chance: two passes in training differ by this alone."""
    graph = random_graph(6, 8)
    encoder = EncoderConfig(num_layers=1, num_heads=3)
    ids = LaplacianIds(5, sign_flip=False)
    plain, dropping = (
        small_model(ids=ids, encoder=each).train() for each in (encoder, replace(encoder, input_dropout=0.5))
    )
    assert torch.equal(plain(graph), plain(graph))
    assert not torch.equal(dropping(graph), dropping(graph))
    assert torch.equal(dropping.eval()(graph), plain.eval()(graph))


@effects.of(EncoderConfig, "drop_path")
def test_drop_path_drops_whole_branches_of_whole_sequences_at_rates_that_rise_with_depth() -> None:
    """Layers add 1 and 100 by attention, 10 and 1000 by their MLPs: the digits say which were dropped."""
    encoder = constant_branches(EncoderConfig(2, 2, drop_path=0.4), [0.8, 60.0], [8.0, 600.0])
    segments = Segments.uniform(4000, 2)
    out = encoder(torch.zeros(8000, 8), segments)
    assert torch.equal(out, out[::2, :1].repeat_interleave(2, 0).expand(-1, 8))
    digits = out[::2, 0].round().long()  # 0.8 / (1 - 0.2) = 1, 60 / (1 - 0.4) = 100.
    for place, rate in ((1, 0.2), (10, 0.2), (100, 0.4), (1000, 0.4)):
        digit = (digits // place % 10).double()
        assert set(digit.tolist()) == {0.0, 1.0}
        assert abs(1 - digit.mean().item() - rate) < 5 * math.sqrt(rate * (1 - rate) / 4000)
    still = encoder.eval()(torch.zeros(2, 8), one_sequence(2))
    torch.testing.assert_close(still, torch.full((2, 8), 668.8))


def normed(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()


@effects.of(EncoderConfig, "input_norm", "final_norm", "norm")
@pytest.mark.parametrize("where", ["input_norm", "norm", "final_norm", None])
def test_norms_stand_where_they_are_asked_for_and_nowhere_else(where: str | None) -> None:
    asked = {name: name == where for name in ("input_norm", "norm", "final_norm")}
    encoder = encoder_of(num_layers=1, **asked)
    for module in encoder.modules():
        if isinstance(module, nn.LayerNorm):
            module.reset_parameters()
    x, segments = rows(), one_sequence(5)
    (block,) = encoder.blocks
    assert isinstance(block, Block)
    start = normed(x) if where == "input_norm" else x
    branch = normed if where == "norm" else lambda x: x
    h = start + block.attention(branch(start), segments)
    h = h + block.mlp(branch(h))
    torch.testing.assert_close(encoder(x, segments), normed(h) if where == "final_norm" else h)


@effects.of(EncoderConfig, "sparse_basis_residual")
def test_the_sparse_basis_adds_linked_rows_after_every_block_where_it_is_asked_for() -> None:
    x, segments = rows(), one_sequence(5)
    links = RowLinks(torch.tensor([1, 2]), torch.tensor([0, 0]))
    for asked in (False, True):
        encoder = encoder_of(sparse_basis_residual=asked)
        by_hand = x
        for block in encoder.blocks:
            assert isinstance(block, Block)
            by_hand = block(by_hand, block.attention.plan(segments))
            if asked:
                by_hand = torch.cat([by_hand[:1] + by_hand[1:2] + by_hand[2:3], by_hand[1:]])
        torch.testing.assert_close(encoder(x, segments, links), encoder.final_norm(by_hand))


# Attention.


@effects.of(SoftmaxConfig, "dropout")
def test_attention_dropout_drops_attention_weights() -> None:
    """Queries and keys are 0, so that all weights are 1/40; values and both projections are the identity: the output is
    the table of weights as they were dropped, here on a CPU."""
    for rate in (0.1, 0.5):
        attention = MultiheadAttention(40, 1, 4, 40, SoftmaxConfig(dropout=rate))
        set_all(attention, 0.0)
        nn.init.eye_(attention.out_proj.weight)
        with torch.no_grad():
            attention.qkv_proj.weight[8:].copy_(torch.eye(40))
        x = torch.eye(40).repeat(3, 1)
        uniform = torch.full((120, 40), 1 / 40)
        assert_dropped(attention(x, Segments.uniform(3, 40)), uniform, rate)
        # Sequences of other lengths share a padded table: nothing of the padding may come in.
        unequal = Segments.from_lengths(torch.tensor([40, 39]))
        assert_dropped(attention(x[:79], unequal)[:40], uniform[:40], rate)
        torch.testing.assert_close(attention.eval()(x, Segments.uniform(3, 40)), uniform)


@effects.of(SoftmaxConfig, "backend")
@effects.of(FavorConfig, "backend")
def test_backends_are_taken_or_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    x, segments = rows().float(), one_sequence(5)

    def attended(config: SoftmaxConfig | FavorConfig) -> Tensor:
        torch.manual_seed(0)
        return MultiheadAttention(6, 2, 3, 3, config)(x, segments)

    assert torch.equal(attended(SoftmaxConfig(backend="auto")), attended(SoftmaxConfig(backend="bucketed")))
    with pytest.raises(ValueError, match="attention backend 'varlen' needs a GPU"):
        attended(SoftmaxConfig(backend="varlen"))
    with pytest.raises((ImportError, ValueError), match="attention backend 'triton' needs"):
        attended(SoftmaxConfig(backend="triton"))
    assert torch.equal(attended(FavorConfig(backend="auto")), attended(FavorConfig(backend="bucketed")))
    # As on a machine that interprets kernels of our own for tests: asked for by name, they are planned for.
    monkeypatch.setattr(support, "interpreted", lambda: True)
    for backend, ours in (("auto", False), ("bucketed", False), ("triton", True)):
        kernel = FavorConfig(backend=backend).build(Heads(2, 16, 16), torch.device("cpu"), torch.float32)  # type: ignore[arg-type]
        assert (kernel.plan(one_sequence(5000), torch.float32).cuts is not None) == ours


@effects.of(FavorConfig, "num_features", "eps")
def test_favor_has_its_number_of_features_and_its_eps() -> None:
    x = torch.randn(7, 8, dtype=torch.float64)
    for features, eps in ((None, 1e-4), (5, 1e-4), (5, 1.0)):
        attention = MultiheadAttention(8, 2, 4, 4, FavorConfig(num_features=features, eps=eps)).double().eval()
        kernel = attention.kernel
        assert isinstance(kernel, FavorAttention)
        assert len(kernel.projection) == (features or default_num_features(4)) == (features or int(4 * math.log(4)))
        q, k, v = (part.view(7, 2, 4) for part in attention.qkv_proj(x).split(8, 1))
        expected = favor_attention(q, k, v, one_sequence(7), projection=kernel.projection, eps=eps)
        other = favor_attention(q, k, v, one_sequence(7), projection=kernel.projection, eps=3 * eps)
        out = attention(x, one_sequence(7))
        torch.testing.assert_close(out, attention.out_proj(expected.flatten(1)), rtol=1e-12, atol=1e-12)
        assert (out - attention.out_proj(other.flatten(1))).abs().max() > 1e-7


@effects.of(FavorConfig, "redraw_interval")
def test_favor_draws_its_features_anew_after_so_many_training_forwards() -> None:
    x, segments = torch.randn(5, 8), one_sequence(5)
    for interval, drawn_at in ((3, [3, 6]), (1, [1, 2, 3, 4, 5, 6]), (None, [])):
        attention = MultiheadAttention(8, 2, 4, 4, FavorConfig(redraw_interval=interval)).train()
        kernel = attention.kernel
        assert isinstance(kernel, FavorAttention)
        changed, before = [], kernel.projection.clone()
        for forward in range(7):
            attention(x, segments)
            if not torch.equal(kernel.projection, before):
                changed.append(forward)
            before = kernel.projection.clone()
        assert changed == drawn_at
        attention.eval()
        for _ in range(4):
            attention(x, segments)
        assert torch.equal(kernel.projection, before)


# Heads.


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
def test_a_graph_is_read_from_its_token_or_from_the_sum_of_all_others() -> None:
    graph = random_graph(5, 7)
    for readout, read in (("token", lambda t: t.values[:1]), ("sum", lambda t: t.values[1:].sum(0, keepdim=True))):
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


# GIN.


def gin(**options: Any) -> Gin:
    torch.manual_seed(0)
    return GinConfig(**{"dim": 8, "num_layers": 2, "dropout": 0.0, **options}).build().double()


def path(length: int, width: int = 2) -> Graph:
    ahead = torch.stack([torch.arange(length - 1), torch.arange(1, length)])
    features = torch.randn(length, width, dtype=torch.float64)
    return Graph(features, torch.cat([ahead, ahead.flip(0)], 1))


@effects.of(GinConfig, "dim", "level", "out_dim")
def test_a_gin_has_states_of_its_width_and_rows_of_its_level() -> None:
    graphs = [path(3), path(5)]
    for dim in (8, 12):
        for level, count in (("graph", 2), ("node", 8), ("edge", 12)):
            model = gin(dim=dim, level=level, out_dim=3, node_features=FeatureSpec(width=2)).eval()
            assert model.embed(graphs).shape == (2, dim) == (2, model.embedding_width)
            out = model(graphs)
            assert out.shape == (count, 3)
            nodes = model._states(GraphBatch.collate(graphs))
            read = {
                "graph": torch.stack([nodes[:3].mean(0), nodes[3:].mean(0)]),
                "node": nodes,
                "edge": nodes[GraphBatch.collate(graphs).edge_index].transpose(0, 1).flatten(1),
            }[level]
            torch.testing.assert_close(out, read @ model.head.weight.T + model.head.bias)


@effects.of(GinConfig, "num_layers", "virtual_node")
@pytest.mark.parametrize(("layers", "virtual"), [(1, False), (3, False), (1, True), (2, True)])
def test_a_gin_hears_as_far_as_it_has_layers_and_a_virtual_node_from_everywhere(layers: int, virtual: bool) -> None:
    """What the first node of a path knows of the others, by the gradient of its output; other graphs never matter."""
    model = gin(num_layers=layers, virtual_node=virtual, level="node", node_features=FeatureSpec(width=2)).eval()
    batch = GraphBatch.collate([path(7), path(3)])
    assert batch.node_features is not None
    features = batch.node_features.clone().requires_grad_()
    model(replace(batch, node_features=features))[0].sum().backward()
    assert features.grad is not None
    heard = (features.grad.abs().sum(1) > 0).tolist()
    # The virtual node speaks before every layer but the first.
    reach = 7 if virtual and layers > 1 else layers + 1
    assert heard == [place < reach for place in range(7)] + [False] * 3


@effects.of(GinConfig, "dropout")
def test_a_gin_drops_numbers_after_every_layer_and_of_what_its_virtual_node_says() -> None:
    for rate in (0.0, 0.4):
        model = gin(dim=64, num_layers=2, dropout=rate, virtual_node=True, node_features=FeatureSpec(width=2)).train()
        before: dict[nn.Module, Tensor] = {}
        after: dict[nn.Module, Tensor] = {}
        for module, inner in (
            *((layer, layer.norm) for layer in model.layers),
            *((node, node.mlp) for node in model.exchanges),
        ):
            assert isinstance(inner, nn.Module)
            inner.register_forward_hook(lambda _, __, out, to=module: before.update({to: out}))
            module.register_forward_hook(lambda module, _, out: after.update({module: out}))
        model([path(9) for _ in range(30)])
        assert len(after) == 3
        for module, out in after.items():
            plain = before[module] if module is model.layers[-1] else before[module].clamp(min=0)
            alive = plain != 0
            assert (out[~alive] == 0).all()
            if rate:
                assert_dropped(out[alive], plain[alive], rate)
            else:
                assert torch.equal(out, plain)


@effects.of(GinConfig, "node_features", "edge_features", "graph_features")
def test_a_gin_reads_the_features_that_it_is_told_of() -> None:
    """Layer by layer from the formula; descriptors are added to what the head reads."""
    graph = path(4)
    graph = replace(
        graph,
        edge_features=torch.randint(0, 3, (6, 1)),
        graph_features=torch.randn(1, 5, dtype=torch.float64),
    )
    specs = {
        "node_features": FeatureSpec(width=2),
        "edge_features": FeatureSpec(categories=(3,)),
        "graph_features": FeatureSpec(width=5),
    }
    model = gin(num_layers=1, **specs).eval()
    (layer,) = model.layers
    assert graph.node_features is not None
    assert graph.graph_features is not None
    assert model.node_encoder.linear is not None
    assert model.graph_encoder.linear is not None
    h = graph.node_features @ model.node_encoder.linear.weight.T
    e = layer.edge_encoder.table.weight[graph.edge_features.flatten()]
    source, target = graph.edge_index
    heard = torch.zeros_like(h).index_add(0, target, (h[source] + e).relu())
    states = layer.norm(layer.conv.nn((1 + layer.conv.eps) * h + heard))
    read = states.mean(0, keepdim=True) + graph.graph_features @ model.graph_encoder.linear.weight.T
    torch.testing.assert_close(model(graph), model.head(read))
    for name in specs:
        with pytest.raises(ValueError, match=f"{name} is"):
            gin(num_layers=1, **{**specs, name: FeatureSpec(width=7)})(graph)
    # Without features all nodes begin alike.
    bare = gin(num_layers=1, level="node").eval()
    assert bare.blank is not None
    out = bare(Graph(num_nodes=3, edge_index=torch.tensor([[0, 1], [1, 0]])))
    torch.testing.assert_close(out[0], out[1])


# The baselines of two layers.


def nodes_alone(count: int = 300) -> Graph:
    """Without edges a GCN is an MLP, whose hidden numbers are seen one by one."""
    return Graph(1 + torch.rand(count, 3))


def baseline(kind: type[MlpConfig] | type[CliqueGcnConfig], **options: Any) -> Model:
    torch.manual_seed(0)
    settings = {"dim": 16, "dropout": 0.0, "node_features": FeatureSpec(width=3), **options}
    model = kind(**settings).build()
    assert isinstance(model.head, nn.Linear)
    return model


for _kind in BASELINES:
    effects.of(_kind, "dim", "level", "out_dim", "node_features", "dropout", "feature_dropout")


@pytest.mark.parametrize("kind", BASELINES)
def test_a_baseline_has_its_width_level_outputs_and_features(kind: type[MlpConfig] | type[CliqueGcnConfig]) -> None:
    graphs = [nodes_alone(3), nodes_alone(5)]
    batch = GraphBatch.collate(graphs)
    assert batch.node_features is not None
    for dim, width in ((16, 3), (7, 3)):
        for level, out_dim in (("node", 2), ("graph", 1)):
            model: Any = baseline(kind, dim=dim, level=level, out_dim=out_dim).eval()
            hidden = (batch.node_features @ model.node_encoder.linear.weight.T + model.bias).relu()
            assert model.node_encoder.linear.weight.shape == (dim, width)
            means = torch.stack([hidden[:3].mean(0), hidden[3:].mean(0)])
            read = hidden if level == "node" else means
            torch.testing.assert_close(model(batch), read @ model.head.weight.T + model.head.bias)
            assert model(batch).shape == (len(read), out_dim)
            torch.testing.assert_close(model.embed(batch), means)
    with pytest.raises(ValueError, match="node_features is .* expects 4 floats"):
        baseline(kind, node_features=FeatureSpec(width=4))(batch)


@pytest.mark.parametrize("kind", BASELINES)
def test_a_baseline_drops_hidden_numbers_and_features_at_the_rates_it_is_told(
    kind: type[MlpConfig] | type[CliqueGcnConfig],
) -> None:
    """With the identity for head and w_in, outputs are the hidden numbers, and these the features."""
    graph = nodes_alone()
    assert graph.node_features is not None
    for name in ("dropout", "feature_dropout"):
        for rate in (0.1, 0.5):
            model: Any = baseline(kind, dim=3, level="node", out_dim=3, **{name: rate})
            set_all(model, 0.0)
            nn.init.eye_(model.head.weight)
            nn.init.eye_(model.node_encoder.linear.weight)
            assert_dropped(model.train()(graph), graph.node_features, rate)
            torch.testing.assert_close(model.eval()(graph), graph.node_features)
