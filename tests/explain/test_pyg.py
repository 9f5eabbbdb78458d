"""PyG's Explainer with our models, and its metrics with our attributions."""

import numpy as np
import pytest
import torch
from torch_geometric.explain import Explainer, GNNExplainer, fidelity, unfaithfulness

from tests.explain.test_attributions import Mine, linear_model
from tests.explain.test_profile import plain
from tests.graphs import random_graph, small_model, tokens_config
from tokengt import EncoderConfig, Graph, HeadConfig, NoIds, from_smiles
from tokengt.explain import attribution
from tokengt.explain.pyg import MaskedModel, TokenAttribution
from tokengt.presets import PRESETS

BINARY = {"mode": "binary_classification", "task_level": "graph", "return_type": "raw"}
CLASSES = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
MASKS = {"explanation_type": "model", "node_mask_type": "object", "edge_mask_type": "object"}


@pytest.mark.parametrize("layout", ["directed", "undirected"])
def test_a_mask_takes_tokens_to_their_baseline(layout: str) -> None:
    """All there: the model's own outputs. A linear model loses a token's integrated gradients with it."""
    model, graph = linear_model(layout=layout), plain(random_graph(5, 6, undirected=True))
    masked, found = MaskedModel(model), attribution(model, graph)
    inputs = masked.inputs(graph)
    whole = masked(**inputs)
    torch.testing.assert_close(whole, model(graph))
    inputs["x"][2] = 0.25
    lost = (whole - masked(**inputs))[0, 0].item()
    assert lost == pytest.approx(0.75 * found.node_scores[2], abs=1e-9)
    inputs["x"][2] = 1
    explainer = Explainer(masked, TokenAttribution(), model_config=BINARY, **MASKS)
    edges = torch.ones(graph.num_edges, dtype=torch.float64)
    edges[0] = 0
    without = explainer.get_masked_prediction(**inputs, node_mask=None, edge_mask=edges)
    # Two directions that share a token are as much there as the mean of their masks.
    share = 1 if layout == "directed" else 0.5
    assert (whole - without)[0, 0].item() == pytest.approx(share * found.edge_scores[0], abs=1e-9)


def test_fidelity_of_a_model_that_looks_at_one_node() -> None:
    """A linear model without identifiers says yes because of its last node: without it the answer is no, and with it
    alone it stays yes; so for the mask of our attributions PyG's fidelity is (1, 0)."""
    model = small_model(
        tokens=tokens_config(),
        ids=NoIds(),
        encoder=EncoderConfig(num_layers=0, num_heads=1, final_norm=False),
        head=HeadConfig(out_dim=1, readout="sum"),
    )
    features = torch.zeros(5, 2, dtype=torch.int64)
    features[4, 0] = 3
    graph = Graph(features, torch.tensor([[0, 1], [1, 2]]), torch.ones(2, 3))
    with torch.no_grad():
        found = attribution(model, graph)
        # Towards yes by the last node alone, and half of that below zero without it.
        sign = 1.0 if found.scores[5] > 0 else -1.0
        model.head.project.weight.mul_(sign)
        model.head.project.bias.fill_(-sign * (found.reference - model.head.project.bias.item()))
        model.head.project.bias.sub_(0.5 * abs(found.scores[5]))
    masked = MaskedModel(model)
    explainer = Explainer(masked, TokenAttribution(), model_config=BINARY, threshold_config=("topk_hard", 1), **MASKS)
    explanation = explainer(**masked.inputs(graph))
    assert explanation.prediction.item() > 0
    assert explanation.node_mask.flatten().tolist() == [0, 0, 0, 0, 1]
    assert fidelity(explainer, explanation) == (1.0, 0.0)
    assert explanation.attribution.method == "integrated_gradients"


def test_the_class_and_the_row_are_those_that_are_asked_for() -> None:
    model, graph = small_model(head=HeadConfig(level="node", out_dim=3)), plain(random_graph(5, 6))
    masked = MaskedModel(model)
    explainer = Explainer(masked, TokenAttribution("occlusion"), model_config=CLASSES, **MASKS)
    explanation = explainer(**masked.inputs(graph), index=3)
    chosen = int(model(graph)[3].argmax())
    own = attribution(model, graph, "occlusion", row=3, output=chosen)
    np.testing.assert_array_equal(explanation.attribution.scores, own.scores)
    sizes = np.nan_to_num(np.abs(own.scores))
    np.testing.assert_allclose(explanation.node_mask[:, 0], sizes[own.tokens.nodes] / sizes[1:].max(), rtol=1e-6)
    np.testing.assert_allclose(explanation.edge_mask, sizes[own.tokens.of_edge] / sizes[1:].max(), rtol=1e-6)
    assert 0 <= unfaithfulness(explainer, explanation) <= 1
    with pytest.raises(ValueError, match="gives 5 rows; say which one"):
        explainer(**masked.inputs(graph))


@pytest.mark.parametrize("name", ["small", "gin", "gat"])
def test_masks_are_learned_by_pyg(name: str) -> None:
    """GNNExplainer gets gradients for nodes and edges of our models."""
    torch.manual_seed(0)
    masked = MaskedModel(PRESETS[name]().build().eval())
    explainer = Explainer(masked, GNNExplainer(epochs=3), model_config=BINARY, **MASKS)
    explanation = explainer(**masked.inputs(from_smiles("CC(=O)Oc1ccccc1")))
    assert explanation.node_mask.shape == (10, 1)
    assert explanation.edge_mask.shape == (20,)
    assert float(explanation.node_mask.max()) > 0 < float(explanation.edge_mask.max())


def test_models_without_layers_of_pyg_lose_edges() -> None:
    """An edge with a mask of 0 is taken out of the graph of a Graphormer."""
    torch.manual_seed(0)
    model, graph = PRESETS["graphormer"]().build().eval(), from_smiles("CCO")
    masked = MaskedModel(model)
    explainer = Explainer(masked, TokenAttribution("occlusion"), model_config=BINARY, **MASKS)
    found = explainer.get_masked_prediction(**masked.inputs(graph), edge_mask=torch.tensor([1.0, 1, 0, 0]))
    assert not model.training
    left = Graph(graph.node_features, graph.edge_index[:, :2], graph.edge_features[:2])
    torch.testing.assert_close(found, model(left))


def test_what_cannot_be_masked_says_why() -> None:
    model, graph = small_model(), plain(random_graph(4, 5))
    masked = MaskedModel(model)
    with pytest.raises(ValueError, match=r"x has shape \[4, 2\]; expected \[4, 1\]"):
        masked(torch.ones(4, 2), graph.edge_index, graph)
    with pytest.raises(ValueError, match="expected MaskedModel"):
        TokenAttribution()(model, torch.ones(4, 1), graph.edge_index, target=torch.zeros(1))
    with pytest.raises(ValueError, match="does not support the given explanation settings"):
        Explainer(masked, TokenAttribution(), "model", BINARY, node_mask_type="attributes")
    with pytest.raises(ValueError, match="a module of your own"):
        MaskedModel(Mine())(**MaskedModel(Mine()).inputs(Graph(torch.tensor([[0], [1]]))))
