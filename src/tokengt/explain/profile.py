r"""Equivariance profile: how much of each head's attention lies in each pattern of the equivariant basis.

The paper's Lemma 1 says that a head can attend by any one of the bell(2k) equality patterns mu (15 at order 2): its
map is then the basis tensor B^mu with rows that sum to one. Here the question is asked backwards, of a trained head.

Take one query token i and its row of attention a = (alpha_ij)_j. The pattern of (i, j) sorts the keys j into classes
K_mu(i); each key is in one class, and each special token ([graph], [null]) is a class of its own. The row of the
normalised basis is b^mu = 1/|K_mu(i)| on its class and 0 elsewhere; a class without a key has no such row. These rows
have disjoint supports, so they are orthogonal, and with m_mu = sum of alpha_ij over K_mu(i)

    a = sum_mu m_mu b^mu + r,    |a|^2 = sum_mu m_mu^2 / |K_mu(i)| + |r|^2,

where r, the part that is left over, is how a differs from being even within classes. The *share* of mu in this row is
m_mu^2 / |K_mu(i)| / |a|^2, and what is left over is |r|^2 / |a|^2: they sum to 1 by Pythagoras, in every row. Shares of
a head are means over its rows, which are all tokens but the special ones, and so sum to 1 as well. The mean over
graphs, where there are several, counts every graph alike.

A row without a key of class mu adds 0 to that mean: in a sparse graph a share is small if few tokens have such a key.
``on_rows`` is therefore the mean over those rows alone that have one. It does not sum to 1, since its rows differ from
pattern to pattern, and it is what Lemma 1 speaks of: a head that is made to be B^mu has an ``on_rows`` of 1 there.

What follows from the definition: with even attention to everything, the share of mu is the number of its keys among all
keys. A class of one key has nothing left over. An edge that is listed twice is the same multi-index twice: the class
"itself" then has two keys, and a token that attends to one of them alone has a share of 1/2. A self-loop (u, u) has the
nodes of node u, and is sorted as one more token of that multi-index.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from numpy.typing import NDArray
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.explain.patterns import Column, column_places, key_columns, pattern_columns
from tokengt.explain.walking import Measure, walk, with_maps
from tokengt.interop.pyg import as_batch
from tokengt.models.tokengt.token_batch import TokenBatch
from tokengt.models.tokengt.tokens import TokensConfig
from tokengt.theory.basis import token_patterns
from tokengt.theory.tuples import pattern_places

LEFT_OVER = Column("left over", "left over")


@dataclass(frozen=True, eq=False)
class EquivarianceProfile:
    """How much of each head's attention lies in each pattern; the mean over graphs.

    Args:
        columns: [columns] the patterns (15 at order 2; 9 where a token has no direction), then the special tokens, then
            what is left over.
        shares: [layers, heads, columns] mean over all tokens that are not special; a head's sum to 1.
        mass: [layers, heads, columns] how much attention falls on the keys of each column, evenly or not; sums to 1,
            and nothing is left over.
        on_rows: [layers, heads, patterns] the share over those tokens alone that have such a key; NaN if none has.
        rows: [patterns] how many tokens have such a key, as a share of all.
        read_columns: [read columns] what the [graph] token may attend to: all nodes, all edges, the special tokens, and
            what is left over; empty without [graph].
        read_shares: [layers, heads, read columns] the same shares of the one row of the [graph] token.
        graphs: how many graphs this is the mean over.
    """

    columns: tuple[Column, ...]
    shares: NDArray[np.float64]
    mass: NDArray[np.float64]
    on_rows: NDArray[np.float64]
    rows: NDArray[np.float64]
    read_columns: tuple[Column, ...]
    read_shares: NDArray[np.float64]
    graphs: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def by_role(self) -> dict[str, NDArray[np.float64]]:
        """Shares [layers, heads] by role: "self", "neighbour", "global", each special token, "left over"."""
        found: dict[str, NDArray[np.float64]] = {}
        for place, column in enumerate(self.columns):
            name = column.name if column.role == "special" else column.role
            found[name] = found.get(name, 0.0) + self.shares[..., place]
        return found

    def _repr_html_(self) -> str:
        from tokengt.explain.pictures import as_html, plot_equivariance_profile

        return as_html(plot_equivariance_profile(self))


@dataclass(frozen=True, eq=False)
class GraphProfiles:
    """Profiles of every graph of a batch: the arrays of :class:`EquivarianceProfile` with an axis of graphs in front.

    Sums of them over many batches give the profile of a data set (:func:`mean_profile`).
    """

    columns: tuple[Column, ...]
    read_columns: tuple[Column, ...]
    shares: NDArray[np.float64]
    mass: NDArray[np.float64]
    on_rows: NDArray[np.float64]
    rows: NDArray[np.float64]
    read_shares: NDArray[np.float64]


def equivariance_profile(model: Any, batch: Any) -> EquivarianceProfile:
    """The profile of one graph, or the mean over those of a batch (whatever a model takes), at evaluation.

    Raises:
        ValueError: one sentence: why the model or the batch has no maps of nodes and edges.
    """
    return mean_profile([graph_profiles(model, batch)])


def graph_profiles(model: Any, batch: Any) -> GraphProfiles:
    """The profile of every graph of a batch; maps are written out a few at a time and thrown away.

    Raises:
        ValueError: as :func:`equivariance_profile`.
    """
    tokengt, packed = with_maps(model), as_batch(batch)
    config, encoder = tokengt.config.tokens, tokengt.config.encoder
    columns, read_columns = profile_columns(config)
    sizes = (len(columns), len(columns), len(columns) - 1 - _specials(config), len(read_columns))
    if not len(packed) or not encoder.num_layers:
        shape = (len(packed), encoder.num_layers, encoder.num_heads)
        shares, mass, on_rows, read = (np.empty((*shape, size)) for size in sizes)
        return GraphProfiles(columns, read_columns, shares, mass, on_rows, np.empty((len(packed), sizes[2])), read)

    def prepare(tokens: TokenBatch, graphs: GraphBatch) -> tuple[Measure]:
        tables = [class_table(tokens.endpoints[bucket.rows], bucket.mask, config) for bucket in tokens.segments.buckets]
        return (lambda weights, bucket, some: _measured(weights, tables[bucket][some], config),)

    (found,) = walk(tokengt, packed, prepare).found
    parts = torch.split(found, [*sizes, sizes[2]], -1)
    shares, mass, on_rows, read, rows = (part.numpy() for part in parts)
    return GraphProfiles(columns, read_columns, shares, mass, on_rows, rows[:, 0, 0], read)


def mean_profile(parts: Sequence[GraphProfiles]) -> EquivarianceProfile:
    """The mean over all graphs of some batches of one model; of ``on_rows`` over those graphs that have such a row."""
    first = parts[0]
    together = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("shares", "mass", "on_rows", "rows", "read_shares")
    }
    there = ~np.isnan(together["on_rows"])
    counts = there.sum(0)
    on_rows = np.where(there, together["on_rows"], 0.0).sum(0) / np.maximum(counts, 1)
    graphs = len(together["shares"])
    means = {
        name: array.mean(0) if graphs else np.full(array.shape[1:], np.nan)
        for name, array in together.items()
        if name != "on_rows"
    }
    return EquivarianceProfile(
        columns=first.columns,
        read_columns=first.read_columns,
        on_rows=np.where(counts > 0, on_rows, np.nan),
        graphs=graphs,
        **means,
    )


def profile_columns(config: TokensConfig) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """The columns of the tokens that are not special, and those of the [graph] token (none without it)."""
    names = ["[graph]"] * config.graph_token + ["[null]"] * config.null_token
    specials = tuple(Column(name, "special") for name in names)
    patterns = pattern_columns(config.order, config.layout == "directed")
    read = (*key_columns(config.order), *specials, LEFT_OVER) if config.graph_token else ()
    return (*patterns, *specials, LEFT_OVER), read


def class_table(
    ends: Int[Tensor, "sequences width order"], mask: Tensor | None, config: TokensConfig
) -> Int64[Tensor, "sequences width width"]:
    """The column of every (query, key) of sequences of one width: a pattern, or the key's special token.

    The row of the [graph] token has columns of its own, those of :func:`key_columns` and then the special tokens. One
    column more, after all the others, holds what counts nowhere: padding, and other special tokens as queries.
    """
    places = torch.tensor(column_places(config.order, config.layout == "directed"), device=ends.device)
    table = places[token_patterns(ends.movedim(2, 0))]
    patterns, specials = int(places.max()) + 1, _specials(config)
    nowhere = patterns + specials
    special = torch.arange(specials, device=ends.device)
    table[:, :, :specials] = patterns + special
    table[:, :specials] = nowhere
    if config.graph_token:
        keys = pattern_places(ends.flatten(0, 1).T).view(ends.shape[:2])
        keys[:, :specials] = len(key_columns(config.order)) + special
        table[:, 0] = keys
    if mask is not None:
        table = torch.where(mask[:, :, None] & mask[:, None, :], table, nowhere)
    return table


def row_shares(
    weights: Float[Tensor, "*rest rows width"], table: Int64[Tensor, "*rest rows width"], columns: int
) -> tuple[Float64[Tensor, "*rest rows _"], Float64[Tensor, "*rest rows _"], Float64[Tensor, "*rest rows _"]]:
    """Of every row: shares [columns, and what is left over], mass [columns] and the number of keys [columns]."""
    weights = weights.double()
    zeros = weights.new_zeros(*weights.shape[:-1], columns + 1)
    mass = zeros.scatter_add(-1, table, weights)[..., :columns]
    counts = zeros.scatter_add(-1, table, torch.ones_like(weights))[..., :columns]
    energy = torch.where(table < columns, weights, 0.0).square().sum(-1, keepdim=True)
    parts = mass.square() / counts.clamp(min=1) / torch.where(energy > 0, energy, 1.0)
    # Rounding can take the sum of the parts above 1 by a few units in the last place.
    left = (1 - parts.sum(-1, keepdim=True)).clamp(min=0)
    return torch.cat([parts, left], -1), mass, counts


def _measured(
    weights: Float[Tensor, "sequences heads width width"],
    table: Int64[Tensor, "sequences width width"],
    config: TokensConfig,
) -> Float64[Tensor, "sequences heads numbers"]:
    """Shares, mass, shares on rows, shares of the [graph] row, and rows with a key, side by side."""
    heads, specials = weights.shape[1], _specials(config)
    patterns = len(pattern_columns(config.order, config.layout == "directed"))
    columns = patterns + specials
    wide = table[:, None].expand(weights.shape)
    shares, mass, counts = row_shares(weights[:, :, specials:], wide[:, :, specials:], columns)
    real = (counts.sum(-1, keepdim=True) > 0).double()
    rows = real.sum(2).clamp(min=1)
    has_key = (counts[..., :patterns] > 0).double()
    with_key = has_key.sum(2)
    on_rows = (shares[..., :patterns] * has_key).sum(2) / with_key.clamp(min=1)
    found = [
        (shares * real).sum(2) / rows,
        torch.nn.functional.pad((mass * real).sum(2) / rows, (0, 1)),
        torch.where(with_key > 0, on_rows, torch.nan),
    ]
    if config.graph_token:
        read = len(key_columns(config.order)) + specials
        found.append(row_shares(weights[:, :, :1], _beyond(wide[:, :, :1], columns, read), read)[0][:, :, 0])
    return torch.cat([*found, with_key / rows], -1).view(len(weights), heads, -1)


def _beyond(table: Int64[Tensor, "*shape"], nowhere: int, columns: int) -> Int64[Tensor, "*shape"]:
    """The row of the [graph] token has fewer columns than the others: what counts nowhere lies after its last."""
    return torch.where(table == nowhere, columns, table).clamp(max=columns)


def _specials(config: TokensConfig) -> int:
    return config.graph_token + config.null_token
