"""Heads that begin as the proof's maps: what they attend to at first, by the basis of `theory`, and that they learn."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.effects import Effects
from tests.graphs import odd_graphs, tokens_config
from tests.structure.graph_families import complete, cycle, graph_of, path, star, union
from tokengt import (
    EncoderConfig,
    FirstOrderOrfIds,
    Graph,
    IdentifierConfig,
    LaplacianIds,
    NoIds,
    OrfIds,
    ProofHeads,
    StructureConfig,
    TokenGT,
    TokenGTConfig,
    TokensConfig,
    from_smiles,
    presets,
)
from tokengt.config import from_dict, to_dict
from tokengt.models.contract import check_sizes
from tokengt.models.tokengt.proof_heads import PATTERNS
from tokengt.models.tokengt.token_batch import TokenBatch, TokenKind
from tokengt.theory.basis import normalise_rows, weight_basis_on

effects = Effects(ProofHeads)
# A triangle with a tail, beside a lone node: 5 nodes, one of degree 3, one of degree 0.
TAILED = union(graph_of([(0, 1), (1, 2), (0, 2), (2, 3)], 4), Graph(num_nodes=1))
GRAPHS = [path(4), cycle(6), star(5), complete(4), TAILED]


def test_every_setting_here_has_a_test_of_its_effect() -> None:
    assert effects.missing == []


def model(
    heads: ProofHeads, *, layout: Any = "directed", ids: IdentifierConfig | None = None, **encoder: Any
) -> TokenGT:
    """Plain tokens; heads of 16, which have room for eight columns of identifiers and more."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {"num_layers": 2, "num_heads": 3, "head_dim": 16, "mlp_dim": 32, "input_norm": True}
    config = TokenGTConfig(
        dim=40,
        tokens=TokensConfig(layout=layout),
        identifiers=ids or OrfIds(8),
        encoder=EncoderConfig(**(settings | encoder)),
        proof_heads=heads,
    )
    return TokenGT(config).eval()


def wanted(tokens: TokenBatch, layout: str) -> tuple[Tensor, Tensor]:
    """[tokens, tokens] of the incidence and the neighbour map, rows normalised; rows of other queries are zero."""
    real = tokens.kinds != TokenKind.SPECIAL
    ends = tokens.endpoints[real].T
    if layout == "directed":
        return tuple(normalise_rows(weight_basis_on(ends, pattern)) for pattern in PATTERNS.values())  # type: ignore[return-value]
    # A token for both directions of an edge shares a node with a node's token, whichever end it is.
    kinds = tokens.kinds[real]
    shares = (ends[:, None, :, None] == ends[None, :, None, :]).any(0).any(0)
    nodes, edges = kinds == TokenKind.NODE, kinds == TokenKind.EDGE
    maps = (shares & nodes[:, None] & edges, shares & edges[:, None] & nodes)
    return tuple(normalise_rows(each) for each in maps)  # type: ignore[return-value]


def first_maps(found: TokenGT, graph: Graph) -> tuple[Tensor, TokenBatch]:
    """[heads, tokens, tokens] of the first block without the special tokens, which get next to nothing."""
    tokens = found.encode(graph)
    real = tokens.kinds != TokenKind.SPECIAL
    return found.attention_maps(graph)[0][0][:, real][:, :, real].double(), tokens


@pytest.mark.parametrize("layout", ["directed", "undirected"])
@pytest.mark.parametrize("ids", [OrfIds(8), LaplacianIds(8)], ids=["orf", "laplacian"])
@pytest.mark.parametrize("norms", [True, False], ids=["norms", "none"])
def test_heads_begin_as_normalised_basis_tensors(layout: str, ids: IdentifierConfig, norms: bool) -> None:
    """With orthonormal identifiers (at least as many columns as nodes), as Lemma 1 says, up to e^-sharpness."""
    found = model(ProofHeads(1, sharpness=20.0), layout=layout, ids=ids, norm=norms, input_norm=norms)
    for graph in GRAPHS:
        maps, tokens = first_maps(found, graph)
        for head, expected in enumerate(wanted(tokens, layout)):
            rows = expected.sum(1) > 0
            assert rows.any()
            torch.testing.assert_close(maps[head][rows], expected[rows], atol=2e-5, rtol=0)


