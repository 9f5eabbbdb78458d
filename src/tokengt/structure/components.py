"""The Laplacian spectrum of one large graph, put together from its connected components.

Small components are decomposed whole, all of one size in one batched call; large ones by the Lanczos method. The
canonical basis is the basis of an eigenspace that does not depend on the solver (:mod:`tokengt.structure.eigenspaces`).
The projector of an eigenspace is block diagonal over components, so this basis needs residual norms per node and one
component's vectors at a time, never a matrix of all nodes by all eigenvectors.
"""

import warnings
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from tokengt.ragged import Segments
from tokengt.structure.dense import eigh_by_size
from tokengt.structure.eigenspaces import EIGENVALUE_GAP, PIVOT_TIE, Ends, eigenspace_extents
from tokengt.structure.lanczos import Eigenpairs, lowest_eigenpairs

Array = np.ndarray

# Graphs and components of up to this many nodes are decomposed whole.
DENSE_LIMIT = 1000
# Lanczos is faster only when a component has more nodes than this many times the eigenpairs that are wanted.
_LANCZOS_SHARE = 4
# Where Lanczos cannot compute an eigenspace whole, a component of up to this many nodes is decomposed whole after all,
# which takes some seconds.
_DENSE_FALLBACK = 3000
# What is kept of an eigenvector that was computed is right to about 1e-6, and its residual far below that.
_RESIDUAL = 1e-5


@dataclass(frozen=True, eq=False)
class Block:
    """Eigenpairs of components of equal size; those where ``kept`` is False are not needed and are passed over."""

    nodes: Int[Array, "components n"]
    values: Float64[Array, "components k"]
    vectors: Float64[Array, "components n k"]
    kept: Bool[Array, "components k"]


def large_graph_spectrum(
    pairs: Int[Tensor, "2 pairs"], num_nodes: int, ends: Ends, dense_limit: int, name: str
) -> tuple[Float64[Tensor, " k"], Float64[Tensor, "n k"]]:
    """The wanted eigenpairs of one graph in the canonical basis, low end first. Everything on the CPU.

    ``name`` is the graph's, for the warning about an eigenspace too large to compute whole.
    """
    from scipy.sparse.csgraph import connected_components

    laplacian = _sparse_laplacian(pairs, num_nodes)
    count, component = connected_components(laplacian, directed=False)
    # A stable sort keeps a component's nodes in the graph's order, which the pivot rule relies on.
    nodes = np.argsort(component, kind="stable")
    segments = Segments.from_lengths(torch.from_numpy(np.bincount(component, minlength=count)))
    sizes = segments.host_lengths
    sparse = (sizes > dense_limit) & (sizes > _LANCZOS_SHARE * (ends.low + ends.high))
    blocks = _dense_blocks(pairs, nodes, segments, torch.nonzero(~sparse).flatten(), ends)
    whole = True
    for place in torch.nonzero(sparse).flatten().tolist():
        mine = nodes[int(segments.host[place]) : int(segments.host[place + 1])]
        component_laplacian = laplacian[mine][:, mine]
        eigenpairs = _both_ends(component_laplacian, ends)
        if not eigenpairs.whole and len(mine) <= _DENSE_FALLBACK:
            eigenpairs = Eigenpairs(*np.linalg.eigh(component_laplacian.toarray()), whole=True)
        whole = whole and eigenpairs.whole
        kept = np.ones((1, len(eigenpairs.values)), dtype=bool)
        blocks.append(Block(mine[None], eigenpairs.values[None], eigenpairs.vectors[None], kept))
    values, vectors = _merge(blocks, num_nodes, ends)
    off = largest_residual(laplacian, values, vectors)
    problem = None
    if not off <= _RESIDUAL:
        problem = (
            f"the search for eigenvectors of its Laplacian ended with a residual of {off:.2g}, expected at most "
            f"{_RESIDUAL:g}: they are only nearly eigenvectors, and another machine may return others"
        )
    elif not whole:
        problem = (
            "too many eigenvalues are too close together to compute their eigenspace whole: its Laplacian eigenvectors "
            "are valid there, but another machine may return others"
        )
    if problem is not None:
        warnings.warn(f"{name} ({num_nodes} nodes): {problem}", UserWarning, stacklevel=4)
    return torch.from_numpy(values), torch.from_numpy(vectors)


def largest_residual(laplacian: Any, values: Float64[Array, " k"], vectors: Float64[Array, "n k"]) -> float:
    """The largest |Delta v - lambda v|; every v has length 1."""
    off = np.linalg.norm(laplacian @ vectors - vectors * values, axis=0)
    return float(off.max(initial=0.0))


def _sparse_laplacian(pairs: Int[Tensor, "2 pairs"], num_nodes: int) -> Any:
    """``I - D^{-1/2} A D^{-1/2}`` with degrees clipped at 1, as a SciPy CSR matrix."""
    from scipy.sparse import coo_matrix, diags, identity

    u, v = pairs.numpy()
    both = (np.concatenate([u, v]), np.concatenate([v, u]))
    adjacency = coo_matrix((np.ones(len(both[0])), both), shape=(num_nodes, num_nodes)).tocsr()
    adjacency.sum_duplicates()
    adjacency.data[:] = 1.0
    degree = np.asarray(adjacency.sum(1)).ravel()
    scale = diags(1.0 / np.sqrt(np.maximum(degree, 1.0)))
    return (identity(num_nodes) - scale @ adjacency @ scale).tocsr()


