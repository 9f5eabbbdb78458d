"""Heads that begin as maps of the paper's proofs instead of at random; off by default, and trained like all others.

Corollary 2 passes messages by two equality patterns of (query, key). In the *incidence* map, (i, i; i, j), a node
attends to its edges. In the *neighbour* map, (i, j; j, j), an edge attends to the node at its other end. One after the
other they bring to a node what its neighbours know. By Lemma 1 a head attends by a pattern when its score is

    sum over a, b of sgn(a, b) <P_{i_a}, P_{j_b}>, and one term for the type of the key.

The lemma's term for the type of the query is the same for all keys, which a softmax does not see. For these two
patterns sgn(a, b) is a product of a factor of a and one of b, so that one query and one key as wide as P give the sum.
Where one token stands for both directions of an edge it knows P_u + P_v alone: all signs are +, and an edge attends to
both its nodes.

The proof has tokens [P_u, P_v, E] side by side. Here w_in mixes them with features, and a LayerNorm follows. So w_in
begins as an isometry: P_u, P_v and E go to directions that are orthogonal to each other, to all features and to
(1, ..., 1), which is what LayerNorm takes away. A head reads each along its direction. What LayerNorm divides by is
taken to be what tokens have on average; with features of unequal length, the maps are about those of the proof.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokengt.attention import MultiheadAttention
from tokengt.block import Block
from tokengt.models.features import FeatureEncoder
from tokengt.models.tokengt.token_batch import TokenKind
from tokengt.models.tokengt.tokens import Tokenizer
from tokengt.structure.patterns import EqualityPattern, equality_sign
from tokengt.transformer import Encoder

ProofMap = Literal["incidence", "neighbours"]
# As in the message passing of Corollary 2: (i, i; i, j) and (i, j; j, j).
PATTERNS: dict[ProofMap, EqualityPattern] = {"incidence": (0, 0, 0, 1), "neighbours": (0, 1, 1, 1)}
_KEYS: dict[ProofMap, TokenKind] = {"incidence": TokenKind.EDGE, "neighbours": TokenKind.NODE}


@dataclass(frozen=True)
class ProofHeads:
    """Which heads begin as the proof's maps: the first of each of the first blocks.

    Args:
        layers: in how many blocks, from the first on; 0 for none.
        incidence: heads of each that begin with nodes attending to their edges.
        neighbours: heads of each that begin with edges attending to their nodes.
        sharpness: by how much the scores of these tokens exceed all others, if identifiers are orthonormal. A head has
            room for head_dim - 1 columns of P, and a narrower one reads the first of them.
    """

    layers: int = 0
    incidence: int = 1
    neighbours: int = 1
    sharpness: float = 5.0

    def __post_init__(self) -> None:
        for name in ("layers", "incidence", "neighbours"):
            if getattr(self, name) < 0:
                raise ValueError(f"proof_heads.{name} is {getattr(self, name)}; expected 0 or more")
        if not 0 < self.sharpness < math.inf:
            raise ValueError(f"proof_heads.sharpness is {self.sharpness}; expected a number above 0")

    @property
    def maps(self) -> tuple[ProofMap, ...]:
        """What the first heads of a block begin as."""
        counts: dict[ProofMap, int] = {"incidence": self.incidence, "neighbours": self.neighbours}
        return tuple(name for name, count in counts.items() for _ in range(count))


@torch.no_grad()
def begin_with_proof_heads(config: ProofHeads, tokenizer: Tokenizer, encoder: Encoder) -> None:
    """Write the weights of w_in and of these heads; all others stay as they are.

    Raises:
        ValueError: the model has no such tokens, or no room for the heads; one sentence.
    """
    ids, types = _checked(config, tokenizer, encoder)
    if ids.weight.is_meta:
        return  # Parameters are being counted, and have no numbers.
    dim, width = ids.weight.shape
    basis = _directions(width + 1, dim).to(ids.weight)
    length = float(ids.weight.square().sum(0).mean().sqrt())
    _clear_features(tokenizer, basis)
    ids.weight.copy_(length * basis[:, :width])
    types.weight[TokenKind.NODE] = length * basis[:, -1]
    types.weight[TokenKind.EDGE] = -length * basis[:, -1]
    per_edge = 1 if tokenizer.config.layout == "undirected" else 2
    reading = _Reading(basis[:, :width].chunk(per_edge, 1), basis[:, -1], length, _gains(tokenizer, encoder, length))
    for block in list(encoder.blocks)[: config.layers]:
        assert isinstance(block, Block)
        for head, name in enumerate(config.maps):
            reading.write(block.attention, head, name, config.sharpness)


@dataclass(frozen=True, eq=False)
class _Reading:
    """How a head reads a token: the directions of P_u and P_v (one for P_u + P_v) and of E, ``length`` long in w_in.

    ``gains`` is what LayerNorm multiplies a node's and an edge's token by.
    """

    ids: tuple[Float[Tensor, "dim id_dim"], ...]
    kind: Float[Tensor, " dim"]
    length: float
    gains: dict[TokenKind, float]

    def write(self, attention: MultiheadAttention, head: int, name: ProofMap, sharpness: float) -> None:
        """w^Q, b^Q, w^K and b^K of one head."""
        queries, query_bias, keys, key_bias = _head_rows(attention, head)
        of_keys = _KEYS[name]
        of_queries = TokenKind.NODE if of_keys == TokenKind.EDGE else TokenKind.EDGE
        signs = torch.ones(1, 1) if len(self.ids) == 1 else equality_sign(PATTERNS[name], 2)
        room = min(self.ids[0].shape[1], attention.heads.key - 1)
        # A match of a node of the query and a node of the key counts half of the sharpness: a pattern has two.
        each = math.sqrt(sharpness / 2 * math.sqrt(attention.heads.key))
        # A query begins with zeros where it says nothing. Keys stay random there, so that both can be learned.
        queries.zero_()
        query_bias.zero_()
        key_bias.zero_()
        queries[:room] = each / self._seen(of_queries) * self._mixed(signs[:, 0] * signs[0, 0])[:room]
        keys[:room] = each / self._seen(of_keys) * self._mixed(signs[0])[:room]
        # Types of keys differ by twice the sharpness, so that no token of the other type comes near.
        one = math.sqrt(sharpness * math.sqrt(attention.heads.key))
        query_bias[room] = one if of_keys == TokenKind.NODE else -one
        keys[room] = one / self._seen(of_keys) * self.kind

    def _seen(self, kind: TokenKind) -> float:
        """How long an identifier is in a token that a head is given."""
        return self.length * self.gains[kind]

    def _mixed(self, factors: Tensor) -> Float[Tensor, "id_dim dim"]:
        """The map to sum over a of factors[a] P_{i_a}."""
        return torch.stack([factor * one.T for factor, one in zip(factors.tolist(), self.ids, strict=True)]).sum(0)


def _head_rows(attention: MultiheadAttention, head: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of w^Q, b^Q, w^K and b^K that belong to one head: views."""
    heads, qkv = attention.heads, attention.qkv_proj
    query, key = (slice(start, start + heads.key) for start in (head * heads.key, (heads.count + head) * heads.key))
    return qkv.weight[query], qkv.bias[query], qkv.weight[key], qkv.bias[key]


