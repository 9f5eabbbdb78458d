"""Equivariant linear layers (Definition 2) and invariant graph networks (Definition 1) on packed tuples of nodes.

Packed means that the tuples of all graphs stand one after another in one list, without padding.

A layer never forms the n^(k+l) basis: keys are pooled by the nodes they may share with a query, one matrix product
mixes all pools of one size, and every query adds up the results that concern it. Time and memory grow with the number
of listed tuples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.models.tokengt.guard import widened
from tokengt.theory.partitions import (
    PatternSplit,
    bell_number,
    count_keys,
    join_pattern,
    mobius,
    patterns,
)
from tokengt.theory.tuples import Link, Tuples, block_orders, block_sets

MAX_LAYER_ORDER = 3


class EquivariantLinear(nn.Module):
    """L_{k->l}(X)_i = sum_mu sum_j B^mu_ij X_j w_mu + sum_lambda C^lambda_i b_lambda (Eq. 2, Definition 2).

    Row p of ``weight`` [bell(l+k), in_dim, out_dim] is w_mu of ``patterns(l + k)[p]``, row p of ``bias``
    [bell(l), out_dim] is b_lambda of ``patterns(l)[p]``.

    Args:
        in_order: k, 0 to 3.
        out_order: l, 0 to 3.
        in_dim: channels of X.
        out_dim: channels of the result.
        expected_nodes: n for which the first weights make every sum a mean; 1 draws all weights of one size.
    """

    mobius: Float[Tensor, "patterns patterns"]

    def __init__(self, in_order: int, out_order: int, in_dim: int, out_dim: int, *, expected_nodes: int = 1) -> None:
        super().__init__()
        if not (0 <= in_order <= MAX_LAYER_ORDER and 0 <= out_order <= MAX_LAYER_ORDER):
            raise ValueError(f"a layer of orders {in_order} -> {out_order}; expected orders 0 to {MAX_LAYER_ORDER}")
        if in_dim < 1 or out_dim < 1:
            raise ValueError(f"a layer of {in_dim} -> {out_dim} channels; expected at least 1 on either side")
        self.in_order, self.out_order = in_order, out_order
        self.weight = nn.Parameter(torch.empty(bell_number(in_order + out_order), in_dim, out_dim))
        self.bias = nn.Parameter(torch.empty(bell_number(out_order), out_dim))
        signs = torch.tensor(mobius(out_order, in_order), dtype=self.weight.dtype)
        self.register_buffer("mobius", signs, persistent=False)
        for size in range(min(in_order, out_order) + 1):
            self.register_buffer(f"coarse_{size}", _coarse_patterns(out_order, in_order, size), persistent=False)
        self.reset_parameters(expected_nodes)

    @torch.no_grad()
    def reset_parameters(self, expected_nodes: int) -> None:
        """Zero biases; normal weights, w_mu divided by the keys a query of mu has among ``expected_nodes`` nodes."""
        self.weight.normal_(std=self._deviation)
        self.weight.div_(self._keys(expected_nodes).to(self.weight.device)[:, None, None])
        self.bias.zero_()

    def deviations(self, expected_nodes: int) -> Float[Tensor, " patterns"]:
        """Of every w_mu as :meth:`reset_parameters` draws it, in float64."""
        return self._deviation / self._keys(expected_nodes).double()

    @property
    def _deviation(self) -> float:
        terms = bell_number(self.in_order + self.out_order) / bell_number(self.out_order)
        return float((terms * self.weight.shape[1]) ** -0.5)

    def _keys(self, expected_nodes: int) -> Int[Tensor, " patterns"]:
        strings = patterns(self.in_order + self.out_order)
        return torch.tensor([max(1, count_keys(mu, self.out_order, expected_nodes)) for mu in strings])

    def forward(
        self, x: Float[Tensor, "in_tuples in_dim"], source: Tuples, target: Tuples
    ) -> Float[Tensor, "out_tuples out_dim"]:
        """X on the tuples of ``source`` to L(X) on those of ``target``, both of the same graphs.

        On dense tuples this is Eq. (2); on lists of tokens the sums over i and j run over the listed ones.
        """
        self._check(x, source, target)
        # Under autocast the products are made in its type, but sums over keys and patterns in the type of the weights.
        x = x.to(self.weight.dtype)
        # These weights belong to sums over "at least these equalities" instead of "just these": such sums are pools of
        # keys that all patterns can share.
        folded = (self.mobius @ self.weight.flatten(1)).view_as(self.weight)
        out = self.bias.index_select(0, target.classes)
        for size, link in enumerate(source.links(target)):
            mixed = _pool(x, link, len(block_orders(self.in_order, size))) @ self._mixing(folded, size)
            table = mixed.view(-1, self.bias.shape[1])
            out = out.index_add(0, link.query_rows, table.index_select(0, link.query_slots).to(out.dtype))
        return out

    def _mixing(
        self, folded: Float[Tensor, "patterns in_dim out_dim"], size: int
    ) -> Float[Tensor, "orders_in sets_out"]:
        """The folded weights as one matrix from all pools of a size to all sets of shared blocks."""
        coarse: Tensor = self.get_buffer(f"coarse_{size}")
        weights = folded.index_select(0, coarse.flatten()).view(*coarse.shape, *folded.shape[1:])
        return weights.transpose(1, 2).reshape(coarse.shape[0] * folded.shape[1], -1)

    def _check(self, x: Tensor, source: Tuples, target: Tuples) -> None:
        if (source.order, target.order) != (self.in_order, self.out_order):
            raise ValueError(
                f"tuples of orders {source.order} -> {target.order} given to a layer of orders "
                f"{self.in_order} -> {self.out_order}"
            )
        if x.shape != (source.num_tuples, self.weight.shape[1]):
            raise ValueError(
                f"x has shape {list(x.shape)}; expected {[source.num_tuples, self.weight.shape[1]]}, one row per tuple"
            )
        if x.dtype != self.weight.dtype and not _autocast_meets(x, self.weight):
            raise ValueError(f"x is {x.dtype} and the layer's weights are {self.weight.dtype}; expected one type")
        if not torch.equal(source.nodes.host, target.nodes.host):
            raise ValueError("source and target hold tuples of different graphs")

    def extra_repr(self) -> str:
        return f"{self.in_order} -> {self.out_order}, in_dim={self.weight.shape[1]}, out_dim={self.weight.shape[2]}"


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


@dataclass(frozen=True)
class IGNConfig:
    """A k-IGN F_k = MLP o L_{k->0} o L_{k->k}^(T) o sigma o ... o sigma o L_{k->k}^(1) (Definition 1).

    Args:
        order: k, 1 to 3.
        dims: d_0, ..., d_T: channels of the input and after each of the T equivariant layers.
        activation: sigma, also the MLP's.
        invariant_dim: channels of L_{k->0}.
        mlp_dims: hidden widths of the MLP; none leaves a linear map.
        out_dim: numbers per graph (the paper: one).
        expected_nodes: size of the graphs to come, for the first weights only; see :class:`EquivariantLinear`.
    """

    order: int = 2
    dims: tuple[int, ...] = (1, 16, 16)
    activation: Literal["relu", "gelu"] = "relu"
    invariant_dim: int = 16
    mlp_dims: tuple[int, ...] = (16,)
    out_dim: int = 1
    expected_nodes: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.order <= MAX_LAYER_ORDER:
            raise ValueError(f"order is {self.order}; expected 1 to {MAX_LAYER_ORDER}")
        if len(self.dims) < 2:
            raise ValueError(f"dims is {self.dims}; expected d_0 and at least one layer's width")
        for name, widths in (("dims", self.dims), ("mlp_dims", self.mlp_dims)):
            if any(width < 1 for width in widths):
                raise ValueError(f"{name} is {widths}; expected widths of at least 1")
        for name, width in (("invariant_dim", self.invariant_dim), ("out_dim", self.out_dim)):
            if width < 1:
                raise ValueError(f"{name} is {width}; expected at least 1")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation is {self.activation!r}; expected one of {', '.join(ACTIVATIONS)}")


@dataclass(frozen=True)
class InputDomain:
    """The inputs that written weights are right for: graphs of up to ``max_nodes`` nodes with |X| <= input_bound."""

    max_nodes: int
    input_bound: float

    def check(self, x: Float[Tensor, "tuples dim"], tuples: Tuples) -> None:
        most, size = int(tuples.nodes.host_lengths.max()), float(x.detach().abs().max())
        if most > self.max_nodes or not size <= widened(self.input_bound, x.dtype):
            raise ValueError(
                f"a graph of {most} nodes and an input of size {size:g}; this network was made for at most "
                f"{self.max_nodes} nodes and |X| up to {self.input_bound:g}, and is wrong beyond"
            )


class InvariantGraphNetwork(nn.Module):
    """F_k of Definition 1 (Eq. 1): one vector per graph, the same whichever way its nodes are numbered.

    ``domain`` is None for a network that takes any input. One whose weights were written for some refuses others.
    """

    def __init__(self, config: IGNConfig, domain: InputDomain | None = None) -> None:
        super().__init__()
        self.config, self.domain = config, domain
        order, nodes = config.order, config.expected_nodes
        self.activation = ACTIVATIONS[config.activation]()
        self.layers = nn.ModuleList(
            EquivariantLinear(order, order, before, after, expected_nodes=nodes)
            for before, after in pairwise(config.dims)
        )
        self.invariant = EquivariantLinear(order, 0, config.dims[-1], config.invariant_dim, expected_nodes=nodes)
        widths = (config.invariant_dim, *config.mlp_dims, config.out_dim)
        steps: list[nn.Module] = []
        for before, after in pairwise(widths):
            steps += [nn.Linear(before, after), ACTIVATIONS[config.activation]()]
        self.mlp = nn.Sequential(*steps[:-1])

    def forward(self, x: Float[Tensor, "tuples dim"], tuples: Tuples) -> Float[Tensor, "graphs out"]:
        """X^(0) on dense tuples, or on the tokens of sparse graphs, to F_k(X)."""
        if self.domain is not None and x.numel():
            self.domain.check(x, tuples)
        for place, layer in enumerate(self.layers):
            x = layer(x if place == 0 else self.activation(x), tuples, tuples)
        out: Tensor = self.mlp(self.invariant(x, tuples, tuples.graphs))
        return out


def _autocast_meets(x: Tensor, weight: Tensor) -> bool:
    """Whether autocast, which leaves float64 alone, brings both to one type."""
    return torch.is_autocast_enabled(x.device.type) and all(
        tensor.is_floating_point() and tensor.dtype != torch.float64 for tensor in (x, weight)
    )


def _pool(x: Float[Tensor, "tuples dim"], link: Link, columns: int) -> Float[Tensor, "places pooled"]:
    """Sums of keys that share the same nodes: one row per list of nodes, one column per way to read it off a key."""
    # One more slot than there are pools takes the keys that share nothing with a query; it is cut off again.
    slots = x.new_zeros(link.num_places * columns + 1, x.shape[1])
    pooled = slots.index_add(0, link.key_slots, x.index_select(0, link.key_rows))
    return pooled[:-1].view(link.num_places, columns * x.shape[1])


def _coarse_patterns(query_order: int, key_order: int, size: int) -> Int[Tensor, "orders sets"]:
    """The place in ``patterns(l + k)`` of the pattern in which the key's blocks meet the query's, in turn."""
    places = {pattern: place for place, pattern in enumerate(patterns(query_order + key_order))}
    rows = []
    for key_place, key_blocks in block_orders(key_order, size):
        key, row = patterns(key_order)[key_place], []
        for query_place, query_blocks in block_sets(query_order, size):
            query = patterns(query_order)[query_place]
            met = set(zip(query_blocks, key_blocks, strict=True))
            split = PatternSplit(query, key, tuple(tuple((a, b) in met for b in key) for a in query))
            row.append(places[join_pattern(split)])
        rows.append(row)
    return torch.tensor(rows, dtype=torch.int64)
