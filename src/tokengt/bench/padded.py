"""The reference that everything is timed beside: the same weights over a batch padded to its longest graph."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tokengt.accelerate import compiled
from tokengt.attention import FavorAttention, MultiheadAttention, SoftmaxAttention
from tokengt.attention.softmax import fused_attention
from tokengt.batch import GraphBatch
from tokengt.block import Block
from tokengt.models.tokengt.identifiers import identify
from tokengt.models.tokengt.model import TokenGT
from tokengt.models.tokengt.token_batch import TokenBatch
from tokengt.tracing import eager_only


class PaddedTokenGT(nn.Module):
    """What the usual code does: every layer runs on [graphs, longest, dim] with a key padding mask and SDPA.

    One graph alone has no padding, so it has no mask either: nobody would give one, and SDPA has faster kernels then.

    FAVOR+ is written out as its equation, features kept for the backward. Same outputs as the model it shares its
    parameters with; the draws of dropout differ. With ``compile`` the blocks go through ``torch.compile``.
    """

    def __init__(self, model: TokenGT, *, compile: bool = False) -> None:
        super().__init__()
        if model.config.encoder.sparse_basis_residual:
            raise ValueError(
                "the padded reference has no sparse basis residual; set encoder.sparse_basis_residual=False"
            )
        if model.config.encoder.incidence != "never":
            raise ValueError("the padded reference has no masked layers; set encoder.incidence='never'")
        self.model = model
        # All blocks go through one function, as in the accelerated model, so that one compilation serves them all.
        self._block = compiled(padded_block, dynamic=True) if compile else padded_block

    def forward(self, batch: GraphBatch) -> Float[Tensor, "rows out"]:
        tokens = self._tokens(batch)
        segments = tokens.segments
        x = tokens.values.new_zeros(segments.count, segments.max_length, self.model.config.dim)
        x = x.index_put((segments.ids, segments.positions), tokens.values)
        alone = segments.count == 1
        mask = None if alone else torch.arange(segments.max_length, device=x.device) < segments.lengths[:, None]
        x = self._encode(x, mask)
        head = self.model.head
        if head.config.level == "graph" and head.config.readout == "token":
            out: Tensor = head.project(x[:, 0])
        else:
            values, rows = x[segments.ids, segments.positions], head.rows(tokens)
            read = head.read(tokens.with_values(values)) if rows is None else values.index_select(0, rows)
            out = head(read, batch)
        return out

    @eager_only
    def _tokens(self, batch: GraphBatch) -> TokenBatch:
        model = self.model
        ids = identify(batch, model.config.identifiers, training=self.training)
        tokens: TokenBatch = model.tokenizer(batch, None if ids is None else ids.to(next(model.parameters())))
        return tokens

    def _encode(
        self, x: Float[Tensor, "graphs longest dim"], mask: Bool[Tensor, "graphs longest"] | None
    ) -> Float[Tensor, "graphs longest dim"]:
        encoder = self.model.encoder
        x = encoder.input_dropout(encoder.input_norm(x))
        for block in encoder.blocks:
            assert isinstance(block, Block)
            x = self._block(block, x, mask)
        out: Tensor = encoder.final_norm(x)
        return out


def padded_block(
    block: Block, x: Float[Tensor, "graphs longest dim"], mask: Bool[Tensor, "graphs longest"] | None
) -> Float[Tensor, "graphs longest dim"]:
    """One block with its dropout and drop path."""
    x = x + _branch(block, _attention(block.attention, block.attention_norm(x), mask))
    return x + _branch(block, block.mlp(block.mlp_norm(x).flatten(0, 1)).view_as(x))


def _branch(block: Block, x: Tensor) -> Tensor:
    x = block.dropout(x)
    if not block.training or not block.drops:
        return x
    keep = torch.rand(len(x), device=x.device) >= block.drop_rate
    return x * (keep.to(x.dtype) / (1 - block.drop_rate))[:, None, None]


def _attention(attention: MultiheadAttention, x: Tensor, mask: Tensor | None) -> Tensor:
    heads, kernel = attention.heads, attention.kernel
    widths = [heads.count * width for width in (heads.key, heads.key, heads.value)]
    query, key, value = (
        part.unflatten(2, (heads.count, -1)).transpose(1, 2) for part in attention.qkv_proj(x).split(widths, 2)
    )
    if isinstance(kernel, FavorAttention):
        mixed = plain_favor(query, key, value, mask, kernel.projection, kernel.config.eps)
    elif not isinstance(kernel, SoftmaxAttention):
        raise ValueError(f"the padded way has softmax and FAVOR+; got attention of kind {kernel.config.kind!r}")
    else:
        dropout = kernel.config.dropout if attention.training else 0.0
        mixed = fused_attention(query, key, value, None if mask is None else mask[:, None, None, :], dropout)
    out: Tensor = attention.out_proj(mixed.transpose(1, 2).flatten(2))
    return out


def plain_favor(
    query: Float[Tensor, "graphs heads longest head_dim"],
    key: Float[Tensor, "graphs heads longest head_dim"],
    value: Float[Tensor, "graphs heads longest value_dim"],
    mask: Bool[Tensor, "graphs longest"] | None,
    projection: Float[Tensor, "features head_dim"],
    eps: float,
) -> Float[Tensor, "graphs heads longest value_dim"]:
    """phi(Q) (phi(K)^T V) / phi(Q) (phi(K)^T 1), phi(x) = exp(W x - |x|^2 / 2 - stabiliser) + eps."""
    projection, scale = projection.to(query.dtype), query.shape[-1] ** -0.25
    query, key = query * scale, key * scale
    query_exponent, key_exponent = query @ projection.T, key @ projection.T
    # The largest exponent is subtracted from every exponent against overflow: per query, and for the keys per graph.
    # The division by the normaliser cancels both constants.
    query_top = query_exponent.detach().amax(-1, keepdim=True)
    key_top = _blank(key_exponent.detach(), mask).amax((-2, -1), keepdim=True)
    phi_query = torch.exp(query_exponent - query.square().sum(-1, keepdim=True) / 2 - query_top) + eps
    exponent = key_exponent - key.square().sum(-1, keepdim=True) / 2 - key_top
    phi_key = torch.exp(_blank(exponent, mask)) + eps
    if mask is not None:
        phi_key = phi_key * mask[:, None, :, None]
    return phi_query @ (phi_key.transpose(2, 3) @ value) / (phi_query @ phi_key.sum(2)[..., None])


def _blank(exponent: Tensor, mask: Tensor | None) -> Tensor:
    """Padding has no weight: the exponential of its exponent is zero."""
    return exponent if mask is None else exponent.masked_fill(~mask[:, None, :, None], -torch.inf)
