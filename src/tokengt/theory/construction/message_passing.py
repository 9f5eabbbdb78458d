"""Corollary 2: a given message-passing network (Gilmer et al., 2017) as an explicit 2-IGN, and so as a Transformer.

The 2-IGN's tensor holds A_ij and edge features off the diagonal and node features on it. Two equivariant layers make
one layer of messages: the first brings h_i and h_j to entry (i, j) and lets the message live where A_ij = 1, the second
sums row i onto the diagonal. What only travels along goes as the pair act(v), act(-v), whose difference is v.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tokengt.theory.construction.gates import Activation, apply_activation, gate_strength, identity_map
from tokengt.theory.ign import EquivariantLinear, IGNConfig, InputDomain, InvariantGraphNetwork
from tokengt.theory.partitions import EqualityPattern, patterns

# Patterns of order 4 that the construction uses: the first two labels are the query (i, j), the last two the key.
_SELF_LOOP: EqualityPattern = (0, 0, 0, 0)
_ROW: EqualityPattern = (0, 0, 0, 1)
_EDGE: EqualityPattern = (0, 1, 0, 1)
_RECEIVER: EqualityPattern = (0, 1, 0, 0)
_SENDER: EqualityPattern = (0, 1, 1, 1)
_NODES, _EDGES = 0, 1


@dataclass(frozen=True, eq=False)
class MessagePassingLayer:
    """h_i' = sigma(h_i own + sum_{j: A_ij = 1} m_ij message + bias).

    m_ij = sigma(h_i receive + h_j send + e_ij edge + message_bias). A layer with zero ``message`` is one of an MLP on
    the nodes, so that stacks have updates of any depth.
    """

    receive: Float[Tensor, "dim hidden"]
    send: Float[Tensor, "dim hidden"]
    edge: Float[Tensor, "edge_dim hidden"]
    message_bias: Float[Tensor, " hidden"]
    message: Float[Tensor, "hidden out"]
    own: Float[Tensor, "dim out"]
    bias: Float[Tensor, " out"]

    @classmethod
    def linear(
        cls, own: Float[Tensor, "dim out"], message: Float[Tensor, "dim out"], bias: Float[Tensor, " out"]
    ) -> "MessagePassingLayer":
        """h_i' = sigma(h_i own + sum_{j: A_ij = 1} h_j message + bias): a linear message z is sigma(z) - sigma(-z)."""
        eye = torch.eye(message.shape[1], dtype=message.dtype)
        send = torch.cat([message, -message], 1)
        return cls(torch.zeros_like(send), send, send[:0], torch.zeros_like(send[0]), torch.cat([eye, -eye]), own, bias)

    @property
    def dim(self) -> int:
        return self.own.shape[0]

    @property
    def out_dim(self) -> int:
        return self.own.shape[1]

    @property
    def num_relations(self) -> int:
        """Channels of an edge: A_ij and its features."""
        return 1 + self.edge.shape[0]

    def double(self) -> "MessagePassingLayer":
        """The same on the CPU in float64."""
        return MessagePassingLayer(*(getattr(self, field.name).detach().cpu().double() for field in fields(self)))

    def absolute(self) -> "MessagePassingLayer":
        """The same with the sizes of all weights and biases: no layer of such sizes is louder."""
        return MessagePassingLayer(*(getattr(self, field.name).abs() for field in fields(self)))


def pass_messages(
    layers: Sequence[MessagePassingLayer],
    features: Float[Tensor, "nodes dim"],
    adjacency: Bool[Tensor, "nodes nodes"],
    activation: Activation,
    edge_features: Float[Tensor, "nodes nodes edge_dim"] | None = None,
) -> Float[Tensor, "nodes out"]:
    """The network itself, dense and direct: node states after all layers. Self-loops pass no messages."""
    linked = _off_diagonal(adjacency).to(features.dtype)
    for layer in layers:
        pairs = (features @ layer.receive)[:, None] + (features @ layer.send)[None] + layer.message_bias
        if edge_features is not None:
            pairs = pairs + edge_features @ layer.edge
        gathered = torch.einsum("ij,ijm->im", linked, apply_activation(pairs, activation))
        features = apply_activation(features @ layer.own + gathered @ layer.message + layer.bias, activation)
    return features


def graph_tensor(
    features: Float[Tensor, "nodes dim"],
    adjacency: Bool[Tensor, "nodes nodes"],
    edge_features: Float[Tensor, "nodes nodes edge_dim"] | None = None,
) -> Float[Tensor, "nodes nodes channels"]:
    """X [n, n, 1 + d_edge + d]: channels for A_ij and edge features off the diagonal, for node features on it."""
    nodes = torch.arange(len(features))
    linked = _off_diagonal(adjacency)[..., None].to(features.dtype)
    edges = linked if edge_features is None else torch.cat([linked, linked * edge_features], 2)
    x = torch.cat([edges, features.new_zeros(len(nodes), len(nodes), features.shape[1])], 2)
    x[nodes, nodes, edges.shape[2] :] = features
    return x


