"""A whole measurement, tiny."""

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tokengt.attention import SoftmaxConfig
from tokengt.attention.softmax import fused_attention
from tokengt.bench import BenchConfig, BenchRow, bench
from tokengt.bench.config import model_config
from tokengt.bench.report import keep_rows, lines, results_file, to_json
from tokengt.bench.shapes import make_sample
from tokengt.bench.systems import Packed, Padded, batches, check_same, make_setup, make_systems, requests
from tokengt.bench.timing import Timing, interleaved, median_ratio
from tokengt.training.config import TrainingConfig

TINY = BenchConfig(device="cpu", batch=8, steps=1, rounds=2, warmup=1, layers=1, dim=16, heads=2)
HOUSE_KEYS = (
    *("shape", "device", "system", "phase", "layout", "dtype", "dropout", "graphs_per_s"),
    *("tokens_per_s", "peak_share", "memory_gib", "ratio_to_padded", "commit"),
)


@pytest.fixture(scope="module")
def rows() -> list[BenchRow]:
    return bench(TINY)


def test_rows_have_the_house_keys_and_finite_numbers(rows: list[BenchRow]) -> None:
    assert [(row.phase, row.system) for row in rows] == [
        *(("infer", "tokengt"), ("infer", "padded")),
        *(("train", "tokengt"), ("train", "padded")),
    ]
    for row in to_json(rows):
        assert tuple(row)[: len(HOUSE_KEYS)] == HOUSE_KEYS
        for name in ("graphs_per_s", "tokens_per_s", "peak_share", "ratio_to_padded", "seconds", "peak_tflops"):
            assert math.isfinite(row[name])
            assert row[name] > 0
        assert row["memory_gib"] is row["compile_seconds"] is row["recompilations"] is None
        assert row["seconds"] == pytest.approx(8 / row["graphs_per_s"])
    assert [row.ratio_to_padded for row in rows if row.system == "padded"] == [1.0, 1.0]
    assert [row.breakdown is None for row in rows] == [False, True, False, True]
    train = rows[2].breakdown
    assert train is not None
    assert train["optimizer"] > 0
    infer = rows[0].breakdown
    assert infer is not None
    assert infer["optimizer"] == 0


def test_a_person_reads_every_number(rows: list[BenchRow]) -> None:
    text = lines(rows)
    assert text[0] == (
        "pcqm4mv2, directed, laplacian identifiers, batch 8, 1 x 16, 2 heads, softmax (auto) attention, float32"
    )
    assert [line.split()[:2] for line in text[4:8]] == [[row.phase, row.system] for row in rows]
    assert sum("where it goes" in line for line in text) == 2


def test_one_large_graph_takes_favor_and_orthonormal_identifiers() -> None:
    config = replace(TINY, shape="physics", batch=0, scale=0.004, ids="orf", layout="undirected", phases=("train",))
    own, padded = bench(config)
    assert (own.attention, own.ids, own.batch, own.dropout) == ("favor", "near_orthonormal", 1, 0.0)
    # [graph], 138 nodes and one token per edge.
    assert own.tokens_per_s / own.graphs_per_s == pytest.approx(1 + 138 + 992)
    assert padded.graphs_per_s > 0


