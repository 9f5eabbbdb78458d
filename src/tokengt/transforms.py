"""Transforms of PyTorch Geometric that work facts of a graph out once and keep them on its ``Data``.

A *fact* is what the structure of a graph decides, such as its Laplacian eigenvectors (:mod:`tokengt.structure.facts`).
A model that is given a ``Data``, a ``Batch`` of PyG's loaders or one of its sampled subgraphs takes the facts that it
finds there; those of a subgraph are rows of the whole graph's, so that a node keeps its identifiers in every sample.
Needs torch_geometric.
"""

from collections.abc import Sequence
from typing import Any

from tokengt.interop.pyg import as_batch, fact_attribute
from tokengt.structure.facts import LaplacianVectors, StructureFact
from tokengt.structure.laplacian import Which

try:
    from torch_geometric.transforms import BaseTransform
except ImportError as error:
    raise ImportError("tokengt.transforms needs PyTorch Geometric: pip install torch_geometric") from error


class AddFacts(BaseTransform):  # type: ignore[misc]
    """Adds facts to a ``Data`` or ``Batch`` as attributes; those that are there already are not worked out again.

    ``AddFacts(model.config.facts())`` adds all that a model asks for. As a ``pre_transform`` of a data set, they are
    saved with it.
    """

    def __init__(self, facts: Sequence[StructureFact]) -> None:
        self.facts = tuple(facts)

    def forward(self, data: Any) -> Any:
        missing = [fact for fact in self.facts if fact_attribute(fact.name, fact.per) not in data]
        batch = as_batch(data) if missing else None
        for fact in missing:
            assert batch is not None
            data[fact_attribute(fact.name, fact.per)] = fact.compute(batch)
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(fact.name for fact in self.facts)})"


class AddLaplacianIds(AddFacts):
    """Adds what ``LaplacianIds(dim, which)`` reads: eigenvectors of the normalised Laplacian.

    Args:
        dim: how many.
        which: those of the "lowest" eigenvalues, or half of them from "both_ends", as for large graphs in the paper.
    """

    def __init__(self, dim: int, which: Which = "both_ends") -> None:
        super().__init__([LaplacianVectors(dim, which)])
