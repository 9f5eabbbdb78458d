"""One GPU: the packed attention kernels against float64, varlen and bucketed SDPA, and over their launch settings.

    python benchmarks/attention_kernel.py --pack carry/lengths.json     # where RDKit and the molecules are
    python benchmarks/attention_kernel.py --data carry/lengths.json --out attention.json [--tune]
    TRITON_INTERPRET=1 python benchmarks/attention_kernel.py --check    # the checks alone, on a CPU

A row's time is the attention of 12 layers of the paper's model (32 heads of 24, 1,024 molecules), forward and backward,
from the rows that one linear layer writes to the gradient of those rows; every layer has tensors of its own, so that
no cache holds them. ``--tune`` times each tile size alone with other numbers of warps.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch
from gpu_clock import milliseconds, replayed
from molecules import read_molecules
from torch import Tensor

from tokengt.attention import softmax_attention
from tokengt.attention.plan import SoftmaxBackend
from tokengt.kernels import packed_launch as launch
from tokengt.kernels.attend import tiled_attention
from tokengt.kernels.heads import Heads
from tokengt.kernels.packed_launch import Launch, run_backward, run_forward
from tokengt.kernels.packed_op import packed_attention_op
from tokengt.kernels.tiles import Tiles, Tiling, choose_tiling, make_tiles
from tokengt.ragged import Segments

PAPER, LAYERS, MOLECULES = Heads(32, 24, 24), 12, 1024
BYTES_PER_SECOND = 4.3e12  # Measured by a copy on an H200 from device to device, with reads and writes counted.
DEVICE = torch.device("cpu" if launch.interpreted() else "cuda")
ODD = [0, 1, 2, 17, 64, 65, 0, 128, 130, 300]


def pack(path: Path) -> None:
    sizes = {}
    for rows in ("train_first1999", "valid_1000"):
        molecules = read_molecules(rows)[1]
        sizes[rows] = {"atoms": [m.num_nodes for m in molecules], "bonds": [m.num_edges // 2 for m in molecules]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sizes) + "\n")


def token_counts(sizes: dict[str, list[int]], bond_tokens: int) -> list[int]:
    """[graph], atoms and one or two tokens per bond, of 1,024 molecules drawn from a sample."""
    chosen = torch.randint(len(sizes["atoms"]), (MOLECULES,), generator=torch.Generator().manual_seed(0))
    return [1 + sizes["atoms"][i] + bond_tokens * sizes["bonds"][i] for i in chosen.tolist()]


def segments_of(lengths: list[int]) -> Segments:
    return Segments.from_lengths(torch.tensor(lengths), DEVICE)


def split(qkv: Tensor, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = torch.split(qkv, [heads.count * width for width in (heads.key, heads.key, heads.value)], 1)
    shape = (heads.count, -1)
    return query.unflatten(1, shape), key.unflatten(1, shape), value.unflatten(1, shape)


def tiles_of(segments: Segments, heads: Heads, bytes_each: int = 2) -> Tiles:
    return make_tiles(segments, choose_tiling(heads.key, heads.value, bytes_each))


def attend(qkv: Tensor, segments: Segments, heads: Heads, dropout: float = 0.0, seed: Tensor | None = None) -> Tensor:
    tiles = tiles_of(segments, heads, qkv.element_size())
    return tiled_attention(qkv, tiles, heads, dropout=dropout, seed=seed)


@contextmanager
def poisoned() -> Iterator[None]:
    """New tensors begin as NaN, so that an element that no kernel writes is noticed."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def check() -> dict[str, float]:
    """Relative errors against float64 on fresh inputs; with dropout, whether the backward is the forward's adjoint."""
    errors, segments = {}, segments_of(ODD)
    cases = [(24, 24), (8, 8), (32, 20), (5, 65), (128, 128)]
    for (key, value), dtype in product(cases, (torch.float32, torch.float16, torch.bfloat16)):
        heads = Heads(2, key, value)
        qkv = torch.randn(segments.total, heads.width, device=DEVICE).to(dtype)
        weights = torch.randn(segments.total, 2, value, device=DEVICE).to(dtype)
        rows, exact = qkv.clone().requires_grad_(), qkv.double().cpu().requires_grad_()
        with poisoned():
            out = attend(rows, segments, heads)
            (gradient,) = torch.autograd.grad(out, rows, weights)
        expected = softmax_attention(*split(exact, heads), segments.to("cpu"), backend="bucketed")
        (wanted,) = torch.autograd.grad(expected, exact, weights.double().cpu())
        name = f"{key} x {value} {str(dtype)[6:]}"
        for part, one, other in (("output", out, expected), ("gradient", gradient, wanted)):
            one, other = one.detach().double().cpu(), other.detach()
            errors[f"{name} {part}"] = float((one - other).norm() / other.norm())
        errors[f"{name} dropout, <out, g> - <v, grad v>"] = adjoint_error(qkv, weights, segments, heads)
    return errors


