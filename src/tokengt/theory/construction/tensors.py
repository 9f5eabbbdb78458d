"""Dense order-k tensors as graphs that a model reads, and its tokens as tensors again."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.graph import Graph
from tokengt.models.tokengt.model import TokenGT
from tokengt.theory.basis import multi_indices


def tensor_graph(x: Float[Tensor, "*nodes dim"]) -> Graph:
    """X in R^(n^k x d) as a graph: X_{i...i} is node i's, every other entry an edge (or k-tuple) of its own.

    Edges are listed lexicographically. At order 1 there are none.
    """
    order, num_nodes = x.ndim - 1, x.shape[0]
    if order < 1 or any(size != num_nodes for size in x.shape[:-1]):
        raise ValueError(f"x has shape {list(x.shape)}; expected [n, ..., n, channels]")
    if order == 1:
        return Graph(x)
    index = multi_indices(num_nodes, order).to(x.device)
    diagonal = (index == index[0]).all(0)
    flat = x.flatten(0, -2)
    return Graph(flat[diagonal], index[:, ~diagonal], flat[~diagonal])


def encode_tensor(
    model: TokenGT, x: Float[Tensor, "*nodes dim"], node_ids: Float[Tensor, "n id_dim"] | None = None
) -> Float[Tensor, "*nodes width"]:
    """The encoder's output on X, entry (i_1, ..., i_k) at its own place."""
    tokens = model.encode(tensor_graph(x), node_ids)
    out = torch.empty_like(tokens.values).index_copy(0, _places(tokens.endpoints, x.shape[0]), tokens.values)
    return out.view(*x.shape[:-1], -1)


def _places(endpoints: Int[Tensor, "tokens order"], num_nodes: int) -> Int[Tensor, " tokens"]:
    """Each tuple's place in the lexicographic list."""
    place = torch.zeros_like(endpoints[:, 0])
    for entry in endpoints.T:
        place = place * num_nodes + entry
    return place
