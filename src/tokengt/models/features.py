"""What node and edge features are, and their embedding into the token width."""

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.data.store import Store
from tokengt.interop.molecules import MOLECULE_CATEGORIES
from tokengt.ragged import Segments
from tokengt.sparse import SparseRows, sparse_linear
from tokengt.validation import describe_features

# With up to this many categories, a product with a matrix of zeros and ones is faster on a GPU than looking rows up.
_WIDEST_MULTI_HOT = 1024
FeatureField = Literal["node_features", "edge_features", "hyperedge_features", "graph_features"]


@dataclass(frozen=True)
class FeatureSpec:
    """Integer category columns of the given sizes, float vectors of the given width, or (both empty) none."""

    # As many as the data has, such as numbers of nodes; what is made of them is counted in parameters.
    categories: tuple[int, ...] = field(default=(), metadata={"size": False})
    width: int = 0

    def __post_init__(self) -> None:
        if self.width < 0 or any(size < 1 for size in self.categories):
            raise ValueError(f"{self!r}: expected a width of 0 or more, and categories of 1 or more each")
        if self.categories and self.width:
            raise ValueError("features are either categories or floats; give categories or width, not both")

    @classmethod
    def of(cls, features: Shaped[Tensor, "rows _"] | SparseRows | None) -> "FeatureSpec":
        """The narrowest specification that holds these features."""
        if features is None or features.shape[1] == 0:
            return cls()
        if isinstance(features, SparseRows) or features.is_floating_point():
            return cls(width=features.shape[1])
        sizes = (features.amax(0).long() + 1).clamp(min=1) if len(features) else torch.ones(features.shape[1])
        return cls(categories=tuple(int(size) for size in sizes.tolist()))

    def __str__(self) -> str:
        if self.categories:
            return f"{len(self.categories)} categories"
        return f"{self.width} floats" if self.width else "none"


def spec_of(data: Store, name: FeatureField) -> FeatureSpec:
    """What the features of a data set are.

    Molecules have the fixed vocabularies of their featurisation, so that an element seen only later has its row; the
    categories of other graphs are counted.
    """
    fixed = MOLECULE_CATEGORIES.get(name) if data.is_molecules else None
    return FeatureSpec.of(getattr(data.graphs, name)) if fixed is None else FeatureSpec(categories=fixed)


def multi_hot(index: Int[Tensor, "rows columns"], table: Float[Tensor, "entries dim"]) -> Float[Tensor, "rows entries"]:
    """A matrix with a 1 at every entry of the table that a row names; times the table, it sums these entries.

    The entries that one row names are distinct. A GPU multiplies matrices faster than it sorts indices, which the
    gradient of an embedding needs.
    """
    return table.new_zeros(len(index), len(table)).scatter(1, index, 1.0)


class FeatureEncoder(nn.Module):
    """X w_in: a sum of embeddings for categories, a linear map for floats, which may be sparse.

    ``dropout`` is the share of single float features that training sets to zero; categories are never dropped.

    Shapes: [rows, columns] -> [rows, dim].
    """

    offsets: Tensor

    def __init__(self, name: FeatureField, spec: FeatureSpec, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.name, self.spec, self.dropout = name, spec, dropout
        self.table = nn.Embedding(sum(spec.categories), dim) if spec.categories else None
        self.linear = nn.Linear(spec.width, dim, bias=False) if spec.width else None
        first = list(accumulate((0, *spec.categories[:-1])))
        self.register_buffer("offsets", torch.tensor(first, dtype=torch.int64), persistent=False)

    def forward(self, features: Shaped[Tensor, "rows _"] | SparseRows | None) -> Float[Tensor, "rows dim"] | None:
        """Embedded features, or None without any; :meth:`check` them first."""
        if features is None:
            return None
        if isinstance(features, SparseRows):
            assert self.linear is not None, "features were checked before"
            return sparse_linear(features, self.linear.weight, dropout=self.dropout, training=self.training)
        if self.table is not None:
            index = features.long() + self.offsets
            if index.is_cuda and self.table.num_embeddings <= _WIDEST_MULTI_HOT:
                # Autocast is off, because looking rows up would give them in the table's own precision too.
                with torch.autocast("cuda", enabled=False):
                    return multi_hot(index, self.table.weight) @ self.table.weight
            return F.embedding_bag(index, self.table.weight, mode="sum")
        if self.linear is not None:
            features = features.to(self.linear.weight.dtype)
            if self.dropout:
                features = F.dropout(features, self.dropout, self.training)
            out: Tensor = self.linear(features)
            return out
        return None

    def check(self, batch: GraphBatch, segments: Segments) -> None:
        """Raise a ValueError that names the graph, the row and the column if the batch's features do not fit."""
        features: Tensor | SparseRows | None = getattr(batch, self.name)
        if features is None and segments.total == 0:
            return
        columns = len(self.spec.categories) or self.spec.width
        width = 0 if features is None else features.shape[1]
        kinds_agree = features is None or bool(self.spec.width) == features.is_floating_point() or not width
        if width != columns or not kinds_agree:
            raise ValueError(f"{self.name} is {describe_features(features)}; this model expects {self.spec}")
        bounds = batch.category_range(self.name) if self.spec.categories else None
        if features is None or isinstance(features, SparseRows) or bounds is None:
            return
        for column, (low, high, size) in enumerate(zip(*bounds, self.spec.categories, strict=True)):
            if low < 0 or high >= size:
                self._refuse_category(features[:, column], column, size, batch, segments)

    def _refuse_category(self, values: Tensor, column: int, size: int, batch: GraphBatch, segments: Segments) -> None:
        # The bounds may be those of a larger batch that this one was cut from, so the bad category may not be here.
        bad = torch.nonzero((values < 0) | (values >= size)).flatten()
        if len(bad):
            graph, row = batch.graph_of_row(segments, int(bad[0]))
            raise ValueError(
                f"graph {graph}: {self.name} row {row}, column {column} is category {int(values[bad[0]])}; "
                f"this model expects 0 to {size - 1}"
            )
