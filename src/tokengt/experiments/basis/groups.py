"""Graphs laid out for one step without a loop over them: groups of similar size, padded to one width each.

A token is one row [P_u, P_v, e] of :func:`token_features`, whose product with w_in is the token of the paper's Section
2. The entries e say what it is: node, edge or [null]. Tokens stand in the order of the production tokenizer: [null],
nodes, edges, then padding, whose rows are zero.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.experiments.basis.settings import NUM_HEADS
from tokengt.theory.basis import token_patterns

# Widths are rounded up to multiples of this, because matrix products on a GPU are several times slower on rows of other
# lengths.
_ALIGNMENT = 8
# Widths of sparse graphs are rounded up to multiples of this many tokens: with larger multiples there is more padding,
# with smaller ones there are more groups, and so more and smaller calls.
_STEP = 16


@dataclass(eq=False)
class TokenGroup:
    """Graphs whose tokens fit into one width, [null] included.

    Where all of them have the same tokens, as dense graphs of one size have, ``graphs`` in the shapes is 1.

    Attributes:
        members: which graphs of the batch.
        endpoints: (u, v) of every token; zero for [null] and padding.
        kinds: one-hot: node, edge, [null]; zero for padding.
        targets: the row-normalised basis; zero rows for [null] and padding.
    """

    members: Int[Tensor, " members"]
    endpoints: Int[Tensor, "graphs width 2"]
    kinds: Float[Tensor, "graphs width 3"]
    targets: Float[Tensor, "graphs heads width width"]

    @property
    def width(self) -> int:
        return self.endpoints.shape[1]

    @cached_property
    def columns(self) -> Bool[Tensor, "graphs width"]:
        """What a token may attend to: all tokens and [null], no padding."""
        return self.kinds.any(2)

    @cached_property
    def rows(self) -> Bool[Tensor, "graphs width"]:
        """What the loss looks at: all tokens, not [null] and no padding."""
        return self.kinds[:, :, :2].any(2)

    def pick(self, part: Tensor, chosen: Int[Tensor, " chosen"]) -> Tensor:
        """The rows of ``part`` that belong to the graphs at these places; one row where all are alike."""
        return part if len(part) == 1 else part.index_select(0, chosen)

    def to(self, device: torch.device | str) -> "TokenGroup":
        parts = (part.to(device) for part in (self.members, self.endpoints, self.kinds, self.targets))
        return TokenGroup(*parts)


def normalised_targets(endpoints: Int[Tensor, "tokens 2"]) -> Float[Tensor, "heads tokens columns"]:
    """The row-normalised basis B^mu on these tokens with [null] as column 0; rows without an entry point to [null]."""
    basis = (token_patterns(endpoints.T) == torch.arange(NUM_HEADS)[:, None, None]).float()
    counts = basis.sum(2, keepdim=True)
    return torch.cat([(counts == 0).float(), basis / counts.clamp(min=1)], 2)


def group_tokens(batch: GraphBatch, step: int = _STEP) -> list[TokenGroup]:
    """All graphs of a batch (on the CPU): those of one size together when complete, else by token count."""
    nodes = batch.nodes.host_lengths
    columns = 1 + nodes + batch.edges.host_lengths
    # Complete graphs of one size have the same tokens, so that one of them stands for all.
    if bool((columns == 1 + nodes.square()).all()):
        places = [torch.nonzero(nodes == size).flatten() for size in torch.unique(nodes)]
        return [replace(_group(batch, place[:1], _ALIGNMENT), members=place) for place in places]
    widths = _round_up(columns, step)
    return [_group(batch, torch.nonzero(widths == width).flatten(), step) for width in torch.unique(widths)]


def _group(batch: GraphBatch, members: Int[Tensor, " members"], step: int) -> TokenGroup:
    tokens = [_endpoints(batch, graph) for graph in members.tolist()]
    width = int(_round_up(torch.tensor(1 + max(len(own) for own in tokens)), step))
    endpoints = torch.zeros(len(tokens), width, 2, dtype=torch.int64)
    kinds = torch.zeros(len(tokens), width, 3)
    targets = torch.zeros(len(tokens), NUM_HEADS, width, width)
    kinds[:, 0, 2] = 1
    for place, (own, graph) in enumerate(zip(tokens, members.tolist(), strict=True)):
        end, nodes = 1 + len(own), 1 + int(batch.nodes.host_lengths[graph])
        endpoints[place, 1:end] = own
        kinds[place, 1:nodes, 0] = 1
        kinds[place, nodes:end, 1] = 1
        targets[place, :, 1:end, :end] = normalised_targets(own)
    return TokenGroup(members, endpoints, kinds, targets)


def _round_up(counts: Int[Tensor, "*shape"], step: int) -> Int[Tensor, "*shape"]:
    return (counts + step - 1) // step * step


def _endpoints(batch: GraphBatch, graph: int) -> Int[Tensor, "tokens 2"]:
    """(u, u) of the nodes, then (u, v) of the edges as listed."""
    first, last = batch.edges.host[graph : graph + 2].tolist()
    nodes = torch.arange(int(batch.nodes.host_lengths[graph]))
    return torch.cat([nodes[:, None].expand(-1, 2), batch.edge_numbers.local[:, first:last].T])


def token_features(
    group: TokenGroup,
    chosen: Int[Tensor, " chosen"],
    ids: Float[Tensor, "chosen rows id_dim"] | None,
    *,
    kinds: int,
    first_order: bool,
) -> Float[Tensor, "chosen width features"]:
    """[P_u, P_v, e] of every token of the chosen graphs; e has ``kinds`` entries for node and edge, and [null]'s.

    ``ids`` are those of the nodes, or with ``first_order`` one row for every token but [null]; None for none. Rows
    that a graph does not have are not read.
    """
    kind_columns = group.pick(group.kinds, chosen).expand(len(chosen), -1, -1)
    if kinds < 2:
        kind_columns = torch.cat([kind_columns[:, :, :2].sum(2, keepdim=True)[:, :, :kinds], kind_columns[:, :, 2:]], 2)
    if ids is None:
        return kind_columns
    if first_order:
        own = ids[:, : group.width - 1]
        rows = F.pad(own, (0, 0, 1, group.width - 1 - own.shape[1]))
    else:
        ends = group.pick(group.endpoints, chosen).expand(len(chosen), -1, -1).flatten(1)
        rows = ids.gather(1, ends[:, :, None].expand(-1, -1, ids.shape[2])).view(*kind_columns.shape[:2], -1)
    return torch.cat([rows * group.pick(group.rows, chosen)[:, :, None], kind_columns], 2)
