"""A compiled model refuses what it was not made for, wherever it is called."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.models.tokengt.identifiers import Identifiers
from tokengt.ragged import Segments

# How far identifiers may be from orthonormal: those made in float32 are that far, and change the logits as little.
_ORTHONORMAL = 1e-5


@dataclass(frozen=True)
class DomainGuard:
    """A forward pre-hook of the tokenizer, which every way into the model passes.

    Args:
        order: k.
        num_nodes: n, which the class counts are of.
        input_bound: what the gates were made for.
    """

    order: int
    num_nodes: int
    input_bound: float

    def __call__(self, module: nn.Module, args: tuple[GraphBatch, Identifiers | None]) -> None:
        batch, ids = args
        self._check_tuples(batch)
        for features in (batch.node_features, batch.edge_features):
            size = _largest(features)
            if not size <= self.input_bound:
                raise ValueError(
                    f"an input of size {size:g} is above the input_bound of {self.input_bound:g} that this model was "
                    "compiled with"
                )
        if ids is not None and not _orthonormal(ids.nodes, batch.nodes):
            raise ValueError("node_ids are not orthonormal; this model was compiled for identifiers that are")

    def _check_tuples(self, batch: GraphBatch) -> None:
        edges = self.num_nodes**self.order - self.num_nodes
        right = bool((batch.nodes.host_lengths == self.num_nodes).all() & (batch.edges.host_lengths == edges).all())
        if right and edges:
            local = batch.edge_numbers.local.long()
            places = torch.arange(self.order, device=local.device)
            codes = (local * self.num_nodes ** places[:, None]).sum(0) + batch.edges.ids * self.num_nodes**self.order
            diagonal = (local == local[:1]).all(0)
            right = len(torch.unique(codes)) == len(codes) and not bool(diagonal.any())
        if not right:
            raise ValueError(
                f"this model was compiled for dense order-{self.order} tensors of {self.num_nodes} nodes: every graph "
                f"must have {self.num_nodes} nodes and its {edges} other tuples once each; compile one for each size"
            )


def _largest(features: Tensor | None) -> float:
    return 0.0 if features is None or not features.numel() else float(features.detach().abs().max())


def _orthonormal(ids: Tensor, nodes: Segments) -> bool:
    """Graphs have one size here: their identifiers are one tensor."""
    rows = ids.detach().double().view(nodes.count, -1, ids.shape[1])
    eye = torch.eye(rows.shape[1], dtype=torch.float64, device=ids.device)
    return float((rows @ rows.mT - eye).abs().max()) <= _ORTHONORMAL if rows.numel() else True
