"""Orthogonal random features: rows of random orthogonal matrices, for segments of any lengths at once."""

from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.draws import Draws, GeneratorDraws
from tokengt.ragged import Segments


def orthogonal_random_features(rows: Segments, dim: int, draws: Draws) -> Float[Tensor, "rows dim"]:
    """For every segment the rows of a Haar orthogonal matrix Q [n, n]: ``dim`` of its channels, unit length.

    The channels of a Haar matrix are exchangeable, so d_p random ones of n are the Q factor of an [n, d_p] Gaussian;
    with n <= d_p the rows are orthonormal and zero-padded. Fresh draws on a GPU take another way to the same law, as
    batched QR is slow there; keyed ones are the same numbers on every device.
    """
    gaussian = draws.normal(rows, dim, columns=min(dim, rows.max_length))
    out = gaussian.new_zeros(rows.total, dim)
    if gaussian.is_cuda and isinstance(draws, GeneratorDraws):
        _by_reflections(gaussian, rows, out)
    else:
        _by_qr(gaussian, rows, out)
    return out


def _by_qr(gaussian: Float[Tensor, "rows columns"], rows: Segments, out: Float[Tensor, "rows dim"]) -> None:
    """Segments of one length at a time. Signs are fixed by R's diagonal, because Q of a plain QR is not Haar."""
    for length, members in _by_length(rows.host_lengths):
        width, first = min(length, out.shape[1]), rows.starts.index_select(0, members.to(out.device))
        index = (first[:, None] + torch.arange(length, device=out.device)).flatten()
        q, r = torch.linalg.qr(gaussian.index_select(0, index)[:, :width].reshape(-1, length, width))
        q = q * r.diagonal(dim1=1, dim2=2).sign()[:, None, :]
        out[index, :width] = torch.nn.functional.normalize(q, dim=2).flatten(0, 1)


def _by_reflections(gaussian: Float[Tensor, "rows columns"], rows: Segments, out: Float[Tensor, "rows dim"]) -> None:
    """Lengths are padded to powers of two, from 16 on, so that there are few launches and no wait for the device."""
    powers = 2 ** torch.arange(4, 63)
    lengths = rows.host_lengths
    for width, members in _by_length(torch.where(lengths > 0, powers[torch.searchsorted(powers, lengths)], 0)):
        index, chosen = rows.take(members)
        place = chosen.ids * width + chosen.positions
        columns = min(width, gaussian.shape[1])
        padded = gaussian.new_zeros(len(members) * width, columns)
        padded.index_copy_(0, place, gaussian[:, :columns].index_select(0, index))
        unit = torch.nn.functional.normalize(haar_columns(padded.view(-1, width, columns)), dim=2)
        out[:, :columns].index_copy_(0, index, unit.flatten(0, 1).index_select(0, place))


def haar_columns(gaussian: Float[Tensor, "graphs n columns"]) -> Float[Tensor, "graphs n columns"]:
    """The first columns of Haar orthogonal matrices, from normals on and below the diagonal: Stewart (1980).

    Column k from its diagonal down, x_k, gives the reflection H_k along v_k = x_k + sgn(x_kk) |x_k| e_k, and
    Q = H_1 H_2 ... diag(-sgn x_kk) is what QR of a Gaussian has in law. All at once, with unit v_k as columns of V:
    H_1 H_2 ... = I - V (I/2 + triu(V^T V, 1))^-1 V^T. A graph of fewer nodes has zero rows below, and gets zero rows
    and columns, exactly.
    """
    v, count = gaussian.tril(), gaussian.shape[2]
    length = torch.linalg.vector_norm(v, dim=1)
    # A padded column is all zeros and gets sign 0, which keeps it zero; no other column has sign 0.
    sign = torch.where(v.diagonal(dim1=1, dim2=2) < 0, -1.0, 1.0).to(v.dtype) * (length > 0)
    v.diagonal(dim1=1, dim2=2).add_(sign * length)
    v = torch.nn.functional.normalize(v, dim=1)
    half = torch.eye(count, dtype=v.dtype, device=v.device) / 2
    inner = torch.linalg.solve_triangular((v.mT @ v).triu(1) + half, v[:, :count].mT, upper=True)
    columns = -(v @ inner)
    columns.diagonal(dim1=1, dim2=2).add_(1.0)
    signed: Tensor = columns * -sign[:, None, :]
    return signed


def _by_length(lengths: Int[Tensor, " segments"]) -> Iterable[tuple[int, Int[Tensor, " members"]]]:
    """Every length above 0 and, on the CPU, which segments have it."""
    for length in torch.unique(lengths[lengths > 0]).tolist():
        yield length, torch.nonzero(lengths == length).flatten()
