"""Attributions: a linear model by hand, graphs with parts taken out, paths with known integrals, odd graphs."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.explain.test_distance import uniform_model
from tests.explain.test_profile import plain
from tests.graphs import CATEGORIES, graphs, hypergraph, odd_graphs, random_graph, small_model, tokens_config
from tokengt import (
    EncoderConfig,
    FavorConfig,
    FeatureSpec,
    Graph,
    HeadConfig,
    NoIds,
    OrfIds,
    StructureConfig,
    TokenGT,
    TokenGTConfig,
    TokensConfig,
)
from tokengt.batch import GraphBatch
from tokengt.explain import attribution, explain_graph, mean_attribution, occlusions, subject_of
from tokengt.explain.attributions import check_method, of_gradients, of_occlusion
from tokengt.explain.gradients import integrated_gradients
from tokengt.explain.rollout import last_attention, rolled_out
from tokengt.explain.subject import Slopes, Subject
from tokengt.explain.token_subject import BASELINES, most_ordinary
from tokengt.explain.tokens import tokens_of
from tokengt.models.message_passing.model import GinConfig
from tokengt.presets import PRESETS
from tokengt.ragged import segment_sum

DOUBLE = torch.float64


def linear_model(**tokens: Any) -> TokenGT:
    """No blocks and no norms: the head's linear map of the sum over tokens."""
    encoder = EncoderConfig(num_layers=0, num_heads=1, final_norm=False)
    return small_model(
        tokens=tokens_config(**tokens), encoder=encoder, head=HeadConfig(out_dim=2, readout="sum"), dtype=DOUBLE
    )


