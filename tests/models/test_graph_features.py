"""What is known about a graph as a whole: carried along with it and read by the [graph] token."""

import pytest
import torch

from tests.graphs import EDGE_WIDTH, odd_graphs, random_graph, small_model, tokens_config
from tokengt import FeatureSpec, Graph, GraphBatch, HeadConfig, LaplacianIds, NoIds, TokenGT, TokensConfig
from tokengt.interop.pyg import as_batch, from_pyg, to_pyg
from tokengt.models.tokengt.identifiers import identify
from tokengt.structure.laplacian import laplacian_eigenvectors, laplacian_fact
from tokengt.testing import assert_permutation_invariant

WIDTH = 2


def known(graph: Graph, *values: float) -> Graph:
    return Graph(
        graph.node_features,
        graph.edge_index,
        graph.edge_features,
        num_nodes=graph.num_nodes,
        graph_features=torch.tensor([values]),
    )


def described() -> list[Graph]:
    return [known(graph, place / 2, -place) for place, graph in enumerate(odd_graphs())]


def model(dtype: torch.dtype = torch.float32, **options: object) -> TokenGT:
    tokens = tokens_config(graph_features=FeatureSpec(width=WIDTH), **options)
    return small_model(tokens=tokens, dtype=dtype)


def test_a_batch_has_a_row_a_graph() -> None:
    graphs = described()
    batch = GraphBatch.collate(graphs)
    assert batch.graph_features is not None
    assert batch.graph_features.tolist() == [[place / 2, -place] for place in range(7)]
    chosen = batch.select([4, 0, 4])
    assert chosen.graph_features is not None
    assert chosen.graph_features.tolist() == [[2.0, -4.0], [0.0, 0.0], [2.0, -4.0]]
    for graph, again in zip(graphs, batch.unbatch(), strict=True):
        assert graph.graph_features is not None
        assert again.graph_features is not None
        assert torch.equal(graph.graph_features, again.graph_features)
    moved = batch.to("cpu").graph_features
    assert moved is not None
    assert torch.equal(moved, batch.graph_features)
    own = graphs[3].to("cpu").graph_features
    assert own is not None
    assert own.tolist() == [[1.5, -3.0]]