def test_one_large_graph_may_take_softmax_and_has_no_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask of one graph alone would hide nothing, and would keep SDPA from its fastest kernels."""
    masks: list[object] = []

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: object, dropout: float
    ) -> torch.Tensor:
        masks.append(mask)
        return fused_attention(query, key, value, None, dropout)

    monkeypatch.setattr("tokengt.bench.padded.fused_attention", attend)
    config = replace(TINY, shape="physics", batch=0, scale=0.004, attention="softmax", phases=("infer",))
    own, padded = bench(config)
    assert own.attention == padded.attention == "softmax (auto)"
    assert masks
    assert all(mask is None for mask in masks)


@pytest.mark.parametrize("when", ["compared", "warmed up", "timed"])
def test_a_reference_that_does_not_fit_is_a_row_that_says_so(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own speed is measured all the same; the padded way is often the one that does not fit."""
    calls = 0

    def full(self: Padded, steps: list[torch.Tensor]) -> None:
        nonlocal calls
        calls += 1
        if calls > (1 if when == "timed" else 0):
            raise torch.OutOfMemoryError("CUDA out of memory")
        take(self, steps)

    take = Padded.take
    monkeypatch.setattr(Padded, "infer" if when == "compared" else "take", full)
    said: list[str] = []
    own, padded = bench(replace(TINY, phases=("train",)), said.append)
    assert (padded.system, padded.failed) == ("padded", "out of memory")
    assert padded.graphs_per_s is padded.peak_share is padded.ratio_to_padded is padded.seconds is None
    assert own.graphs_per_s is not None
    assert own.ratio_to_padded is own.failed is None
    assert "train: the padded reference is left out: out of memory" in said
    table = lines([own, padded])
    assert table[5].split() == ["train", "padded", "out", "of", "memory"]
    assert "x" not in table[4]


def test_our_own_lack_of_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Packed, steps: list[torch.Tensor]) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Packed, "take", full)
    with pytest.raises(torch.OutOfMemoryError):
        bench(replace(TINY, phases=("train",)))


def test_the_steps_of_a_run_are_timed_by_its_own_recipe() -> None:
    recipe = TrainingConfig(batch_size=16, ema=0.9, clip=0.0, learning_rate=0.1)
    training = replace(TINY, recipe=recipe).training
    assert training == replace(recipe, learning_rate=1e-5)
    assert TINY.training.ema == 0.0


def test_every_step_brings_other_graphs_and_both_systems_the_same() -> None:
    setup = make_setup(TINY)
    one, two = batches(setup), batches(setup)
    steps = [next(one) for _ in range(65)]
    assert all(torch.equal(places, next(two)) for places in steps)
    # 64 steps are an epoch of 512 graphs: every graph once, and the next epoch in another order.
    assert torch.equal(torch.cat(steps[:64]).sort().values, torch.arange(512))
    assert not torch.equal(steps[64], steps[0])
    asked = requests(setup)
    first, second = next(asked), next(asked)
    assert len(first) == len(second) == 8
    assert bool((first.diff() > 0).all())
    assert not torch.equal(first, second)


def test_systems_train_the_same_first_step() -> None:
    """Without dropout: the same batch, loss, clipping and AdamW give the same weights."""
    setup = make_setup(replace(TINY, precision="float64", dropout=0.0))
    setup.model.set_attention(SoftmaxConfig())
    for block in setup.model.encoder.blocks:
        block.drops = False
    identifiers = replace(setup.model.config.identifiers, sign_flip=False, dropout=0.0)
    setup.model.config = replace(setup.model.config, identifiers=identifiers)
    systems = make_systems(setup)
    before = [parameter.detach().clone() for parameter in systems[0].model.parameters()]
    places = next(batches(setup))
    for system in systems:
        system.take([places])
    after = [list(system.model.parameters()) for system in systems]
    torch.testing.assert_close(after[1], after[0], rtol=1e-7, atol=1e-9)
    assert not any(torch.equal(old, new) for old, new in zip(before[-2:], after[0][-2:], strict=True))


def test_systems_that_differ_are_not_timed() -> None:
    setup = make_setup(TINY)
    systems = make_systems(setup)
    check_same(setup, systems)
    with torch.no_grad():
        systems[1].model.head.project.weight[0, 0] += 1
    with pytest.raises(ValueError, match=r"packed and padded outputs differ by .*; nothing is timed"):
        check_same(setup, systems)


