"""How often blocks are compiled. ``test_fast_encoder.py`` runs this, since the tests' type checks do not trace."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from tokengt.accelerate import accelerate
from tokengt.accelerate.fast_encoder import FastEncoder
from tokengt.attention import SoftmaxConfig, softmax
from tokengt.block import EncoderConfig
from tokengt.kernels.heads import Heads
from tokengt.kernels.tiles import StepTiles, Tiles, Tiling, make_tiles
from tokengt.ragged import Segments
from tokengt.transformer import Encoder

DIM = 48


def make(layers: int) -> Encoder:
    torch._dynamo.reset()
    counters.clear()
    rates = {"mlp_dropout": 0.1, "residual_dropout": 0.1, "drop_path": 0.2, "attention": SoftmaxConfig(dropout=0.1)}
    return Encoder(DIM, EncoderConfig(num_layers=layers, num_heads=2, mlp_dim=8, input_norm=True, **rates))  # type: ignore[arg-type]


def graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def compiled_of(layers: int) -> int:
    """Graphs after batches of several sizes, of an encoder of so many layers."""
    encoder = make(layers)
    names = encoder.state_dict().keys()
    fast = accelerate(encoder, device="cpu", backend="aot_eager")
    for lengths in ([3, 4], [5, 2, 6], [7, 7]):
        segments = Segments.from_lengths(torch.tensor(lengths))
        fast(torch.randn(segments.total, DIM), segments).sum().backward()
    assert encoder.state_dict().keys() == names
    return graphs()


@torch.library.custom_op("tests::copy_values", mutates_args=())
def copy_values(qkv: Tensor, items: Tensor, buckets: Tensor, heads: int, width: int) -> Tensor:
    """In the place of the attention kernels: opaque to the compiler, with the same tensors in."""
    return qkv[:, -heads * width :].clone().view(-1, heads, width)


@copy_values.register_fake
def _(qkv: Tensor, items: Tensor, buckets: Tensor, heads: int, width: int) -> Tensor:
    return qkv.new_empty(qkv.shape[0], heads, width)


copy_values.register_autograd(
    lambda ctx, grad: (torch.nn.functional.pad(grad.flatten(1), (2 * DIM, 0)), None, None, None, None)
)


def copied(
    qkv: Tensor, tiles: Tiles, heads: Heads, *, dropout: float = 0.0, marks: Tensor | None = None
) -> Tensor:
    out: Tensor = copy_values(qkv, tiles.items, tiles.buckets, heads.count, heads.value)
    return out


def roomy_tiles(segments: Segments, tiling: Tiling, room: Sequence[int]) -> Tiles | None:
    """The tiles of one step with room for others; None where there is not so much."""
    many, lengths = StepTiles.decide(tiling, segments.host_lengths, 10**6), segments.host_lengths.numpy()[None]
    if (many.needed(lengths) > np.array(room)).any():
        return None
    items = torch.from_numpy(many.items(segments.host[:-1].numpy()[None], lengths, room)[0])
    return Tiles(items.to(segments.offsets.device), many.buckets(room))


def step(fast: FastEncoder, lengths: Sequence[int], room: Sequence[int] | None) -> None:
    """A step of a frame, which begins at its graphs' first rows; the tiles are given, with room for others."""
    segments = Segments.from_lengths(torch.tensor(lengths))
    tiles = make_tiles(segments, Tiling()) if room is None else roomy_tiles(segments, Tiling(), room)
    if tiles is None:
        return
    x = torch.randn(segments.total, DIM, requires_grad=True)
    with fast.given(tiles):
        fast(x, segments, None, segments.starts).sum().backward()


def main() -> None:
    assert compiled_of(2) == compiled_of(5) > 0
    # Entries are now as many as there are buckets (5), now as many as a row has numbers (48), now others.
    softmax.tiled_attention = copied
    for rooms in ((None, [16] * 5), ([1, 1, 1, 1, 1], [16, 16, 16, 0, 0], [32] * 5)):
        fast = FastEncoder(make(3), "aot_eager")
        for room in rooms:
            for lengths in ([9, 30, 60, 3], [9, 33, 58, 1], [20] * 16):
                step(fast, lengths, room)
        assert graphs() == 3, graphs()  # What comes before the first block, all blocks but the last, and the last.


main()
