"""A model with written, not trained, weights refuses what it was not made for, wherever it is called."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.models.tokengt.identifiers import Identifiers
from tokengt.ragged import Segments
from tokengt.sparse import as_dense


@dataclass(frozen=True)
class Domain:
    """The inputs that a model's weights are right for: dense tensors of n nodes, no larger than a bound.

    It is part of the model's config, so that a copy read back from a file refuses what the first one refused.

    Args:
        num_nodes: n, which the class counts are of.
        input_bound: what the gates were made for.
        sharpness: a, by which the logits multiply what identifiers are off.
    """

    num_nodes: int
    input_bound: float
    sharpness: float


@dataclass(frozen=True)
class DomainGuard:
    """A forward pre-hook of the tokenizer, which every way into the model passes; ``order`` is the tokens' k."""

    domain: Domain
    order: int

    def __call__(self, module: nn.Module, args: tuple[GraphBatch, Identifiers | None]) -> None:
        batch, ids = args
        self._check_tuples(batch)
        for features in (as_dense(batch.node_features), batch.edge_features):
            size = _largest(features)
            if features is not None and not size <= widened(self.domain.input_bound, features.dtype):
                raise ValueError(
                    f"an input of size {size:g} is above the input_bound of {self.domain.input_bound:g} that this "
                    "model was compiled with"
                )
        if ids is not None:
            self._check_identifiers(ids.nodes, batch.nodes)

    def _check_tuples(self, batch: GraphBatch) -> None:
        num_nodes = self.domain.num_nodes
        edges = num_nodes**self.order - num_nodes
        right = bool((batch.nodes.host_lengths == num_nodes).all() & (batch.edges.host_lengths == edges).all())
        if right and edges:
            local = batch.edge_numbers.local.long()
            places = torch.arange(self.order, device=local.device)
            codes = (local * num_nodes ** places[:, None]).sum(0) + batch.edges.ids * num_nodes**self.order
            diagonal = (local == local[:1]).all(0)
            right = len(torch.unique(codes)) == len(codes) and not bool(diagonal.any())
        if not right:
            raise ValueError(
                f"this model was compiled for dense order-{self.order} tensors of {num_nodes} nodes: every graph "
                f"must have {num_nodes} nodes and its {edges} other tuples once each; compile one for each size"
            )

    def _check_identifiers(self, ids: Tensor, nodes: Segments) -> None:
        off, most = _off_orthonormal(ids, nodes), orthonormal_within(ids.shape[1], ids.dtype)
        if not off <= most:
            precision = str(ids.dtype).removeprefix("torch.")
            raise ValueError(
                f"node_ids are not orthonormal: their products are off by {off:.1e}, which the sharpness of "
                f"{self.domain.sharpness:g} multiplies; expected at most {most:.1e} in {precision}"
            )


def orthonormal_within(id_dim: int, dtype: torch.dtype) -> float:
    """How far P P^T may be from I: (2 d_p + 16) roundings, which the bounds on the model's error allow for."""
    return (2 * id_dim + 16) * torch.finfo(dtype).eps / 2


def widened(bound: float, dtype: torch.dtype) -> float:
    """A bound, and one rounding of a number that reached it: float32(0.1) is a little more than 0.1.

    Float64 tensors are read with float32's rounding, since many hold what was float32 before. Gates have more room.
    """
    kinds = (dtype, torch.float32) if dtype.is_floating_point else (torch.float32,)
    return bound * (1 + max(torch.finfo(kind).eps for kind in kinds))


def _largest(features: Tensor | None) -> float:
    return 0.0 if features is None or not features.numel() else float(features.detach().abs().max())


def _off_orthonormal(ids: Tensor, nodes: Segments) -> float:
    """max |P P^T - I| over all graphs, which have one size here: their identifiers are one tensor."""
    rows = ids.detach().double().view(nodes.count, -1, ids.shape[1])
    eye = torch.eye(rows.shape[1], dtype=torch.float64, device=ids.device)
    return float((rows @ rows.mT - eye).abs().max()) if rows.numel() else 0.0
