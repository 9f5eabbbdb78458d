"""Eigendecompositions of many small graphs: one batched call for all graphs of one size."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from tokengt.ragged import Segments

# Entries of the dense matrices held at a time: 128 MiB in float64.
_MAX_ENTRIES = 2**24
# cuSOLVER's batched solver is made for matrices up to this size; above it a CPU is faster.
_MAX_GPU_NODES = 32
# LAPACK is faster on one thread for matrices up to this size, so several groups of them run side by side ...
_MAX_ONE_THREAD_NODES = 128
# ... unless they have fewer entries than this in all, when starting threads costs more than it saves.
_MIN_PARALLEL_ENTRIES = 2**14


@dataclass(frozen=True, eq=False)
class SizeGroup:
    """All eigenpairs of graphs with n nodes each; ``members`` (on the CPU) says which segments they are."""

    members: Int[Tensor, " graphs"]
    values: Float64[Tensor, "graphs n"]
    vectors: Float64[Tensor, "graphs n n"]


def eigh_by_size(
    pairs: Int[Tensor, "2 pairs"],
    nodes: Segments,
    chosen: Int[Tensor, " chosen"],
    max_entries: int = _MAX_ENTRIES,
) -> Iterator[list[SizeGroup]]:
    """Laplacian eigenpairs of the ``chosen`` segments (a CPU tensor), in groups of equal and ascending size.

    Each list holds what fits into ``max_entries``. ``pairs`` may hold pairs of other segments,
    repeats, and either direction or both.
    """
    sizes, order = torch.sort(nodes.host_lengths[chosen], stable=True)
    members = chosen[order]
    ends = torch.cumsum(sizes.square(), 0)
    cuts = _cuts(ends, max_entries)
    with one_thread():
        entries = _dense_entries(pairs, nodes, members, ends - sizes.square())
        # Sorted, the entries of each chunk lie together and are found by a binary search.
        if len(cuts) > 2:
            entries = entries.sort().values
    for first, last in pairwise(cuts):
        start, stop = int(ends[first] - sizes[first] ** 2), int(ends[last - 1])
        with one_thread():
            flat = _scatter(entries, start, stop, whole=len(cuts) == 2)
        widths, repeats = torch.unique_consecutive(sizes[first:last], return_counts=True)
        parts = torch.split_with_sizes(flat, (widths.square() * repeats).tolist())
        matrices = [part.view(-1, width, width) for part, width in zip(parts, widths.tolist(), strict=True)]
        groups = torch.split_with_sizes(members[first:last], repeats.tolist())
        yield [SizeGroup(group, *solved) for group, solved in zip(groups, _eigh_each(matrices), strict=True)]


def _scatter(entries: Int[Tensor, " entries"], start: int, stop: int, whole: bool) -> Float64[Tensor, " chunk"]:
    """The adjacency matrices at places ``start`` to ``stop``; ``whole`` when that is all there is."""
    flat = torch.zeros(stop - start, dtype=torch.float64, device=entries.device)
    if not whole:
        low, high = torch.searchsorted(entries, torch.tensor([start, stop], device=entries.device)).tolist()
        entries = entries[low:high] - start
    flat[entries] = 1.0
    return flat


def _eigh_each(
    adjacencies: list[Float64[Tensor, "_ _ _"]],
) -> list[tuple[Float64[Tensor, "_ _"], Float64[Tensor, "_ _ _"]]]:
    """Eigenpairs of every group; sizes ascend.

    LAPACK on several threads is many times slower than on one for small matrices, so on a CPU each of those
    groups has one thread and the groups run side by side.
    """
    threads = torch.get_num_threads()
    small = [part for part in adjacencies if part.shape[1] <= _MAX_ONE_THREAD_NODES]
    entries = sum(part.numel() for part in small)
    with one_thread():
        if threads == 1 or len(small) < 2 or entries < _MIN_PARALLEL_ENTRIES or small[0].is_cuda:
            solved = list(map(_eigh, small))
        else:
            with ThreadPoolExecutor(threads) as pool:
                solved = list(pool.map(_eigh, small))
    return solved + list(map(_eigh, adjacencies[len(small) :]))


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch runs on one thread inside; afterwards it has as many as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _eigh(
    adjacency: Float64[Tensor, "graphs n n"],
) -> tuple[Float64[Tensor, "graphs n"], Float64[Tensor, "graphs n n"]]:
    """Eigenpairs of ``I - D^{-1/2} A D^{-1/2}`` with degrees clipped at 1; overwrites ``adjacency``."""
    if adjacency.shape[1] > _MAX_GPU_NODES:
        adjacency = adjacency.cpu()
    scale = adjacency.sum(-1).clamp_(min=1.0).rsqrt_()
    laplacian = adjacency.mul_(-scale[:, :, None]).mul_(scale[:, None, :])
    laplacian.diagonal(dim1=1, dim2=2).add_(1.0)
    values, vectors = torch.linalg.eigh(laplacian)
    return values, vectors


def _cuts(ends: Int[Tensor, " graphs"], max_entries: int) -> list[int]:
    """Where to cut the sorted graphs into chunks of at most ``max_entries`` entries, at least one graph each."""
    cuts = [0]
    while cuts[-1] < len(ends):
        used = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        fitting = int(torch.searchsorted(ends, used + max_entries, right=True))
        cuts.append(max(fitting, cuts[-1] + 1))
    return cuts


def _dense_entries(
    pairs: Int[Tensor, "2 pairs"],
    nodes: Segments,
    members: Int[Tensor, " chosen"],
    starts: Int[Tensor, " chosen"],
) -> Int[Tensor, " entries"]:
    """Places of both directions of every pair, when ``members`` lie one after another as dense matrices."""
    base = torch.full((nodes.count,), -1, dtype=torch.int64)
    base[members] = starts
    inside = (base >= 0).to(pairs.device)
    if len(members) < nodes.count:
        pairs = pairs[:, inside[nodes.ids[pairs[0]]]]
    # Entry (u, v) of a graph with n nodes lies at base + u n + v; everything but v depends on u alone.
    start, size = (base - nodes.host[:-1]).to(pairs.device), nodes.lengths
    row = start.index_select(0, nodes.ids) + nodes.positions * size.index_select(0, nodes.ids)
    return (row[pairs] + pairs.flip(0)).flatten()
