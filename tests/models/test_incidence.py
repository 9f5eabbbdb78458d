"""A TokenGT with ``encoder.incidence``: in every other layer tokens attend to those that share a node with them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from tests.graphs import graphs, hypergraph, odd_graphs, random_graph, small_model, tokens_config
from tokengt import EncoderConfig, FavorConfig, Graph, GraphBatch, HeadConfig, TokenGT, TokensConfig
from tokengt.testing import assert_permutation_equivariant, assert_permutation_invariant

ENCODER = EncoderConfig(num_layers=2, num_heads=3, mlp_dim=32, incidence="alternate")


def test_maps_of_a_path_by_hand() -> None:
    """Nodes 0 - 1 - 2: [graph], then the nodes, then one token per edge, {0, 1} and {1, 2}."""
    there = torch.tensor([[0, 1], [1, 2]])
    graph = Graph(num_nodes=3, edge_index=torch.cat([there, there.flip(0)], 1))
    model = small_model(tokens=TokensConfig(layout="undirected"), encoder=replace(ENCODER, num_layers=3))
    first, second, third = (layer[0] for layer in model.attention_maps(graph))
    shared = [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 0, 0, 1, 0],
        [1, 0, 1, 0, 1, 1],
        [1, 0, 0, 1, 0, 1],
        [1, 1, 1, 0, 1, 1],
        [1, 0, 1, 1, 1, 1],
    ]
    for masked in (first, third):
        for head in masked:
            assert (head > 0).int().tolist() == shared
    assert (second > 0).all()
    for maps in (first, second, third):
        torch.testing.assert_close(maps.sum(-1), torch.ones(3, 6))


@pytest.mark.parametrize("layout", ["directed", "undirected"])
def test_a_masked_layer_follows_the_graph(layout: Any) -> None:
    """In random graphs, and of directed edges both tokens: the map is zero exactly where two tokens share no node."""
    model = small_model(tokens=tokens_config(layout=layout, null_token=True), encoder=ENCODER)
    batch = GraphBatch.collate([random_graph(7, 10, seed, undirected=True) for seed in range(3)])
    tokens, maps = model.encode(batch), model.attention_maps(batch)[0]
    for ends, found in zip(tokens.endpoints.split(tokens.segments.lengths.tolist()), maps, strict=True):
        pairs = [[-1 in (*a, *b) or bool(set(a) & set(b)) for b in ends.tolist()] for a in ends.tolist()]
        assert torch.equal(found > 0, torch.tensor(pairs).expand(3, -1, -1))


def test_a_batch_equals_its_graphs_one_at_a_time() -> None:
    model = small_model(encoder=ENCODER, dtype=torch.float64)
    members = odd_graphs()
    together = model(GraphBatch.collate(members))
    torch.testing.assert_close(together, torch.cat([model(graph) for graph in members]), rtol=1e-11, atol=1e-11)
    plain = small_model(encoder=replace(ENCODER, incidence="never"), dtype=torch.float64)
    assert not torch.allclose(plain(GraphBatch.collate(members)), together)


@given(graph=graphs())
@settings(max_examples=10)
def test_symmetry(graph: Graph) -> None:
    assert_permutation_invariant(small_model(encoder=ENCODER, dtype=torch.float64), graph)
    model = small_model(encoder=ENCODER, head=HeadConfig(level="edge"), dtype=torch.float64)
    assert_permutation_equivariant(model, graph, level="edge")


def test_steps_can_be_recorded() -> None:
    assert small_model(encoder=ENCODER).sequence_rule() == small_model().sequence_rule()


def test_what_has_no_incidence_is_refused() -> None:
    for tokens in (
        TokensConfig.for_batch(GraphBatch.collate([hypergraph()])),
        TokensConfig(order=3),
        TokensConfig(order=1),
    ):
        with pytest.raises(ValueError, match=r"encoder.incidence masks tokens of nodes and edges alone"):
            small_model(tokens=tokens, encoder=ENCODER)
    with pytest.raises(ValueError, match=r"attention favor cannot be masked"):
        small_model(encoder=replace(ENCODER, attention=FavorConfig()))
    model = small_model(encoder=ENCODER)
    with pytest.raises(ValueError, match=r"attention favor cannot be masked"):
        model.set_attention(FavorConfig())
    assert model.config.encoder.attention.kind == "softmax"


def test_save_and_load(tmp_path: Path) -> None:
    model, graph = small_model(encoder=ENCODER), random_graph(5, 8)
    model.save_pretrained(tmp_path / "model")
    again = TokenGT.from_pretrained(tmp_path / "model")
    assert again.config.encoder.incidence == "alternate"
    assert torch.equal(again(graph), model(graph))