@effects.of(ProofHeads, "sharpness")
@pytest.mark.parametrize("layout", ["directed", "undirected"])
@pytest.mark.parametrize("sharpness", [1.0, 6.0])
def test_sharpness_is_the_lead_of_the_scores(layout: str, sharpness: float) -> None:
    """The least score of the pattern exceeds the largest other one by it: scores are logarithms of weights."""
    found = model(ProofHeads(1, sharpness=sharpness), layout=layout)
    maps, tokens = first_maps(found, TAILED)
    for head, expected in enumerate(wanted(tokens, layout)):
        scores, inside = maps[head].log(), expected > 0
        rows = inside.any(1)
        least = scores.masked_fill(~inside, math.inf).amin(1)
        largest = scores.masked_fill(inside, -math.inf).amax(1)
        assert float((least - largest)[rows].min()) == pytest.approx(sharpness, abs=1e-3)


@effects.of(ProofHeads, "layers", "incidence", "neighbours")
def test_the_first_heads_of_the_first_blocks_begin_so_and_nothing_else_changes() -> None:
    """Beside queries and keys of the heads that are asked for, w_in alone: features keep clear of identifiers."""
    plain, changed = (model(ProofHeads(layers, 1, 1)) for layers in (0, 1))
    before, after = plain.state_dict(), changed.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        "tokenizer.id_proj.weight",
        "tokenizer.type_embedding.weight",
        "tokenizer.special_tokens",
        "encoder.blocks.0.attention.qkv_proj.weight",
        "encoder.blocks.0.attention.qkv_proj.bias",
    }
    name = "encoder.blocks.0.attention.qkv_proj.weight"
    rows = (before[name] != after[name]).any(1).view(3, 3, 16).any(2)
    assert rows.tolist() == [[True, True, False], [True, True, False], [False] * 3]  # Queries, keys, values; by head.
    both = model(ProofHeads(2, 2, 0)).state_dict()
    for block in range(2):
        name = f"encoder.blocks.{block}.attention.qkv_proj.bias"
        assert (before[name] != both[name]).view(3, 3, 16).any(2).tolist() == [
            [True, True, False],
            [False] * 3,
            [False] * 3,
        ]
    maps, tokens = first_maps(model(ProofHeads(1, 2, 0, 20.0)), TAILED)
    incidence, _ = wanted(tokens, "directed")
    rows = incidence.sum(1) > 0
    torch.testing.assert_close(maps[:2, rows], incidence[rows].expand(2, -1, -1), atol=2e-5, rtol=0)


def test_with_features_and_more_nodes_than_columns_most_of_the_weight_is_on_the_pattern() -> None:
    """Molecules: nine columns of atoms, walks and degrees beside the identifiers, 16 of which are not orthonormal."""
    config = presets.walks(large=True)
    # Without the mask of the first block, which keeps to much of the pattern by itself.
    config = replace(config, encoder=replace(config.encoder, incidence="never"))
    mass = []
    for layers in (0, 1):
        torch.manual_seed(1)
        found = TokenGT(replace(config, proof_heads=ProofHeads(layers))).eval()
        molecule = from_smiles("CC(C)Cc1ccc(cc1)C(C)C(=O)NCc1ccccc1")
        maps, tokens = first_maps(found, molecule)
        patterns = wanted(tokens, "undirected")
        mass.append(
            [float((maps[head] * (each > 0)).sum(1)[each.sum(1) > 0].mean()) for head, each in enumerate(patterns)]
        )
    assert max(mass[0]) < 0.1
    assert min(mass[1]) > 0.6


