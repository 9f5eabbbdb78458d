"""Eigenvectors of the normalised graph Laplacian, the structural node identifiers of the paper's Section 2.

    Delta = I - D^{-1/2} A D^{-1/2} = U Lambda U^T

* A is symmetric and binary (:mod:`tokengt.structure.adjacency`): ``A_uv = 1`` when any edge joins u and v in
  either direction; repeated edges count once; a self-loop sets ``A_uu = 1`` and counts once in the degree;
  k-tuples and hyperedges join every two of their distinct nodes.
* Degrees are clipped at 1, so an isolated node has ``Delta_ii = 1``.
* Eigenvalues ascend and the trivial eigenvector is kept. A graph of n nodes has n eigenvectors: with
  ``count >= n`` all of them, the remaining columns zero; otherwise the lowest ``count``, or with ``both_ends``
  the ``count // 2`` lowest and then the ``count - count // 2`` highest.
* Everything is float64 and in a canonical basis of each eigenspace (:mod:`tokengt.structure.eigenspaces`), so
  the same graph in the same node order has the same eigenvectors to 1e-6 on any LAPACK. Relabelling the nodes
  may change them: no rule can fix v against -v under an automorphism.

Graphs up to ``DENSE_LIMIT`` nodes are decomposed whole, all graphs of one size in one batched call; larger ones
component by component with a sparse solver (:mod:`tokengt.structure.components`).
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.ragged import Segments, to_device
from tokengt.structure.adjacency import adjacency_pairs
from tokengt.structure.components import DENSE_LIMIT, large_graph_spectrum
from tokengt.structure.dense import FILLED, SizeGroup, eigh_by_size, one_thread
from tokengt.structure.eigenspaces import Ends, canonical_columns

Which = Literal["lowest", "both_ends"]


@dataclass(frozen=True, eq=False)
class LaplacianSpectrum:
    """Eigenpairs of every graph of a batch, on the batch's device.

    ``vectors`` has the rows of ``batch.nodes``; graph g owns ``counts[g] = min(n, count)`` columns, the rest are
    zero. ``values[g, j]`` belongs to column j.
    """

    vectors: Float64[Tensor, "nodes count"]
    values: Float64[Tensor, "graphs count"]
    counts: Int[Tensor, " graphs"]


def laplacian_fact(count: int, which: Which) -> str:
    """The name under which a batch carries these eigenvectors as a fact, so that they are not computed again."""
    return f"laplacian-{which}-{count}"


def laplacian_eigenvectors(batch: GraphBatch, count: int, which: Which = "lowest") -> LaplacianSpectrum:
    """Canonical eigenvectors of ``Delta = I - D^{-1/2} A D^{-1/2}`` for every graph; see the module for the rules.

    Warns:
        UserWarning: an eigenspace of a large graph is too large to compute whole, so its basis is not canonical.
    """
    return spectrum_with_limit(batch, count, which, DENSE_LIMIT, filled=batch.device.type == "cuda")


def spectrum_with_limit(
    batch: GraphBatch, count: int, which: Which, dense_limit: int, filled: bool = False
) -> LaplacianSpectrum:
    """:func:`laplacian_eigenvectors` with the sparse path taken above ``dense_limit`` nodes.

    ``filled``: small graphs are filled up to a few sizes (:mod:`tokengt.structure.dense`).
    """
    if count < 1:
        raise ValueError(f"count is {count}; expected at least one eigenvector")
    if which not in ("lowest", "both_ends"):
        raise ValueError(f"which is {which!r}; expected 'lowest' or 'both_ends'")
    both_ends = which == "both_ends"
    nodes, pairs = batch.nodes, adjacency_pairs(batch)
    with one_thread():
        vectors = torch.zeros(nodes.total, count, dtype=torch.float64, device=batch.device)
        values = torch.zeros(nodes.count, count, dtype=torch.float64, device=batch.device)
    small = nodes.host_lengths <= dense_limit
    # What fills a graph up would be the upper end of its spectrum.
    filled = filled and not both_ends
    for chunk in eigh_by_size(pairs, nodes, torch.nonzero(small).flatten(), filled=filled):
        # Graphs of one device are treated together: on a CPU those of similar size, because they are padded to the
        # largest of them; on a GPU, where each round costs launches, those that were filled up.
        for _, alike in groupby(chunk, key=lambda g: (g.values.device.type, _alike(g.values.shape[1], filled))):
            _write_canonical(list(alike), nodes, both_ends, vectors, values)
    for graph in torch.nonzero(~small).flatten().tolist():
        start, stop = nodes.host[graph : graph + 2].tolist()
        mine = pairs[:, (pairs[0] >= start) & (pairs[0] < stop)].cpu() - start
        ends = Ends.of(stop - start, count, both_ends)
        lowest, columns = large_graph_spectrum(mine, stop - start, ends, dense_limit, name=f"graph {graph}")
        width = columns.shape[1]
        vectors[start:stop, :width] = columns.to(batch.device)
        values[graph, :width] = lowest.to(batch.device)
    return LaplacianSpectrum(vectors, values, nodes.lengths.clamp(max=count))


def _alike(size: int, filled: bool) -> int:
    """What the sizes of graphs that are treated together have in common."""
    return -1 if filled and size in FILLED else size.bit_length()


def _write_canonical(
    groups: list[SizeGroup],
    nodes: Segments,
    both_ends: bool,
    vectors: Float64[Tensor, "nodes count"],
    values: Float64[Tensor, "graphs count"],
) -> None:
    """Puts the groups' wanted eigenpairs where they belong in ``vectors`` and ``values``."""
    count, device = vectors.shape[1], vectors.device
    ends = [Ends.of(group.values.shape[1], count, both_ends) for group in groups]
    with one_thread():
        chosen = canonical_columns([(group.values, group.vectors) for group in groups], ends)
        for group, (lowest, columns) in zip(groups, chosen, strict=True):
            _, n, width = columns.shape
            rows, lengths = nodes.host[group.members][:, None] + torch.arange(n), nodes.host_lengths[group.members]
            if int(lengths.min()) < n:
                lowest, columns, rows = _without_filling(lowest, columns, rows, lengths)
            vectors[rows.flatten().to(device), :width] = columns.flatten(0, -2).to(device)
            values[group.members.to(device), :width] = lowest.to(device)


def _without_filling(
    values: Float64[Tensor, "graphs k"],
    columns: Float64[Tensor, "graphs n k"],
    rows: Int[Tensor, "graphs n"],
    lengths: Int[Tensor, " graphs"],
) -> tuple[Float64[Tensor, "graphs k"], Float64[Tensor, "rows k"], Int[Tensor, " rows"]]:
    """The eigenpairs of graphs that were filled up, without those of what filled them, and without its rows."""
    device, (_, n, width) = columns.device, columns.shape
    foreign = to_device(torch.arange(width) >= lengths[:, None], device)
    inside = (torch.arange(n) < lengths[:, None]).flatten().nonzero().flatten()
    own = columns.masked_fill(foreign[:, None], 0.0).flatten(0, 1).index_select(0, to_device(inside, device))
    return values.masked_fill(foreign, 0.0), own, rows.flatten()[inside]
