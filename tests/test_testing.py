import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch_geometric import nn as pyg_nn
from torch_geometric.data import Batch, Data

from tests.graphs import graphs, hypergraph, odd_graphs, random_graph, small_model, tokens_config
from tokengt import (
    EncoderConfig,
    FavorConfig,
    FirstOrderOrfIds,
    Graph,
    GraphBatch,
    HeadConfig,
    OrfIds,
    SoftmaxConfig,
    TokensConfig,
)
from tokengt.interop.pyg import as_batch
from tokengt.models.tokengt.identifiers import identifiers_of_kind
from tokengt.ragged import segment_sum
from tokengt.testing import assert_permutation_equivariant, assert_permutation_invariant, permute_graph


@pytest.mark.parametrize("attention", ["softmax", "favor"])
@pytest.mark.parametrize("kind", ["orf", "laplacian", "none"])
@given(graph=graphs())
@settings(max_examples=10)
def test_tokengt_is_symmetric_given_its_identifiers(kind: str, attention: str, graph: Graph) -> None:
    encoder = EncoderConfig(
        num_layers=2,
        num_heads=3,
        attention=FavorConfig() if attention == "favor" else SoftmaxConfig(),
        sparse_basis_residual=True,
    )
    ids = identifiers_of_kind(kind, 5)  # type: ignore[arg-type]
    for dtype in (torch.float32, torch.float64):
        assert_permutation_invariant(small_model(ids=ids, encoder=encoder, dtype=dtype), graph)
    for level in ("node", "edge"):
        model = small_model(ids=ids, encoder=encoder, head=HeadConfig(level=level), dtype=torch.float64)  # type: ignore[arg-type]
        assert_permutation_equivariant(model, graph, level=level)  # type: ignore[arg-type]


def test_undirected_tokens_and_hypergraphs_are_symmetric() -> None:
    model = small_model(tokens=tokens_config(layout="undirected"), dtype=torch.float64)
    assert_permutation_invariant(model, random_graph(7, 10, undirected=True))
    tokens = TokensConfig.for_batch(GraphBatch.collate([hypergraph()]))
    assert_permutation_invariant(small_model(tokens=tokens, dtype=torch.float64), hypergraph())


def test_any_callable_can_be_tested() -> None:
    def node_count(batch: GraphBatch) -> torch.Tensor:
        return batch.nodes.lengths[:, None].float()

    def degrees(batch: GraphBatch) -> torch.Tensor:
        ones = torch.ones(batch.num_edges, 1)
        return torch.zeros(batch.num_nodes, 1).index_add(0, batch.edge_index[0], ones)

    for graph in odd_graphs():
        assert_permutation_invariant(node_count, graph)
        assert_permutation_equivariant(degrees, graph)


def test_a_model_that_reads_node_numbers_is_caught() -> None:
    def first_node(batch: GraphBatch) -> torch.Tensor:
        return batch.node_features[batch.nodes.starts].double()

    def numbered(batch: GraphBatch) -> torch.Tensor:
        return batch.nodes.positions[:, None].double()

    graph = Graph(torch.arange(8).view(4, 2))
    with pytest.raises(AssertionError, match="graph outputs changed under renumbering"):
        assert_permutation_invariant(first_node, graph)
    with pytest.raises(AssertionError, match="node outputs changed"):
        assert_permutation_equivariant(numbered, graph)
    with pytest.raises(AssertionError, match="5 rows for 6 nodes"):
        assert_permutation_equivariant(lambda batch: torch.zeros(5, 1), random_graph(6, 3))


def test_fresh_identifiers_would_break_the_symmetry() -> None:
    """Why identifiers are carried along: without that, ORF predictions change with node order."""
    model = small_model(ids=OrfIds(8))
    with pytest.raises(AssertionError, match="changed under renumbering"):
        assert_permutation_invariant(lambda batch: model(batch), random_graph(8, 14))