def adjoint_error(qkv: Tensor, weights: Tensor, segments: Segments, heads: Heads) -> float:
    """The output is linear in the values, so that both sides are equal when both passes use one mask."""
    x, seed = qkv.clone().requires_grad_(), torch.tensor(123, device=DEVICE)
    with poisoned():
        out = attend(x, segments, heads, 0.3, seed)
        (gradient,) = torch.autograd.grad(out, x, weights)
    values, grad_values = (split(part.detach().double(), heads)[2] for part in (x, gradient))
    forward, backward = (out.detach().double() * weights.double()).sum(), (values * grad_values).sum()
    return float((forward - backward).abs() / (out.detach().double().norm() * weights.double().norm()))


def floor_ms(tokens: int, heads: Heads, bytes_each: int) -> float:
    """The floor: the least time that 12 layers can take, in which everything is moved once and nothing is computed.

    Rows are read and outputs written; then rows and output gradients are read and row gradients written.
    """
    moved = tokens * (3 * heads.width + 2 * heads.count * heads.value) * bytes_each + 2 * tokens * heads.count * 4
    return LAYERS * moved / BYTES_PER_SECOND * 1e3


def compare(lengths: list[int], sample: str, layout: str) -> list[dict[str, Any]]:
    segments, rows = segments_of(lengths), []
    tiles = tiles_of(segments, PAPER)  # They are made once per batch, as in a model, and so not timed.
    shape = f"{LAYERS} layers, 32 heads of 24, {MOLECULES} molecules of {sample}, {segments.total} tokens"
    layers = [
        torch.randn(segments.total, PAPER.width, device=DEVICE).bfloat16().requires_grad_() for _ in range(LAYERS)
    ]
    grads = [torch.randn(segments.total, 32, 24, device=DEVICE).bfloat16() for _ in range(LAYERS)]

    def system(backend: SoftmaxBackend, dropout: float) -> Callable[[], object]:
        def step() -> None:
            for qkv, grad in zip(layers, grads, strict=True):
                if backend == "triton":
                    out = tiled_attention(qkv, tiles, PAPER, dropout=dropout)
                else:
                    out = softmax_attention(*split(qkv, PAPER), segments, dropout=dropout, backend=backend)
                torch.autograd.grad(out, qkv, grad)

        return step

    systems: list[tuple[SoftmaxBackend, float]] = [
        ("triton", 0.0), ("triton", 0.1), ("varlen", 0.0), ("bucketed", 0.0), ("bucketed", 0.1),
    ]  # fmt: skip
    for backend, dropout in systems:
        variants: dict[str, Callable[[], object]] = {backend: system(backend, dropout)}
        if backend == "triton":
            variants["triton, replayed"] = replayed(variants[backend])
        for name, step in variants.items():
            time, spread = milliseconds(step)
            rows.append(
                {
                    "benchmark": "attention_kernel",
                    "shape": shape,
                    "device": torch.cuda.get_device_name(),
                    "system": name,
                    "phase": "train",
                    "layout": layout,
                    "dtype": "bf16",
                    "dropout": dropout,
                    "milliseconds": time,
                    "spread": spread,
                    "floor_ms": floor_ms(segments.total, PAPER, 2),
                }
            )
    return rows