@torch.no_grad()
def message_passing_ign(
    layers: Sequence[MessagePassingLayer], num_nodes: int, feature_bound: float, activation: Activation = "relu"
) -> InvariantGraphNetwork:
    """The 2-IGN that gives sum_i h_i after all layers, for graphs of up to n nodes and |features| <= feature_bound.

    It reads :func:`graph_tensor`, has two equivariant layers per layer of messages and one more that picks the
    diagonal. It is exact, and in float64. Features are those of nodes and edges. The tensor holds A_ij = 1 beside them,
    so the network is made for |X| <= max(1, feature_bound): it refuses more, and so does :func:`compile_ign`.
    """
    _check_fit(layers)
    domain = InputDomain(num_nodes, max(1.0, float(feature_bound)))
    layers = [layer.double() for layer in layers]
    relations, out_dim = layers[0].num_relations, layers[-1].out_dim
    dims = [relations + layers[0].dim]
    for layer in layers:
        dims += [2 * relations + 2 * layer.dim + layer.send.shape[1], 2 * relations + layer.out_dim]
    config = IGNConfig(2, (*dims, out_dim), activation, invariant_dim=out_dim, mlp_dims=(), out_dim=out_dim)
    ign = InvariantGraphNetwork(config, domain).double()
    for parameter in ign.parameters():
        parameter.zero_()
    parts = [part for part in ign.layers if isinstance(part, EquivariantLinear)]
    bound = torch.full((layers[0].dim,), domain.input_bound, dtype=torch.float64)
    eye = torch.eye(relations, dtype=torch.float64)
    read, pair = eye, torch.cat([eye, -eye])
    for place, layer in enumerate(layers):
        reach = bound @ layer.receive.abs() + bound @ layer.send.abs() + layer.message_bias.abs()
        reach = reach + domain.input_bound * layer.edge.abs().sum(0)
        _spread(parts[2 * place], layer, read, gate_strength(identity_map(), reach, activation)[0])
        _gather(parts[2 * place + 1], layer, pair)
        bound = bound @ layer.own.abs() + (num_nodes - 1) * reach @ layer.message.abs() + layer.bias.abs()
        read = pair
    _entry(parts[-1], _SELF_LOOP)[2 * relations :] = torch.eye(out_dim, dtype=torch.float64)
    ign.invariant.weight[_NODES] = torch.eye(out_dim, dtype=torch.float64)
    readout = ign.mlp[0]
    assert isinstance(readout, nn.Linear)
    readout.weight.copy_(torch.eye(out_dim))
    return ign


def _check_fit(layers: Sequence[MessagePassingLayer]) -> None:
    if not layers:
        raise ValueError("a message-passing network needs at least one layer")
    for place, (before, after) in enumerate(pairwise(layers), 1):
        if (before.out_dim, before.num_relations) != (after.dim, after.num_relations):
            raise ValueError(
                f"layer {place} takes {after.dim} node and {after.num_relations - 1} edge channels; the one before "
                f"gives {before.out_dim} and {before.num_relations - 1}"
            )


def _off_diagonal(adjacency: Bool[Tensor, "nodes nodes"]) -> Bool[Tensor, "nodes nodes"]:
    return adjacency & ~torch.eye(len(adjacency), dtype=torch.bool)


def _entry(part: EquivariantLinear, pattern: EqualityPattern) -> Float[Tensor, "in_dim out_dim"]:
    """w_mu, to write into."""
    return part.weight[patterns(4).index(pattern)]


def _spread(
    part: EquivariantLinear,
    layer: MessagePassingLayer,
    read: Float[Tensor, "channels relations"],
    strength: Float[Tensor, " hidden"],
) -> None:
    """[A and e, h] -> [A and e, and minus them, h, -h, messages]; the message at (i, j) is far below zero without A_ij.

    ``read`` takes A and e out of the channels they come in.
    """
    edges, nodes = slice(0, len(read)), slice(len(read), None)
    travelling = 2 * layer.num_relations
    messages = slice(travelling + 2 * layer.dim, None)
    eye = torch.eye(layer.dim, dtype=torch.float64)
    _entry(part, _EDGE)[edges, :travelling] = torch.cat([read, -read], 1)
    _entry(part, _EDGE)[edges, messages] = read @ torch.cat([strength[None], layer.edge])
    _entry(part, _RECEIVER)[nodes, messages] = layer.receive
    _entry(part, _SENDER)[nodes, messages] = layer.send
    part.bias[_EDGES, messages] = layer.message_bias - strength
    _entry(part, _SELF_LOOP)[nodes, travelling : messages.start] = torch.cat([eye, -eye], 1)


def _gather(part: EquivariantLinear, layer: MessagePassingLayer, pair: Float[Tensor, "channels relations"]) -> None:
    """What :func:`_spread` gave, after sigma -> [A and e, and minus them, h']."""
    travelling = len(pair)
    messages = travelling + 2 * layer.dim
    _entry(part, _EDGE)[:travelling, :travelling] = torch.cat([pair, -pair], 1)
    _entry(part, _SELF_LOOP)[travelling:messages, travelling:] = torch.cat([layer.own, -layer.own])
    _entry(part, _ROW)[messages:, travelling:] = layer.message
    part.bias[_NODES, travelling:] = layer.bias