def _checked(config: ProofHeads, tokenizer: Tokenizer, encoder: Encoder) -> tuple[nn.Linear, nn.Embedding]:
    """The map of identifiers and the type identifiers."""
    tokens, block = tokenizer.config, encoder.config
    ids, types = tokenizer.id_proj or tokenizer.id_pool, tokenizer.type_embedding
    if tokens.order != 2 or tokens.hyperedges or not tokenizer.names_nodes or types is None:
        raise ValueError(
            "proof_heads read the identifiers of nodes and types; set proof_heads.layers to 0 for tokens without them"
        )
    if not isinstance(ids, nn.Linear):
        raise ValueError("proof_heads read identifiers through a linear map; set tokens.pool_mlp to false")
    if config.layers > block.num_layers or len(config.maps) > block.num_heads:
        raise ValueError(
            f"proof_heads are {len(config.maps)} heads of {config.layers} blocks; expected at most {block.num_heads} "
            f"of {block.num_layers}"
        )
    dim, width = ids.weight.shape
    if dim < width + 2:
        raise ValueError(f"proof_heads need a direction for each of {width} identifier columns; dim is {dim}, too few")
    return ids, types


def _directions(count: int, dim: int) -> Float[Tensor, "dim count"]:
    """Random orthonormal columns, all orthogonal to (1, ..., 1)."""
    columns = torch.randn(dim, count + 1, dtype=torch.float64)
    columns[:, 0] = 1
    orthonormal: Tensor = torch.linalg.qr(columns).Q
    return orthonormal[:, 1:]


def _clear_features(tokenizer: Tokenizer, basis: Float[Tensor, "dim columns"]) -> None:
    """Nothing but identifiers and types begins along these directions."""
    rows: list[Tensor] = [] if tokenizer.special_tokens is None else [tokenizer.special_tokens]
    for module in (tokenizer.node_encoder, tokenizer.edge_encoder, tokenizer.graph_encoder):
        rows += [] if module.table is None else [module.table.weight]
        rows += [] if module.linear is None else [module.linear.weight.T]
    rows += [] if tokenizer.structure is None else tokenizer.structure.rows_of_weights()
    for each in rows:
        each -= each @ basis @ basis.T


def _gains(tokenizer: Tokenizer, encoder: Encoder, length: float) -> dict[TokenKind, float]:
    """What LayerNorm multiplies tokens by: sqrt(dim) over how long they are; 1 for an encoder without one."""
    if not (encoder.config.norm or encoder.config.input_norm):
        return {TokenKind.NODE: 1.0, TokenKind.EDGE: 1.0}
    # In units of `length`: a node's P_u twice in one direction or once in two, an edge's P_u and P_v; and the type.
    node, edge = (5, 3) if tokenizer.config.layout == "undirected" else (3, 3)
    squares = {
        TokenKind.NODE: node * length**2 + _square(tokenizer.node_encoder),
        TokenKind.EDGE: edge * length**2 + _square(tokenizer.edge_encoder),
    }
    return {kind: math.sqrt(len(tokenizer.blank) / square) for kind, square in squares.items()}


def _square(encoder: FeatureEncoder) -> float:
    """The mean squared length of embedded features, where all categories are as frequent and floats have variance 1."""
    rows = encoder.table.weight if encoder.table is not None else None
    if rows is None:
        return 0.0 if encoder.linear is None else float(_centred(encoder.linear.weight.T).square().sum())
    return len(encoder.spec.categories) * float(_centred(rows).square().sum(1).mean())


def _centred(rows: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
    return rows - rows.mean(1, keepdim=True)