def pass_ms(segments: Segments, tiling: Tiling, dropout: float, *, backward: bool) -> float:
    """One layer's forward or backward, replayed."""
    tiles = make_tiles(segments, tiling)
    qkv = torch.randn(segments.total, PAPER.width, device=DEVICE).bfloat16()
    seed = torch.tensor(1, device=DEVICE) if dropout else None
    out, sums = packed_attention_op(qkv, tiles.items, tiles.buckets, seed, *vars(PAPER).values(), dropout)
    grad, result = torch.randn_like(out), torch.empty_like(qkv)

    def call() -> None:
        if backward:
            run_backward(qkv, out, grad, sums, tiles.items, tiles.buckets, seed, PAPER, dropout, result)
        else:
            run_forward(qkv, tiles.items, tiles.buckets, seed, PAPER, dropout, out, sums)

    return milliseconds(replayed(call))[0]


def tune() -> list[dict[str, Any]]:
    """Each tile size alone, on 1,024 sequences that need it; then what 65 to 128 tokens should use."""
    rows = []
    tiles: dict[int, tuple[int, ...]] = {64: (2, 4, 8), 32: (1, 2, 4), 16: (1, 2), 128: (4, 8)}
    for tile, counts in tiles.items():
        generator = torch.Generator().manual_seed(tile)
        segments = segments_of(torch.randint(tile // 2 + 1, tile + 1, (MOLECULES,), generator=generator).tolist())
        for backward, dropout in product((False, True), (0.0, 0.1)):
            for count in counts:
                rows.append(tried(segments, Tiling(), Launch(count), (backward, False, tile), dropout))
        best = sorted((row for row in rows if row["tile"] == tile), key=lambda row: row["milliseconds"])
        for backward, dropout in product((False, True), (0.0, 0.1)):
            same = [row for row in best if row["backward"] == backward and row["dropout"] == dropout]
            print(f"tile {tile} backward {backward} dropout {dropout}:", same[:2], flush=True)
    segments = segments_of(torch.randint(65, 129, (MOLECULES // 4,)).tolist())
    for backward, (warps, stages, block) in product((False, True), ((4, 1, 64), (4, 2, 64), (8, 2, 64), (2, 2, 32))):
        tiling = Tiling((16, 32, 64), block)
        rows.append(tried(segments, tiling, Launch(warps, stages), (backward, True, block), 0.1))
        print("65 to 128 tokens in a loop:", rows[-1], flush=True)
    return rows


def tried(
    segments: Segments, tiling: Tiling, setting: Launch, key: tuple[bool, bool, int], dropout: float
) -> dict[str, Any]:
    """A row with infinite time where a setting does not fit the chip."""
    kept, launch.LAUNCHES[key] = launch.LAUNCHES[key], setting
    try:
        time = pass_ms(segments, tiling, dropout, backward=key[0])
    except Exception as error:  # Triton raises many kinds of errors; the printed line says which.
        time = math.inf
        print(setting, key, type(error).__name__, str(error)[:200], flush=True)
    finally:
        launch.LAUNCHES[key] = kept
    names = ("backward", "loops", "tile")
    return dict(zip(names, key, strict=True)) | vars(setting) | {"dropout": dropout, "milliseconds": time}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, help="write the molecules' sizes here and stop")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true", help="check and stop")
    parser.add_argument("--tune", action="store_true", help="try other launch settings as well")
    options = parser.parse_args()
    if options.pack:
        pack(options.pack)
        return
    if options.out is None and not options.check:
        parser.error("--out is needed")
    errors = check()
    for name, error in errors.items():
        print(f"{name:60s} {error:.1e}")
    assert all(error < (1e-5 if "float32" in name else 2e-2) for name, error in errors.items())
    if options.check:
        return
    rows = []
    for sample, sizes in json.loads(options.data.read_text()).items():
        for layout, bond_tokens in (("directed", 2), ("undirected", 1)):
            rows += compare(token_counts(sizes, bond_tokens), sample, layout)
    for row in rows:
        times = f"{row['milliseconds']:7.2f} ms +- {row['spread']:.2f} (bytes need {row['floor_ms']:.2f})"
        print(
            f"{row['shape'][-24:]:24s} {row['layout']:10s} {row['system']:18s} dropout {row['dropout']:.1f} {times}",
            flush=True,
        )
    result = {"torch": torch.__version__, "tiling": vars(choose_tiling(24, 24, 2)), "errors": errors, "rows": rows}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.tune:
        result |= {"tuning": [row for row in tune() if math.isfinite(row["milliseconds"])]}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
