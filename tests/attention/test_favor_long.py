"""FAVOR+ over long sequences: its normaliser in low precision beside float64, and hundreds of steps without a NaN."""

import pytest
import torch
from torch import Tensor

from tests.graphs import random_graph, tokens_config
from tokengt import EncoderConfig, FavorConfig, GraphBatch, HeadConfig, NearOrthonormalIds, TokenGT, TokenGTConfig
from tokengt.attention import draw_projection, favor_attention, favor_chunks
from tokengt.data.splits import Split
from tokengt.ragged import Segments
from tokengt.training.config import TrainingConfig
from tokengt.training.loop import Trainer
from tokengt.training.parts import cut
from tokengt.training.processes import DeviceConfig, make_fabric
from tokengt.training.tasks import Task

TOKENS, HEADS, DIM = 20_000, 2, 8


def rows(scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and features, in float64, of numbers that bfloat16 holds exactly."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(TOKENS, HEADS, DIM, generator=generator).bfloat16().double() for _ in range(3))
    torch.manual_seed(1)
    return scale * query, scale * key, value, draw_projection(16, DIM).bfloat16().double()


@pytest.mark.parametrize("scale", [0.5, 2.0, 8.0])
@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 1e-4), (torch.bfloat16, 0.06)], ids=["float32", "bfloat16"]
)
def test_the_normaliser_is_that_of_float64(dtype: torch.dtype, most: float, scale: float) -> None:
    """Where all values are one, attention is one: numerator and normaliser are the same sum. And outputs agree."""
    segments = Segments.uniform(1, TOKENS)
    query, key, value, projection = rows(scale)
    low = [x.to(dtype) for x in (query, key, value)]
    ones = favor_attention(low[0], low[1], torch.ones_like(low[2]), segments, projection=projection.to(dtype))
    torch.testing.assert_close(
        ones.double(), torch.ones_like(value), rtol=0, atol=0.01 if dtype == torch.bfloat16 else 1e-5
    )
    found = favor_attention(*low, segments, projection=projection.to(dtype)).double()
    wanted = favor_attention(query, key, value, segments, projection=projection)
    assert bool(torch.isfinite(found).all())
    assert float((found - wanted).norm() / wanted.norm()) < most


@pytest.mark.parametrize(
    ("precision", "epochs"),
    [
        ("bfloat16", 30),
        pytest.param("bfloat16", 300, marks=pytest.mark.slow),
        pytest.param("float32", 300, marks=pytest.mark.slow),
    ],
)
def test_training_ends_without_a_nan(precision: str, epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks, as long sequences are taken, at a large rate; the loop would stop at a loss that is no number."""
    monkeypatch.setattr(favor_chunks, "_CPU_ENTRIES", 1024)
    graphs = GraphBatch.collate([random_graph(12, 24, 1)])
    config = TokenGTConfig(
        dim=8,
        tokens=tokens_config(),
        identifiers=NearOrthonormalIds(8),
        encoder=EncoderConfig(1, 2, mlp_dim=8, attention=FavorConfig(), sparse_basis_residual=True),
        head=HeadConfig(level="node", out_dim=3),
    )
    torch.manual_seed(0)
    model, places = TokenGT(config), torch.arange(12)
    labels = (places % 3).double()[:, None]
    parts = cut(graphs, labels, "node", Split(places, places[:0], places[:0]), by_row=True, costs=model.costs(graphs))
    task = Task("multiclass", ("class",), ("a", "b", "c"))
    training = TrainingConfig(epochs=epochs, batch_size=1, learning_rate=0.02, warmup=0.0, precision=precision)
    trainer = Trainer(make_fabric(DeviceConfig("cpu"), precision), model, parts, task, training)
    losses = [record["train_loss"] for record in trainer.run().records]
    assert len(losses) == epochs
    assert all(loss == loss for loss in losses)
    assert losses[-1] < 0.8 * losses[0]
    assert all(bool(torch.isfinite(weight).all()) for weight in model.state_dict().values())