def test_permute_graph_by_hand() -> None:
    graph = Graph(torch.tensor([[10], [11], [12]]), torch.tensor([[0, 1], [1, 2]]), torch.tensor([[5], [6]]))
    moved = permute_graph(graph, torch.tensor([2, 0, 1]), torch.tensor([1, 0]))
    assert moved.node_features.flatten().tolist() == [12, 10, 11]
    assert moved.edge_index.tolist() == [[2, 1], [0, 2]]
    assert moved.edge_features.flatten().tolist() == [6, 5]


def test_permuted_sums_agree() -> None:
    graph = hypergraph()
    moved = permute_graph(graph, torch.randperm(6), None, torch.tensor([3, 1, 0, 2]))
    for g in (graph, moved):
        batch = GraphBatch.collate([g])
        total = segment_sum(g.node_features[g.hyperedge_nodes], batch.members)
        assert torch.allclose(
            total.sort(0).values,
            segment_sum(graph.node_features[graph.hyperedge_nodes], GraphBatch.collate([graph]).members).sort(0).values,
        )


def test_models_that_cannot_be_tested_are_refused() -> None:
    with pytest.raises(ValueError, match="in training mode"):
        assert_permutation_invariant(small_model().train(), random_graph(3, 2))
    with pytest.raises(ValueError, match="first-order identifiers"):
        assert_permutation_invariant(small_model(ids=FirstOrderOrfIds(5)), random_graph(3, 2))


class GraphNetwork(nn.Module):
    """As PyG's examples are written: graph level, edge features, a batch vector."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = pyg_nn.GINEConv(nn.Linear(3, 8), edge_dim=2), nn.Linear(8, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        return self.out(pyg_nn.global_add_pool(self.conv(x, edge_index, edge_attr).relu(), batch))


class Distances(nn.Module):
    """Takes the data object whole, and reads attributes that a Graph keeps among its extras."""

    def forward(self, data: Data) -> Tensor:
        source, target = data.edge_index
        length = (data.pos[source] - data.pos[target]).norm(dim=1) * data.edge_weight
        nodes = torch.zeros(data.num_nodes).index_add(0, target, length)
        return pyg_nn.global_add_pool(nodes[:, None], data.batch)


def pyg_data() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(7, 3, generator=generator),
        edge_index=torch.randint(7, (2, 12), generator=generator),
        edge_attr=torch.randn(12, 2, generator=generator),
        edge_weight=torch.rand(12, generator=generator),
        pos=torch.randn(7, 3, generator=generator),
        y=torch.tensor([1.0]),
    )


def test_pyg_data_and_pyg_modules_are_taken_as_they_are() -> None:
    data = pyg_data()
    assert_permutation_invariant(GraphNetwork().eval(), data)
    assert_permutation_invariant(GraphNetwork().eval(), as_batch(data)[0])
    assert_permutation_invariant(Distances().eval(), data)
    assert_permutation_equivariant(pyg_nn.GCN(3, 8, 2, out_channels=4).eval(), data)
    assert_permutation_equivariant(pyg_nn.GCNConv(3, 4).eval(), data)
    tokens = TokensConfig.for_batch(as_batch(data))
    assert_permutation_invariant(small_model(tokens=tokens), data)


def test_pyg_modules_that_read_node_numbers_are_caught() -> None:
    class FirstNode(GraphNetwork):
        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
            return x[:1]

    data = pyg_data()
    with pytest.raises(AssertionError, match="graph outputs changed under renumbering"):
        assert_permutation_invariant(FirstNode().eval(), data)
    with pytest.raises(AssertionError, match="graph outputs changed"):
        assert_permutation_invariant(lambda data: data.pos[:1], data)
    with pytest.raises(AssertionError, match="node outputs changed"):
        assert_permutation_equivariant(lambda x, edge_index: torch.arange(7.0)[:, None], data)
    with pytest.raises(ValueError, match="batch of 2 graphs; expected one graph"):
        assert_permutation_invariant(FirstNode().eval(), Batch.from_data_list([data, data]))
    hyper = Data(x=torch.ones(2, 1), hyperedge_index=torch.tensor([[0, 1], [0, 0]]))
    with pytest.raises(ValueError, match=r"convert the graph with tokengt\.from_pyg"):
        assert_permutation_invariant(lambda data: data.x.sum(0, keepdim=True), hyper)
