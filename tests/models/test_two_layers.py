"""The baselines that TokenGT is measured against: an MLP over node features and a GCN on the clique expansion."""

from dataclasses import replace

import pytest
import torch

from tokengt import Graph, GraphBatch
from tokengt.config import to_dict
from tokengt.data.store import Store
from tokengt.models.features import FeatureSpec
from tokengt.models.kinds import config_from_dict, load_model
from tokengt.models.two_layers import CliqueGcnConfig, MlpConfig
from tokengt.structure.adjacency import normalised_adjacency

# A + I has row sums 2, 3, 2, 1; the pair (0, 1) counts once though two hyperedges hold it.
HYPEREDGES = ((0, 1), (1, 2), (0, 1))
_MIXED = 6**-0.5
MIXING = torch.tensor([[1 / 2, _MIXED, 0, 0], [_MIXED, 1 / 3, _MIXED, 0], [0, _MIXED, 1 / 2, 0], [0, 0, 0, 1]])


def hypergraph() -> Graph:
    return Graph.from_hyperedges(HYPEREDGES, torch.randn(4, 5, generator=torch.Generator().manual_seed(0)))


def of(config: MlpConfig | CliqueGcnConfig) -> MlpConfig | CliqueGcnConfig:
    return replace(config, dim=3, node_features=FeatureSpec(width=5), out_dim=2)


def test_the_clique_expansion_is_normalised_as_worked_out_by_hand() -> None:
    mixing = normalised_adjacency(GraphBatch.collate([hypergraph()]))
    assert torch.allclose(mixing.to_dense(), MIXING)


def test_no_entry_lies_between_two_graphs_of_a_batch() -> None:
    triangle = Graph(torch.zeros(3, 5), torch.tensor([[0, 1, 2, 0], [1, 2, 0, 0]]))
    batch = GraphBatch.collate([triangle, Graph(torch.zeros(1, 5)), triangle])
    third = torch.full((3, 3), 1 / 3)
    assert torch.allclose(normalised_adjacency(batch).to_dense(), torch.block_diag(third, torch.ones(1, 1), third))


def test_the_gcn_is_its_formula_on_dense_matrices() -> None:
    model = of(CliqueGcnConfig(level="node")).build().eval()
    graph = hypergraph()
    assert graph.node_features is not None
    assert model.node_encoder.linear is not None
    hidden = torch.relu(MIXING @ graph.node_features @ model.node_encoder.linear.weight.T + model.bias)
    assert torch.allclose(model(graph), model.head(MIXING @ hidden), atol=1e-6)


@pytest.mark.parametrize("config", [MlpConfig(), CliqueGcnConfig()])
def test_a_graph_alone_gives_what_it_gives_in_a_batch(config: MlpConfig | CliqueGcnConfig) -> None:
    model = of(config).build().eval()
    graphs = [hypergraph(), Graph.from_hyperedges(((0, 1, 2),), torch.randn(3, 5)), hypergraph()]
    together = model(GraphBatch.collate(graphs))
    assert together.shape == (3, 2)
    assert torch.allclose(together, torch.cat([model(graph) for graph in graphs]), atol=1e-6)
    assert torch.allclose(model.head(model.embed(graphs)), together)
    assert model.embedding_width == model.embed(graphs).shape[1]


def test_only_the_gcn_hears_of_hyperedges() -> None:
    features = torch.randn(4, 5)
    joined, apart = Graph.from_hyperedges(HYPEREDGES, features), Graph(features)
    mlp, gcn = (of(config).build().eval() for config in (MlpConfig(level="node"), CliqueGcnConfig(level="node")))
    assert torch.equal(mlp(joined), mlp(apart))
    assert not torch.allclose(gcn(joined), gcn(apart))


def test_mixed_precision_mixes_in_the_precision_of_the_weights() -> None:
    model = of(CliqueGcnConfig(level="node")).build().eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(model(hypergraph()).float(), model.double()(hypergraph()).float(), atol=0.05)


@pytest.mark.parametrize("kind", [MlpConfig, CliqueGcnConfig])
def test_a_config_fits_itself_to_data_and_is_found_by_its_kind(
    kind: type[MlpConfig] | type[CliqueGcnConfig], tmp_path
) -> None:
    store = Store.from_memory(
        GraphBatch.collate([hypergraph()]), torch.zeros(4, 1), target_names=("class",), level="node"
    )
    config = kind(dim=3).fit(store, 7)
    assert (config.level, config.out_dim, config.node_features, config.num_descriptors) == (
        "node",
        7,
        FeatureSpec(width=5),
        0,
    )
    assert config_from_dict(to_dict(config)) == config
    model = config.build().eval()
    model.save_pretrained(tmp_path)
    assert torch.equal(load_model(tmp_path)(hypergraph()), model(hypergraph()))
    assert f"2 x {config.dim}" in config.describe().details["layers"]


def test_labels_of_edges_and_descriptors_are_refused() -> None:
    graphs = GraphBatch.collate([Graph(torch.randn(2, 5), torch.tensor([[0], [1]]))])
    edges = Store.from_memory(graphs, torch.zeros(1, 1), target_names=("class",), level="edge")
    with pytest.raises(ValueError, match="MLP predicts graphs, nodes and links, and these labels are of edges"):
        MlpConfig().fit(edges, 2)
    described = graphs.with_graph_features(torch.ones(1, 2))
    with pytest.raises(ValueError, match="leave the descriptors out"):
        CliqueGcnConfig().fit(Store.from_memory(described, torch.zeros(1, 1), target_names=("y",)), 1)
