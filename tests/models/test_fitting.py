"""A TokenGT config made to read a data set."""

import torch

from tests.graphs import odd_graphs, random_graph
from tests.training.stores import graph_store, molecule_store, ring
from tokengt import FeatureSpec, Graph, GraphBatch, LaplacianIds, TokenGT
from tokengt.models.tokengt.fitting import fit_tokens, is_symmetric
from tokengt.presets import small


def test_symmetry_is_of_edges_and_features() -> None:
    def packed(*graphs: Graph) -> GraphBatch:
        return GraphBatch.collate(graphs).narrowed()

    assert is_symmetric(packed(random_graph(6, 9, 1, undirected=True), random_graph(4, 5, 2, undirected=True)))
    assert not is_symmetric(packed(Graph(num_nodes=2, edge_index=torch.tensor([[0], [1]]))))
    both = torch.tensor([[0, 1], [1, 0]])
    assert is_symmetric(packed(Graph(num_nodes=2, edge_index=both, edge_features=torch.tensor([[1.0], [1.0]]))))
    assert not is_symmetric(packed(Graph(num_nodes=2, edge_index=both, edge_features=torch.tensor([[1.0], [2.0]]))))
    assert is_symmetric(packed(Graph(num_nodes=1, edge_index=torch.tensor([[0], [0]])), Graph(num_nodes=1)))
    loops = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 1]])
    assert is_symmetric(packed(Graph(num_nodes=2, edge_index=loops)))


def test_directed_graphs_keep_a_token_a_direction() -> None:
    assert fit_tokens(small().tokens, graph_store([ring(4), ring(5)])).layout == "undirected"
    one_way = Graph(torch.ones(3, 1), torch.tensor([[0, 1], [1, 2]]))
    assert fit_tokens(small().tokens, graph_store([ring(4), one_way])).layout == "directed"


def test_tokens_fit_the_data_and_molecules_keep_their_vocabularies() -> None:
    fitted = fit_tokens(small().tokens, graph_store(odd_graphs()))
    assert fitted.node_features.categories == (4, 3)
    assert fitted.edge_features == FeatureSpec(width=3)
    assert fit_tokens(small().tokens, molecule_store()).node_features == small().tokens.node_features


def test_a_resolved_model_reads_its_store() -> None:
    store = graph_store(odd_graphs(), "node")
    config = small().fit(store, 1)
    assert config.head.level == "node"
    out = TokenGT(config)(store.graphs.select(torch.arange(len(store))))
    assert out.shape == (store.graphs.nodes.total, 1)


def test_signs_stay_when_all_nodes_are_in_one_graph() -> None:
    def flips(*graphs: Graph) -> bool:
        ids = small().fit(graph_store(list(graphs), "node"), 1).identifiers
        assert isinstance(ids, LaplacianIds)
        return ids.sign_flip

    assert not flips(ring(9))
    assert flips(ring(4), ring(5))