def test_a_narrow_head_reads_the_columns_that_it_has_room_for() -> None:
    """Two columns and the type of a key in a head of three; a head of one knows the type alone."""
    for width, seen in ((3, 2), (1, 0)):
        found = model(ProofHeads(1), head_dim=width)
        attention: Any = found.encoder.blocks[0].attention  # type: ignore[union-attr]
        proj = found.tokenizer.id_proj
        assert proj is not None
        queries = attention.qkv_proj.weight[:width] @ proj.weight
        read = queries.view(width, 2, 8).abs().sum((0, 1)) > 1e-6
        assert read.tolist() == [True] * seen + [False] * (8 - seen)


@pytest.mark.parametrize("layout", ["directed", "undirected"])
def test_heads_learn_on_from_there(layout: str) -> None:
    """Eight graphs are learned by heart, and every row of a query and a key of such a head moves."""
    graphs = [*GRAPHS, cycle(5), star(3), path(7)]
    labels = torch.tensor([[float(number % 2)] for number in range(len(graphs))])
    found = model(ProofHeads(2), layout=layout, ids=LaplacianIds(8)).train()
    before = found.encoder.blocks[0].attention.qkv_proj.weight.detach().clone()  # type: ignore[union-attr, operator]
    optimiser = torch.optim.AdamW(found.parameters(), 3e-3, weight_decay=0.0)
    losses = []
    for _ in range(60):
        loss = (found(graphs) - labels).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.25 * losses[0]
    moved = (found.encoder.blocks[0].attention.qkv_proj.weight - before).abs().amax(1)  # type: ignore[union-attr, operator]
    assert bool((moved.view(3, 3, 16)[:2, :2] > 1e-4).all())


def test_odd_graphs_go_through() -> None:
    config = TokenGTConfig(tokens=tokens_config(), identifiers=OrfIds(4), proof_heads=ProofHeads(1))
    found = TokenGT(config).eval()
    out = found(odd_graphs())
    assert torch.isfinite(out).all()
    alone = torch.cat([found(graph) for graph in odd_graphs()])
    torch.testing.assert_close(out, alone)


def test_their_parameters_can_be_counted_before_a_model_is_built() -> None:
    """Every training begins with that, on a device that holds no numbers."""
    check_sizes(replace(presets.small(), proof_heads=ProofHeads(layers=4)))


def test_a_config_without_them_is_the_file_that_it_was() -> None:
    assert "proof_heads" not in to_dict(TokenGTConfig())
    config = TokenGTConfig(proof_heads=ProofHeads(1, 2, 0, 3.0))
    assert from_dict(TokenGTConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"identifiers": NoIds()}, "read the identifiers of nodes and types"),
        ({"identifiers": FirstOrderOrfIds(8)}, "read the identifiers of nodes and types"),
        ({"tokens": TokensConfig(type_ids=False)}, "read the identifiers of nodes and types"),
        ({"tokens": TokensConfig(order=3)}, "read the identifiers of nodes and types"),
        (
            {"tokens": TokensConfig(layout="undirected", pool_mlp=True)},
            "through a linear map; set tokens.pool_mlp to false",
        ),
        ({"proof_heads": ProofHeads(5)}, "2 heads of 5 blocks; expected at most 8 of 4"),
        ({"proof_heads": ProofHeads(1, 5, 4)}, "9 heads of 1 blocks; expected at most 8 of 4"),
        ({"dim": 32}, "for each of 32 identifier columns; dim is 32, too few"),
    ],
)
def test_what_cannot_be_is_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenGT(replace(TokenGTConfig(proof_heads=ProofHeads(1)), **changes))


def test_stronger_inputs_keep_clear_of_identifiers() -> None:
    """What walks and degrees add to a token has no part along the directions that heads read identifiers by."""
    structure = StructureConfig(walks=3, degree=True, eigenpairs=2)
    found = TokenGT(TokenGTConfig(tokens=tokens_config(), structure=structure, proof_heads=ProofHeads(1)))
    proj, encoder = found.tokenizer.id_proj, found.tokenizer.structure
    assert proj is not None
    assert encoder is not None
    for rows in encoder.rows_of_weights():
        assert float((rows @ proj.weight).detach().abs().max()) < 1e-7
