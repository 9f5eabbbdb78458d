"""How far trained heads are from the basis on graphs they have not seen: dropout off, float32."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.experiments.basis.errors import attention_errors, masked_softmax, matmul_precision
from tokengt.experiments.basis.groups import TokenGroup, token_features
from tokengt.experiments.basis.settings import NUM_HEADS
from tokengt.experiments.basis.training import GroupShare
from tokengt.models.tokengt.scores import FirstBlockScores


@torch.no_grad()
def head_errors(
    network: FirstBlockScores,
    groups: Sequence[TokenGroup],
    ids: Float[Tensor, "graphs rows id_dim"] | None,
    *,
    first_order: bool,
) -> Float[Tensor, " heads"]:
    """sum (alpha - B)^2 of every head, averaged over graphs; the mean of the heads is the table's number."""
    total = torch.zeros(NUM_HEADS, dtype=torch.float64, device=groups[0].members.device)
    for part, scores in _scored(network, groups, ids, first_order):
        total += part.errors(scores, attention_errors).sum((0, 2), dtype=torch.float64)
    return total / sum(len(group.members) for group in groups)


@torch.no_grad()
def attention_maps(
    network: FirstBlockScores,
    groups: Sequence[TokenGroup],
    ids: Float[Tensor, "graphs rows id_dim"] | None,
    graph: int,
    *,
    first_order: bool,
) -> tuple[Float[Tensor, "heads tokens columns"], Float[Tensor, "heads tokens columns"]]:
    """The maps of one graph and their targets; rows are its tokens, columns [null] and its tokens."""
    for part, scores in _scored(network, groups, ids, first_order):
        place = torch.nonzero(part.group.members == graph).flatten()
        if len(place):
            targets, columns, rows = (
                part.group.pick(x, place)[0] for x in (part.group.targets, part.group.columns, part.group.rows)
            )
            maps = masked_softmax(scores.index_select(0, place), columns[None])[0]
            return maps[:, rows][:, :, columns], targets[:, rows][:, :, columns]
    raise ValueError(f"graph {graph} is in none of the groups")


def _scored(
    network: FirstBlockScores, groups: Sequence[TokenGroup], ids: Tensor | None, first_order: bool
) -> Iterator[tuple[GroupShare, Tensor]]:
    network.eval()
    for group in groups:
        places = torch.arange(len(group.members), device=group.members.device)
        own = None if ids is None else ids.index_select(0, group.members)
        features = token_features(group, places, own, kinds=network.num_kinds, first_order=first_order)
        with matmul_precision("float32"):
            (scores,) = network.scores([features])
        yield GroupShare(group, places, features), scores
