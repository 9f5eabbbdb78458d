"""Eigendecompositions of many small graphs: one batched call for all graphs of one size.

A GPU has as much to launch for ten graphs as for a thousand: 2,563 operators for 2,048 molecules of fifteen sizes, and
1,000 where these are two. There small graphs can be *filled up* to the next size of :data:`FILLED`: nodes that no edge
joins are added, with eigenvalues of their own above all others, so that the graph's own eigenpairs stay as they are and
come first.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from tokengt.ragged import Segments, to_device

# Entries of the dense matrices held at a time: 128 MiB in float64.
_MAX_ENTRIES = 2**24
# cuSOLVER's batched solver is made for matrices up to this size; above it a CPU is faster.
_MAX_GPU_NODES = 32
# Above any eigenvalue of a normalised Laplacian, all of which are at most 2.
_ABOVE = 3.0
# The sizes to which graphs are filled up where they may be.
FILLED = (16, _MAX_GPU_NODES)
# LAPACK is faster on one thread for matrices up to this size, so several groups of them run side by side ...
_MAX_ONE_THREAD_NODES = 128
# ... unless they have fewer entries than this in all, when starting threads costs more than it saves.
_MIN_PARALLEL_ENTRIES = 2**14


@dataclass(frozen=True, eq=False)
class SizeGroup:
    """All eigenpairs of graphs with n nodes each; ``members`` (on the CPU) says which segments they are.

    Where graphs were filled up, n is the size to which they were; a graph of fewer nodes has its own eigenpairs first,
    and zeros in the rows of nodes that it does not have.
    """

    members: Int[Tensor, " graphs"]
    values: Float64[Tensor, "graphs n"]
    vectors: Float64[Tensor, "graphs n n"]


def eigh_by_size(
    pairs: Int[Tensor, "2 pairs"],
    nodes: Segments,
    chosen: Int[Tensor, " chosen"],
    max_entries: int = _MAX_ENTRIES,
    filled: bool = False,
) -> Iterator[list[SizeGroup]]:
    """Laplacian eigenpairs of the ``chosen`` segments (a CPU tensor), in groups of equal and ascending size.

    Each list holds what fits into ``max_entries``. ``pairs`` may hold pairs of other segments,
    repeats, and either direction or both. ``filled``: graphs of at most 32 nodes are filled up to a few sizes, which
    saves a GPU launches and costs a CPU time.
    """
    own, order = torch.sort(nodes.host_lengths[chosen], stable=True)
    members = chosen[order]
    sizes = _filled_sizes(own) if filled else own
    ends = torch.cumsum(sizes.square(), 0)
    cuts = _cuts(ends, max_entries)
    with one_thread():
        entries = _dense_entries(pairs, nodes, members, ends - sizes.square(), sizes)
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
        lengths = torch.split_with_sizes(own[first:last], repeats.tolist())
        solved = _eigh_each(list(zip(matrices, lengths, strict=True)))
        yield [SizeGroup(group, *pairs_of) for group, pairs_of in zip(groups, solved, strict=True)]


def _filled_sizes(sizes: Int[Tensor, " graphs"]) -> Int[Tensor, " graphs"]:
    """The sizes to which graphs of these ascending sizes are filled up; larger and empty ones stay as they are."""
    steps = torch.tensor((0, *FILLED))
    step = torch.bucketize(sizes, steps)
    return torch.where(step < len(steps), steps[step.clamp(max=len(FILLED))], sizes)


def _scatter(entries: Int[Tensor, " entries"], start: int, stop: int, whole: bool) -> Float64[Tensor, " chunk"]:
    """The adjacency matrices at places ``start`` to ``stop``; ``whole`` when that is all there is."""
    flat = torch.zeros(stop - start, dtype=torch.float64, device=entries.device)
    if not whole:
        low, high = torch.searchsorted(entries, torch.tensor([start, stop], device=entries.device)).tolist()
        entries = entries[low:high] - start
    flat[entries] = 1.0
    return flat


def _eigh_each(
    adjacencies: list[tuple[Float64[Tensor, "_ _ _"], Int[Tensor, " _"]]],
) -> list[tuple[Float64[Tensor, "_ _"], Float64[Tensor, "_ _ _"]]]:
    """Eigenpairs of every group, whose matrices come with how many nodes each graph has; sizes ascend.

    LAPACK on several threads is many times slower than on one for small matrices, so on a CPU each of those
    groups has one thread and the groups run side by side.
    """
    threads = torch.get_num_threads()
    small = [group for group in adjacencies if group[0].shape[1] <= _MAX_ONE_THREAD_NODES]
    entries = sum(part.numel() for part, _ in small)
    with one_thread():
        if threads == 1 or len(small) < 2 or entries < _MIN_PARALLEL_ENTRIES or small[0][0].is_cuda:
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
    group: tuple[Float64[Tensor, "graphs n n"], Int[Tensor, " graphs"]],
) -> tuple[Float64[Tensor, "graphs n"], Float64[Tensor, "graphs n n"]]:
    """Eigenpairs of ``I - D^{-1/2} A D^{-1/2}`` with degrees clipped at 1; overwrites the matrices.

    Every node that fills a graph up has an eigenvalue of its own, above those of the graph.
    """
    adjacency, lengths = group
    if adjacency.shape[1] > _MAX_GPU_NODES:
        adjacency = adjacency.cpu()
    scale = adjacency.sum(-1).clamp_(min=1.0).rsqrt_()
    laplacian = adjacency.mul_(-scale[:, :, None]).mul_(scale[:, None, :])
    diagonal = laplacian.diagonal(dim1=1, dim2=2).add_(1.0)
    size = adjacency.shape[1]
    if int(lengths[0]) < size:
        place = torch.arange(size)
        # The diagonal is 1 there already.
        filling = torch.where(place < lengths[:, None], 0.0, place + (_ABOVE - 1.0))
        diagonal.add_(to_device(filling.to(diagonal.dtype), diagonal.device))
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
    sizes: Int[Tensor, " chosen"],
) -> Int[Tensor, " entries"]:
    """Places of both directions of every pair, when ``members`` lie one after another as matrices of these sizes."""
    base, width = torch.full((nodes.count,), -1, dtype=torch.int64), torch.zeros(nodes.count, dtype=torch.int64)
    base[members], width[members] = starts, sizes
    inside = (base >= 0).to(pairs.device)
    if len(members) < nodes.count:
        pairs = pairs[:, inside[nodes.ids[pairs[0]]]]
    # Entry (u, v) of a matrix of size n lies at base + u n + v; everything but v depends on u alone.
    start, size = (base - nodes.host[:-1]).to(pairs.device), width.to(pairs.device)
    row = start.index_select(0, nodes.ids) + nodes.positions * size.index_select(0, nodes.ids)
    return (row[pairs] + pairs.flip(0)).flatten()