def _both_ends(laplacian: Any, ends: Ends) -> Eigenpairs:
    """The low end, then the high end (the low end of ``2 I - Delta``) without the vectors that the low end has."""
    from scipy.sparse import identity

    size = laplacian.shape[0]
    eigenpairs = Eigenpairs(np.zeros(0), np.zeros((size, 0)), whole=True)
    if ends.low:
        eigenpairs = lowest_eigenpairs(laplacian, ends.low, eigenpairs.vectors)
    if ends.high and len(eigenpairs.values) < size:
        mirrored = (2.0 * identity(size) - laplacian).tocsr()
        top = lowest_eigenpairs(mirrored, ends.high, eigenpairs.vectors)
        values, vectors = 2.0 - top.values[::-1], top.vectors[:, ::-1].copy()
        eigenpairs = Eigenpairs(values, vectors, eigenpairs.whole and top.whole)
    return eigenpairs


def _dense_blocks(
    pairs: Int[Tensor, "2 pairs"],
    nodes: Int[Array, " nodes"],
    segments: Segments,
    chosen: Int[Tensor, " chosen"],
    ends: Ends,
) -> list[Block]:
    """The chosen components' eigenpairs that can matter: both ends, with the eigenspaces at the cuts whole."""
    if len(chosen) == 0:
        return []
    renumbered = torch.empty(len(nodes), dtype=torch.int64)
    renumbered[torch.from_numpy(nodes)] = torch.arange(len(nodes))
    blocks = []
    chunks = eigh_by_size(renumbered[pairs], segments, chosen)
    for group in chain.from_iterable(chunks):
        n = group.values.shape[1]
        first, size = eigenspace_extents(group.values)
        kept = (first < ends.low) | (first + size > n - ends.high)
        columns = torch.nonzero(kept.any(0)).flatten()
        rows = segments.host[group.members][:, None] + torch.arange(n)
        blocks.append(
            Block(
                nodes[rows.numpy()],
                group.values[:, columns].numpy(),
                group.vectors[:, :, columns].numpy(),
                kept[:, columns].numpy(),
            )
        )
    return blocks


def _merge(blocks: list[Block], num_nodes: int, ends: Ends) -> tuple[Float64[Array, " k"], Float64[Array, "n k"]]:
    """Eigenvalues of all components sorted and clustered together, eigenspaces in the canonical basis."""
    values = np.sort(np.concatenate([block.values[block.kept] for block in blocks]))
    starts = np.flatnonzero(np.diff(values, prepend=-np.inf) >= EIGENVALUE_GAP)
    stops = np.append(starts[1:], len(values))
    cut = len(values) - ends.high
    vectors = np.zeros((num_nodes, ends.low + ends.high))
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        low, high = max(ends.low - start, 0), max(stop - cut, 0)
        low, high = min(low, stop - start), min(high, stop - start)
        if low + high == 0:
            continue
        inside = [block.kept & (block.values >= values[start]) & (block.values <= values[stop - 1]) for block in blocks]
        basis = _pivoted_basis(blocks, inside, num_nodes, low + high)
        vectors[:, start : start + low] = basis[:, :low]
        at = ends.low + max(start, cut) - cut
        vectors[:, at : at + high] = basis[:, low:]
    return np.concatenate([values[: ends.low], values[cut:]]), vectors


def _pivoted_basis(blocks: list[Block], inside: list[Array], num_nodes: int, steps: int) -> Float64[Array, "n steps"]:
    """The rule of :mod:`tokengt.structure.eigenspaces`, deflating only the component that holds the pivot."""
    basis = np.zeros((num_nodes, steps))
    residual = np.zeros(num_nodes)
    # The block that holds each node's component, and the component's place in that block.
    block_of = np.zeros(num_nodes, dtype=np.int64)
    row_of = np.zeros(num_nodes, dtype=np.int64)
    for place, (block, mask) in enumerate(zip(blocks, inside, strict=True)):
        residual[block.nodes] = np.sqrt(np.einsum("cnk,ck->cn", np.square(block.vectors), mask))
        block_of[block.nodes] = place
        row_of[block.nodes] = np.arange(len(block.nodes))[:, None]
    left: dict[tuple[int, int], Array] = {}
    for step in range(steps):
        pivot = int(np.argmax(residual >= residual.max() - PIVOT_TIE))
        key = (int(block_of[pivot]), int(row_of[pivot]))
        block, mask = blocks[key[0]], inside[key[0]][key[1]]
        nodes = block.nodes[key[1]]
        space = left[key] if key in left else block.vectors[key[1]][:, mask]
        direction = space[np.searchsorted(nodes, pivot)]
        direction = direction / np.linalg.norm(direction)
        vector = space @ direction
        left[key] = space - np.outer(vector, direction)
        residual[nodes] = np.linalg.norm(left[key], axis=1)
        basis[nodes, step] = vector
    return basis