def test_a_linear_model_by_hand() -> None:
    """f = w . sum_v z_v + b: occlusion takes w . z_v away, and integrated gradients are w . (z_v - z_0,v) exactly."""
    model, graph = linear_model(), plain(random_graph(5, 7))
    tokens, terms, _ = model.input_terms(graph)
    weight = model.head.project.weight[1].detach()
    wanted = (tokens.values @ weight).detach().numpy()
    wanted[0] = 0
    found = attribution(model, graph, "occlusion", output=1)
    np.testing.assert_allclose(found.scores, wanted, rtol=1e-9, atol=1e-12)
    # The sum of a linear model's occlusions is right too: what is left without all tokens is the bias.
    assert found.gap == pytest.approx(0, abs=1e-9)
    assert found.reference == pytest.approx(model.head.project.bias[1].item())
    features, ids = terms["features"].detach(), terms["identifiers"].detach()
    for baseline in BASELINES:
        moved = features.clone()
        for rows in (slice(1, 6), slice(6, 13)):
            mean = features[rows].mean(0)
            nearest = features[rows][(features[rows] - mean).square().sum(1).argmin()]
            moved[rows] -= {"zero": torch.zeros_like(mean), "mean": mean, "ordinary": nearest}[baseline]
        found = attribution(model, graph, output=1, baseline=baseline)
        np.testing.assert_allclose(found.by_part["features"], (moved @ weight).numpy(), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(found.by_part["identifiers"], (ids @ weight).numpy(), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(found.scores, ((moved + ids) @ weight).numpy(), rtol=1e-6, atol=1e-9)
        assert found.complete
        # Two stages of five points each.
        assert found.evaluations == 10


def test_the_most_ordinary_token_is_told_by_its_content_alone() -> None:
    """Of 0, 0, 3, 10 the mean is 3.25, and 3 is nearest; of two that are equally near, the smaller one is taken."""
    assert most_ordinary(torch.tensor([[0.0], [0.0], [3.0], [10.0]])) == 2
    for order in ([[1.0], [-1.0]], [[-1.0], [1.0]]):
        rows = torch.tensor(order)
        assert rows[most_ordinary(rows)].item() == -1
    subject = subject_of(small_model(), plain(random_graph(5, 0)))
    assert subject.baseline.startswith("every node is like ")
    assert " and every edge" not in subject.baseline
    both = subject_of(small_model(), plain(random_graph(5, 4)))
    assert both.baseline.count(" like ") == 2


def test_between_the_stages_the_wiring_is_known_and_all_tokens_are_ordinary() -> None:
    """The scores of identifiers sum to what they change there; those of features to the rest of the way."""
    model, graph = small_model(dtype=DOUBLE), plain(random_graph(6, 9))
    found = attribution(model, graph)
    assert graph.node_features is not None
    usual = int(found.baseline.split()[4])
    assert found.baseline.startswith(f"every node is like {usual} and every edge like ")
    alike = Graph(graph.node_features[[usual] * 6], graph.edge_index, graph.edge_features)
    middle = model(alike)[0, 0].item()
    assert found.by_part["identifiers"].sum() == pytest.approx(middle - found.reference, abs=found.tolerance)
    assert found.by_part["features"].sum() == pytest.approx(found.prediction - middle, abs=found.tolerance)


def without_edge(graph: Graph, edge: int) -> Graph:
    kept = torch.arange(graph.num_edges) != edge
    assert graph.edge_features is not None
    return Graph(graph.node_features, graph.edge_index[:, kept], graph.edge_features[kept])


@pytest.mark.parametrize(
    "encoder",
    [
        EncoderConfig(num_layers=2, num_heads=3),
        EncoderConfig(num_layers=2, num_heads=3, incidence="alternate"),
        EncoderConfig(num_layers=2, num_heads=3, sparse_basis_residual=True, input_norm=True),
    ],
    ids=["plain", "masked", "sparse basis"],
)
def test_without_a_token_is_without_its_edge(encoder: EncoderConfig) -> None:
    """Without identifiers, a graph without an edge has the very tokens that are left."""
    model, graph = small_model(ids=NoIds(), encoder=encoder, dtype=DOUBLE), random_graph(6, 9)
    found = of_occlusion(subject_of(model, graph), output=1)
    whole = model(graph)[0, 1]
    assert found.prediction == pytest.approx(whole.item())
    wanted = [(whole - model(without_edge(graph, edge))[0, 1]).item() for edge in range(9)]
    np.testing.assert_allclose(found.edge_scores, wanted, rtol=1e-9, atol=1e-12)


def test_groups_of_tokens_are_left_out_at_once() -> None:
    model, graph = small_model(ids=NoIds(), dtype=DOUBLE), random_graph(6, 9)
    subject = subject_of(model, graph)
    edges = subject.tokens.of_edge
    found = occlusions(subject, [[], [int(edges[0]), int(edges[8])]])
    wanted = model(graph) - model(without_edge(without_edge(graph, 8), 0))
    np.testing.assert_allclose(found.changes[1], wanted[0].detach().numpy(), rtol=1e-9)
    np.testing.assert_allclose(found.changes[0], 0, atol=1e-12)


@settings(max_examples=12)
@given(graphs(7, 12), st.sampled_from(["directed", "undirected"]), st.sampled_from(["graph", "node", "sum", "mean"]))
def test_integrated_gradients_are_complete_on_odd_graphs(graph: Graph, layout: str, level: str) -> None:
    """The scores sum to the prediction minus that of the baseline, and the prediction is the model's."""
    reads_all = level in ("sum", "mean")
    head = HeadConfig(out_dim=2, readout=level) if reads_all else HeadConfig(level=level, out_dim=2)  # type: ignore[arg-type]
    encoder = EncoderConfig(num_layers=2, num_heads=3, mlp_dim=32, input_norm=True)
    model = small_model(tokens=tokens_config(layout=layout, null_token=True), encoder=encoder, head=head)
    row = graph.num_nodes - 1 if level == "node" else 0
    found = attribution(model, plain(graph), row=row)
    assert found.complete
    assert abs(found.gap) <= 0.01 * max(abs(found.change), np.abs(found.scores).sum()) + 1e-4
    assert found.prediction == pytest.approx(model(plain(graph))[row, 0].item(), abs=1e-5)
    np.testing.assert_allclose(sum(found.by_part.values()), found.scores, atol=1e-9)
    special = found.tokens.specials
    np.testing.assert_allclose(found.scores[special], 0, atol=1e-12)


def test_the_obvious_attribution_is_blank_under_an_input_norm() -> None:
    """Gradient times value of a token is zero, as its length does not matter; integrated gradients are not."""
    encoder = EncoderConfig(num_layers=2, num_heads=3, input_norm=True)
    model, graph = small_model(encoder=encoder, tokens=tokens_config(layout="undirected")), plain(random_graph(6, 9))
    subject = subject_of(model, graph)
    rows = subject.values.clone().requires_grad_()  # type: ignore[attr-defined]
    tokens = subject.laid_out.with_values(rows)  # type: ignore[attr-defined]
    (gradient,) = torch.autograd.grad(model.from_tokens(graph, tokens)[0, 0], rows)
    # Each row without its mean, which the norm takes away as well.
    blank = (gradient * (rows - rows.mean(1, keepdim=True))).sum(1).abs().max()
    assert blank.item() < 1e-3 < 1e-2 < np.abs(of_gradients(subject).scores).max()


class Curve(Subject):
    """f(t) for two tokens, of which the first one causes all of it."""

    def __init__(self, values: Any, slopes: Any) -> None:
        self.tokens = tokens_of(small_model(), GraphBatch.collate([random_graph(1, 0)]))
        self.baseline, self.level, self.curve, self.slope = "", "graph", values, slopes

    def without(self, removed: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    def slopes(self, times: torch.Tensor, output: int, stage: int = 0) -> Slopes:
        return Slopes(self.curve(times), {"features": torch.stack([self.slope(times), torch.zeros_like(times)], 1)})

    def size(self) -> int:
        return 1


def test_a_polynomial_is_integrated_without_a_cut() -> None:
    """Rules of five points are exact up to degree seven."""
    found = integrated_gradients(Curve(lambda t: t**8, lambda t: 8 * t**7), 0)
    assert found.points == 5
    assert found.by_part["features"][0] == pytest.approx(1, abs=1e-12)


def test_a_steep_path_is_cut_where_it_is_steep() -> None:
    """A step of width 1/1000 at t = 0.3: five points miss it, and pieces around it are cut until they do not."""

    def step(t: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid((t - 0.3) * 1000)

    found = integrated_gradients(Curve(step, lambda t: 1000 * step(t) * (1 - step(t))), 0)
    assert 40 < found.points < 150
    assert found.by_part["features"][0] == pytest.approx(1, abs=0.01)
    assert found.missing <= found.tolerance
    cut_off = integrated_gradients(Curve(step, lambda t: 1000 * step(t) * (1 - step(t))), 0, most=10)
    assert cut_off.points < 40
    assert cut_off.missing > cut_off.tolerance


def test_rows_of_nodes_and_edges() -> None:
    """Occlusion of a node: without its own token there is nothing to read; other rows are those of the model."""
    graph = random_graph(5, 7)
    for level, rows in (("node", 5), ("edge", 7)):
        model = small_model(ids=NoIds(), head=HeadConfig(level=level, out_dim=2), dtype=DOUBLE)  # type: ignore[arg-type]
        found = attribution(model, graph, "occlusion", row=rows - 1)
        own = found.tokens.nodes[4] if level == "node" else found.tokens.of_edge[6]
        assert np.flatnonzero(np.isnan(found.scores)).tolist() == [own]
        assert found.prediction == pytest.approx(model(graph)[rows - 1, 0].item())
        other = model(without_edge(graph, 0))[rows - 2 if level == "edge" else rows - 1, 0]
        assert found.edge_scores[0] == pytest.approx(found.prediction - other.item())
        with pytest.raises(ValueError, match=f"one row per {level}, and this graph has {rows}"):
            attribution(model, graph, row=rows)


def test_a_fact_about_the_whole_graph_is_scored_at_its_token() -> None:
    tokens = TokensConfig(node_features=FeatureSpec(categories=CATEGORIES), graph_features=FeatureSpec(width=2))
    model = small_model(tokens=tokens)
    base = random_graph(4, 0)
    graph = Graph(base.node_features, graph_features=torch.tensor([[3.0, -1.0]]))
    found = attribution(model, graph)
    assert found.tokens.kinds[0] == "graph"
    assert abs(found.scores[0]) > 1e-3
    assert found.complete


def test_structure_is_a_part_of_its_own() -> None:
    structure = StructureConfig(walks=4, degree=True, eigenpairs=3)
    model = small_model(tokens=tokens_config(layout="undirected"), structure=structure)
    found = attribution(model, plain(random_graph(6, 10, undirected=True)))
    assert set(found.by_part) == {"features", "identifiers", "structure"}
    assert found.complete


def test_draws_of_identifiers_are_explained_each_by_itself() -> None:
    model, graph = small_model(ids=OrfIds(dim=8)), plain(random_graph(6, 9))
    found = [of_gradients(subject_of(model, graph, draw=draw)) for draw in range(2)]
    for draw, each in enumerate(found):
        assert each.prediction == pytest.approx(model(graph, draw=draw)[0, 0].item(), abs=1e-5)
    mean = mean_attribution(found)
    np.testing.assert_allclose(mean.scores, (found[0].scores + found[1].scores) / 2)
    assert mean.spread is not None
    np.testing.assert_allclose(mean.spread, np.abs(found[0].scores - found[1].scores) / 2**0.5)
    assert mean.gap == pytest.approx((found[0].gap + found[1].gap) / 2)
    assert mean.complete


def test_attention_by_hand() -> None:
    """Two layers of one head on three tokens. Half of each row stays: flow_1 = (1/2 + 1/2, 0, 0) first, then 0.5 to
    where the first layer sends row 0."""
    first = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=np.float32)
    second = np.array([[0, 0, 1], [0, 1, 0], [0, 0, 1]], dtype=np.float32)
    maps = np.stack([first, second])[:, None]
    # From row 0 of the second layer: half stays at 0, half goes to 2; then 0 sends half to 1, and 2 sends half to 0.
    np.testing.assert_allclose(rolled_out(maps, np.array([0])), [0.25 + 0.25, 0.25, 0.25])
    np.testing.assert_allclose(last_attention(maps, np.array([0, 1])), [0, 0.5, 0.5])
    model, graph = uniform_model(layout="undirected"), random_graph(4, 0)
    graph = Graph(num_nodes=4)
    found = attribution(model, graph, "rollout")
    np.testing.assert_allclose(found.scores, [0.25 + 0.75 / 5, *[0.75 / 5] * 4], rtol=1e-6)
    assert np.isnan(found.prediction)
    assert found.complete is None


def test_other_models_lose_nodes_and_edges() -> None:
    """Message passing on the graph that is left, renumbered by hand."""
    torch.manual_seed(0)
    config = GinConfig(
        dim=8, num_layers=2, node_features=FeatureSpec(categories=CATEGORIES), edge_features=FeatureSpec(width=3)
    )
    model = config.build().double().eval()
    base = random_graph(5, 0)
    index = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])
    graph = Graph(base.node_features, index, torch.ones(6, 3))
    found = attribution(model, graph, "occlusion")
    assert found.tokens.names == ("0", "1", "2", "3", "4", "0-1", "1-2", "3-4")
    assert base.node_features is not None
    left = Graph(base.node_features[[0, 2, 3, 4]], torch.tensor([[2, 3], [3, 2]]), torch.ones(2, 3))
    whole = model(graph)[0, 0].item()
    assert found.node_scores[1] == pytest.approx(whole - model(left)[0, 0].item())
    apart = Graph(base.node_features, index[:, :4], torch.ones(4, 3))
    np.testing.assert_allclose(found.edge_scores[4:], whole - model(apart)[0, 0].item(), rtol=1e-9)
    assert np.isnan(found.reference)
    gradients = attribution(model, graph)
    assert gradients.complete
    assert gradients.prediction == pytest.approx(whole)
    # All edges have the same features, which are therefore their mean.
    np.testing.assert_allclose(gradients.edge_scores, 0, atol=1e-12)


@pytest.mark.parametrize("name", ["gcn", "gat-vn", "gps", "graphormer", "egt", "grpe"])
def test_every_kind_of_model_has_gradients_and_occlusion(name: str) -> None:
    from tokengt import from_smiles

    torch.manual_seed(0)
    model, graph = PRESETS[name]().build().eval(), from_smiles("CC(=O)[O-].[Na+]")
    found = explain_graph(model, graph)
    assert set(found.attributions) == {"integrated_gradients", "occlusion"}
    assert found.attributions["integrated_gradients"].complete
    assert np.isfinite(found.attributions["occlusion"].scores).all()
    assert float(found.prediction[0]) == pytest.approx(model(graph)[0, 0].item(), abs=1e-5)
    assert {"maps", "distance", "profile", "rollout"} <= set(found.missing)
    assert "has no attention maps" in found.missing["maps"]


class Mine(nn.Module):
    """A module of a user's own: the mean of the nodes' first column, per graph."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, batch: GraphBatch) -> torch.Tensor:
        assert batch.node_features is not None
        total = segment_sum(batch.node_features[:, :1].float(), batch.nodes)
        return self.scale * total / batch.nodes.lengths[:, None]


def test_a_module_of_ones_own() -> None:
    """The mean of 0, 1, 3 is 4/3; without the last it is 1/2."""
    graph = Graph(torch.tensor([[0], [1], [3]]), torch.tensor([[0], [1]]))
    found = explain_graph(Mine(), graph)
    np.testing.assert_allclose(found.attributions["occlusion"].node_scores, [4 / 3 - 2, 4 / 3 - 1.5, 4 / 3 - 0.5], 1e-5)
    assert "a module of your own" in found.missing["integrated_gradients"]


def test_a_large_graph_is_explained_without_occlusion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once without each of 7,500 tokens takes minutes, during which nothing is said; the rest takes seconds."""
    monkeypatch.setattr("tokengt.explain.explanation._MOST_OCCLUDED", 3)
    graph = Graph(torch.tensor([[0], [1], [3]]), torch.tensor([[0], [1]]))
    found = explain_graph(Mine(), graph)
    assert "occlusion" not in found.attributions
    assert (
        "the graph has 4 tokens, and the model would be asked once without each of them" in found.missing["occlusion"]
    )
    assert len(attribution(Mine(), graph, "occlusion").scores) == 4


def test_favor_has_attributions_and_no_maps() -> None:
    model = small_model(encoder=EncoderConfig(num_layers=1, num_heads=3, attention=FavorConfig()))
    found = explain_graph(model, plain(random_graph(5, 6)))
    assert found.attributions["integrated_gradients"].complete
    assert "occlusion" in found.attributions
    assert found.maps is None
    assert "random features" in found.missing["maps"]
    assert "random features" in found.missing["rollout"]


@pytest.mark.parametrize("layout", ["directed", "undirected"])
def test_odd_graphs_are_explained_whole(layout: str) -> None:
    """One node, no edges, self-loops, repeated edges, two components: shapes agree and nothing is NaN."""
    model = small_model(tokens=tokens_config(layout=layout, null_token=True))
    for graph in map(plain, odd_graphs()):
        found = explain_graph(model, graph)
        count = len(found.tokens)
        assert found.maps is not None
        assert found.profile is not None
        assert found.maps.weights.shape == (2, 3, count, count)
        np.testing.assert_allclose(found.maps.weights.sum(-1), 1, rtol=1e-5)
        np.testing.assert_allclose(found.profile.shares.sum(-1), 1, rtol=1e-9)
        assert found.distance is not None
        assert found.distance.shape == (2, 3)
        for each in found.attributions.values():
            assert each.scores.shape == (count,)
            assert np.isfinite(each.scores).all()
            assert each.per_node().shape == (graph.num_nodes,)
            assert each.edge_scores.shape == (graph.num_edges,)
        assert found.attributions["rollout"].total == pytest.approx(1, abs=1e-5)
        assert not found.missing


def test_edges_share_their_score_among_their_nodes() -> None:
    """0 - 1 with 4, a loop at 1 with 2: half of 4 for each end, all of 2 for node 1; what is NaN adds nothing."""
    model = small_model(tokens=tokens_config())
    graph = plain(Graph(random_graph(2, 0).node_features, torch.tensor([[0, 1], [1, 1]]), torch.ones(2, 3)))
    tokens = tokens_of(model, GraphBatch.collate([graph]))
    assert tokens.kinds == ("graph", "node", "node", "edge", "edge")
    assert tokens.names == ("[graph]", "0", "1", "0→1", "1→1")
    np.testing.assert_allclose(tokens.per_node(np.array([9.0, 1, 10, 4, 2])), [3, 14])
    np.testing.assert_allclose(tokens.per_node(np.array([9.0, 1, 10, np.nan, 2])), [1, 12])


def test_what_cannot_be_explained_says_why() -> None:
    model, graph = small_model(), plain(random_graph(4, 5))
    with pytest.raises(ValueError, match="did you mean occlusion"):
        check_method("oclusion")
    with pytest.raises(ValueError, match="2 graphs were given; an explanation is of one"):
        attribution(model, [graph, graph])
    with pytest.raises(ValueError, match="output is 2; this model has 2"):
        explain_graph(model, graph, output=2)
    with pytest.raises(ValueError, match="scores pairs of nodes"):
        attribution(small_model(head=HeadConfig(level="link")), graph)
    hyper = hypergraph()
    tokens = TokensConfig.for_batch(hyper)
    with pytest.raises(ValueError, match="the graph has 4 hyperedges"):
        explain_graph(TokenGT(TokenGTConfig(12, tokens, NoIds(), EncoderConfig(1, 2))), hyper)
