"""Attention scores of a TokenGT's first block, for tokens that come as padded rows of features.

The paper's synthetic experiment trains attention maps, and nothing behind them: values, MLP and head have no part in
its loss. The weights are those of a production model: its tokenizer's w_in, its block's norm, its attention's queries
and keys. What comes out equals the model's own ``attention_maps``.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tokengt.block import Block
from tokengt.models.tokengt.model import TokenGT


def dropped_and_normed(
    tokens: Float[Tensor, "tokens dim"],
    weight: Float[Tensor, " dim"],
    bias: Float[Tensor, " dim"],
    rate: Float[Tensor, ""],
    dtype: torch.dtype,
) -> Float[Tensor, "tokens dim"]:
    """Input dropout, then the block's LayerNorm. The rate is a tensor so that compiled code serves every rate."""
    dropped = torch.where(torch.rand_like(tokens) < rate, 0.0, tokens / (1 - rate))
    return F.layer_norm(dropped, weight.shape, weight, bias).to(dtype)


class FirstBlockScores(nn.Module):
    """The parts of a model that its first attention scores depend on; parameters are shared with the model.

    With one of ``kinds`` the two type identifiers are made, and stay, equal. With ``factor`` w_in is the product of the
    tokenizer's matrices and one more [d, d], as in the authors' code; :meth:`fold` multiplies it into the tokenizer,
    after which the model by itself computes the same.
    """

    factor: Tensor | None

    def __init__(self, model: TokenGT, *, kinds: int, factor: bool) -> None:
        super().__init__()
        block, tokenizer = model.encoder.blocks[0], model.tokenizer
        assert isinstance(block, Block)
        assert isinstance(block.attention_norm, nn.LayerNorm)
        assert (kinds > 0) == (tokenizer.type_embedding is not None)
        assert tokenizer.special_tokens is not None
        self.num_kinds, self.dropout = kinds, model.config.encoder.input_dropout
        self.norm, self.attention = block.attention_norm, block.attention
        self.null = tokenizer.special_tokens
        self.kinds = None if tokenizer.type_embedding is None else tokenizer.type_embedding.weight
        self.ids = None if tokenizer.id_proj is None else tokenizer.id_proj.weight
        dim = model.config.dim
        self.register_parameter("factor", nn.Parameter(torch.randn(dim, dim) / dim**0.5) if factor else None)
        if self.kinds is not None and kinds == 1:
            with torch.no_grad():
                self.kinds.copy_(self.kinds[:1].expand(2, -1))

    def trained(self) -> list[nn.Parameter]:
        """What the loss depends on; the value rows of ``qkv_proj`` come along without a gradient."""
        parts = (self.ids, self.kinds, self.null, self.factor)
        single = [part for part in parts if isinstance(part, nn.Parameter)]
        return [*single, *self.norm.parameters(), *self.attention.qkv_proj.parameters()]

    def input_weight(self) -> Float[Tensor, "features dim"]:
        """w_in: a row for every entry of [P_u, P_v, e]."""
        parts = [] if self.ids is None else [self.ids.T]
        if self.kinds is not None:
            # The mean gives both rows the same gradient, so that equal rows stay equal.
            parts.append(self.kinds if self.num_kinds == 2 else self.kinds.mean(0, keepdim=True))
        weight = torch.cat([*parts, self.null])
        return weight if self.factor is None else weight @ self.factor

    @torch.no_grad()
    def fold(self) -> None:
        """Multiply the factor into the model's own weights."""
        if self.factor is None:
            return
        for part in (self.kinds, self.null):
            if part is not None:
                part.copy_(part @ self.factor)
        if self.ids is not None:
            self.ids.copy_(self.factor.T @ self.ids)
        self.register_parameter("factor", None)

    def scores(
        self,
        features: Sequence[Float[Tensor, "_ _ features"]],
        dtype: torch.dtype = torch.float32,
        norm: Callable[..., Tensor] = dropped_and_normed,
    ) -> list[Float[Tensor, "_ heads _ _"]]:
        """Q K^T / sqrt(d_H) of every group, with input dropout in training mode."""
        heads, size = self.attention.heads.count, self.attention.heads.key
        tokens = torch.cat([part.flatten(0, 1) for part in features]) @ self.input_weight()
        rate = torch.full((), self.dropout if self.training else 0.0, device=tokens.device)
        hidden = norm(tokens, self.norm.weight, self.norm.bias, rate, dtype)
        # The softmax's scale goes into the queries' weights, where it costs nothing.
        queries, keys = self._project(hidden, 0, size**-0.5), self._project(hidden, 1, 1.0)
        rows = [part.shape[0] * part.shape[1] for part in features]
        scores = []
        for part, query, key in zip(features, torch.split(queries, rows), torch.split(keys, rows), strict=True):
            query, key = (x.view(*part.shape[:2], heads, size).transpose(1, 2) for x in (query, key))
            scores.append(query @ key.mT)
        return scores

    def _project(self, hidden: Tensor, place: int, scale: float) -> Float[Tensor, "tokens width"]:
        """Queries (place 0) or keys (place 1): that third of the attention's joint projection."""
        width, joint = self.attention.heads.count * self.attention.heads.key, self.attention.qkv_proj
        weight, bias = (part[place * width : (place + 1) * width] * scale for part in (joint.weight, joint.bias))
        return F.linear(hidden, weight.to(hidden.dtype), bias.to(hidden.dtype))