def test_the_model_is_the_preset_with_the_changes() -> None:
    tokens = make_sample("zinc", 1).tokens
    described = model_config(replace(TINY, preset="regression", dim=64, heads=4, dropout=0.3), tokens, 0)
    assert (described.dim, described.encoder.num_layers, described.encoder.mlp_dim) == (64, 1, 64)
    assert (described.encoder.attention.dropout, described.encoder.mlp_dropout) == (0.3, 0.3)
    default = model_config(BenchConfig(device="cpu", preset="regression", ids="orf"), tokens, 0)
    assert (default.dim, default.encoder.num_layers, default.identifiers.kind) == (768, 12, "orf")
    assert model_config(BenchConfig(device="cpu"), tokens, 0).dim == 96


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": -1}, "steps is -1; expected at least 0"),
        ({"rounds": 0}, "rounds is 0; expected at least 1"),
        ({"shape": "physics", "batch": 2}, "batch is 2 with shape 'physics', which is one graph; expected 1"),
        ({"phases": ()}, "expected 'train', 'infer' or both"),
    ],
)
def test_wishes_that_cannot_be(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        BenchConfig(**{"device": "cpu", "batch": 0, **changes})  # type: ignore[arg-type]


def test_rounds_take_turns_and_ratios_compare_neighbours() -> None:
    seen: list[str] = []

    def call(name: str) -> tuple[int, int]:
        seen.append(name)
        return 2, 6

    rounds = {name: lambda name=name: call(name) for name in ("a", "b")}
    timings = interleaved(rounds, 2, torch.device("cpu"), {"a": 0, "b": 0})
    assert seen == ["a", "b", "a", "b"]
    assert timings["a"].memory_gib is None
    slow, fast = (
        Timing((4.0, 8.0, 6.0), (2, 2, 2), (6, 6, 6), None),
        Timing((1.0, 4.0, 1.0), (2, 2, 1), (6, 6, 3), None),
    )
    assert (slow.graphs_per_s, slow.tokens_per_s) == (1 / 3, 1.0)
    # Seconds per graph: 2, 4, 3 against 0.5, 2, 1.
    assert median_ratio(slow, fast) == 3.0


def test_a_new_measurement_takes_the_place_of_the_old_one(rows: list[BenchRow], tmp_path: Path) -> None:
    path = results_file(tmp_path / "new" / "folder", "pcqm4mv2", "cpu")
    keep_rows(path, rows)
    keep_rows(path, [dataclasses.replace(rows[0], graphs_per_s=1.0), dataclasses.replace(rows[0], layout="undirected")])
    kept = json.loads(path.read_text())
    assert [(row["layout"], row["phase"], row["system"]) for row in kept] == [
        ("directed", "infer", "padded"),
        ("directed", "train", "tokengt"),
        ("directed", "train", "padded"),
        ("directed", "infer", "tokengt"),
        ("undirected", "infer", "tokengt"),
    ]
    assert kept[3]["graphs_per_s"] == 1.0
    assert list(path.parent.iterdir()) == [path]
    path.write_text('{"torn": ')
    with pytest.raises(ValueError, match="holds no list of benchmark rows"):
        keep_rows(path, rows)
    assert path.read_text() == '{"torn": '


def test_memory_of_a_recording_counts(rows: list[BenchRow]) -> None:
    timing = Timing((1.0,), (1,), (1,), memory_gib=2.0)
    assert timing.at_least(2**30).memory_gib == 2.0
    assert timing.at_least(3 * 2**30).memory_gib == 3.0
    assert replace(timing, memory_gib=None).at_least(5).memory_gib is None
    assert not any(row.cuda_graphs for row in rows)


def test_recorded_steps_are_warmed_up_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = BenchConfig(device="cuda", compile=True)
    assert config.warmup_steps == 30
    assert replace(config, warmup=40).warmup_steps == 40
    for change in ({"cuda_graphs": False}, {"shape": "physics"}, {"device": "cpu"}):
        assert replace(config, **change).warmup_steps == 3
    assert config.training.cuda_graphs
    assert not replace(config, cuda_graphs=False).training.cuda_graphs