@pytest.mark.parametrize(
    ("features", "sentence"),
    [
        (torch.ones(2, 3), r"graph_features"),
        (torch.ones(3), r"graph_features"),
        (torch.full((1, 2), torch.nan), r"graph_features"),
        (torch.ones(1, 2, dtype=torch.complex64), r"graph_features"),
    ],
)
def test_a_wrong_shape_is_one_sentence(features: torch.Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        Graph(num_nodes=3, graph_features=features)
    assert "\n" not in str(caught.value)


def test_graphs_that_differ_are_not_batched() -> None:
    one, none = known(random_graph(3, 2), 1.0, 2.0), random_graph(3, 2)
    with pytest.raises(ValueError, match=r"graph 1: graph_features is .*; expected .* as in graph 0"):
        GraphBatch.collate([one, none])
    with pytest.raises(ValueError, match="graph 1: graph_features"):
        GraphBatch.collate([one, known(none, 1.0)])


def test_a_model_says_what_it_expects() -> None:
    with pytest.raises(ValueError, match="graph_features"):
        model()(random_graph(4, 5))
    with pytest.raises(ValueError, match="graph_features"):
        model()(known(random_graph(4, 5), 1.0))
    with pytest.raises(ValueError, match="graph_features"):
        small_model()(known(random_graph(4, 5), 1.0, 2.0))
    with pytest.raises(ValueError, match=r"read by the \[graph\] token"):
        TokensConfig(graph_features=FeatureSpec(width=2), graph_token=False)


def test_the_graph_token_sees_them() -> None:
    subject = model(torch.float64)
    graph = random_graph(6, 8)
    low, high = (subject(known(graph, value, 0.0)) for value in (0.0, 3.0))
    assert (low - high).abs().max().item() > 1e-3


def test_only_the_graph_token_is_changed_by_them() -> None:
    subject = model(null_token=True)
    graph = random_graph(6, 8)
    values = []
    for value in (0.0, 3.0):
        batch = GraphBatch.collate([known(graph, value, 0.0)] * 2)
        ids = identify(batch, subject.config.identifiers)
        assert ids is not None
        values.append(subject.tokenizer(batch, ids.to(next(subject.parameters()))))
    changed = (values[0].values != values[1].values).any(1)
    assert values[0].graph_rows is not None
    assert torch.nonzero(changed).flatten().tolist() == values[0].graph_rows.tolist()


def test_neighbours_do_not_see_them() -> None:
    subject = model(torch.float64)
    graphs = described()
    together = subject(graphs)
    alone = torch.cat([subject(graph) for graph in graphs])
    torch.testing.assert_close(together, alone, atol=1e-10, rtol=1e-10)


def test_numbering_still_does_not_matter() -> None:
    tokens = tokens_config(graph_features=FeatureSpec(width=WIDTH))
    subject = small_model(tokens=tokens, ids=NoIds(), dtype=torch.float64)
    assert_permutation_invariant(subject, known(random_graph(7, 12), 1.0, -2.0))


def test_categories_of_a_graph() -> None:
    tokens = tokens_config(graph_features=FeatureSpec(categories=(3,)))
    subject = small_model(tokens=tokens)
    graph = random_graph(4, 4)
    parts = (graph.node_features, graph.edge_index, graph.edge_features)
    answers = [subject(Graph(*parts, graph_features=torch.tensor([[kind]]))) for kind in range(3)]
    assert not torch.equal(answers[0], answers[1])
    with pytest.raises(ValueError, match="graph_features"):
        subject(Graph(*parts, graph_features=torch.tensor([[3]])))


def test_the_configuration_of_a_batch_reads_them() -> None:
    config = TokensConfig.for_batch(GraphBatch.collate(described()))
    assert config.graph_features == FeatureSpec(width=WIDTH)
    assert config.edge_features == FeatureSpec(width=EDGE_WIDTH)


def test_pyg_and_back() -> None:
    data_module = pytest.importorskip("torch_geometric.data")
    graph = described()[5]
    data = to_pyg(graph)
    assert data.graph_features.tolist() == [[2.5, -5.0]]
    again = from_pyg(data)
    assert isinstance(again, Graph)
    assert again.graph_features is not None
    assert again.graph_features.tolist() == [[2.5, -5.0]]
    collated = data_module.Batch.from_data_list([to_pyg(each) for each in described()])
    batch = as_batch(collated)
    assert batch.graph_features is not None
    assert torch.equal(batch.graph_features, GraphBatch.collate(described()).graph_features)  # type: ignore[arg-type]
    torch.testing.assert_close(model()(collated), model()(described()))


@pytest.mark.parametrize("which", ["lowest", "both_ends"])
def test_cached_eigenvectors_are_the_identifiers_computed(which: str) -> None:
    config = LaplacianIds(5, which=which)  # type: ignore[arg-type]
    batch = GraphBatch.collate(odd_graphs())
    vectors = laplacian_eigenvectors(batch, 5, which).vectors  # type: ignore[arg-type]
    name = laplacian_fact(5, which)  # type: ignore[arg-type]
    packed = batch.narrowed().with_fact(name, vectors)
    places = [6, 2, 5, 0, 2]
    cached, plain = packed.select(places), batch.select(places)
    assert cached.facts[name].rows.shape == (cached.num_nodes, 5)
    for training, draw in ((False, 0), (False, 3), (True, 0)):
        identifiers = []
        for each in (cached, plain):
            generator = torch.Generator().manual_seed(7) if training else None
            ids = identify(each, config, training=training, generator=generator, draw=draw)
            assert ids is not None
            identifiers.append(ids.nodes)
        torch.testing.assert_close(identifiers[0], identifiers[1], atol=1e-9, rtol=0)


def test_eigenvectors_for_another_width_are_not_used() -> None:
    batch = GraphBatch.collate(odd_graphs())
    wrong = torch.full((batch.num_nodes, 4), 9.0)
    packed = batch.narrowed().with_fact(laplacian_fact(4, "lowest"), wrong)
    ids = identify(packed.select(list(range(7))), LaplacianIds(5))
    assert ids is not None
    assert float(ids.nodes.abs().max()) <= 1 + 1e-9


def test_a_head_of_nodes_sees_them_through_attention() -> None:
    tokens = tokens_config(graph_features=FeatureSpec(width=WIDTH))
    subject = small_model(tokens=tokens, head=HeadConfig(level="node", out_dim=1), dtype=torch.float64)
    graph = random_graph(5, 6)
    assert not torch.allclose(subject(known(graph, 0.0, 0.0)), subject(known(graph, 5.0, 0.0)))
