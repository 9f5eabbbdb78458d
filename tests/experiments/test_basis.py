"""The synthetic experiment: its maps are the production model's, its loss the definition's, its order the paper's."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.experiments.small_basis import SMALL, named
from tokengt import Graph, GraphBatch, TokenGT
from tokengt.data.synthetic import barabasi_albert_graphs, complete_graphs
from tokengt.experiments.basis import SETTINGS, BasisConfig, select_settings
from tokengt.experiments.basis.cells import count_parameters, run_cell
from tokengt.experiments.basis.drawing import FreshIdentifiers, evaluation_identifiers
from tokengt.experiments.basis.errors import matmul_precision
from tokengt.experiments.basis.graphs import basis_graphs
from tokengt.experiments.basis.groups import group_tokens, normalised_targets, token_features
from tokengt.experiments.basis.measuring import attention_maps, head_errors
from tokengt.experiments.basis.settings import Input
from tokengt.experiments.basis.training import GroupShare, basis_loss, batches, train
from tokengt.interop.networkx import to_networkx
from tokengt.models.tokengt.scores import FirstBlockScores, dropped_and_normed
from tokengt.structure.patterns import growth_strings
from tokengt.theory.partitions import pattern_of


def odd_graphs() -> GraphBatch:
    """One node alone, nodes without edges, one direction only, two components, an ordinary one."""
    edges = [
        (1, [[], []]),
        (3, [[], []]),
        (2, [[0], [1]]),
        (4, [[0, 1, 2, 3], [1, 0, 3, 2]]),
        (5, [[0, 1, 1, 2, 2, 3, 3, 4, 0, 4], [1, 0, 2, 1, 3, 2, 4, 3, 4, 0]]),
    ]
    return GraphBatch.collate([Graph(None, torch.tensor(e, dtype=torch.int64), num_nodes=n) for n, e in edges])


def untrained(name: str, kind: Input = "sparse", *, factor: bool = False) -> tuple[TokenGT, FirstBlockScores]:
    torch.manual_seed(1)
    model = TokenGT(SMALL.model(named(name), kind)).eval()
    network = FirstBlockScores(model, kinds=named(name).kinds, factor=factor)
    with torch.no_grad():
        for part in network.trained():
            part += 0.1 * torch.randn_like(part)  # So that no bias is zero and no norm has its first weights.
        if network.kinds is not None and network.num_kinds == 1:
            network.kinds.copy_(network.kinds.mean(0).expand(2, -1))
    return model, network


def production_maps(model: TokenGT, batch: GraphBatch, seed: int) -> list[Tensor]:
    laplacian = model.config.identifiers.kind == "laplacian"
    return model.attention_maps(batch, generator=None if laplacian else torch.Generator().manual_seed(seed))[0]


@pytest.mark.parametrize("name", [setting.name for setting in SETTINGS])
@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_maps_are_the_production_models(name: str, kind: Input) -> None:
    batch = odd_graphs() if kind == "sparse" else complete_graphs(odd_graphs().select([2, 3, 4, 3]))
    model, network = untrained(name, kind)
    ids = evaluation_identifiers(batch, model.config.identifiers, seed=5)
    first_order = model.config.identifiers.first_order
    expected = production_maps(model, batch, seed=5)
    groups = group_tokens(batch, step=8)
    for graph in range(len(batch)):
        maps, targets = attention_maps(network, groups, ids, graph, first_order=first_order)
        # The production maps have a row of [null] as well.
        torch.testing.assert_close(maps, expected[graph][:, 1:], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(targets.sum(2), torch.ones(targets.shape[:2]))


def test_a_folded_factor_changes_nothing() -> None:
    batch = odd_graphs()
    model, network = untrained("orf-type", factor=True)
    ids = evaluation_identifiers(batch, model.config.identifiers, seed=2)
    before = head_errors(network, group_tokens(batch), ids, first_order=False)
    assert network.factor is not None
    network.fold()
    assert network.factor is None
    torch.testing.assert_close(head_errors(network, group_tokens(batch), ids, first_order=False), before)
    maps, _ = attention_maps(network, group_tokens(batch), ids, 4, first_order=False)
    torch.testing.assert_close(maps, production_maps(model, batch, seed=2)[4][:, 1:], rtol=1e-4, atol=1e-6)


def error_by_loops(weights: Tensor, endpoints: list[tuple[int, int]]) -> list[float]:
    """sum_ij (alpha_ij - B_ij)^2 of every head, entry by entry; column 0 of ``weights`` is [null]."""
    totals = []
    for head, pattern in enumerate(growth_strings(4)):
        total = 0.0
        for row, query in enumerate(endpoints):
            hits = [pattern_of((*query, *key)) == pattern for key in endpoints]
            target = [0.0 if any(hits) else 1.0, *(hit / max(sum(hits), 1) for hit in hits)]
            total += sum((float(weights[head, row, j]) - b) ** 2 for j, b in enumerate(target))
        totals.append(total)
    return totals


@pytest.mark.parametrize("name", ["orf-type", "random", "none"])
def test_loss_is_the_definitions_entry_by_entry(name: str) -> None:
    batch = odd_graphs()
    model, network = untrained(name)
    expected = torch.zeros(15)
    maps = production_maps(model, batch, seed=0)
    for graph, weights in zip(batch, maps, strict=True):
        endpoints = [(u, u) for u in range(graph.num_nodes)] + [(u, v) for u, v in graph.edge_index.T.tolist()]
        expected += torch.tensor(error_by_loops(weights[:, 1:], endpoints)) / len(batch)
    ids = evaluation_identifiers(batch, model.config.identifiers, seed=0)
    for step in (8, 64):
        groups = group_tokens(batch, step)
        heads = head_errors(network, groups, ids, first_order=False)
        torch.testing.assert_close(heads.float(), expected, rtol=1e-4, atol=1e-5)
        parts = []
        for group in groups:
            places = torch.arange(len(group.members))
            own = None if ids is None else ids[group.members]
            parts.append(
                GroupShare(
                    group, places, token_features(group, places, own, kinds=network.num_kinds, first_order=False)
                )
            )
        loss = basis_loss(network.eval(), parts)
        torch.testing.assert_close(loss, expected.mean(), rtol=1e-4, atol=1e-5)


def test_targets_of_a_path_by_hand() -> None:
    """Nodes 0 and 1, edges (0, 1) and (1, 0); columns are [null], 0, 1, (0, 1), (1, 0)."""
    targets = normalised_targets(torch.tensor([[0, 0], [1, 1], [0, 1], [1, 0]]))
    patterns = growth_strings(4)
    same, other_way = targets[patterns.index((0, 1, 0, 1))], targets[patterns.index((0, 1, 1, 0))]
    assert same.tolist() == [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert other_way.tolist() == [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0]]
    out_of_node = targets[patterns.index((0, 0, 0, 1))]
    assert out_of_node.tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    three_nodes = targets[patterns.index((0, 1, 2, 2))]
    assert three_nodes[:, 0].tolist() == [1, 1, 1, 1]


def test_dropout_drops_a_share_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    ones, weight = torch.ones(4000, 8), torch.ones(8)
    rate = torch.full((), 0.1)
    # LayerNorm of a row with d dropped entries: the row is (x - mean) / std, so dropped ones are the negative ones.
    normed = dropped_and_normed(ones, weight, torch.zeros(8), rate, torch.float32)
    assert (normed < 0).float().mean().item() == pytest.approx(0.1 - 0.1**8, abs=0.01)
    still = dropped_and_normed(torch.randn(4, 8), weight, torch.zeros(8), torch.zeros(()), torch.float32)
    torch.testing.assert_close(still.mean(1), torch.zeros(4), atol=1e-6, rtol=0)


def test_batches_are_full_and_cover_every_epoch_once() -> None:
    plan = batches([5, 0, 4], 4, torch.Generator().manual_seed(0))
    steps = [next(plan) for _ in range(9)]  # These are four epochs of nine graphs.
    assert all(sum(len(places) for places in step) == 4 for step in steps)
    for group, size in ((0, 5), (1, 0), (2, 4)):
        seen = torch.cat([step[group] for step in steps])
        assert torch.bincount(seen, minlength=size).tolist() == [4] * size
    assert [place.tolist() for place in steps[0]] != [place.tolist() for place in steps[1]]


def test_rate_rises_and_falls_to_zero() -> None:
    config = BasisConfig()
    assert [config.rate(u) for u in (1, 500, 1000, 2000, 3000)] == pytest.approx([1e-7, 5e-5, 1e-4, 5e-5, 0.0])


def test_precision_is_set_and_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    with matmul_precision("bf16") as dtype:
        assert (dtype, torch.get_float32_matmul_precision()) == (torch.bfloat16, "high")
    with matmul_precision("tf32") as dtype:
        assert (dtype, torch.get_float32_matmul_precision()) == (torch.float32, "high")
    with matmul_precision("float32") as dtype:
        assert (dtype, torch.get_float32_matmul_precision()) == (torch.float32, "highest")
    assert torch.get_float32_matmul_precision() == before


def test_only_what_the_loss_sees_is_trained() -> None:
    graphs = basis_graphs(SMALL, "sparse", 0)
    model, network = untrained("orf-type")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    source = FreshIdentifiers.of(graphs.train, model.config.identifiers, torch.Generator().manual_seed(0))
    config = replace(SMALL, steps=6, warmup=1)
    losses = train(network, graphs.train_groups, source, config, batch=12, seed=0)
    assert losses.shape == (6,)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    block = "encoder.blocks.0."
    assert changed == {
        "tokenizer.id_proj.weight",
        "tokenizer.type_embedding.weight",
        "tokenizer.special_tokens",
        f"{block}attention_norm.weight",
        f"{block}attention_norm.bias",
        f"{block}attention.qkv_proj.weight",
        f"{block}attention.qkv_proj.bias",
    }
    values = slice(2 * 15 * 16, None)
    joint = f"{block}attention.qkv_proj.weight"
    assert torch.equal(model.state_dict()[joint][values], before[joint][values])


def test_the_one_vector_of_the_first_row_stays_one() -> None:
    graphs = basis_graphs(SMALL, "sparse", 0)
    model, network = untrained("none")
    source = FreshIdentifiers.of(graphs.train, model.config.identifiers, torch.Generator().manual_seed(0))
    train(network, graphs.train_groups, source, replace(SMALL, steps=6, warmup=1), batch=12, seed=0)
    kinds = model.state_dict()["tokenizer.type_embedding.weight"]
    assert torch.equal(kinds[0], kinds[1])


def test_parameters_are_counted_as_the_table_means_them() -> None:
    """w_in of (2 x 24 + 2 types + [null]) rows, the norm, queries and keys with biases."""
    _, network = untrained("orf-type", factor=True)
    assert count_parameters(network) == 96 * (48 + 2 + 1) + 2 * 96 + 2 * 15 * 16 * (96 + 1)
    _, without = untrained("orf")
    assert count_parameters(without) == count_parameters(network) - 2 * 96
    assert count_parameters(untrained("none")[1]) == count_parameters(untrained("none-type")[1]) - 96


def test_the_papers_sizes() -> None:
    config = BasisConfig()
    orf = config.model(named("orf-type"), "dense")
    assert (orf.dim, orf.encoder.num_heads, orf.encoder.head_dim, orf.identifiers.dim) == (1024, 15, 128, 24)
    assert (orf.encoder.input_dropout, orf.tokens.null_token, orf.tokens.graph_token) == (0.1, True, False)
    assert [config.model(named("laplacian"), kind).identifiers.dim for kind in ("dense", "sparse")] == [20, 20]
    assert (config.graphs("dense", 0).max_nodes, config.graphs("sparse", 2).max_nodes) == (15, 20)
    assert config.graphs("sparse", 2).seed == 14


def test_settings_are_chosen_by_kind_and_type() -> None:
    assert [s.name for s in select_settings(["orf", "laplacian"], True)] == ["orf-type", "laplacian-type"]
    assert [s.name for s in select_settings(["orf-first-order"])] == ["orf-first-order-type"]
    assert select_settings() == SETTINGS
    assert len(select_settings(types=False)) == 4
    with pytest.raises(ValueError, match="identifiers are 'sines'"):
        select_settings(["sines"])
    with pytest.raises(ValueError, match="orf_first_order only with type identifiers"):
        select_settings(["orf_first_order"], types=False)


def test_settings_hold_the_papers_table() -> None:
    assert len(SETTINGS) == 10
    assert named("none").paper("dense", "train").mean == 47.95
    assert named("random-type").paper("sparse", "test").std == 0.042
    assert named("laplacian-type").paper("sparse", "test").mean == 0.019


def test_impossible_configurations_are_named() -> None:
    with pytest.raises(ValueError, match="warmup is 10 of 10 steps"):
        BasisConfig(steps=10, warmup=10)
    with pytest.raises(ValueError, match="sparse_batch is 0"):
        BasisConfig(sparse_batch=0)


@pytest.mark.slow
def test_the_main_order_of_the_table() -> None:
    """Reduced width, batch and schedule: none > types only > ids without types > random ids > orthonormal ids."""
    graphs = basis_graphs(SMALL, "dense", 0)
    cells = {
        name: run_cell(named(name), "dense", 0, graphs, SMALL, torch.device("cpu"))[0]
        for name in ("none", "none-type", "orf", "random-type", "orf-type")
    }
    errors = [cell.test for cell in cells.values()]
    assert errors == sorted(errors, reverse=True)
    assert all(high > 1.1 * low for high, low in pairwise(errors))
    assert errors[-1] < 0.1
    # Dropout is what is left of the training error.
    assert cells["orf-type"].train > 2 * cells["orf-type"].test


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_what_the_documentation_says_of_the_graphs(kind: Input) -> None:
    """docs/paper.md: sizes, how many graphs are not connected, how many test graphs are those of training again."""
    networkx = pytest.importorskip("networkx")
    config = BasisConfig()
    unconnected, seen = [], []
    for seed in range(3):
        batch = barabasi_albert_graphs(config.graphs(kind, seed))
        assert (int(batch.nodes.host_lengths.min()), int(batch.nodes.host_lengths.max())) == (
            (10, 15) if kind == "dense" else (10, 20)
        )
        graphs = [to_networkx(batch[place], undirected=True) for place in range(len(batch))]
        unconnected.append(sum(not networkx.is_connected(graph) for graph in graphs) / len(graphs))
        train = defaultdict(list)
        for graph in graphs[: config.train_graphs]:
            train[_degree_profile(graph)].append(graph)
        test = graphs[config.train_graphs :]
        seen.append(sum(any(networkx.is_isomorphic(g, h) for h in train[_degree_profile(g)]) for g in test))
    assert (min(unconnected), max(unconnected)) == pytest.approx(
        (0.205, 0.225) if kind == "dense" else (0.191, 0.205), abs=1e-3
    )
    assert seen == ([4, 6, 5] if kind == "dense" else [2, 1, 2])


def _degree_profile(graph: Any) -> tuple[Any, ...]:
    """Of every node its degree and those of its neighbours, sorted: equal for isomorphic graphs."""
    degree = dict(graph.degree)
    return tuple(sorted((degree[u], tuple(sorted(degree[v] for v in graph[u]))) for u in graph))
