"""Facts that PyG's Data carries: worked out once, read by models, cut along with sampled subgraphs."""

import pytest
import torch

pytest.importorskip("torch_geometric")

from torch_geometric.data import Batch, Data
from torch_geometric.utils import subgraph

from tests.graphs import small_model
from tokengt import FeatureSpec, LaplacianIds, TokensConfig
from tokengt.data.manifest import Recipe
from tokengt.interop.pyg import as_batch, from_pyg, to_pyg
from tokengt.structure import laplacian
from tokengt.transforms import AddFacts, AddLaplacianIds
from tokengt.workflow.inputs import open_data


def ring(nodes: int) -> Data:
    ends = torch.arange(nodes)
    index = torch.stack([torch.cat([ends, (ends + 1) % nodes]), torch.cat([(ends + 1) % nodes, ends])])
    return Data(x=torch.randn(nodes, 3), edge_index=index, y=torch.arange(nodes) % 3)


NAME = "node_fact_laplacian-both_ends-4"


def test_identifiers_are_kept_on_the_data_and_not_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data = AddLaplacianIds(4)(ring(9))
    wanted = laplacian.laplacian_eigenvectors(as_batch(ring(9)), 4, "both_ends").vectors
    torch.testing.assert_close(data[NAME].double(), wanted, atol=1e-6, rtol=0)
    monkeypatch.setattr(laplacian, "spectrum_with_limit", None)
    again = AddFacts(LaplacianIds(dim=4, which="both_ends").facts())(data)
    assert again[NAME] is data[NAME]


def test_a_model_reads_what_the_data_carries_alone_in_a_batch_and_in_a_subgraph() -> None:
    ids = LaplacianIds(dim=4, which="both_ends")
    model = small_model(tokens=TokensConfig(node_features=FeatureSpec(width=3)), ids=ids)
    plain, other = ring(9), ring(6)
    marked, second = AddLaplacianIds(4)(plain.clone()), AddLaplacianIds(4)(other.clone())
    torch.testing.assert_close(model(marked), model(plain))
    torch.testing.assert_close(
        model(Batch.from_data_list([marked, second])), model(Batch.from_data_list([plain, other]))
    )
    # A path of five of the ring's nodes keeps their rows of the ring's eigenvectors.
    part = marked.subgraph(torch.arange(5))
    assert torch.equal(part[NAME], marked[NAME][:5])
    index, _ = subgraph(torch.arange(5), plain.edge_index)
    torch.testing.assert_close(model(part), model(Data(x=plain.x[:5], edge_index=index), marked[NAME][:5]))


def test_training_takes_the_facts_that_came_with_the_data(tmp_path) -> None:
    data = AddLaplacianIds(4)(ring(9))
    data[NAME] = data[NAME] + 1
    store = open_data(data, Recipe(level="node"), tmp_path / "store", quiet=True)
    informed = store.with_facts(LaplacianIds(dim=4, which="both_ends").facts())
    assert torch.equal(informed.graphs.fact("laplacian-both_ends-4"), data[NAME])


def test_facts_come_and_go_and_nobody_is_warned_of_them() -> None:
    data = AddLaplacianIds(4)(ring(5))
    assert torch.equal(to_pyg(from_pyg(data))[NAME], data[NAME])
    data[NAME] = data[NAME][:3]
    with pytest.raises(ValueError, match="has 3 rows; expected 5: one row per node"):
        as_batch(data)
