"""Where our kernels stop being the faster ones: read off rows worked out by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bench.scripts import script
from tokengt.attention import softmax_attention
from tokengt.attention.plan import LONGEST_TILED
from tokengt.kernels.heads import Heads
from tokengt.ragged import Segments

crossing = script("crossing")


def rows(ours: list[float], theirs: list[float], rival: str = "varlen", **more: Any) -> list[dict[str, Any]]:
    """Lengths of 64, 128, 256, ...: each with our milliseconds and theirs; buckets are slower than any."""
    setting = {"width": 24, "dropout": 0.0, "spread": 0.5, "pass": crossing.PASSES[1]} | more
    return [
        setting | {"usual_length": 64.0 * 2**place, "milliseconds": {"triton": one, "bucketed": 90.0, rival: other}}
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True))
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "where"),
    [
        ([1, 1, 2], [2, 2, 1], 128 * 2**0.5),  # As much faster at 128 as slower at 256: in the middle, by logarithms.
        ([1, 1, 1], [2, 2, 2], math.inf),
        ([2, 2, 2], [1, 1, 1], 0.0),
        ([1, 3, 1, 4], [2, 2, 4, 1], 256 * 2**0.5),  # One length that went wrong in between.
        ([1, 2, 4], [2, 2, 2], 128.0),
    ],
)
def test_the_crossing_lies_between_two_lengths(ours: list[float], theirs: list[float], where: float) -> None:
    assert crossing.crossing(rows(ours, theirs)) == pytest.approx(where)


def test_heads_that_flash_attention_does_not_take_are_compared_with_buckets() -> None:
    assert crossing.crossing(rows([1, 1, 2], [2, 2, 1], "bucketed", width=12)) == pytest.approx(128 * 2**0.5)


def test_the_constants_are_those_of_training_on_mixed_lengths() -> None:
    found = crossing.crossings(
        [
            *rows([1, 1, 2], [2, 2, 1]),
            *rows([1, 2, 2], [2, 1, 1], width=32),
            *rows([1, 1, 1], [2, 2, 2], "bucketed", dropout=crossing.DROPOUT),
            *rows([9, 9, 9], [1, 1, 1], spread=0.0),
            *rows([9, 9, 9], [1, 1, 1], **{"pass": crossing.PASSES[0]}),
            *rows([9, 9, 9], [1, 1, 1], width=64),
        ]
    )
    assert [row["crossing"] for row in found] == [
        pytest.approx(128 * 2**0.5),
        pytest.approx(64 * 2**0.5),
        None,
        0.0,
        0.0,
        0.0,
    ]
    # 90.5 is the lesser of the two that are rounded up to 32, and 64 its largest multiple of 32; 16 and 128 stay.
    assert crossing.constants(found, 2050.0) == {
        "LONGEST_TILED": LONGEST_TILED | {32: 64, 64: 0},
        "LONGEST_TILED_DROPPING": LONGEST_TILED | {32: crossing.LENGTHS[-1]},
    }
    table = crossing.table([row for row in found if row["width"] == 24 and row["pass"] == crossing.PASSES[1]])
    assert table.splitlines()[-1] == "| 24 | 181 | ours throughout | never ours |"


@pytest.mark.parametrize(("mean", "spread"), [(16, 0.0), (100, 0.5), (2048, 0.5)])
def test_the_tokens_are_as_many_at_every_length(mean: int, spread: float) -> None:
    lengths = crossing.lengths_of(mean, 48_000, spread)
    assert sum(lengths) == pytest.approx(48_000, rel=0.03)
    assert (min(lengths), max(lengths)) == (round(mean * (1 - spread)), round(mean * (1 + spread)))


def test_the_way_through_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every length, width, dropout, spread and pass once; the buckets stand in for our kernels."""

    def tiled(qkv: torch.Tensor, tiles: object, heads: Heads, *, dropout: float) -> torch.Tensor:
        whole = Segments.from_lengths(torch.tensor([len(qkv)]))
        return softmax_attention(*heads.split(qkv), whole, dropout=dropout, backend="bucketed")

    monkeypatch.setattr(crossing, "tiled_attention", tiled)
    found = crossing.measure((4, 8), (12,), 48, 1, torch.device("cpu"), row=50)
    assert len(found) == 2 * 2 * 2 * 2
    assert {tuple(row["milliseconds"]) for row in found} == {("triton", "bucketed")}
    assert all(took > 0 for row in found for took in row["milliseconds"].values())
    assert {row["heads"] for row in found} == {4}
    assert crossing.usual_length(Segments.from_lengths(torch.tensor([2, 4]))) == 20 / 6


def test_widths_of_an_earlier_call_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "crossing.json"
    assert crossing.kept_rows(file, [24]) == []
    file.write_text(json.dumps({"rows": [*rows([1], [2]), *rows([1], [2], width=32)]}))
    assert crossing.kept_rows(file, [24, 64]) == rows([1], [2], width=32)
